//! Opens the libraries of a folder.

use std::collections::HashMap;
use std::ffi::CStr;
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use crate::device::Device;
use crate::error::Error;
use crate::ffi::{Api, INTERFACE, Init, Registry, Score};
use crate::words;

/// The ggml version of the declarations here; any patch release of it works too.
pub const VERSION: &str = "0.25";

/// ggml's base library and the device libraries that open on this machine.
pub struct Library {
    version: String,
    base: PathBuf,
    devices: Vec<Device>,
    problems: Vec<Error>,
}

/// The opened libraries, by folder.
static OPENED: Mutex<Option<HashMap<PathBuf, &'static Library>>> = Mutex::new(None);

impl Library {
    /// Opens the libraries in `dir`, which stay open until the process ends: `libggml-base`, and
    /// each `libggml-NAME` beside it; of several variants for different processors
    /// (`libggml-cpu-NAME`), the best that runs here. A device library that does not open is listed
    /// in [problems](Self::problems) and is not an error.
    ///
    /// # Errors
    /// There is no base library, or it has another version.
    pub fn open(dir: &Path) -> Result<&'static Self, Error> {
        let missing = || Error::Missing { dir: dir.to_owned() };
        let dir = dir.canonicalize().map_err(|_| missing())?;
        let mut opened = OPENED.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let opened = opened.get_or_insert_default();
        if let Some(library) = opened.get(&dir) {
            return Ok(library);
        }
        let library = Self::open_anew(&dir)?;
        opened.insert(dir, library);
        Ok(library)
    }

    fn open_anew(dir: &Path) -> Result<&'static Self, Error> {
        let files = libraries(dir);
        let missing = || Error::Missing { dir: dir.to_owned() };
        let (_, base) = files.iter().find(|(name, _)| name == "base").ok_or_else(missing)?;
        let failed = |error: libloading::Error| failed_to_open(base, &error);
        let api = Api::resolve(load(base)?).map_err(failed)?;
        // SAFETY: it takes nothing and returns a constant text.
        let version = unsafe { CStr::from_ptr((api.version)()) }.to_string_lossy().into_owned();
        if !is_known(&version) {
            let wanted = VERSION.to_owned();
            return Err(Error::Version { dir: dir.to_owned(), found: version, wanted });
        }
        let api: &'static Api = Box::leak(Box::new(api));
        words::listen(api);
        keep_kernels_apart();
        let (mut devices, mut problems) = (Vec::new(), Vec::new());
        for path in chosen(&files, &mut problems) {
            match registry(&path) {
                Ok(registry) => devices.extend(Device::of(api, registry, &path)),
                Err(problem) => problems.push(problem),
            }
        }
        Ok(Box::leak(Box::new(Self { version, base: base.clone(), devices, problems })))
    }

    /// As reported by the libraries.
    pub fn version(&self) -> &str {
        &self.version
    }

    /// The file of the base library.
    pub fn base(&self) -> &Path {
        &self.base
    }

    /// Every device that the libraries find on this machine.
    pub fn devices(&self) -> &[Device] {
        &self.devices
    }

    /// Why a device library is unusable here.
    pub fn problems(&self) -> &[Error] {
        &self.problems
    }
}

/// On Hopper and later, ggml's CUDA kernels start before the previous ones have ended. In its
/// replayed graphs that fails if heads are rotated by halves (Qwen, gpt-oss): on an H200, answers
/// after some 300 positions were wrong, and right without it. An explicit setting of the user is
/// respected.
fn keep_kernels_apart() {
    const OVERLAP: &str = "GGML_CUDA_PDL";
    if std::env::var_os(OVERLAP).is_none() {
        // SAFETY: devices read it at their first kernel, and none is open yet. Rust's own readers
        // are synchronised with this; C's, in other threads, read other variables when they start.
        unsafe { std::env::set_var(OVERLAP, "0") };
    }
}

fn is_known(version: &str) -> bool {
    version.strip_prefix(VERSION).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
}

/// The files `libggml-NAME` of a folder with their names, sorted by name.
fn libraries(dir: &Path) -> Vec<(String, PathBuf)> {
    let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
    let named = entries.filter_map(|entry| {
        let file = entry.file_name().into_string().ok()?;
        let name = file.strip_prefix("libggml-")?;
        let name = name.strip_suffix(".so").or_else(|| name.strip_suffix(".dylib"))?;
        Some((name.to_owned(), entry.path()))
    });
    let mut files: Vec<_> = named.collect();
    files.sort();
    files
}

/// One library for each kind of device: of the variants for processors, the best that runs here.
fn chosen(files: &[(String, PathBuf)], problems: &mut Vec<Error>) -> Vec<PathBuf> {
    let devices = files.iter().filter(|(name, _)| name != "base");
    let (variants, others): (Vec<_>, Vec<_>) =
        devices.partition(|(name, _)| name.starts_with("cpu-"));
    let mut paths: Vec<PathBuf> = others.into_iter().map(|(_, path)| path.clone()).collect();
    let scored = variants.into_iter().filter_map(|(_, path)| match score(path) {
        Ok(score) => (score > 0).then_some((score, path)),
        Err(problem) => {
            problems.push(problem);
            None
        }
    });
    // The first of those that are equally good.
    paths.extend(scored.rev().max_by_key(|(score, _)| *score).map(|(_, path)| path.clone()));
    paths
}

/// The score of a variant on this processor; 0: unusable.
fn score(path: &Path) -> Result<i32, Error> {
    let library = load(path)?;
    let failed = |error: libloading::Error| failed_to_open(path, &error);
    // SAFETY: `ggml_backend_score_t` of `ggml-backend-impl.h`.
    let score: Score = *unsafe { library.get(b"ggml_backend_score\0") }.map_err(failed)?;
    // SAFETY: it takes nothing and asks the processor.
    let score = unsafe { score() };
    std::mem::forget(library);
    Ok(score)
}

/// Opens a device library, which looks for devices.
fn registry(path: &Path) -> Result<*mut Registry, Error> {
    let library = load(path)?;
    let failed = |error: libloading::Error| failed_to_open(path, &error);
    // SAFETY: `ggml_backend_init_t` of `ggml-backend-impl.h`.
    let init: Init = *unsafe { library.get(b"ggml_backend_init\0") }.map_err(failed)?;
    words::take();
    // SAFETY: it takes nothing; what it returns lives as long as the library, which stays.
    let registry = unsafe { init() };
    std::mem::forget(library);
    if registry.is_null() {
        return Err(Error::Driver { path: path.to_owned(), words: words::take() });
    }
    // SAFETY: not null, so it is a `ggml_backend_reg`, whose first field this is in all versions.
    let found = unsafe { (*registry).api_version };
    if found != INTERFACE {
        return Err(Error::Interface { path: path.to_owned(), found, wanted: INTERFACE });
    }
    Ok(registry)
}

fn load(path: &Path) -> Result<libloading::Library, Error> {
    // SAFETY: opening runs the initialisers of a library that the user has put there.
    unsafe { libloading::Library::new(path) }.map_err(|error| failed_to_open(path, &error))
}

fn failed_to_open(path: &Path, error: &libloading::Error) -> Error {
    let reason = match cfg!(all(unix, target_feature = "crt-static")) {
        true => "this program is static and opens no libraries; the one of the archive that ends \
                 in -linux-gnu does"
            .to_owned(),
        false => error.to_string(),
    };
    Error::Open { path: path.to_owned(), reason }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patches_of_a_version_are_as_good() {
        for (version, known) in
            [("0.25.1", true), ("0.25", true), ("0.250.0", false), ("0.26.0", false), ("", false)]
        {
            assert_eq!(is_known(version), known, "{version}");
        }
    }

    #[test]
    fn kernels_are_kept_apart_where_nobody_says_otherwise() {
        keep_kernels_apart();
        let said = std::env::var("GGML_CUDA_PDL").unwrap();
        keep_kernels_apart();
        assert_eq!(std::env::var("GGML_CUDA_PDL").unwrap(), said);
    }

    #[test]
    fn a_folder_without_libraries_is_told() {
        let error = Library::open(Path::new("/nonexistent/gpu")).err().unwrap().to_string();
        assert!(error.contains("/nonexistent/gpu"), "{error}");
        assert!(error.contains("libggml-base"), "{error}");
    }
}

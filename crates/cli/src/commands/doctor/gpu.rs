//! `sinew doctor gpu`: whether ggml's libraries open, and which devices they find, in words.

use ggml::{Device, Kind, Library};
use serde_json::{Value, json};

use super::{Finding, Verdict};
use crate::args::{DoctorGpuArgs, GpuLibraries};
use crate::commands::query::print_json;
use crate::data_dir::DataDir;
use crate::device::folder;
use crate::error::CliError;
use crate::table;

/// Reports on the devices; an error (and so a status other than 0) if there are none.
pub fn gpu(args: &DoctorGpuArgs) -> Result<(), CliError> {
    let data_dir = DataDir::find(&args.query.data_dir)?;
    let dir = folder(&args.libraries, &data_dir);
    let library = Library::open(&dir);
    if args.query.json {
        print_json(&to_json(&library))?;
    } else {
        match &library {
            Ok(library) => print(library),
            Err(error) => say!("- {error}"),
        }
    }
    let unfit = CliError::Unfit("no device of ggml's is usable on this machine");
    let found = library.is_ok_and(|library| library.devices().iter().any(runs_models));
    if found { Ok(()) } else { Err(unfit) }
}

/// Devices among everything else: most machines have none that is prepared, which is no fault.
pub(super) fn finding(data_dir: &DataDir) -> Finding {
    let dir = folder(&GpuLibraries { gpu_libraries: None }, data_dir);
    if !dir.is_dir() {
        return Finding::new(
            "gpu",
            Verdict::Note,
            "ggml's libraries are not here; see docs/gpus.md",
        );
    }
    let hint = "sinew doctor gpu";
    match Library::open(&dir) {
        Err(error) => Finding::new("gpu", Verdict::Better, error.to_string()).hint(hint),
        Ok(library) => {
            let gpus = library.devices().iter().filter(|device| is_gpu(device));
            let names: Vec<_> = gpus.map(in_words).collect();
            match (names.is_empty(), library.problems().first()) {
                (false, _) => Finding::new("gpu", Verdict::Good, names.join(", ")),
                (true, Some(problem)) => {
                    Finding::new("gpu", Verdict::Better, problem.to_string()).hint(hint)
                }
                (true, None) => Finding::new("gpu", Verdict::Note, "none is found").hint(hint),
            }
        }
    }
}

fn in_words(device: &Device) -> String {
    let (free, total) = device.memory();
    let [free, total] = [free, total].map(|bytes| table::bytes(bytes as u64));
    format!("{} {} ({free} of {total} free)", device.name(), device.description())
}

fn runs_models(device: &Device) -> bool {
    device.kind().runs_models()
}

fn is_gpu(device: &Device) -> bool {
    matches!(device.kind(), Kind::Gpu | Kind::IntegratedGpu)
}

fn print(library: &Library) {
    say!("ggml {}", library.version());
    if !library.devices().is_empty() {
        say!("");
        let rows: Vec<_> = library.devices().iter().map(row).collect();
        table::print(["DEVICE", "KIND", "BACKEND", "FREE", "MEMORY", "NAME"], &rows);
    }
    for problem in library.problems() {
        say!("\n- {problem}");
    }
}

fn row(device: &Device) -> [String; 6] {
    let (free, total) = device.memory();
    let bytes = |bytes: usize| table::bytes(bytes as u64);
    [
        device.name().to_owned(),
        device.kind().to_string(),
        device.backend().to_owned(),
        bytes(free),
        bytes(total),
        device.description().to_owned(),
    ]
}

/// Of the libraries that compute there: by name, version and content.
fn build(library: &Library, device: &Device) -> String {
    const SHOWN: usize = 12;
    let files = [library.base().to_owned(), device.file().to_owned()];
    let tree = store::Tree::of_files(&files, &|_| {});
    // They have been opened, so that only a disk that fails keeps them from being read.
    let hash = tree.map_or_else(|error| error.to_string(), |tree| tree.digest.to_string());
    let hash: String = hash.chars().take(SHOWN).collect();
    format!("ggml {} for {} {hash}", library.version(), device.backend())
}

fn to_json(library: &Result<&Library, ggml::Error>) -> Value {
    let library = match library {
        Ok(library) => library,
        Err(error) => return json!({ "devices": [], "problems": [error.to_string()] }),
    };
    let device = |device: &Device| {
        let (free, total) = device.memory();
        json!({
            "name": device.name(),
            "kind": device.kind().to_string(),
            "backend": device.backend(),
            "description": device.description(),
            "library": build(library, device),
            "memory_bytes": total,
            "memory_free_bytes": free,
        })
    };
    json!({
        "version": library.version(),
        "devices": library.devices().iter().map(device).collect::<Vec<_>>(),
        "problems": library.problems().iter().map(ToString::to_string).collect::<Vec<_>>(),
    })
}

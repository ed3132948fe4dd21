//! Interrupted downloads: lists their partial files, and deletes them.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use serde::Serialize;

use crate::partial::{Kept, PART, PART_NOTE};

/// Folders below the models folder: organisation and repository, and some inside it.
const DEPTH_MAX: usize = 8;
const FILES_MAX: usize = 10_000;

/// An incomplete file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Unfinished {
    /// The name to pull to continue: `org/repo:QUANT` or alike, or the file's name.
    pub name: String,
    /// Its final path.
    pub path: PathBuf,
    pub done_bytes: u64,
    pub total_bytes: u64,
}

/// Every incomplete download below a folder of models, running or interrupted.
pub fn unfinished(models: &Path) -> Vec<Unfinished> {
    let mut found = Vec::new();
    look(models, models, 0, &mut found);
    found.sort_by(|a, b| a.path.cmp(&b.path));
    found
}

/// Deletes what an interrupted download of a model has left; returns the bytes freed, `None` if
/// there is nothing of it.
///
/// # Errors
/// It is being fetched, or cannot be deleted.
pub fn remove_unfinished(models: &Path, name: &str) -> io::Result<Option<u64>> {
    let mut freed = None;
    for part in unfinished(models).iter().filter(|part| part.is_called(name)) {
        let about = |error: io::Error| {
            io::Error::new(error.kind(), format!("cannot remove {}: {error}", part.path.display()))
        };
        freed = Some(freed.unwrap_or(0) + part.remove().map_err(about)?);
    }
    Ok(freed)
}

fn look(models: &Path, dir: &Path, depth: usize, found: &mut Vec<Unfinished>) {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    for entry in entries {
        if found.len() >= FILES_MAX {
            return;
        }
        let path = entry.path();
        if entry.file_type().is_ok_and(|ty| ty.is_dir()) && depth < DEPTH_MAX {
            look(models, &path, depth + 1, found);
        }
        let name = entry.file_name().to_string_lossy().into_owned();
        let Some(file) = name.strip_suffix(PART_NOTE) else { continue };
        let note = fs::read(&path).ok();
        let Some(kept) = note.and_then(|text| serde_json::from_slice::<Kept>(&text).ok()) else {
            continue;
        };
        let path = path.with_file_name(file);
        let (done_bytes, total_bytes) = (kept.have.total(), kept.size());
        found.push(Unfinished { name: name_of(models, &path), path, done_bytes, total_bytes });
    }
}

/// `org/repo:QUANT` of a file in a repository's folder, `org/repo:FILE.gguf` without a
/// quantisation, `org/repo` in other forms; and a file's own name elsewhere.
fn name_of(models: &Path, path: &Path) -> String {
    let inside = path.strip_prefix(models).unwrap_or(path);
    let folders: Vec<_> = inside.parent().into_iter().flat_map(Path::components).collect();
    let stem = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
    let stem = gguf::part_name(path).map_or(stem, |(name, _, _)| name);
    let [org, repo, within @ ..] = folders.as_slice() else { return stem };
    let text = |part: &std::path::Component<'_>| part.as_os_str().to_string_lossy().into_owned();
    let repo = format!("{}/{}", text(org), text(repo).replace("%2F", "/"));
    let within: Vec<String> = within.iter().map(text).collect();
    let file = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let within = within.into_iter().chain([file]).collect::<Vec<_>>().join("/");
    match (within.strip_prefix(store::shelves::BESIDE), store::quant_of(&stem)) {
        (Some(beside), _) => format!("{repo}:{beside}"),
        (None, Some(quant)) => format!("{repo}:{quant}"),
        (None, None) if within.ends_with(".gguf") => format!("{repo}:{within}"),
        (None, None) => repo,
    }
}

impl Unfinished {
    /// Whether a name means this one.
    pub fn is_called(&self, name: &str) -> bool {
        let repo = self.name.split(':').next().unwrap_or_default();
        let file = self.path.file_name().unwrap_or_default().to_string_lossy();
        let stem = self.path.file_stem().unwrap_or_default().to_string_lossy();
        let names = [self.name.as_str(), repo, &file, &stem];
        names.iter().any(|known| known.eq_ignore_ascii_case(name))
    }

    /// Deletes the partial file and returns the bytes freed on the disk; holes do not count.
    ///
    /// # Errors
    /// It is being fetched, or cannot be deleted.
    pub fn remove(&self) -> io::Result<u64> {
        let mut part = self.path.clone().into_os_string();
        part.push(PART);
        let mut note = self.path.clone().into_os_string();
        note.push(PART_NOTE);
        let mut freed = 0;
        if let Ok(file) = File::open(&part) {
            if matches!(file.try_lock(), Err(fs::TryLockError::WouldBlock)) {
                return Err(io::Error::other("it is being downloaded now. Stop that first"));
            }
            // It has its full length from the beginning, with holes.
            freed = bytes_on_disk(&file.metadata()?);
            fs::remove_file(&part)?;
        }
        fs::remove_file(&note)?;
        Ok(freed)
    }
}

/// A partial file has holes.
#[cfg(unix)]
fn bytes_on_disk(file: &fs::Metadata) -> u64 {
    std::os::unix::fs::MetadataExt::blocks(file) * 512
}

#[cfg(windows)]
fn bytes_on_disk(file: &fs::Metadata) -> u64 {
    file.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_an_interrupted_download_has_left_is_named_as_it_goes_on() {
        for (path, name) in [
            ("org/Some-GGUF/some-Q4_K_M.gguf", "org/Some-GGUF:Q4_K_M"),
            ("org/Some-GGUF/some.gguf", "org/Some-GGUF:some.gguf"),
            ("org/Some-GGUF/deep/some.gguf", "org/Some-GGUF:deep/some.gguf"),
            ("org/Some/model-00001-of-00002.safetensors", "org/Some"),
            ("some.gguf", "some"),
        ] {
            assert_eq!(name_of(Path::new("models"), &Path::new("models").join(path)), name);
        }
    }
}

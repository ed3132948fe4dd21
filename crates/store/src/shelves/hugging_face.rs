//! The hub's cache: `models--O--R/snapshots/COMMIT/PATH`, links into `blobs`, and `refs/main`
//! naming the commit. llama.cpp has the same order since 2026.

use std::path::Path;

use super::{Shelf, Shelved, label, models_below, of_repository};

pub(super) fn scan(dir: &Path) -> Vec<Shelved> {
    let Ok(entries) = std::fs::read_dir(dir) else { return Vec::new() };
    let mut repos: Vec<_> = entries.flatten().map(|entry| entry.path()).collect();
    repos.sort();
    repos.iter().flat_map(|repo| scan_repo(repo)).collect()
}

fn scan_repo(dir: &Path) -> Vec<Shelved> {
    let name = dir.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let Some((owner, repo)) = name.strip_prefix("models--").and_then(|name| name.split_once("--"))
    else {
        return Vec::new();
    };
    let repo = format!("{owner}/{repo}");
    let snapshots = dir.join("snapshots");
    let main = std::fs::read_to_string(dir.join("refs/main")).unwrap_or_default();
    let main = snapshots.join(main.trim());
    // A cache that was filled by commit has no `main`; then any snapshot serves.
    let root = if main.is_dir() && main != snapshots { main } else { snapshots };
    let models = models_below(&root).into_iter();
    let found = models.filter_map(|path| {
        let inside = path.strip_prefix(&root).unwrap_or(&path).to_string_lossy().into_owned();
        of_repository(path, &repo, &inside, &Shelf::HuggingFace)
    });
    label(found.collect())
}

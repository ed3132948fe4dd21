//! The hub's cache: `models--O--R/snapshots/COMMIT/PATH`, links into `blobs`, and `refs/main`,
//! which names the commit. llama.cpp has used the same layout since 2026.
//!
//! A file may exist only in an older snapshot: programs do not fetch a whole repository again for a
//! new commit.

use std::cmp::Reverse;
use std::collections::HashSet;
use std::path::{Path, PathBuf};

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
    let (mut seen, mut found) = (HashSet::new(), Vec::new());
    for snapshot in snapshots(dir) {
        for path in models_below(&snapshot) {
            let inside = path.strip_prefix(&snapshot).unwrap_or(&path).to_string_lossy();
            let inside = inside.into_owned();
            if seen.contains(&inside) {
                continue;
            }
            let model = of_repository(path, &repo, &inside, &Shelf::HuggingFace);
            if let Some(model) = model {
                seen.insert(inside);
                found.push(model);
            }
        }
    }
    found.sort_by(|a, b| a.inside.cmp(&b.inside));
    label(found)
}

/// All snapshots: that of `main` first, then the newest.
fn snapshots(dir: &Path) -> Vec<PathBuf> {
    let main = std::fs::read_to_string(dir.join("refs/main")).unwrap_or_default();
    let entries = std::fs::read_dir(dir.join("snapshots")).into_iter().flatten().flatten();
    let mut all: Vec<PathBuf> = entries.map(|entry| entry.path()).collect();
    all.sort_by_key(|path| {
        let is_main = path.file_name().is_some_and(|name| name == main.trim());
        let modified = std::fs::metadata(path).and_then(|it| it.modified()).ok();
        (!is_main, Reverse(modified), path.clone())
    });
    all
}

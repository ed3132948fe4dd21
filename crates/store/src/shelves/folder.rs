//! Folders of models: this node's, LM Studio's and the user's own. A file at least two folders deep
//! is `PUBLISHER/REPO/FILE`, as in LM Studio; others use their own names.
//!
//! In this node's folder, a repository at another revision than `main` is `REPO@REVISION`, with
//! `%2F` for a slash in the revision.

use std::path::Path;

use super::{Shelf, Shelved, label, models_below, of_repository, shelved};

pub(super) fn scan(dir: &Path, shelf: &Shelf) -> Vec<Shelved> {
    let models = models_below(dir).into_iter();
    let found = models.filter_map(|path| match in_repository(dir, &path) {
        Some((repo, inside)) => of_repository(path, &repo, &inside, shelf),
        None => {
            let name = crate::naming::name_of(&path);
            shelved(path, name, shelf)
        }
    });
    label(found.collect())
}

/// A file's repository, and its path within that.
pub(super) fn in_repository(dir: &Path, path: &Path) -> Option<(String, String)> {
    let inside = path.strip_prefix(dir).unwrap_or(path);
    let parts: Vec<String> = inside.iter().map(|part| part.to_string_lossy().into()).collect();
    match &parts[..] {
        [owner, repo, inside @ ..] if !inside.is_empty() || path.is_dir() => {
            Some((format!("{owner}/{}", repo.replace("%2F", "/")), inside.join("/")))
        }
        _ => None,
    }
}

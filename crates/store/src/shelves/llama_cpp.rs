//! llama.cpp's older cache: one folder of `USER_REPO_FILE.gguf`, with a
//! `manifest=USER=REPO=TAG.json` for each repository.

use std::path::Path;

use super::{Shelf, Shelved, label, models_below, of_repository, shelved};

pub(super) fn scan(dir: &Path) -> Vec<Shelved> {
    let repos = repos(dir);
    let flat = models_below(dir).into_iter().filter(|path| path.parent() == Some(dir));
    let found = flat.filter_map(|path| {
        let file = path.file_name()?.to_string_lossy().into_owned();
        let of = |(prefix, repo): &(String, String)| {
            Some((repo.clone(), file.strip_prefix(prefix.as_str())?.to_owned()))
        };
        match repos.iter().find_map(of) {
            Some((repo, inside)) => of_repository(path, &repo, &inside, &Shelf::LlamaCpp),
            None => {
                let name = crate::naming::name_of(&path);
                shelved(path, name, &Shelf::LlamaCpp)
            }
        }
    });
    label(found.collect())
}

/// The prefix of the files, and the name, of each repository; the longest first, since one may be a
/// prefix of another.
fn repos(dir: &Path) -> Vec<(String, String)> {
    let Ok(entries) = std::fs::read_dir(dir) else { return Vec::new() };
    let names = entries.flatten().map(|entry| entry.file_name().to_string_lossy().into_owned());
    let mut found: Vec<(String, String)> = names
        .filter_map(|name| {
            let mut parts = name.strip_prefix("manifest=")?.split('=');
            let (user, repo) = (parts.next()?, parts.next()?);
            Some((format!("{user}_{repo}_"), format!("{user}/{repo}")))
        })
        .collect();
    found.sort_by_key(|(prefix, _)| std::cmp::Reverse(prefix.len()));
    found.dedup();
    found
}

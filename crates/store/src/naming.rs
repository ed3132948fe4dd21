//! Resolves a name to a model on this machine, and names files.

use std::fs;
use std::path::{Path, PathBuf};

use crate::repository::{is_path, pick};
use crate::shelves::{Shelf, Shelved};
use crate::{StoreError, quant_rank};

/// A model and its name in clients' requests.
#[derive(Debug, Clone)]
pub(crate) struct Located {
    pub name: String,
    pub path: PathBuf,
}

/// The model of a name: its own name, its file's, or its repository's; of several quantisations the
/// default one.
pub(crate) fn named<'s>(shelved: &[&'s Shelved], asked: &str) -> Option<(&'s Shelved, Located)> {
    let is_same = |name: &str| name.eq_ignore_ascii_case(asked);
    let by_file = |model: &&&Shelved| {
        let stem = model.path.file_stem().unwrap_or_default().to_string_lossy();
        let file = model.path.file_name().unwrap_or_default().to_string_lossy();
        name_of(&model.path) == asked || stem == asked || file == asked
    };
    let own = |model: &'s Shelved| {
        (model, Located { name: name_of(&model.path), path: model.path.clone() })
    };
    let bare = asked.strip_suffix(":latest").unwrap_or(asked);
    let told =
        |model: &'s Shelved| (model, Located { name: clean(bare), path: model.path.clone() });
    if let Some(found) = shelved.iter().find(|model| is_same(&model.name)).copied() {
        let is_file = name_of(&found.path) == found.name;
        return Some(if is_file { own(found) } else { told(found) });
    }
    if let Some(found) = shelved.iter().find(by_file).copied() {
        return Some(own(found));
    }
    if let Some((repo, tag)) = bare.split_once(':') {
        return in_repository(shelved, repo, tag).map(told);
    }
    let of_repo = shelved.iter().filter_map(|model| {
        let (repo, tag) = model.name.split_once(':')?;
        // A repository's name does not mean a companion of its model.
        if !repo.eq_ignore_ascii_case(bare) || is_path(tag) {
            return None;
        }
        let rank = if tag == "latest" { Some(0) } else { quant_rank(tag) };
        // Ollama's tags are sizes; a default applies only to known quantisations.
        (rank.is_some() || model.shelf != Shelf::Ollama)
            .then_some((rank.unwrap_or(usize::MAX), *model))
    });
    of_repo.min_by_key(|(rank, _)| *rank).map(|(_, model)| told(model))
}

/// The model of a repository for a path or a label, on the first shelf that has it.
fn in_repository<'s>(shelved: &[&'s Shelved], repo: &str, tag: &str) -> Option<&'s Shelved> {
    let mut shelves: Vec<&Shelf> = Vec::new();
    for model in shelved {
        if !shelves.contains(&&model.shelf) {
            shelves.push(&model.shelf);
        }
    }
    shelves.into_iter().find_map(|shelf| {
        let of_shelf = shelved.iter().filter(|model| model.shelf == *shelf);
        let models: Vec<(&Shelved, &str, &str)> = of_shelf
            .filter_map(|model| {
                let (of, label) = model.name.split_once(':')?;
                let inside = model.inside.as_deref()?;
                of.eq_ignore_ascii_case(repo).then_some((*model, label, inside))
            })
            .collect();
        let pairs: Vec<(&str, &str)> = models.iter().map(|(_, a, b)| (*a, *b)).collect();
        pick(&pairs, tag).map(|at| models[at].0)
    })
}

pub(crate) fn not_a_file(path: &Path, metadata: &fs::Metadata) -> StoreError {
    let what = if metadata.is_dir() { "a folder" } else { "a device or a pipe" };
    let entries = fs::read_dir(path).into_iter().flatten().flatten();
    let names: Vec<String> =
        entries.filter_map(|entry| entry.file_name().into_string().ok()).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    if let Some(what) = checkpoint::something_else(&names) {
        return StoreError::SomethingElse { path: path.to_path_buf(), what };
    }
    let mut inside: Vec<String> = fs::read_dir(path)
        .map(|entries| entries.flatten().map(|entry| entry.path()).filter(|path| is_gguf(path)))
        .map(|paths| paths.map(|path| clean(&path.to_string_lossy())).collect())
        .unwrap_or_default();
    inside.sort();
    let holds = inside.first().map_or(String::new(), |first| format!(", such as {first}"));
    StoreError::NotAFile { path: path.to_path_buf(), what, holds }
}

/// The name of a model in requests: its file's name without extension and part number.
pub(crate) fn name_of(path: &Path) -> String {
    // A folder's name has no extension, though it may have a dot.
    let own = if path.is_dir() { path.file_name() } else { path.file_stem() };
    let stem = || own.unwrap_or_default().to_string_lossy().into_owned();
    clean(&gguf::part_name(path).map_or_else(stem, |(name, _, _)| name))
}

/// A name without control characters.
pub(crate) fn clean(name: &str) -> String {
    name.chars().map(|c| if c.is_control() { '\u{fffd}' } else { c }).collect()
}

/// Whether a file is a model, or the first part of one.
fn is_gguf(path: &Path) -> bool {
    let first = gguf::part_name(path).is_none_or(|(_, number, _)| number == 1);
    first && path.extension().is_some_and(|extension| extension.eq_ignore_ascii_case("gguf"))
}

/// A path with its folder's links resolved.
pub(crate) fn real(path: &Path) -> PathBuf {
    let folder = path.parent().and_then(|folder| dunce::canonicalize(folder).ok());
    folder.map_or_else(|| path.to_path_buf(), |it| it.join(path.file_name().unwrap_or_default()))
}

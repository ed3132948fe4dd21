//! Models of other programs on this machine's disk. They are used in place: read, never moved,
//! changed or copied.
//!
//! Each program has its own layout; [`Shelf`] names it. A file counts if it starts as GGUF,
//! whatever its name, because programs leave incomplete files behind.

mod folder;
mod hugging_face;
mod incomplete;
mod llama_cpp;
mod ollama;
mod places;

use std::collections::{BTreeMap, HashSet};
use std::fmt;
use std::io::Read;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

pub use incomplete::Incomplete;
pub(crate) use incomplete::incomplete;
pub use ollama::unused_layers;
pub use places::{HOME, Places};

use crate::repository::{InRepository, is_marked_beside, labels};
use crate::{Identity, identity};

/// The most files to visit on one shelf: a wrong folder (a whole disk) must end.
const FILES_MAX: usize = 10_000;
/// Folders below a shelf: publisher, repository, snapshot, and some of the repository's own.
const DEPTH_MAX: usize = 8;

/// A subfolder of a repository in this node's own folder: files in it are companions of the
/// repository's model.
pub const BESIDE: &str = "beside/";

/// The layout that a model lies in.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Shelf {
    /// This node's models folder.
    Own,
    /// A folder named by the user.
    Folder,
    HuggingFace,
    LlamaCpp,
    LmStudio,
    Ollama,
}

/// A model on a shelf.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Shelved {
    /// `org/repo:QUANT` if the shelf shows it, Ollama's name, or the file's name without its
    /// extension.
    pub name: String,
    /// Its first part, under a name that leads to the other parts.
    pub path: PathBuf,
    /// Bytes of all parts.
    pub bytes: u64,
    pub shelf: Shelf,
    /// Its path within its repository, if the shelf shows one.
    #[serde(skip)]
    pub inside: Option<String>,
    /// Whether its program applies an adapter to it.
    #[serde(skip)]
    pub has_adapter: bool,
}

impl fmt::Display for Shelf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Own => "sinew",
            Self::Folder => "folder",
            Self::HuggingFace => "Hugging Face",
            Self::LlamaCpp => "llama.cpp",
            Self::LmStudio => "LM Studio",
            Self::Ollama => "Ollama",
        })
    }
}

/// All models on the shelves, the node's own first.
pub(crate) fn scan(own: &Path, places: &Places) -> Vec<Shelved> {
    let mut found = folder::scan(own, &Shelf::Own);
    for dir in &places.folders {
        found.extend(folder::scan(dir, &Shelf::Folder));
    }
    for dir in &places.hugging_face {
        found.extend(hugging_face::scan(dir));
    }
    for dir in &places.llama_cpp {
        found.extend(llama_cpp::scan(dir));
    }
    for dir in &places.lm_studio {
        found.extend(folder::scan(dir, &Shelf::LmStudio));
    }
    for dir in &places.ollama {
        found.extend(ollama::scan(dir));
    }
    found
}

/// A file as a model on a shelf, if it is a first part and all parts exist.
fn shelved(path: PathBuf, name: String, shelf: &Shelf) -> Option<Shelved> {
    let mut bytes = 0;
    for part in checkpoint::paths(&path) {
        let metadata = std::fs::metadata(part).ok().filter(std::fs::Metadata::is_file)?;
        bytes += metadata.len();
    }
    (path.is_dir() || begins_as_gguf(&path)).then(|| Shelved {
        name: crate::naming::clean(&name),
        path,
        bytes,
        shelf: shelf.clone(),
        inside: None,
        has_adapter: false,
    })
}

/// A file of a repository as a model on a shelf; [`label`] completes its name.
fn of_repository(path: PathBuf, repo: &str, inside: &str, shelf: &Shelf) -> Option<Shelved> {
    let inside = Some(crate::naming::clean(inside));
    shelved(path, repo.to_owned(), shelf).map(|model| Shelved { inside, ..model })
}

/// Appends each model's label to the name of its repository.
fn label(mut found: Vec<Shelved>) -> Vec<Shelved> {
    let mut repos: BTreeMap<String, Vec<usize>> = BTreeMap::new();
    for (at, model) in found.iter_mut().enumerate() {
        match model.inside.as_deref() {
            None => continue,
            // The repository itself.
            Some("") => {
                model.name = format!("{}:{}", model.name, checkpoint::LABEL);
                continue;
            }
            Some(_) => {}
        }
        repos.entry(model.name.clone()).or_default().push(at);
    }
    for (repo, all) in repos {
        let file = |at: &usize| {
            let Shelved { inside, bytes, shelf, .. } = &found[*at];
            let path = inside.clone().unwrap_or_default();
            // In this node's folder the location records what the hub reported; see `Shelf::Own`.
            let is_beside = match shelf {
                Shelf::Own => path.starts_with(BESIDE),
                _ => is_marked_beside(&repo, &path),
            };
            let path = path.strip_prefix(BESIDE).unwrap_or(&path).to_owned();
            InRepository { path, bytes: *bytes, is_beside }
        };
        let files: Vec<InRepository> = all.iter().map(file).collect();
        for ((at, label), file) in all.into_iter().zip(labels(&files)).zip(files) {
            found[at].name = format!("{repo}:{label}");
            found[at].inside = Some(file.path);
        }
    }
    found
}

fn begins_as_gguf(path: &Path) -> bool {
    let mut magic = [0; 4];
    let read = std::fs::File::open(path).and_then(|mut file| file.read_exact(&mut magic));
    read.is_ok() && magic == *b"GGUF"
}

/// The `.gguf` files below a folder that are models or first parts, in order, and the folders in
/// Hugging Face's form. Links are followed, each folder is visited once, and hidden and partial
/// files are skipped.
fn models_below(dir: &Path) -> Vec<PathBuf> {
    let is_wanted = |path: &Path, lower: &str| is_model_name(path, lower) || lower == "config.json";
    let model = |path: PathBuf| match path.extension() {
        Some(extension) if extension == "json" => {
            path.parent().filter(|folder| checkpoint::is_folder(folder)).map(Path::to_path_buf)
        }
        _ => Some(path),
    };
    files_below(dir, &is_wanted).into_iter().filter_map(model).collect()
}

fn files_below(dir: &Path, is_wanted: &dyn Fn(&Path, &str) -> bool) -> Vec<PathBuf> {
    let (mut found, mut seen) = (Vec::new(), HashSet::new());
    descend(dir, is_wanted, 0, &mut seen, &mut found);
    found.sort();
    found
}

fn descend(
    dir: &Path,
    is_wanted: &dyn Fn(&Path, &str) -> bool,
    depth: usize,
    seen: &mut HashSet<Identity>,
    found: &mut Vec<PathBuf>,
) {
    // Links may form a cycle.
    if !identity(dir).is_ok_and(|identity| seen.insert(identity)) {
        return;
    }
    let Ok(entries) = std::fs::read_dir(dir) else { return };
    let mut paths: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
    // Real folders before links, so that a folder is found by its own name.
    paths.sort_by_key(|path| (path.is_symlink(), path.clone()));
    for path in paths {
        if found.len() >= FILES_MAX {
            return;
        }
        let name = path.file_name().unwrap_or_default().to_string_lossy().to_ascii_lowercase();
        if name.starts_with('.') {
            continue;
        }
        // A link counts as its target.
        let Ok(metadata) = std::fs::metadata(&path) else { continue };
        if metadata.is_dir() && depth < DEPTH_MAX {
            descend(&path, is_wanted, depth + 1, seen, found);
        } else if metadata.is_file() && is_wanted(&path, &name) {
            found.push(path);
        }
    }
}

fn is_model_name(path: &Path, lower: &str) -> bool {
    let is_first = gguf::part_name(path).is_none_or(|(_, number, _)| number == 1);
    is_first && lower.ends_with(".gguf") && !lower.contains("mmproj") && !lower.contains("imatrix")
}

//! Models in Hugging Face's form: a folder with `config.json`, files of weights (`safetensors`) and
//! a tokenizer. Such a folder appears as one GGUF file that no disk holds.
//!
//! The header of that file is made of the folder's JSON. Its tensors are recipes: a read computes
//! the bytes asked for from the files of weights, and nothing is written or kept twice. The same
//! folder gives the same bytes on every machine. So whatever reads GGUF files, hashes them or sends
//! slices of them reads folders too: [`open`] and [`files`] take the path of either.
//!
//! This crate knows names and layouts of tensors, not what they compute.

mod config;
mod dtype;
mod element;
mod error;
mod families;
mod file;
mod folder;
mod formats;
mod header;
mod json;
mod links;
mod math;
mod model;
mod other;
mod place;
mod recipe;
mod rope;
mod shard;
mod tensors;
mod tokenizer;
mod tower;
mod view;
mod weight;

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use gguf::{Bytes, Directory, File, Source};

pub use error::Error;
pub use folder::{SMALL_FILES, weights_among};
pub use model::check;
pub use other::something_else;
pub use tower::{choose_tower, is_tower, unused_tower, why_no_tower};

use file::VirtualFile;
use tower::tower_of;

/// The label of a folder among a repository's variants.
pub const LABEL: &str = "safetensors";

/// Whether a path is a folder in Hugging Face's form.
pub fn is_folder(path: &Path) -> bool {
    path.join("config.json").is_file() && folder::has_weights(path)
}

/// Opens a model: a GGUF file, the first of several, or a folder.
///
/// # Errors
/// Those of [`File::open`]; the folder cannot be read as a model.
pub fn open(path: &Path) -> Result<File, gguf::Error> {
    let tower = tower_of(path);
    // Of another folder the error says what it lacks.
    match is_folder(path) || path.is_dir() {
        true => {
            let tower = tower.map(|tower| gguf::on_disk(&tower)).transpose();
            let tower = tower.map_err(|source| gguf::Error::Io { path: path.into(), source })?;
            let parts: Vec<_> = [virtual_file(path)?].into_iter().chain(tower).collect();
            File::over(path, &parts)
        }
        false => File::open_with(path, tower.as_deref()),
    }
}

/// The directory of a model, whose tensors need not be there.
///
/// # Errors
/// As [`open`].
pub fn read_header(path: &Path) -> Result<Directory, gguf::Error> {
    match is_folder(path) {
        true => Ok(open(path)?.directory().as_ref().clone()),
        false if tower_of(path).is_some() => Ok(open(path)?.directory().as_ref().clone()),
        false => gguf::read_header(path),
    }
}

/// The header of a folder as a GGUF file, without a tower.
fn virtual_header(path: &Path) -> Option<Directory> {
    let file = File::over(path, &[virtual_file(path).ok()?]).ok()?;
    Some(file.directory().as_ref().clone())
}

/// The bytes of a model's GGUF files, in order; a folder is one. The last may be a vision tower's.
///
/// # Errors
/// They cannot be opened; the folder cannot be read as a model.
pub fn files(path: &Path) -> io::Result<Vec<Arc<dyn Bytes>>> {
    let tower = tower_of(path);
    let tower = tower.iter().map(|tower| gguf::on_disk(tower));
    match is_folder(path) {
        true => {
            let model = virtual_file(path).map_err(io::Error::other)?;
            std::iter::once(Ok(model as Arc<dyn Bytes>)).chain(tower).collect()
        }
        false => {
            let parts = gguf::parts_of(path);
            parts.iter().map(|part| gguf::on_disk(part)).chain(tower).collect()
        }
    }
}

/// The paths whose content is the model. Files of weights come first, the file of a vision tower
/// comes last. Of a folder, only files that exist are listed.
pub fn paths(path: &Path) -> Vec<PathBuf> {
    let tower = tower_of(path);
    if !is_folder(path) {
        return gguf::parts_of(path).into_iter().chain(tower).collect();
    }
    let others = SMALL_FILES.iter().map(|name| path.join(name)).filter(|it| it.is_file());
    let weights = folder::shard_paths(path).unwrap_or_default().into_iter();
    weights.chain(others).chain(tower).collect()
}

/// The architectures of GGUF, by `general.architecture`, that folders become.
pub fn architectures() -> Vec<&'static str> {
    families::architectures().into_iter().collect()
}

/// The architectures of GGUF, and the classes of folders that become them: `(arch, class)`.
pub fn classes() -> Vec<(&'static str, &'static str)> {
    families::classes().collect()
}

fn virtual_file(path: &Path) -> Result<Arc<dyn Bytes>, gguf::Error> {
    let why = |error: Error| gguf::Error::Folder { path: path.into(), why: error.to_string() };
    Ok(Arc::new(VirtualFile::open(path).map_err(why)?))
}

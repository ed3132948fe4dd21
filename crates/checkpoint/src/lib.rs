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
mod math;
mod model;
mod place;
mod recipe;
mod rope;
mod shard;
mod tensors;
mod tokenizer;
mod view;
mod weight;

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use gguf::{Bytes, Directory, File, Source};

pub use error::Error;
pub use folder::{SMALL_FILES, weights_among};
pub use model::check;

use file::VirtualFile;

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
    match is_folder(path) {
        true => File::over(path, &[virtual_file(path)?]),
        false => File::open(path),
    }
}

/// The directory of a model, whose tensors need not be there.
///
/// # Errors
/// As [`open`].
pub fn read_header(path: &Path) -> Result<Directory, gguf::Error> {
    match is_folder(path) {
        true => Ok(open(path)?.directory().as_ref().clone()),
        false => gguf::read_header(path),
    }
}

/// The bytes of a model's GGUF files, in order; a folder is one.
///
/// # Errors
/// They cannot be opened; the folder cannot be read as a model.
pub fn files(path: &Path) -> io::Result<Vec<Arc<dyn Bytes>>> {
    match is_folder(path) {
        true => Ok(vec![virtual_file(path).map_err(io::Error::other)?]),
        false => gguf::parts_of(path).iter().map(|part| gguf::on_disk(part)).collect(),
    }
}

/// The paths whose content is the model: the files of weights first. Of a folder they are those
/// that exist.
pub fn paths(path: &Path) -> Vec<PathBuf> {
    if !is_folder(path) {
        return gguf::parts_of(path);
    }
    let others = SMALL_FILES.iter().map(|name| path.join(name)).filter(|it| it.is_file());
    folder::shard_paths(path).unwrap_or_default().into_iter().chain(others).collect()
}

/// The architectures of GGUF, by `general.architecture`, that folders become.
pub fn architectures() -> Vec<&'static str> {
    families::architectures().into_iter().collect()
}

fn virtual_file(path: &Path) -> Result<Arc<dyn Bytes>, gguf::Error> {
    let why = |error: Error| gguf::Error::Folder { path: path.into(), why: error.to_string() };
    Ok(Arc::new(VirtualFile::open(path).map_err(why)?))
}

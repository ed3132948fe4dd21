use std::io;
use std::path::PathBuf;

use crate::shelves::{Incomplete, Shelf};

/// Why a model could not be found or read.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    #[error("cannot use {path}: {source}", path = .path.display())]
    Io { path: PathBuf, source: io::Error },
    #[error(
        "{path} is {what}, not a model. Give the path of a folder with config.json and \
         .safetensors files, or of a .gguf file{holds}",
        path = .path.display()
    )]
    NotAFile { path: PathBuf, what: &'static str, holds: String },
    #[error("{path} is {what}", path = .path.display())]
    SomethingElse { path: PathBuf, what: &'static str },
    #[error(
        "there is no model \"{name}\" on this machine. The models here: {known}. Fetch one by its name (sinew pull llama3.2), give the path of a .gguf file, or put one into {models}",
        models = .models.display()
    )]
    Unknown { name: String, models: PathBuf, known: String },
    #[error(
        "{name} is not whole: {set}. Fetch what is missing by its name on the hub (sinew pull \
         ORG/REPO:QUANT), or copy it there"
    )]
    Incomplete { name: String, set: Box<Incomplete> },
    #[error(
        "{name} belongs to {shelf}, and is only read here: {path}. Remove it there",
        path = .path.display()
    )]
    NotOurs { name: String, shelf: Shelf, path: PathBuf },
    #[error(
        "{tower} cannot be the vision tower of {model}: {why}",
        tower = .tower.display(), model = .model.display()
    )]
    Tower { tower: PathBuf, model: PathBuf, why: String },
}

impl StoreError {
    /// Whether the model does not exist here, so that the caller may look elsewhere.
    pub fn is_missing(&self) -> bool {
        matches!(self, Self::Unknown { .. } | Self::Incomplete { .. })
    }
}

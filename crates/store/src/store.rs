use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use serde::Serialize;

use crate::Digest;
use crate::index::{Index, Stamp};

/// The models folder of one node, plus every file that was named by its path.
#[derive(Debug)]
pub struct Store {
    models: PathBuf,
    index: Mutex<Index>,
    /// Held while a file is hashed, which takes as long as reading it; the index is free meanwhile.
    hashing: Mutex<()>,
}

/// A model file on this machine.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ModelFile {
    /// The file's name without its extension (and without the number of a part): how clients ask
    /// for it.
    pub name: String,
    pub path: PathBuf,
    pub digest: Digest,
    pub bytes: u64,
}

/// Why a model was not found or read.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    #[error("cannot use {path}: {source}", path = .path.display())]
    Io { path: PathBuf, source: io::Error },
    #[error(
        "there is no model \"{name}\": no file at that path, and {models} holds {known}. Give the path of a .gguf file, or put one there",
        models = .models.display()
    )]
    Unknown { name: String, models: PathBuf, known: String },
}

impl Store {
    /// Opens the store of a node's data directory, making its models folder if it is missing.
    ///
    /// # Errors
    /// The folder cannot be made.
    pub fn open(data_dir: &Path) -> Result<Self, StoreError> {
        let models = data_dir.join("models");
        fs::create_dir_all(&models)
            .map_err(|source| StoreError::Io { path: models.clone(), source })?;
        let index = Mutex::new(Index::load(data_dir.join("models.json")));
        Ok(Self { models, index, hashing: Mutex::new(()) })
    }

    /// Where files are found by name.
    pub fn models_dir(&self) -> &Path {
        &self.models
    }

    /// Finds a model by path or by name and hashes it if that was not done before: the first time
    /// it takes as long as reading the file.
    ///
    /// # Errors
    /// There is no such model, or the file cannot be read.
    pub fn resolve(&self, name_or_path: &str) -> Result<ModelFile, StoreError> {
        let path = self.locate(name_or_path)?;
        let io = |source| StoreError::Io { path: path.clone(), source };
        let path = fs::canonicalize(&path).map_err(io)?;
        let stamp = Stamp::of(&path).map_err(io)?;
        let digest = self.digest(&path, stamp).map_err(io)?;
        let name = name_of(&path);
        Ok(ModelFile { name, path, digest, bytes: stamp.bytes })
    }

    /// A file of this machine with that content, if there is one. Only files of exactly `bytes`
    /// bytes are ever hashed for it.
    pub fn find(&self, digest: &Digest, bytes: u64) -> Option<PathBuf> {
        let mut candidates = self.index().paths_of_len(bytes);
        candidates.extend(self.files());
        candidates.into_iter().find(|path| match Stamp::of(path) {
            Ok(stamp) if stamp.bytes == bytes => {
                self.digest(path, stamp).is_ok_and(|found| found == *digest)
            }
            _ => false,
        })
    }

    /// The files of the models folder, sorted by name.
    pub fn files(&self) -> Vec<PathBuf> {
        let Ok(entries) = fs::read_dir(&self.models) else { return Vec::new() };
        let paths = entries.flatten().map(|entry| entry.path());
        let mut files: Vec<_> = paths.filter(|path| is_gguf(path)).collect();
        files.sort();
        files
    }

    fn locate(&self, name_or_path: &str) -> Result<PathBuf, StoreError> {
        let path = Path::new(name_or_path);
        if path.is_file() {
            return Ok(path.to_path_buf());
        }
        let files = self.files();
        let named = files.iter().find(|file| {
            name_of(file) == name_or_path
                || file.file_stem().is_some_and(|stem| stem == name_or_path)
                || file.file_name().is_some_and(|whole| whole == name_or_path)
        });
        named.cloned().ok_or_else(|| {
            let known: Vec<String> = files.iter().map(|file| name_of(file)).collect();
            let known = if known.is_empty() { "no models".to_owned() } else { known.join(", ") };
            StoreError::Unknown {
                name: name_or_path.to_owned(),
                models: self.models.clone(),
                known,
            }
        })
    }

    /// The digest of a file, which is hashed if it is not known or has changed.
    fn digest(&self, path: &Path, stamp: Stamp) -> io::Result<Digest> {
        if let Some(known) = self.index().digest(path, stamp) {
            return Ok(known);
        }
        let _hashing = self.hashing.lock().unwrap_or_else(PoisonError::into_inner);
        // Somebody else may have hashed it meanwhile.
        if let Some(known) = self.index().digest(path, stamp) {
            return Ok(known);
        }
        let digest = Digest::of_file(path)?;
        if Stamp::of(path)? != stamp {
            return Err(io::Error::other("it was changed while it was read. Try again"));
        }
        self.index().note(path, stamp, digest);
        Ok(digest)
    }

    fn index(&self) -> std::sync::MutexGuard<'_, Index> {
        // The index is consistent after every statement, so a panic elsewhere does not spoil it.
        self.index.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// How clients ask for a model: its file's name without extension and number of its part.
fn name_of(path: &Path) -> String {
    let stem = || path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
    gguf::part_name(path).map_or_else(stem, |(name, _, _)| name)
}

/// Whether a file is a model, or the first part of one.
fn is_gguf(path: &Path) -> bool {
    let first = gguf::part_name(path).is_none_or(|(_, number, _)| number == 1);
    first && path.extension().is_some_and(|extension| extension.eq_ignore_ascii_case("gguf"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_model_is_found_by_name_path_and_content() {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::open(dir.path()).unwrap();
        let inside = store.models_dir().join("small.gguf");
        fs::write(&inside, b"content").unwrap();
        let outside = dir.path().join("elsewhere.gguf");
        fs::write(&outside, b"another").unwrap();

        let small = store.resolve("small").unwrap();
        assert_eq!((small.name.as_str(), small.bytes), ("small", 7));
        assert_eq!(store.resolve("small.gguf").unwrap(), small);
        assert_eq!(store.resolve(inside.to_str().unwrap()).unwrap(), small);

        let other = store.resolve(outside.to_str().unwrap()).unwrap();
        assert_ne!(other.digest, small.digest);
        assert!(store.find(&small.digest, 7).is_some());
        assert_eq!(store.find(&other.digest, 7), Some(fs::canonicalize(&outside).unwrap()));
        assert_eq!(store.find(&small.digest, 8), None);
    }

    #[test]
    fn what_is_known_is_found_while_another_file_is_hashed() {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::open(dir.path()).unwrap();
        fs::write(store.models_dir().join("m.gguf"), b"content").unwrap();
        let known = store.resolve("m").unwrap();
        let _hashing = store.hashing.lock().unwrap();
        assert_eq!(store.resolve("m").unwrap(), known);
        assert_eq!(store.find(&known.digest, 7), Some(known.path));
    }

    #[test]
    fn an_index_that_cannot_be_kept_costs_only_hashing() {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::open(dir.path()).unwrap();
        fs::create_dir(dir.path().join("models.json.new")).unwrap();
        fs::write(store.models_dir().join("m.gguf"), b"content").unwrap();
        let digest = store.resolve("m").unwrap().digest;
        assert!(!dir.path().join("models.json").exists());
        assert_eq!(Store::open(dir.path()).unwrap().resolve("m").unwrap().digest, digest);
    }

    #[test]
    fn a_changed_file_is_hashed_again_even_by_a_new_store() {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::open(dir.path()).unwrap();
        let path = store.models_dir().join("m.gguf");
        fs::write(&path, b"one").unwrap();
        let one = store.resolve("m").unwrap().digest;
        fs::write(&path, b"three").unwrap();
        let again = Store::open(dir.path()).unwrap();
        let three = again.resolve("m").unwrap().digest;
        assert_ne!(one, three);
        assert_eq!(again.find(&one, 3), None);
        assert_eq!(three.to_string().parse::<Digest>().unwrap(), three);
    }

    #[test]
    fn a_model_in_several_files_is_one_model() {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::open(dir.path()).unwrap();
        let part = |number| store.models_dir().join(format!("big-0000{number}-of-00002.gguf"));
        fs::write(part(1), b"one").unwrap();
        assert!(store.resolve("big").is_err(), "its second part is missing");
        fs::write(part(2), b"two").unwrap();
        let big = store.resolve("big").unwrap();
        assert_eq!((big.name.as_str(), big.bytes, store.files().len()), ("big", 6, 1));
        fs::write(part(2), b"other").unwrap();
        assert_ne!(store.resolve("big").unwrap().digest, big.digest);
    }

    #[test]
    fn an_unknown_name_says_what_there_is() {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::open(dir.path()).unwrap();
        fs::write(store.models_dir().join("known.gguf"), b"x").unwrap();
        let error = store.resolve("../../etc/hostname2").unwrap_err().to_string();
        assert!(error.contains("known"), "{error}");
    }
}

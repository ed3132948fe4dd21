//! Looks up models of this machine by the names that people type: first the name itself, then the
//! repository behind it.

use std::path::PathBuf;

use hub::Name;
use store::{Digest, Listed, ModelFile, Store, StoreError};

use crate::{Error, Result};

/// Origin of a request: the user of this machine may give a path, other members only names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Asked {
    Here,
    ByMember,
}

/// Finds a model by name or path: first the name itself, then the repository behind it.
///
/// # Errors
/// The model is not on this machine.
pub(crate) fn find(
    store: &Store,
    name: &str,
    asked: Asked,
    watch: &store::HashWatch<'_>,
) -> std::result::Result<ModelFile, StoreError> {
    let resolve = |name: &str| match asked {
        Asked::Here => store.resolve_watched(name, watch),
        Asked::ByMember => store.resolve_named(name, watch),
    };
    let first = match resolve(name) {
        Err(error) if error.is_missing() => error,
        outcome => return outcome,
    };
    let Some(meant) = meant(store, name) else { return Err(first) };
    match resolve(&meant.text) {
        Ok(found) => Ok(ModelFile { name: meant.served_as(found.name, name), ..found }),
        Err(error) if error.is_missing() => Err(first),
        Err(error) => Err(error),
    }
}

/// The meaning of a name, in terms of the store.
struct Meant {
    text: String,
    is_address: bool,
}

/// The repository of a name, or the path of an address's file.
fn meant(store: &Store, name: &str) -> Option<Meant> {
    match Name::parse(name).ok()? {
        Name::Repo(repo) => Some(Meant { text: repo.to_string(), is_address: false }),
        address @ Name::Url(_) => {
            let path = store.models_dir().join(address.place()?);
            let text = path.to_string_lossy().into_owned();
            path.is_file().then_some(Meant { text, is_address: true })
        }
    }
}

impl Meant {
    /// The name under which clients request a model that the user called `name`.
    fn served_as(&self, file: String, name: &str) -> String {
        match (self.is_address, name.contains("://")) {
            (true, _) => file,
            (false, true) => self.text.clone(),
            (false, false) => served_as(name),
        }
    }
}

/// Result of a search on this machine.
#[derive(Debug)]
pub enum Here {
    /// A readable file, and the model's name.
    Whole(String, PathBuf),
    /// An unreadable file, and the reason.
    Damaged(String),
    Missing(StoreError),
}

/// Finds a model by name or path, and opens it.
pub fn look(store: &Store, name: &str) -> Here {
    match locate(store, name) {
        Err(error) => Here::Missing(error),
        Ok((name, path)) => match checkpoint::open(&path) {
            Ok(_) => Here::Whole(name, path),
            Err(error) => Here::Damaged(format!("{}: {error}", path.display())),
        },
    }
}

/// Finds a model by name for another member, without reading it.
pub(crate) fn named(store: &Store, name: &str) -> Option<Listed> {
    let by_repo = || match Name::parse(name) {
        Ok(Name::Repo(repo)) => store.named(&repo.to_string()),
        _ => None,
    };
    store.named(name).or_else(by_repo)
}

/// Name and path of a model on this machine, without reading it.
///
/// # Errors
/// The model is not on this machine.
pub fn locate(store: &Store, name: &str) -> std::result::Result<(String, PathBuf), StoreError> {
    let first = match store.name_and_path(name) {
        Err(error) if error.is_missing() => error,
        outcome => return outcome,
    };
    let Some(meant) = meant(store, name) else { return Err(first) };
    let (file, path) = store.name_and_path(&meant.text).map_err(|_| first)?;
    Ok((meant.served_as(file, name), path))
}

/// Name of a model on this machine, and the hash of its content if its length is among `lens`.
///
/// # Errors
/// The model is not on this machine, or is unreadable.
pub(crate) fn identify(
    store: &Store,
    model: &str,
    lens: &[u64],
) -> Result<(String, Option<Digest>)> {
    let (name, path) = locate(store, model).map_err(refuse)?;
    let bytes = checkpoint::files(&path).map(|files| files.iter().map(|file| file.len()).sum());
    if bytes.is_ok_and(|bytes| lens.contains(&bytes)) {
        let found = find(store, model, Asked::Here, &|_| {}).map_err(refuse)?;
        return Ok((name, Some(found.digest)));
    }
    Ok((name, None))
}

/// Whether a model is on this machine, without reading it.
pub(crate) fn is_here(store: &Store, name: &str) -> bool {
    !matches!(locate(store, name), Err(error) if error.is_missing())
}

/// Deletes a model from the node's model folder; returns the bytes freed.
pub(crate) fn remove(store: &Store, name: &str) -> Result<u64> {
    let removed = store.remove(name).or_else(|error| match meant(store, name) {
        Some(meant) if error.is_missing() => store.remove(&meant.text).map_err(|other| {
            // The error names the typed name, except for the reason of a refusal.
            if other.is_missing() { error } else { other }
        }),
        _ => Err(error),
    });
    removed.map_err(refuse)
}

pub(crate) fn refuse(error: StoreError) -> Error {
    match error {
        error if error.is_missing() => Error::NotHere(error.to_string()),
        other => Error::Unusable(other.to_string()),
    }
}

/// The name under which clients request a model that the user called `name`.
fn served_as(name: &str) -> String {
    name.strip_suffix(":latest").unwrap_or(name).to_owned()
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn model() -> Vec<u8> {
        let mut bytes = Vec::new();
        gguf::Writer::new().write(&mut bytes, |_, _, _, _| Ok(())).unwrap();
        bytes
    }

    #[test]
    fn what_a_name_fetched_the_same_name_finds() {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::open(dir.path()).unwrap();
        let put = |path: &str| {
            let path = store.models_dir().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(&path, model()).unwrap();
            path
        };
        let own = put("bartowski/Llama-3.2-3B-Instruct-GGUF/l-Q4_K_M.gguf");
        let old = put("org/r@v1/m-Q8_0.gguf");
        let far = put("nas_8080/m/f-Q8_0.gguf");
        for (typed, served, path) in [
            ("llama3.2:latest", "llama3.2", &own),
            ("llama3.2:3b-q4_k_m", "llama3.2:3b-q4_k_m", &own),
            ("hf.co/bartowski/Llama-3.2-3B-Instruct-GGUF:Q4_K", "", &own),
            ("https://hf.co/org/r/blob/v1/m-Q8_0.gguf", "org/r@v1:m-Q8_0.gguf", &old),
            ("http://nas:8080/m/f-Q8_0.gguf?signed", "f-Q8_0", &far),
        ] {
            let found = find(&store, typed, Asked::Here, &|_| {}).unwrap();
            let served = if served.is_empty() { typed } else { served };
            assert_eq!((found.name.as_str(), &found.path), (served, path), "{typed}");
            assert_eq!(locate(&store, typed).unwrap(), (found.name, found.path));
            assert!(is_here(&store, typed) && matches!(look(&store, typed), Here::Whole(..)));
        }
        // Members send names; an address leads to no file.
        let address = "http://nas:8080/m/f-Q8_0.gguf";
        assert!(find(&store, address, Asked::ByMember, &|_| {}).is_err());
        for typed in ["org/r", "org/r:m-Q8_0.gguf", "http://nas:8080/f-Q8_0.gguf", "qwen3"] {
            assert!(!is_here(&store, typed), "{typed}");
        }
        fs::write(&old, b"GGUF, but short").unwrap();
        assert!(matches!(look(&store, "org/r@v1"), Here::Damaged(_)));
        assert!(remove(&store, "https://hf.co/org/r/blob/v1/m-Q8_0.gguf").unwrap() > 0);
        assert!(!old.exists());
    }
}

//! Models of this machine by the names that people type: as they are and, if that finds nothing, by
//! the repository that they stand for.

use std::path::PathBuf;

use hub::Name;
use store::{Digest, Listed, ModelFile, Store, StoreError};

use crate::{Error, Result};

/// Who asks for a model: its own user may give a path, other members give names alone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Asked {
    Here,
    ByMember,
}

/// A model by name or path. Names are looked up as they are and, if that finds nothing, by the
/// repository that they stand for.
///
/// # Errors
/// It is not on this machine.
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
        Err(error @ StoreError::Unknown { .. }) => error,
        outcome => return outcome,
    };
    let Ok(Name::Repo(repo)) = Name::parse(name) else { return Err(first) };
    match resolve(&repo.to_string()) {
        Ok(found) => Ok(ModelFile { name: served_as(name), ..found }),
        Err(StoreError::Unknown { .. }) => Err(first),
        Err(error) => Err(error),
    }
}

/// A model by its name, as another member asks for it, without reading it.
pub(crate) fn named(store: &Store, name: &str) -> Option<Listed> {
    let by_repo = || match Name::parse(name) {
        Ok(Name::Repo(repo)) => store.named(&repo.to_string()),
        _ => None,
    };
    store.named(name).or_else(by_repo)
}

/// How a model of this machine would be called, and where it is, without reading it.
///
/// # Errors
/// It is not on this machine.
pub(crate) fn locate(
    store: &Store,
    name: &str,
) -> std::result::Result<(String, PathBuf), StoreError> {
    let first = match store.name_and_path(name) {
        Err(error @ StoreError::Unknown { .. }) => error,
        outcome => return outcome,
    };
    let Ok(Name::Repo(repo)) = Name::parse(name) else { return Err(first) };
    let path = store.path_of(&repo.to_string()).map_err(|_| first)?;
    Ok((served_as(name), path))
}

/// How a model of this machine would be called, and what its content is, if one of its length is
/// among `lens`.
///
/// # Errors
/// It is not here, or cannot be read.
pub(crate) fn identify(
    store: &Store,
    model: &str,
    lens: &[u64],
) -> Result<(String, Option<Digest>)> {
    let (name, path) = locate(store, model).map_err(refuse)?;
    let parts = gguf::parts_of(&path);
    let bytes = parts.iter().filter_map(|part| std::fs::metadata(part).ok()).map(|it| it.len());
    if lens.contains(&bytes.sum()) {
        let found = find(store, model, Asked::Here, &|_| {}).map_err(refuse)?;
        return Ok((name, Some(found.digest)));
    }
    Ok((name, None))
}

/// Whether a model is on this machine, without reading it.
pub(crate) fn is_here(store: &Store, name: &str) -> bool {
    let by_repo = || match Name::parse(name) {
        Ok(Name::Repo(repo)) => store.path_of(&repo.to_string()).is_ok(),
        _ => false,
    };
    !matches!(store.path_of(name), Err(StoreError::Unknown { .. })) || by_repo()
}

/// Deletes a model of the node's own folder; returns the bytes that this freed.
pub(crate) fn remove(store: &Store, name: &str) -> Result<u64> {
    let by_repo = |first: StoreError| match Name::parse(name) {
        Ok(Name::Repo(repo)) => store.remove(&repo.to_string()).map_err(|_| first),
        _ => Err(first),
    };
    let removed = store.remove(name).or_else(|error| match error {
        StoreError::Unknown { .. } => by_repo(error),
        other => Err(other),
    });
    removed.map_err(refuse)
}

pub(crate) fn refuse(error: StoreError) -> Error {
    match error {
        StoreError::Unknown { .. } => Error::NotHere(error.to_string()),
        other => Error::Unusable(other.to_string()),
    }
}

/// The name under which clients ask for a model that was asked for by this one.
fn served_as(name: &str) -> String {
    name.strip_suffix(":latest").unwrap_or(name).to_owned()
}

//! A folder's files of weights, as its index lists them.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::fs;
use std::path::{Path, PathBuf};

use serde::Deserialize;

use crate::Error;
use crate::json::{INDEX_BYTES_MAX, find_json};
use crate::shard::{Shard, Stored};
use crate::view::Kept;

const INDEX: &str = "model.safetensors.index.json";
/// Far more than any published model has.
const SHARDS_MAX: usize = 4096;

/// The files besides weights whose content is part of the model.
pub const SMALL_FILES: [&str; 8] = [
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "tiktoken.model",
    "chat_template.jinja",
    "chat_template.json",
    INDEX,
];

/// The opened files of weights, in order.
#[derive(Debug, Default)]
pub(crate) struct Weights {
    pub shards: Vec<Shard>,
    /// Tensors that the index lists and no file has, and what it says.
    pub absent: Vec<(String, String)>,
    pub kept: Kept,
}

#[derive(Deserialize)]
struct Index {
    weight_map: BTreeMap<String, String>,
}

/// Whether a folder has files of weights, or a list of them.
pub(crate) fn has_weights(folder: &Path) -> bool {
    folder.join(INDEX).is_file() || !unlisted(folder).is_empty()
}

/// The paths of a folder's files of weights, in order. They need not exist.
pub(crate) fn shard_paths(folder: &Path) -> Result<Vec<PathBuf>, Error> {
    paths(folder, index(folder)?.as_ref())
}

fn index(folder: &Path) -> Result<Option<Index>, Error> {
    find_json(&folder.join(INDEX), INDEX_BYTES_MAX)
}

fn paths(folder: &Path, index: Option<&Index>) -> Result<Vec<PathBuf>, Error> {
    match index {
        Some(index) => Ok(listed(folder, index)?.into_iter().map(|it| folder.join(it)).collect()),
        None => Ok(unlisted(folder)),
    }
}

/// The file names in an index.
fn listed<'i>(folder: &Path, index: &'i Index) -> Result<BTreeSet<&'i str>, Error> {
    let names: BTreeSet<&str> = index.weight_map.values().map(String::as_str).collect();
    let broken = |why: String| Err(Error::Json { path: folder.join(INDEX), why });
    if names.len() > SHARDS_MAX {
        return broken(format!("it lists {} files; at most {SHARDS_MAX} are read", names.len()));
    }
    match names.iter().find(|name| !is_plain(name)) {
        Some(name) => broken(format!("it lists the file {name:?}, which is not in this folder")),
        None => Ok(names),
    }
}

/// Whether a name is that of a safetensors file in the same folder.
fn is_plain(name: &str) -> bool {
    name.ends_with(".safetensors") && !name.contains(['/', '\\', '\0'])
}

/// The files of a folder without an index.
fn unlisted(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let names: Vec<String> =
        entries.filter_map(|entry| entry.file_name().into_string().ok()).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let found = weights_among(&names).unwrap_or_default();
    found.into_iter().take(SHARDS_MAX).map(|name| folder.join(name)).collect()
}

/// The files of weights among a folder's files, in order; `None` if there are none, or if some of
/// numbered files are missing. Mistral's own form of the same weights, and adapters, are left out.
pub fn weights_among<'n>(names: &[&'n str]) -> Option<Vec<&'n str>> {
    let is_own = |name: &str| !name.starts_with("consolidated") && !name.contains("adapter");
    let mut found: Vec<&str> =
        names.iter().copied().filter(|name| is_plain(name) && is_own(name)).collect();
    found.sort_unstable();
    if found.contains(&"model.safetensors") {
        return Some(vec!["model.safetensors"]);
    }
    let numbered: Vec<(u64, u64)> = found.iter().filter_map(|name| number(name)).collect();
    if let Some((_, count)) = numbered.first().copied() {
        found.retain(|name| number(name).is_some());
        let is_whole = numbered.iter().copied().eq((1..=count).map(|number| (number, count)));
        return is_whole.then_some(found);
    }
    (!found.is_empty()).then_some(found)
}

/// Number and count of `model-00001-of-00002.safetensors`.
fn number(name: &str) -> Option<(u64, u64)> {
    let (number, count) =
        name.strip_prefix("model-")?.strip_suffix(".safetensors")?.split_once("-of-")?;
    Some((number.parse().ok()?, count.parse().ok()?))
}

impl Weights {
    pub fn open(folder: &Path) -> Result<Self, Error> {
        let index = index(folder)?;
        let paths = paths(folder, index.as_ref())?;
        if paths.is_empty() {
            return Err(Error::MissingFile { what: "files of weights (.safetensors)" });
        }
        let missing: Vec<&PathBuf> = paths.iter().filter(|path| !path.is_file()).collect();
        if let Some(first) = missing.first() {
            let first = first.file_name().unwrap_or_default().to_string_lossy().into_owned();
            return Err(Error::MissingShards { missing: missing.len(), count: paths.len(), first });
        }
        let shards = paths.iter().map(|path| Shard::open(path)).collect::<Result<Vec<_>, _>>()?;
        let mut weights = Self { shards, absent: Vec::new(), kept: Kept::default() };
        weights.absent = weights.check(index.as_ref(), &paths)?;
        Ok(weights)
    }

    /// Each tensor with the number of its file, in the order of the bytes.
    pub fn tensors(&self) -> impl Iterator<Item = (usize, &Stored)> {
        let shards = self.shards.iter().enumerate();
        shards.flat_map(|(shard, file)| file.tensors.iter().map(move |tensor| (shard, tensor)))
    }

    /// Tensors that are not read: their names, and their types unless they have no elements.
    pub fn left_out(&self) -> impl Iterator<Item = (&str, Option<&str>)> {
        let all = self.shards.iter().flat_map(|shard| &shard.left_out);
        all.map(|(name, ty)| (name.as_str(), ty.as_deref()))
    }

    /// Checks that names are unique, and that the index names the right file of each tensor; gives
    /// those that are in no file.
    fn check(
        &self,
        index: Option<&Index>,
        paths: &[PathBuf],
    ) -> Result<Vec<(String, String)>, Error> {
        let mut shard_of = HashMap::new();
        for (shard, tensor) in self.tensors() {
            if shard_of.insert(tensor.name.as_str(), shard).is_some() {
                return Err(Error::tensor(&tensor.name, "appears twice"));
            }
        }
        let mut absent = Vec::new();
        for (name, file) in index.into_iter().flat_map(|index| &index.weight_map) {
            let why = || format!("is not in {file}, where {INDEX} says it is");
            match shard_of.get(name.as_str()).and_then(|shard| paths[*shard].file_name()) {
                Some(found) if found == file.as_str() => {}
                Some(_) => return Err(Error::tensor(name, why())),
                None => absent.push((name.clone(), why())),
            }
        }
        let left_out: HashSet<&str> = self.left_out().map(|(name, _)| name).collect();
        absent.retain(|(name, _)| !left_out.contains(name.as_str()));
        Ok(absent)
    }
}

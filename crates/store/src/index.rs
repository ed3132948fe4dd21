//! The digests of known files, so that a file is hashed once and not at every start.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::UNIX_EPOCH;

use serde::{Deserialize, Serialize};

use crate::{Digest, identity};

/// Metadata that shows whether a model's files have changed since they were hashed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Stamp {
    /// Of all files.
    pub bytes: u64,
    modified_ns: u64,
    /// The sum of all parts' inodes. A replacement file may have the same length and, within a tick
    /// of the file system's clock, the same time. An index of an older version has no inodes.
    #[serde(default)]
    inodes: u64,
}

impl Stamp {
    pub fn of(path: &Path) -> io::Result<Self> {
        let mut stamp = Self { bytes: 0, modified_ns: 0, inodes: 0 };
        for part in checkpoint::paths(path) {
            let metadata = fs::metadata(&part)?;
            if !metadata.is_file() {
                return Err(io::Error::other("it is not a regular file"));
            }
            let modified = metadata.modified()?.duration_since(UNIX_EPOCH).unwrap_or_default();
            stamp.bytes += metadata.len();
            stamp.modified_ns = stamp.modified_ns.max(modified.as_nanos() as u64);
            stamp.inodes = stamp.inodes.rotate_left(1) ^ identity(&part)?.1;
        }
        Ok(stamp)
    }
}

/// Bytes of a model, of which a folder's files have others. Reads a folder's metadata.
pub(crate) fn model_bytes(path: &Path) -> Option<u64> {
    match checkpoint::is_folder(path) {
        true => Some(checkpoint::open(path).ok()?.file_len()),
        false => Some(Stamp::of(path).ok()?.bytes),
    }
}

#[derive(Debug, Clone, Serialize, Deserialize)]
struct Entry {
    stamp: Stamp,
    digest: Digest,
    /// Bytes of the model, where its files have others: a folder appears as one GGUF file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    bytes: Option<u64>,
}

impl Entry {
    fn bytes(&self) -> u64 {
        self.bytes.unwrap_or(self.stamp.bytes)
    }
}

/// The hashed files, stored in `models.json`. A lost or broken index only costs hashing again.
#[derive(Debug)]
pub(crate) struct Index {
    path: PathBuf,
    entries: BTreeMap<PathBuf, Entry>,
}

impl Index {
    pub fn load(path: PathBuf) -> Self {
        let text = fs::read(&path).unwrap_or_default();
        let entries = serde_json::from_slice(&text).unwrap_or_default();
        Self { path, entries }
    }

    /// The digest of a model and its bytes, if it has not changed since it was hashed.
    pub fn known(&self, path: &Path, stamp: Stamp) -> Option<(Digest, u64)> {
        let entry = self.entries.get(path).filter(|entry| entry.stamp == stamp)?;
        Some((entry.digest, entry.bytes()))
    }

    /// Records the digest of a model of `bytes` bytes.
    pub fn note(&mut self, path: &Path, stamp: Stamp, (digest, bytes): (Digest, u64)) {
        let bytes = (bytes != stamp.bytes).then_some(bytes);
        self.entries.insert(path.to_path_buf(), Entry { stamp, digest, bytes });
        if self.save().is_err() {
            // The disk is probably full. That is no reason to fail: the next start hashes again.
            let _ = fs::remove_file(self.temporary());
        }
    }

    /// Forgets the digest of a file, which must be hashed again before use.
    pub fn forget(&mut self, path: &Path) {
        self.entries.remove(path);
        if self.save().is_err() {
            let _ = fs::remove_file(self.temporary());
        }
    }

    /// Known models of this length, in any folder.
    pub fn paths_of_len(&self, bytes: u64) -> Vec<PathBuf> {
        let same = self.entries.iter().filter(|(_, entry)| entry.bytes() == bytes);
        same.map(|(path, _)| path.clone()).collect()
    }

    /// Replaces the file in one step, so that a crash leaves the old or the new one.
    fn save(&self) -> io::Result<()> {
        let text = serde_json::to_vec_pretty(&self.entries).map_err(io::Error::other)?;
        fs::write(self.temporary(), text)?;
        crate::rename(self.temporary(), &self.path)
    }

    fn temporary(&self) -> PathBuf {
        self.path.with_extension("json.new")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_in_another_ones_place_is_another_although_length_and_time_are_the_same() {
        let dir = tempfile::tempdir().unwrap();
        let (path, new) = (dir.path().join("m.gguf"), dir.path().join("new"));
        fs::write(&path, "one").unwrap();
        fs::write(&new, "two").unwrap();
        let old = Stamp::of(&path).unwrap();
        let modified = fs::metadata(&path).unwrap().modified().unwrap();
        fs::File::options().write(true).open(&new).unwrap().set_modified(modified).unwrap();
        fs::rename(&new, &path).unwrap();
        let replaced = Stamp::of(&path).unwrap();
        assert_eq!((replaced.bytes, replaced.modified_ns), (old.bytes, old.modified_ns));
        assert_ne!(replaced, old);
    }
}

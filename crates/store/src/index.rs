//! Which content each known file holds, so that a file is hashed once and not at every start.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::UNIX_EPOCH;

use serde::{Deserialize, Serialize};

use crate::Digest;

/// What tells whether a model's files have changed since they were hashed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Stamp {
    pub bytes: u64,
    modified_ns: u64,
}

impl Stamp {
    pub fn of(path: &Path) -> io::Result<Self> {
        let mut stamp = Self { bytes: 0, modified_ns: 0 };
        for part in gguf::parts_of(path) {
            let metadata = fs::metadata(part)?;
            if !metadata.is_file() {
                return Err(io::Error::other("it is not a regular file"));
            }
            let modified = metadata.modified()?.duration_since(UNIX_EPOCH).unwrap_or_default();
            stamp.bytes += metadata.len();
            stamp.modified_ns = stamp.modified_ns.max(modified.as_nanos() as u64);
        }
        Ok(stamp)
    }
}

#[derive(Debug, Clone, Serialize, Deserialize)]
struct Entry {
    stamp: Stamp,
    digest: Digest,
}

/// The hashed files, kept in `models.json`. A lost or broken index only costs hashing again.
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

    /// The digest of a file, from the index if the file has not changed since.
    pub fn digest(&mut self, path: &Path, stamp: Stamp) -> io::Result<Digest> {
        if let Some(entry) = self.entries.get(path)
            && entry.stamp == stamp
        {
            return Ok(entry.digest);
        }
        let digest = Digest::of_file(path)?;
        self.entries.insert(path.to_path_buf(), Entry { stamp, digest });
        self.save()?;
        Ok(digest)
    }

    /// Files that once had this length, wherever they lie.
    pub fn paths_of_len(&self, bytes: u64) -> Vec<PathBuf> {
        let same = self.entries.iter().filter(|(_, entry)| entry.stamp.bytes == bytes);
        same.map(|(path, _)| path.clone()).collect()
    }

    /// Replaces the file in one step, so that a crash leaves the old or the new one.
    fn save(&self) -> io::Result<()> {
        let text = serde_json::to_vec_pretty(&self.entries).map_err(io::Error::other)?;
        let temporary = self.path.with_extension("json.new");
        fs::write(&temporary, text)?;
        fs::rename(&temporary, &self.path)
    }
}

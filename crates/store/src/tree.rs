//! The hash of a model, with the hashes of its groups of 1 MiB: BLAKE3 is a tree, and these are its
//! nodes at one height. They let threads hash different groups of a file at the same time, and let
//! a reader check a single group later.

use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use blake3::Hasher;
use blake3::hazmat::{
    ChainingValue, HasherExt, Mode, left_subtree_len, merge_subtrees_non_root, merge_subtrees_root,
};

use gguf::Bytes;

use crate::Digest;

/// Bytes of one group: 32 bytes of hashes for each MiB of a model.
pub const GROUP_BYTES: u64 = 1 << 20;
/// Hashing threads: one keeps up with a disk, and other work has cores left.
const THREADS_MAX: usize = 4;

/// Reports hashed bytes, from any thread.
pub type HashWatch<'w> = dyn Fn(u64) + Sync + 'w;

/// A model's digest and its groups' hashes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tree {
    pub digest: Digest,
    pub bytes: u64,
    /// Empty for a model of one group, because its hash is the digest.
    groups: Vec<ChainingValue>,
}

impl Tree {
    /// Hashes files, one after the other, as one model.
    ///
    /// # Errors
    /// A file cannot be read, or is shorter than it was.
    pub fn of_files(files: Vec<Arc<dyn Bytes>>, watch: &HashWatch<'_>) -> io::Result<Self> {
        let files = Files::new(files);
        let count = files.bytes.div_ceil(GROUP_BYTES);
        if count <= 1 {
            let mut all = vec![0; files.bytes as usize];
            files.read(0, &mut all)?;
            let digest = Digest(*blake3::hash(&all).as_bytes());
            return Ok(Self { digest, bytes: files.bytes, groups: Vec::new() });
        }
        let groups = Mutex::new(vec![ChainingValue::default(); count as usize]);
        let (next, done, failed) = (AtomicU64::new(0), AtomicU64::new(0), Mutex::new(None));
        let stop = AtomicBool::new(false);
        let hash = || {
            let mut buffer = vec![0; GROUP_BYTES as usize];
            while !stop.load(Ordering::Relaxed) {
                let group = next.fetch_add(1, Ordering::Relaxed);
                if group >= count {
                    return;
                }
                let (start, len) = extent(group, files.bytes);
                let bytes = &mut buffer[..len as usize];
                if let Err(error) = files.read(start, bytes) {
                    *failed.lock().unwrap_or_else(PoisonError::into_inner) = Some(error);
                    return stop.store(true, Ordering::Relaxed);
                }
                let value = group_value(group, bytes);
                groups.lock().unwrap_or_else(PoisonError::into_inner)[group as usize] = value;
                watch(done.fetch_add(len, Ordering::Relaxed) + len);
            }
        };
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        std::thread::scope(|scope| {
            for _ in 0..cores.min(THREADS_MAX) {
                scope.spawn(hash);
            }
        });
        if let Some(error) = failed.into_inner().unwrap_or_else(PoisonError::into_inner) {
            return Err(error);
        }
        let groups = groups.into_inner().unwrap_or_else(PoisonError::into_inner);
        let digest = root(&groups, files.bytes);
        Ok(Self { digest, bytes: files.bytes, groups })
    }

    /// The hashes of the groups, one after the other.
    pub fn to_bytes(&self) -> Vec<u8> {
        self.groups.concat()
    }

    /// Parses stored or received hashes; `None` unless they match the digest.
    pub fn from_bytes(digest: Digest, bytes: u64, groups: &[u8]) -> Option<Self> {
        let count = bytes.div_ceil(GROUP_BYTES);
        let (groups, rest) = groups.as_chunks::<32>();
        let wanted = if count <= 1 { 0 } else { count };
        if !rest.is_empty() || groups.len() as u64 != wanted {
            return None;
        }
        let is_it = count <= 1 || root(groups, bytes) == digest;
        is_it.then(|| Self { digest, bytes, groups: groups.to_vec() })
    }

    /// The offset and length of a group.
    pub fn extent(&self, group: u64) -> (u64, u64) {
        extent(group, self.bytes)
    }

    /// Whether these are the bytes of a group.
    pub fn is_group(&self, group: u64, bytes: &[u8]) -> bool {
        if self.groups.is_empty() {
            return group == 0 && *blake3::hash(bytes).as_bytes() == self.digest.0;
        }
        let known = self.groups.get(group as usize);
        let (_, len) = self.extent(group);
        known.is_some_and(|known| len == bytes.len() as u64 && *known == group_value(group, bytes))
    }
}

fn extent(group: u64, bytes: u64) -> (u64, u64) {
    let start = group.saturating_mul(GROUP_BYTES).min(bytes);
    (start, (bytes - start).min(GROUP_BYTES))
}

fn group_value(group: u64, bytes: &[u8]) -> ChainingValue {
    Hasher::new().set_input_offset(group * GROUP_BYTES).update(bytes).finalize_non_root()
}

/// The hash of a model of several groups.
fn root(groups: &[ChainingValue], bytes: u64) -> Digest {
    let left = left_subtree_len(bytes);
    let (first, second) = groups.split_at((left / GROUP_BYTES) as usize);
    let (first, second) = (merge(first, left), merge(second, bytes - left));
    Digest(*merge_subtrees_root(&first, &second, Mode::Hash).as_bytes())
}

fn merge(groups: &[ChainingValue], bytes: u64) -> ChainingValue {
    if let [one] = groups {
        return *one;
    }
    let left = left_subtree_len(bytes);
    let (first, second) = groups.split_at((left / GROUP_BYTES) as usize);
    let (first, second) = (merge(first, left), merge(second, bytes - left));
    merge_subtrees_non_root(&first, &second, Mode::Hash)
}

/// Files, one after the other.
#[derive(Debug)]
pub(crate) struct Files {
    /// Each with the offset of its first byte.
    files: Vec<(u64, Arc<dyn Bytes>)>,
    pub bytes: u64,
}

impl Files {
    pub fn new(files: Vec<Arc<dyn Bytes>>) -> Self {
        let mut bytes = 0;
        let placed = files.into_iter().map(|file| {
            bytes += file.len();
            (bytes - file.len(), file)
        });
        Self { files: placed.collect(), bytes }
    }

    /// The files themselves, in order.
    pub fn parts(&self) -> Vec<Arc<dyn Bytes>> {
        self.files.iter().map(|(_, file)| file.clone()).collect()
    }

    /// The length of each when it was opened.
    pub fn lens(&self) -> Vec<u64> {
        self.files.iter().map(|(_, file)| file.len()).collect()
    }

    /// Whether any was written to since it was opened. A replaced or deleted file counts as
    /// unchanged.
    pub fn have_changed(&self) -> bool {
        self.files.iter().any(|(_, file)| file.has_changed())
    }

    /// Fills `out` with the bytes from `start` on.
    pub fn read(&self, mut start: u64, mut out: &mut [u8]) -> io::Result<()> {
        while !out.is_empty() {
            let at = self.files.partition_point(|(first, _)| *first <= start);
            let (first, file) = at.checked_sub(1).map(|at| &self.files[at]).ok_or(EOF)?;
            let end = first + file.len();
            if start >= end {
                return Err(EOF.into());
            }
            let (now, rest) = out.split_at_mut(out.len().min((end - start) as usize));
            file.read(start - first, now)?;
            start += now.len() as u64;
            out = rest;
        }
        Ok(())
    }
}

const EOF: io::ErrorKind = io::ErrorKind::UnexpectedEof;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tree_s_root_is_the_plain_hash_and_its_groups_are_checked_alone() {
        let dir = tempfile::tempdir().unwrap();
        let group = GROUP_BYTES as usize;
        for len in [0, 5, group, group + 1, 2 * group, 5 * group + 1000, 7 * group - 1] {
            let all: Vec<u8> = (0..len).map(|at| (at * 31 / 7) as u8).collect();
            let paths = [dir.path().join("a"), dir.path().join("b")];
            std::fs::write(&paths[0], &all[..len / 3]).unwrap();
            std::fs::write(&paths[1], &all[len / 3..]).unwrap();
            let told = AtomicU64::new(0);
            let files = paths.iter().map(|path| gguf::on_disk(path).unwrap()).collect();
            let tree = Tree::of_files(files, &|done| {
                told.fetch_max(done, Ordering::Relaxed);
            });
            let tree = tree.unwrap();
            assert_eq!(tree.digest.0, *blake3::hash(&all).as_bytes(), "{len}");
            let again = Tree::from_bytes(tree.digest, len as u64, &tree.to_bytes()).unwrap();
            assert_eq!(again, tree);
            for (at, bytes) in all.chunks(group).enumerate() {
                assert!(tree.is_group(at as u64, bytes));
                let mut flipped = bytes.to_vec();
                flipped[bytes.len() / 2] ^= 1;
                assert!(!tree.is_group(at as u64, &flipped));
                assert!(!tree.is_group(at as u64 + 1, bytes) || all.len() <= group);
            }
            let mut wrong = tree.to_bytes();
            if let Some(byte) = wrong.first_mut() {
                *byte ^= 1;
                assert_eq!(Tree::from_bytes(tree.digest, len as u64, &wrong), None);
            }
            assert_eq!(Tree::from_bytes(tree.digest, len as u64, &[0; 31]), None);
        }
    }
}

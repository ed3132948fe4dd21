//! One file of equally sized slabs, written once and read by number.
//!
//! ```text
//!    0  magic "sinewslb", version u32, zero u32, count u64, bytes of a slab u64, identity [32],
//!       BLAKE3 of all that
//! 4096  slab 0, zeros up to a whole block of 4096 bytes, whose last 32 bytes are BLAKE3 of the
//!       identity, the slab's number and a sum of its bytes; slab 1; ...
//! ```
//!
//! The file is written under another name and gets its own when it is whole. It is not sealed:
//! whoever builds it is trusted. Its disk is not: each slab that is read is compared with its sum.

use std::fs::OpenOptions;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::buffer::{ALIGN, Buffer, aligned};
use crate::direct::DirectFile;
use crate::pool::{Pending, Pool, Read};

const MAGIC: &[u8; 8] = b"sinewslb";
const VERSION: u32 = 2;
const CHECKED_BYTES: usize = 64;
const HASH_BYTES: usize = 32;

/// What a file of slabs holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SlabsSpec {
    /// A hash of everything that decides the bytes: the model's content, layout, packing.
    pub identity: [u8; 32],
    pub count: u64,
    /// Of one slab.
    pub slab_bytes: u64,
}

/// Why a file of slabs cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum SlabsError {
    /// To be written anew.
    #[error("{path} is not the file of slabs that is needed: {why}", path = .path.display())]
    Stale { path: PathBuf, why: &'static str },
    #[error("cannot use {path}: {source}", path = .path.display())]
    Io { path: PathBuf, source: io::Error },
}

/// A whole file of slabs.
#[derive(Debug)]
pub struct Slabs {
    file: Arc<DirectFile>,
    spec: SlabsSpec,
}

impl SlabsSpec {
    /// Bytes that a slab takes in the file, and a [`Buffer`] for it: whole blocks of 4096.
    ///
    /// # Panics
    /// A slab has as many bytes as memory has addresses.
    pub fn padded_bytes(&self) -> usize {
        let bytes = usize::try_from(self.slab_bytes).expect("a slab fits into memory");
        aligned(bytes + HASH_BYTES)
    }

    /// Bytes of the whole file.
    pub fn file_bytes(&self) -> u64 {
        ALIGN as u64 + self.count * self.padded_bytes() as u64
    }

    fn offset(&self, slab: u64) -> u64 {
        ALIGN as u64 + slab * self.padded_bytes() as u64
    }

    fn hash(&self, number: u64, slab: &[u8]) -> blake3::Hash {
        let mut hasher = blake3::Hasher::new();
        hasher.update(&self.identity).update(&number.to_le_bytes());
        hasher.update(&checksum(&slab[..self.slab_bytes as usize])).finalize()
    }

    /// Whether a padded slab is what was written.
    fn is_whole(&self, number: u64, slab: &[u8]) -> bool {
        slab.ends_with(self.hash(number, slab).as_bytes())
    }

    fn header(&self) -> Buffer {
        let mut header = Buffer::zeroed(ALIGN);
        header[..8].copy_from_slice(MAGIC);
        header[8..12].copy_from_slice(&VERSION.to_le_bytes());
        header[16..24].copy_from_slice(&self.count.to_le_bytes());
        header[24..32].copy_from_slice(&self.slab_bytes.to_le_bytes());
        header[32..CHECKED_BYTES].copy_from_slice(&self.identity);
        let hash = blake3::hash(&header[..CHECKED_BYTES]);
        header[CHECKED_BYTES..CHECKED_BYTES + 32].copy_from_slice(hash.as_bytes());
        header
    }

    /// What is wrong with a header, if anything.
    fn difference(&self, header: &[u8]) -> Option<&'static str> {
        let own = self.header();
        if header.len() < own.len() || header[..8] != own[..8] {
            return Some("it is something else");
        }
        let hash = blake3::hash(&header[..CHECKED_BYTES]);
        if header[CHECKED_BYTES..][..32] != hash.as_bytes()[..] {
            return Some("its header is damaged");
        }
        let parts = [
            (8..16, "it is of another version"),
            (16..32, "it has other slabs"),
            (32..CHECKED_BYTES, "it was made of something else"),
        ];
        parts.into_iter().find(|(at, _)| header[at.clone()] != own[at.clone()]).map(|(_, why)| why)
    }
}

/// A sum that every changed word changes: each step is reversible. It is against a disk's errors,
/// as fast as memory, where a hash against people would take a core from a model.
fn checksum(bytes: &[u8]) -> [u8; 32] {
    const FACTOR: u64 = 0x9e37_79b9_7f4a_7c15;
    let mut lanes = [1_u64, 2, 3, 4];
    let mut step = |words: &[u8]| {
        for (lane, word) in lanes.iter_mut().zip(words.chunks_exact(8)) {
            let word = u64::from_le_bytes(word.try_into().expect("eight bytes"));
            *lane = (*lane ^ word).wrapping_mul(FACTOR).rotate_left(29);
        }
    };
    let (blocks, rest) = bytes.as_chunks::<32>();
    blocks.iter().for_each(|block| step(block));
    let mut last = [0; 32];
    last[..rest.len()].copy_from_slice(rest);
    step(&last);
    let mut sum = [0; 32];
    for (sum, lane) in sum.chunks_exact_mut(8).zip(lanes) {
        sum.copy_from_slice(&lane.to_le_bytes());
    }
    sum
}

impl Slabs {
    /// Opens a file of slabs.
    ///
    /// # Errors
    /// There is none, it is another one or not whole ([`SlabsError::Stale`]), or the disk fails.
    pub fn open(path: &Path, spec: SlabsSpec) -> Result<Self, SlabsError> {
        let stale = |why| SlabsError::Stale { path: path.to_owned(), why };
        let failed = |source| SlabsError::Io { path: path.to_owned(), source };
        let file = match DirectFile::open(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return Err(stale("there is none"));
            }
            opened => opened.map_err(failed)?,
        };
        let mut header = Buffer::zeroed(ALIGN);
        let read = file.read_at(&mut header, 0).map_err(failed)?;
        match spec.difference(&header[..read]) {
            Some(why) => Err(stale(why)),
            None if file.bytes().map_err(failed)? != spec.file_bytes() => {
                Err(stale("it is not whole"))
            }
            None => Ok(Self { file: Arc::new(file), spec }),
        }
    }

    pub fn spec(&self) -> &SlabsSpec {
        &self.spec
    }

    /// Reads a slab into a buffer of [`SlabsSpec::padded_bytes`], or into a new one. The buffer
    /// that comes back has the slab's bytes and no padding. A slab that is not what was written is
    /// an error of the kind [`io::ErrorKind::InvalidData`].
    ///
    /// # Panics
    /// There is no slab of this number.
    pub fn read(
        &self,
        pool: &Pool,
        slab: u64,
        into: Option<Buffer>,
    ) -> Pending<io::Result<Buffer>> {
        assert!(slab < self.spec.count, "slab {slab} of {}", self.spec.count);
        let (spec, bytes) = (self.spec, self.spec.padded_bytes());
        let into = into.map(Buffer::whole);
        let read = Read { file: self.file.clone(), offset: spec.offset(slab), bytes, into };
        pool.read_then(read, move |read| {
            let mut buffer = read?;
            if buffer.len() < bytes {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            if !spec.is_whole(slab, &buffer) {
                let text = format!("slab {slab} of {} is damaged", spec.count);
                return Err(io::Error::new(io::ErrorKind::InvalidData, text));
            }
            buffer.truncate(spec.slab_bytes as usize);
            Ok(buffer)
        })
    }
}

/// Writes a file of slabs. What is dropped unfinished is removed.
pub struct SlabsWriter {
    spec: SlabsSpec,
    path: PathBuf,
    partial: PathBuf,
    file: Option<DirectFile>,
    is_written: Vec<bool>,
}

impl SlabsWriter {
    /// Begins a file, under another name; one that was begun before is replaced.
    ///
    /// # Errors
    /// It cannot be made.
    pub fn create(path: &Path, spec: SlabsSpec) -> io::Result<Self> {
        let mut partial = path.as_os_str().to_owned();
        partial.push(".partial");
        let partial = PathBuf::from(partial);
        let file = DirectFile::writable(&partial, OpenOptions::new().create(true).truncate(true))?;
        let is_written = vec![false; spec.count as usize];
        Ok(Self { spec, path: path.to_owned(), partial, file: Some(file), is_written })
    }

    /// Writes a slab. `slab` is a buffer of [`SlabsSpec::padded_bytes`]; its last bytes get the
    /// slab's hash.
    ///
    /// # Errors
    /// The disk fails or has no room.
    ///
    /// # Panics
    /// There is no slab of this number, or the buffer has another length.
    pub fn write(&mut self, number: u64, slab: &mut Buffer) -> io::Result<()> {
        assert_eq!(slab.len(), self.spec.padded_bytes(), "the length of a slab");
        let hash = self.spec.hash(number, slab);
        let at = slab.len() - HASH_BYTES;
        slab[at..].copy_from_slice(hash.as_bytes());
        let is_written = &mut self.is_written[number as usize];
        let file = self.file.as_ref().expect("it is open until it is finished");
        file.write_at(slab, self.spec.offset(number))?;
        *is_written = true;
        Ok(())
    }

    /// Closes the file and gives it its name.
    ///
    /// # Errors
    /// A slab is missing, or the disk fails.
    pub fn finish(mut self) -> Result<Slabs, SlabsError> {
        let finished = self.publish();
        finished.map_err(|source| SlabsError::Io { path: self.partial.clone(), source })?;
        Slabs::open(&self.path, self.spec)
    }

    fn publish(&mut self) -> io::Result<()> {
        if let Some(missing) = self.is_written.iter().position(|is_written| !is_written) {
            let text = format!("slab {missing} of {} was not written", self.spec.count);
            return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
        }
        let file = self.file.take().expect("it is open until it is finished");
        file.write_at(&self.spec.header(), 0)?;
        file.sync()?;
        drop(file);
        std::fs::rename(&self.partial, &self.path)
    }
}

impl Drop for SlabsWriter {
    fn drop(&mut self) {
        if let Some(file) = self.file.take() {
            drop(file);
            let _ = std::fs::remove_file(&self.partial);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SPEC: SlabsSpec = SlabsSpec { identity: [3; 32], count: 5, slab_bytes: 5000 };

    fn write(path: &Path) -> SlabsWriter {
        let mut writer = SlabsWriter::create(path, SPEC).unwrap();
        // In any order.
        for slab in [4, 0, 3, 1, 2] {
            let mut buffer = Buffer::zeroed(SPEC.padded_bytes());
            buffer[..5000].fill(slab as u8 + 1);
            writer.write(slab, &mut buffer).unwrap();
        }
        writer
    }

    #[track_caller]
    fn is_stale(path: &Path, spec: SlabsSpec, why: &str) {
        let error = Slabs::open(path, spec).unwrap_err();
        assert!(matches!(error, SlabsError::Stale { why: found, .. } if found == why), "{error}");
    }

    #[test]
    fn slabs_come_back_by_number() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("slabs");
        is_stale(&path, SPEC, "there is none");
        let slabs = write(&path).finish().unwrap();
        let pool = Pool::with_depth(2).unwrap();
        let own = || Some(Buffer::zeroed(SPEC.padded_bytes()));
        for slab in 0..5 {
            for into in [None, own()] {
                let read = slabs.read(&pool, slab, into).wait_forever().unwrap().unwrap();
                assert_eq!(&read[..], [slab as u8 + 1; 5000]);
            }
        }
        assert_eq!(std::fs::metadata(&path).unwrap().len(), SPEC.file_bytes());
        // Truncated while it is open: an error, not zeros.
        let file = OpenOptions::new().write(true).open(&path).unwrap();
        file.set_len(SPEC.file_bytes() - 1).unwrap();
        let error = slabs.read(&pool, 4, None).wait_forever().unwrap().unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof);
        is_stale(&path, SPEC, "it is not whole");
    }

    #[test]
    fn a_flipped_bit_or_another_slab_is_an_error() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("slabs");
        write(&path).finish().unwrap();
        let (pool, whole) = (Pool::with_depth(2).unwrap(), std::fs::read(&path).unwrap());
        let (start, bytes) = (SPEC.offset(1) as usize, SPEC.padded_bytes());
        let kind = |content: Vec<u8>| {
            std::fs::write(&path, content).unwrap();
            let slabs = Slabs::open(&path, SPEC).unwrap();
            let read = slabs.read(&pool, 1, None).wait_forever().unwrap();
            read.map(drop).map_err(|error| error.kind())
        };
        let last = bytes - 1;
        for at in [0, 1, 4999, last - 31, last] {
            let mut flipped = whole.clone();
            flipped[start + at] ^= 1;
            assert_eq!(kind(flipped), Err(io::ErrorKind::InvalidData), "byte {at}");
        }
        let mut swapped = whole.clone();
        swapped.copy_within(start + bytes..start + 2 * bytes, start);
        assert_eq!(kind(swapped), Err(io::ErrorKind::InvalidData));
        assert_eq!(kind(whole), Ok(()));
    }

    #[test]
    fn a_file_without_all_slabs_never_gets_its_name() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("slabs");
        let mut writer = SlabsWriter::create(&path, SPEC).unwrap();
        writer.write(1, &mut Buffer::zeroed(SPEC.padded_bytes())).unwrap();
        let error = writer.finish().unwrap_err().to_string();
        assert!(error.contains("slab 0 of 5"), "{error}");
        drop(write(&path));
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
        // Killed: nothing is dropped. The next one writes anew.
        std::mem::forget(write(&path));
        is_stale(&path, SPEC, "there is none");
        write(&path).finish().unwrap();
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1);
    }

    #[test]
    fn another_identity_version_or_size_is_written_anew() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("slabs");
        write(&path).finish().unwrap();
        let other = SlabsSpec { identity: [4; 32], ..SPEC };
        is_stale(&path, other, "it was made of something else");
        is_stale(&path, SlabsSpec { slab_bytes: 5001, ..SPEC }, "it has other slabs");
        let whole = std::fs::read(&path).unwrap();
        for at in 0..CHECKED_BYTES + 32 {
            let mut flipped = whole.clone();
            flipped[at] ^= 1;
            std::fs::write(&path, flipped).unwrap();
            assert!(Slabs::open(&path, SPEC).is_err(), "byte {at}");
        }
        std::fs::write(&path, &whole[..100]).unwrap();
        is_stale(&path, SPEC, "it is something else");
    }
}

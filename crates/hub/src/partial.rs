//! An incomplete file: its bytes in `FILE.part`, and the list of present ranges in
//! `FILE.part.json`. Downloads from the hub and copies from other nodes are both written here.

use std::fs::{self, File, TryLockError};
use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::ranges::Ranges;
use crate::{HubError, RemoteFile};

/// Suffixes of the file's name: its bytes, its list of ranges, and the list before it is moved into
/// place.
pub(crate) const PART: &str = ".part";
pub(crate) const PART_NOTE: &str = ".part.json";
const PART_NOTE_NEW: &str = ".part.json.new";

/// The saved state of an incomplete file.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Kept {
    size: u64,
    sha256: Option<String>,
    /// The server's ETag: bytes under another one belong to another file.
    pub(crate) etag: Option<String>,
    pub(crate) have: Ranges,
}

impl Kept {
    /// Bytes of the whole file.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// Bytes that are present.
    pub fn have_bytes(&self) -> u64 {
        self.have.total()
    }

    /// Whether all bytes of a range are present.
    pub fn has(&self, bytes: Range<u64>) -> bool {
        self.have.covers(bytes.start, bytes.end)
    }

    /// Lists a range as present.
    pub fn add(&mut self, bytes: Range<u64>) {
        self.have.add(bytes.start, bytes.end);
    }
}

/// An open incomplete file, locked against other processes.
#[derive(Debug)]
pub struct Partial {
    file: File,
    path: PathBuf,
}

impl Partial {
    /// Opens the partial file of a file with this content, or begins anew. No server announces a
    /// hash of its bytes, so the caller checks them.
    ///
    /// # Errors
    /// The disk fails, or another process writes the same file.
    pub fn of_content(path: &Path, size: u64, content: &str) -> Result<(Self, Kept), HubError> {
        let file = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let remote = RemoteFile { path: file, size, sha256: None };
        let (partial, mut kept) = Self::open(path, &remote)?;
        if kept.etag.as_deref() != Some(content) {
            kept = Kept { size, etag: Some(content.to_owned()), ..Kept::default() };
        }
        Ok((partial, kept))
    }

    /// Opens the partial file of `path`, or creates it.
    pub(crate) fn open(path: &Path, remote: &RemoteFile) -> Result<(Self, Kept), HubError> {
        if let Some(folder) = path.parent() {
            fs::create_dir_all(folder).map_err(HubError::disk(folder))?;
        }
        let part = with_suffix(path, PART);
        refuse_links(path)?;
        let mut options = File::options();
        let file = options.read(true).write(true).create(true).truncate(false).open(&part);
        let file = file.map_err(HubError::disk(&part))?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                return Err(HubError::Busy { file: remote.path.clone() });
            }
            // Some network drives have no locks; two downloads of the same file then only do the
            // work twice.
            Err(TryLockError::Error(_)) => {}
        }
        let found = fs::read(with_suffix(path, PART_NOTE)).ok();
        let found = found.and_then(|text| serde_json::from_slice::<Kept>(&text).ok());
        let is_same = |kept: &Kept| {
            (kept.size, &kept.sha256) == (remote.size, &remote.sha256)
                && kept.have.is_sound(remote.size)
                && (kept.sha256.is_some() || kept.etag.is_some())
        };
        let kept = found.filter(is_same).unwrap_or_else(|| Kept {
            size: remote.size,
            sha256: remote.sha256.clone(),
            ..Kept::default()
        });
        let partial = Self { file, path: path.to_path_buf() };
        match file_len(&partial.file, remote.size).map_err(HubError::disk(&part)) {
            Ok(()) => Ok((partial, kept)),
            // A file without a byte is no beginning.
            Err(error) if kept.have_bytes() == 0 => partial.discard().and(Err(error)),
            Err(error) => Err(error),
        }
    }

    /// Writes bytes at an offset. They count once the list of [`Self::save`] has them.
    ///
    /// # Errors
    /// The disk fails.
    pub fn write(&self, at: u64, bytes: &[u8]) -> io::Result<()> {
        write_all_at(&self.file, at, bytes)
    }

    /// Reads bytes at an offset.
    ///
    /// # Errors
    /// The disk fails, or the file is shorter.
    pub fn read(&self, at: u64, bytes: &mut [u8]) -> io::Result<()> {
        gguf::read_exact_at(&self.file, at, bytes)
    }

    /// Saves the list of ranges, in one step. It is not synced: after a power loss it may list
    /// bytes that are missing, which the file's hash reveals.
    ///
    /// # Errors
    /// The disk fails.
    pub fn save(&self, kept: &Kept) -> io::Result<()> {
        let (path, new) = (self.note(), with_suffix(&self.path, PART_NOTE_NEW));
        let text = serde_json::to_vec(kept).map_err(io::Error::other)?;
        let saved = fs::write(&new, text).and_then(|()| store::rename(&new, path));
        // On a full disk: an empty list is useless.
        saved.inspect_err(|_| _ = fs::remove_file(&new))
    }

    /// Moves the file to its final path.
    ///
    /// # Errors
    /// The disk fails.
    pub fn finish(self) -> Result<(), HubError> {
        self.file.sync_all().map_err(HubError::disk(&self.path))?;
        store::rename(with_suffix(&self.path, PART), &self.path)
            .map_err(HubError::disk(&self.path))?;
        remove(&self.note())
    }

    /// Deletes the bytes and the list.
    ///
    /// # Errors
    /// The disk fails.
    pub fn discard(self) -> Result<(), HubError> {
        remove(&self.note())?;
        remove(&with_suffix(&self.path, PART))
    }

    /// Deletes the list, so that the next download starts anew.
    pub(crate) fn forget(&self) -> Result<(), HubError> {
        remove(&self.note())
    }

    fn note(&self) -> PathBuf {
        with_suffix(&self.path, PART_NOTE)
    }
}

/// A link in place of a partial file would have the download written to its target.
fn refuse_links(path: &Path) -> Result<(), HubError> {
    let all = [PART, PART_NOTE, PART_NOTE_NEW].map(|suffix| with_suffix(path, suffix));
    match all.iter().find(|path| path.is_symlink()) {
        Some(path) => Err(HubError::disk(path)(io::Error::other("it is a link; delete it"))),
        None => Ok(()),
    }
}

fn file_len(file: &File, len: u64) -> io::Result<()> {
    if file.metadata()?.len() == len { Ok(()) } else { file.set_len(len) }
}

fn remove(path: &Path) -> Result<(), HubError> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(HubError::disk(path)(error)),
        _ => Ok(()),
    }
}

fn with_suffix(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.file_name().unwrap_or_default().to_os_string();
    name.push(suffix);
    path.with_file_name(name)
}

#[cfg(unix)]
fn write_all_at(file: &File, at: u64, bytes: &[u8]) -> io::Result<()> {
    std::os::unix::fs::FileExt::write_all_at(file, bytes, at)
}

#[cfg(windows)]
fn write_all_at(file: &File, mut at: u64, mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        match std::os::windows::fs::FileExt::seek_write(file, bytes, at)? {
            0 => return Err(io::ErrorKind::WriteZero.into()),
            written => {
                at += written as u64;
                bytes = &bytes[written..];
            }
        }
    }
    Ok(())
}

#[cfg(test)]
#[cfg(unix)]
mod tests {
    use super::*;

    #[test]
    fn links_in_place_of_partial_files_are_refused() {
        let home = tempfile::tempdir().unwrap();
        let (victim, path) = (home.path().join("victim"), home.path().join("m.gguf"));
        fs::write(&victim, "mine").unwrap();
        for suffix in [PART, PART_NOTE, PART_NOTE_NEW] {
            let link = with_suffix(&path, suffix);
            std::os::unix::fs::symlink(&victim, &link).unwrap();
            let error = Partial::of_content(&path, 9, "content").unwrap_err().to_string();
            assert!(error.contains("is a link"), "{suffix}: {error}");
            fs::remove_file(&link).unwrap();
        }
        assert_eq!(fs::read_to_string(&victim).unwrap(), "mine");
    }
}

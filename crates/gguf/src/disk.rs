//! A file's bytes, usually on this machine's disk, read at positions.
//!
//! The file is not mapped. Mapped pages count as this process's memory while they are mapped,
//! beside the weights that were packed from them. And a failing disk or a truncated file would end
//! the process instead of returning an error.

use std::fmt;
use std::fs::{File, Metadata};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use crate::{Directory, Error};

/// Bytes of the first read in search of the header's end; each further read is four times as long.
const HEADER_BYTES_FIRST: u64 = 1 << 20;

/// The longest accepted header. Published models stay below 20 MB, most of it vocabulary.
const HEADER_BYTES_MAX: u64 = 256 << 20;

/// The bytes of one file, on disk or elsewhere.
pub trait Bytes: fmt::Debug + Send + Sync {
    /// Length of the whole file in bytes; it does not change.
    fn len(&self) -> u64;

    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Fills `out` with the bytes from `start` on.
    ///
    /// # Errors
    /// The file ends before that, or cannot be read.
    fn read(&self, start: u64, out: &mut [u8]) -> io::Result<()>;

    /// Whether the file was written to since it was opened. A replaced or deleted file counts as
    /// unchanged: its old content stays readable.
    fn has_changed(&self) -> bool {
        false
    }
}

#[derive(Debug)]
struct OnDisk {
    file: File,
    /// Its length and modification time when it was opened.
    len: u64,
    modified: Option<SystemTime>,
}

impl Bytes for OnDisk {
    fn len(&self) -> u64 {
        self.len
    }

    fn read(&self, start: u64, out: &mut [u8]) -> io::Result<()> {
        read_exact_at(&self.file, start, out)
    }

    fn has_changed(&self) -> bool {
        let is_same = |now: Metadata| now.len() == self.len && now.modified().ok() == self.modified;
        !self.file.metadata().is_ok_and(is_same)
    }
}

/// Opens a file of this machine.
///
/// # Errors
/// It cannot be opened, or is no regular file.
pub fn on_disk(path: &Path) -> io::Result<Arc<dyn Bytes>> {
    // Opening a pipe could wait without end.
    if !std::fs::metadata(path)?.is_file() {
        return Err(io::Error::other("it is not a regular file"));
    }
    let file = File::open(path)?;
    let metadata = file.metadata()?;
    let (len, modified) = (metadata.len(), metadata.modified().ok());
    Ok(Arc::new(OnDisk { file, len, modified }))
}

/// The directory of a file, which need not have its tensors: all that a plan needs.
/// [`File`](crate::File) reads models that run.
///
/// # Errors
/// It cannot be read, or is not a GGUF file.
pub fn read_header(path: &Path) -> Result<Directory, Error> {
    let io = |source| Error::Io { path: PathBuf::from(path), source };
    Disk(on_disk(path).map_err(io)?).directory(path, u64::MAX)
}

/// A file, of which the directory has been read.
#[derive(Debug)]
pub(crate) struct Disk(Arc<dyn Bytes>);

impl Disk {
    /// Opens a file and reads everything in front of its tensors.
    pub fn open(path: &Path) -> Result<(Self, Directory), Error> {
        let io = |source| Error::Io { path: PathBuf::from(path), source };
        Self::over(on_disk(path).map_err(io)?, path)
    }

    /// Like [`Self::open`], for bytes from elsewhere; `path` is for errors.
    pub fn over(bytes: Arc<dyn Bytes>, path: &Path) -> Result<(Self, Directory), Error> {
        let disk = Self(bytes);
        let directory = disk.directory(path, disk.len())?;
        Ok((disk, directory))
    }

    /// The directory of a file of `file_len` bytes; only the bytes in front of its tensors need to
    /// exist.
    fn directory(&self, path: &Path, file_len: u64) -> Result<Directory, Error> {
        let io = |source| Error::Io { path: PathBuf::from(path), source };
        let mut wanted = HEADER_BYTES_FIRST;
        let mut header = Vec::new();
        loop {
            let have = header.len();
            header.resize(wanted.min(self.len()) as usize, 0);
            self.read(have as u64, &mut header[have..]).map_err(io)?;
            match Directory::parse(&header, file_len) {
                // The bytes so far may be only the beginning.
                Err(Error::Truncated { .. } | Error::TooMany { .. }) if wanted < self.len() => {
                    wanted *= 4;
                }
                parsed => return parsed,
            }
            if wanted > HEADER_BYTES_MAX {
                return Err(Error::HeaderTooLong { limit: HEADER_BYTES_MAX });
            }
        }
    }

    /// Its length in bytes when it was opened.
    pub fn len(&self) -> u64 {
        self.0.len()
    }

    /// Fills `out` with the bytes from `start` on.
    pub fn read(&self, start: u64, out: &mut [u8]) -> io::Result<()> {
        self.0.read(start, out)
    }

    pub fn bytes(&self) -> Arc<dyn Bytes> {
        self.0.clone()
    }
}

/// Fills `out` with a file's bytes from `start` on, whatever position the file has.
///
/// # Errors
/// The file ends before, or cannot be read.
#[cfg(unix)]
pub fn read_exact_at(file: &File, start: u64, out: &mut [u8]) -> io::Result<()> {
    std::os::unix::fs::FileExt::read_exact_at(file, out, start)
}

/// Fills `out` with a file's bytes from `start` on, and moves the file's position.
///
/// # Errors
/// The file ends before, or cannot be read.
#[cfg(windows)]
pub fn read_exact_at(file: &File, mut start: u64, mut out: &mut [u8]) -> io::Result<()> {
    while !out.is_empty() {
        match std::os::windows::fs::FileExt::seek_read(file, out, start)? {
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            read => {
                start += read as u64;
                out = &mut out[read..];
            }
        }
    }
    Ok(())
}

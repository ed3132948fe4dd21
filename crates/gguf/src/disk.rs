//! A file on this machine's disk, read at positions.
//!
//! It is not mapped: mapped pages count as this process's memory for as long as they are mapped,
//! beside the weights that were packed from them; a disk that fails or a file that was cut would
//! end the process instead of returning an error.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

use crate::{Directory, Error};

/// Bytes that are read in search of the header's end at first; then four times as many, and so on.
const HEADER_BYTES_FIRST: u64 = 1 << 20;

/// The longest header that is accepted. Published models stay below 20 MB, most of it vocabulary.
const HEADER_BYTES_MAX: u64 = 256 << 20;

#[derive(Debug)]
pub(crate) struct Disk {
    file: File,
    len: u64,
}

impl Disk {
    /// Opens a file and reads everything in front of its tensors.
    pub fn open(path: &Path) -> Result<(Self, Directory), Error> {
        let io = |source| Error::Io { path: PathBuf::from(path), source };
        let file = File::open(path).map_err(io)?;
        let metadata = file.metadata().map_err(io)?;
        if !metadata.is_file() {
            return Err(io(io::Error::other("it is not a regular file")));
        }
        let disk = Self { file, len: metadata.len() };
        let mut wanted = HEADER_BYTES_FIRST;
        let mut header = Vec::new();
        loop {
            let have = header.len();
            header.resize(wanted.min(disk.len) as usize, 0);
            disk.read(have as u64, &mut header[have..]).map_err(io)?;
            match Directory::parse(&header, disk.len) {
                // What is there may only be the beginning.
                Err(Error::Truncated { .. } | Error::TooMany { .. }) if wanted < disk.len => {
                    wanted *= 4;
                }
                parsed => return Ok((disk, parsed?)),
            }
            if wanted > HEADER_BYTES_MAX {
                return Err(Error::HeaderTooLong { limit: HEADER_BYTES_MAX });
            }
        }
    }

    /// Its length when it was opened, bytes.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Fills `out` with the bytes from `start` on.
    pub fn read(&self, start: u64, out: &mut [u8]) -> io::Result<()> {
        read_exact_at(&self.file, start, out)
    }
}

#[cfg(unix)]
fn read_exact_at(file: &File, start: u64, out: &mut [u8]) -> io::Result<()> {
    std::os::unix::fs::FileExt::read_exact_at(file, out, start)
}

#[cfg(windows)]
fn read_exact_at(file: &File, mut start: u64, mut out: &mut [u8]) -> io::Result<()> {
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

//! What the writer asks of a disk: a trait, so that tests can have it fail anywhere.

use std::fs::OpenOptions;
use std::io;
use std::path::Path;

use crate::direct::DirectFile;

/// A place for files.
pub(crate) trait Disk: Send + Sync {
    /// Makes a file that only this user may read, or opens one that is there.
    fn open(&self, path: &Path, is_new: bool) -> io::Result<Box<dyn Sink>>;
    fn remove(&self, path: &Path) -> io::Result<()>;
    /// Bytes that this user may still write to the disk of `folder`.
    fn free_bytes(&self, folder: &Path) -> io::Result<u64>;
}

/// A file that is being written.
pub(crate) trait Sink: Send {
    /// Writes whole blocks of 4096 bytes from aligned memory.
    fn write_at(&mut self, bytes: &[u8], offset: u64) -> io::Result<()>;
}

/// The system's.
pub(crate) struct SystemDisk;

impl Disk for SystemDisk {
    fn open(&self, path: &Path, is_new: bool) -> io::Result<Box<dyn Sink>> {
        let mut options = OpenOptions::new();
        private(options.create_new(is_new));
        Ok(Box::new(DirectFile::writable(path, &mut options)?))
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        std::fs::remove_file(path)
    }

    fn free_bytes(&self, folder: &Path) -> io::Result<u64> {
        free_bytes(folder)
    }
}

impl Sink for DirectFile {
    fn write_at(&mut self, bytes: &[u8], offset: u64) -> io::Result<()> {
        DirectFile::write_at(self, bytes, offset)
    }
}

/// Makes a folder that only this user may enter, or makes one so that is there.
#[cfg(unix)]
pub(crate) fn private_folder(path: &Path) -> io::Result<()> {
    use std::fs::Permissions;
    use std::os::unix::fs::{DirBuilderExt, PermissionsExt};

    std::fs::DirBuilder::new().recursive(true).mode(0o700).create(path)?;
    std::fs::set_permissions(path, Permissions::from_mode(0o700))
}

/// What is made with these options only this user may read.
#[cfg(unix)]
pub(crate) fn private(options: &mut OpenOptions) -> &mut OpenOptions {
    std::os::unix::fs::OpenOptionsExt::mode(options, 0o600)
}

/// What a file takes of the disk.
#[cfg(unix)]
pub(crate) fn disk_bytes(file: &std::fs::Metadata) -> u64 {
    std::os::unix::fs::MetadataExt::blocks(file) * 512
}

/// Bytes that this user may still write to the disk of `folder`.
///
/// # Errors
/// There is no such folder.
#[cfg(unix)]
pub fn free_bytes(folder: &Path) -> io::Result<u64> {
    let disk = rustix::fs::statvfs(folder)?;
    Ok(disk.f_bavail.saturating_mul(disk.f_frsize))
}

/// What is made below a user's folder inherits who may read it.
#[cfg(windows)]
pub(crate) fn private_folder(path: &Path) -> io::Result<()> {
    std::fs::create_dir_all(path)
}

#[cfg(windows)]
pub(crate) fn private(options: &mut OpenOptions) -> &mut OpenOptions {
    options
}

#[cfg(windows)]
pub(crate) fn disk_bytes(file: &std::fs::Metadata) -> u64 {
    file.len().next_multiple_of(crate::buffer::ALIGN as u64)
}

/// Bytes that this user may still write to the disk of `folder`.
///
/// # Errors
/// There is no such folder.
#[cfg(windows)]
pub fn free_bytes(folder: &Path) -> io::Result<u64> {
    win32::disk::free_bytes(folder).ok_or_else(io::Error::last_os_error)
}

//! Disks and files.

use std::fs::OpenOptions;
use std::io;
use std::os::windows::fs::OpenOptionsExt;
use std::os::windows::io::AsRawHandle;
use std::path::Path;

use windows_sys::Win32::Storage::FileSystem::{
    BY_HANDLE_FILE_INFORMATION, FILE_FLAG_BACKUP_SEMANTICS, GetDiskFreeSpaceExW,
    GetFileInformationByHandle,
};

use crate::{checked, wide};

/// Bytes that this user may still write to the disk of `folder`; `None` if it does not tell.
pub fn free_bytes(folder: &Path) -> Option<u64> {
    let folder = wide(folder);
    let mut free = 0;
    let none = std::ptr::null_mut();
    // SAFETY: the name ends with a zero, and the call writes one number.
    checked(unsafe { GetDiskFreeSpaceExW(folder.as_ptr(), &mut free, none, none) }).ok()?;
    Some(free)
}

/// The number of the disk of a file or folder, and its own on it. Follows links.
///
/// # Errors
/// It cannot be found or looked at.
pub fn identity(path: &Path) -> io::Result<(u64, u64)> {
    // Without any access; the flag lets a folder be opened too.
    let mut options = OpenOptions::new();
    let file = options.access_mode(0).custom_flags(FILE_FLAG_BACKUP_SEMANTICS).open(path)?;
    let mut found = BY_HANDLE_FILE_INFORMATION::default();
    // SAFETY: the handle is open, and the call fills the structure.
    checked(unsafe { GetFileInformationByHandle(file.as_raw_handle(), &mut found) })?;
    let own = (u64::from(found.nFileIndexHigh) << 32) | u64::from(found.nFileIndexLow);
    Ok((found.dwVolumeSerialNumber.into(), own))
}

//! What Sinew asks of Windows and neither the standard library nor another one wraps, behind safe
//! functions. On other systems the crate is empty.

#![cfg(windows)]

pub mod clock;
pub mod console;
pub mod disk;
pub mod job;
pub mod machine;
pub mod mapping;
pub mod process;
pub mod service;
pub mod socket;

use std::io;
use std::os::windows::ffi::OsStrExt;
use std::os::windows::io::{FromRawHandle, OwnedHandle, RawHandle};

/// Text as Windows takes it: UTF-16, with a zero at its end.
fn wide(text: impl AsRef<std::ffi::OsStr>) -> Vec<u16> {
    text.as_ref().encode_wide().chain([0]).collect()
}

/// The outcome of a call that returns zero when it fails.
fn checked(outcome: i32) -> io::Result<()> {
    if outcome == 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// A handle that a call has just returned, and gives to nobody else; null says that it failed.
fn owned(handle: RawHandle) -> io::Result<OwnedHandle> {
    if handle.is_null() {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: as said above, every caller passes a new handle.
    Ok(unsafe { OwnedHandle::from_raw_handle(handle) })
}

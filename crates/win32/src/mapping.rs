//! Named memory that two processes of one user map.

use std::collections::HashMap;
use std::io;
use std::os::windows::io::{AsRawHandle, OwnedHandle};
use std::ptr::NonNull;
use std::sync::{Mutex, PoisonError};

use windows_sys::Win32::Foundation::{ERROR_ALREADY_EXISTS, GetLastError, INVALID_HANDLE_VALUE};
use windows_sys::Win32::System::Memory::{
    CreateFileMappingW, FILE_MAP_ALL_ACCESS, MEMORY_BASIC_INFORMATION, MEMORY_MAPPED_VIEW_ADDRESS,
    MapViewOfFile, OpenFileMappingW, PAGE_READWRITE, UnmapViewOfFile, VirtualQuery,
};

use crate::{owned, wide};

/// Objects made here. The system forgets a name with its last handle, so each lies here until
/// [`unlink`].
static NAMED: Mutex<Option<HashMap<String, OwnedHandle>>> = Mutex::new(None);

/// Makes the object, `len` zero bytes that this user alone may open, and maps it.
///
/// # Errors
/// Another process has the name, or there is no memory.
pub fn create(name: &str, len: usize) -> io::Result<NonNull<u8>> {
    let text = wide(name);
    let (high, low) = ((len as u64 >> 32) as u32, len as u32);
    // SAFETY: the name ends with a zero; without attributes the call reads nothing else.
    let (handle, exists) = unsafe {
        let file = INVALID_HANDLE_VALUE;
        let none = std::ptr::null();
        let handle = CreateFileMappingW(file, none, PAGE_READWRITE, high, low, text.as_ptr());
        (handle, GetLastError() == ERROR_ALREADY_EXISTS)
    };
    let handle = owned(handle)?;
    if exists {
        return Err(io::Error::from(io::ErrorKind::AlreadyExists));
    }
    let start = map(&handle, len)?;
    let mut named = NAMED.lock().unwrap_or_else(PoisonError::into_inner);
    named.get_or_insert_default().insert(name.to_owned(), handle);
    Ok(start)
}

/// Maps the object that another process made.
///
/// # Errors
/// There is none, it belongs to another user, or it has fewer than `len` bytes.
pub fn open(name: &str, len: usize) -> io::Result<NonNull<u8>> {
    let text = wide(name);
    // SAFETY: the name ends with a zero.
    let handle = unsafe { OpenFileMappingW(FILE_MAP_ALL_ACCESS, 0, text.as_ptr()) };
    map(&owned(handle)?, len)
}

/// Takes an object's name away; mappings stay.
///
/// # Errors
/// The name was not given by this process.
pub fn unlink(name: &str) -> io::Result<()> {
    let mut named = NAMED.lock().unwrap_or_else(PoisonError::into_inner);
    let found = named.as_mut().and_then(|named| named.remove(name));
    found.map(drop).ok_or_else(|| io::Error::from(io::ErrorKind::NotFound))
}

/// # Safety
/// `start` and the length are those of a mapping made here, which nobody uses any more.
pub unsafe fn unmap(start: NonNull<u8>, _: usize) {
    let view = MEMORY_MAPPED_VIEW_ADDRESS { Value: start.as_ptr().cast() };
    // SAFETY: as the caller promises.
    let _ = unsafe { UnmapViewOfFile(view) };
}

/// A mapping of all of the object, checked to have `len` bytes.
fn map(object: &OwnedHandle, len: usize) -> io::Result<NonNull<u8>> {
    // SAFETY: the handle is open; the system chooses an address that aliases no Rust object.
    let view = unsafe { MapViewOfFile(object.as_raw_handle(), FILE_MAP_ALL_ACCESS, 0, 0, 0) };
    let start = NonNull::new(view.Value.cast()).ok_or_else(io::Error::last_os_error)?;
    let mut region = MEMORY_BASIC_INFORMATION::default();
    // SAFETY: the call reads no memory at the address, and writes a structure of this length.
    unsafe { VirtualQuery(view.Value, &mut region, size_of_val(&region)) };
    if region.RegionSize < len {
        // SAFETY: it was mapped above, and nobody has its address.
        unsafe { unmap(start, len) };
        let text = format!("the object has {} bytes, {len} expected", region.RegionSize);
        return Err(io::Error::other(text));
    }
    Ok(start)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_mappings_are_the_same_memory_and_the_name_goes() {
        let name = format!("sinew-test-{}", std::process::id());
        let made = create(&name, 8192).unwrap();
        assert_eq!(create(&name, 8192).unwrap_err().kind(), io::ErrorKind::AlreadyExists);
        let opened = open(&name, 8192).unwrap();
        let short = open(&name, 1 << 20).unwrap_err().to_string();
        assert!(short.contains("1048576 expected"), "{short}");
        // SAFETY: both mappings have 8192 bytes, and no other thread knows them.
        unsafe {
            made.as_ptr().add(8000).write_volatile(7);
            assert_eq!(opened.as_ptr().add(8000).read_volatile(), 7);
        }
        unlink(&name).unwrap();
        assert!(unlink(&name).is_err() && open(&name, 8192).is_err());
        // SAFETY: nobody uses them any more.
        unsafe {
            unmap(made, 8192);
            unmap(opened, 8192);
        }
    }
}

//! Large zeroed memory for weights and caches, on huge pages where the system has them.
//!
//! A matrix of hundreds of megabytes read once a token misses the TLB on every 4 KB page; on huge
//! pages the same loop reads up to 10 % faster. Pages that are never written cost no memory, which
//! is what lets a KV cache reserve its full context.

use crate::error::Error;

/// Zeroed bytes, aligned to at least 64, freed on drop.
pub(crate) struct Region {
    start: *mut u8,
    bytes: usize,
}

// SAFETY: a region is plain owned memory, like a `Vec<u8>`.
unsafe impl Send for Region {}
// SAFETY: as above; shared access is read-only unless the owner holds `&mut`.
unsafe impl Sync for Region {}

impl Region {
    pub fn as_ptr(&self) -> *const u8 {
        self.start
    }

    pub fn as_mut_ptr(&mut self) -> *mut u8 {
        self.start
    }
}

#[cfg(target_os = "linux")]
impl Region {
    /// `bytes` zeroed bytes (at least 1 is mapped).
    pub fn zeroed(bytes: usize) -> Result<Self, Error> {
        use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous};
        let length = bytes.max(1);
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
        // SAFETY: a fresh private mapping at an address the system chooses touches nothing else.
        let start = unsafe { mmap_anonymous(std::ptr::null_mut(), length, protection, flags) }
            .map_err(|errno| Error::Memory { bytes, error: errno.into() })?;
        // SAFETY: the range is the mapping just made, and the advice changes no content. A kernel
        // without huge pages refuses, which costs speed only.
        let _ = unsafe { madvise(start, length, Advice::LinuxHugepage) };
        Ok(Self { start: start.cast(), bytes })
    }
}

#[cfg(target_os = "linux")]
impl Drop for Region {
    fn drop(&mut self) {
        // SAFETY: exactly the mapping made in `zeroed`, which nobody else owns.
        let _ = unsafe { rustix::mm::munmap(self.start.cast(), self.bytes.max(1)) };
    }
}

#[cfg(not(target_os = "linux"))]
impl Region {
    /// `bytes` zeroed bytes.
    pub fn zeroed(bytes: usize) -> Result<Self, Error> {
        let out_of_memory =
            || Error::Memory { bytes, error: std::io::ErrorKind::OutOfMemory.into() };
        let layout = Self::layout(bytes).ok_or_else(out_of_memory)?;
        // SAFETY: the layout's size is at least 1.
        let start = unsafe { std::alloc::alloc_zeroed(layout) };
        if start.is_null() { Err(out_of_memory()) } else { Ok(Self { start, bytes }) }
    }

    fn layout(bytes: usize) -> Option<std::alloc::Layout> {
        std::alloc::Layout::from_size_align(bytes.max(1), 64).ok()
    }
}

#[cfg(not(target_os = "linux"))]
impl Drop for Region {
    fn drop(&mut self) {
        let layout = Self::layout(self.bytes).expect("the layout was valid when allocated");
        // SAFETY: allocated in `zeroed` with this layout.
        unsafe { std::alloc::dealloc(self.start, layout) };
    }
}

//! Large zeroed memory for weights and caches, on huge pages where the system has them.
//!
//! A matrix read once a token misses the TLB on every 4 KB page, and the machine's own prefetching
//! starts anew with each. So regions are cut from large mappings: in a separate mapping, a matrix
//! of 3 MB has room for at most one huge page. Pages that are never written cost no memory, so a KV
//! cache can reserve its full context.

use std::ops::Range;

use crate::error::Error;
#[cfg(target_os = "linux")]
use blocks::Block;
#[cfg(target_os = "linux")]
use std::sync::Arc;

/// Zeroed bytes, aligned to at least 64, freed on drop.
pub(crate) struct Region {
    start: *mut u8,
    bytes: usize,
    #[cfg(target_os = "linux")]
    _block: Arc<Block>,
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

    /// # Panics
    /// If the range ends behind the region.
    pub fn slice(&self, range: Range<usize>) -> &[u8] {
        assert!(range.start <= range.end && range.end <= self.bytes, "{range:?} of {}", self.bytes);
        // SAFETY: the range lies in this region's own initialised memory.
        unsafe { std::slice::from_raw_parts(self.start.add(range.start), range.len()) }
    }

    /// # Panics
    /// If the range ends behind the region.
    pub fn slice_mut(&mut self, range: Range<usize>) -> &mut [u8] {
        assert!(range.start <= range.end && range.end <= self.bytes, "{range:?} of {}", self.bytes);
        // SAFETY: the range lies in this region's own initialised memory, borrowed mutably.
        unsafe { std::slice::from_raw_parts_mut(self.start.add(range.start), range.len()) }
    }
}

#[cfg(target_os = "linux")]
impl Region {
    /// `bytes` zeroed bytes (at least a page is mapped).
    pub fn zeroed(bytes: usize) -> Result<Self, Error> {
        let (block, start) =
            blocks::cut(bytes).map_err(|errno| Error::Memory { bytes, error: errno.into() })?;
        Ok(Self { start, bytes, _block: block })
    }
}

#[cfg(target_os = "linux")]
impl Drop for Region {
    fn drop(&mut self) {
        blocks::forget(self.start, self.bytes);
    }
}

#[cfg(target_os = "linux")]
mod blocks {
    use rustix::io::Errno;
    use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};
    use std::sync::{Arc, Mutex, PoisonError};

    /// The minimum address space of a mapping.
    const BLOCK: usize = 256 << 20;

    /// Regions start and end on pages (of any Linux), so that each can be freed separately.
    const PAGE: usize = 64 << 10;

    const HUGE_PAGE: usize = 2 << 20;

    /// A mapping that regions are cut from, unmapped with the last of them.
    pub struct Block {
        start: *mut u8,
        bytes: usize,
    }

    // SAFETY: a block only stores the address of its mapping.
    unsafe impl Send for Block {}
    // SAFETY: as above.
    unsafe impl Sync for Block {}

    impl Block {
        /// Maps at least `bytes`, starting at a huge page's border.
        fn map(bytes: usize) -> Result<Self, Errno> {
            let bytes = bytes.checked_next_multiple_of(HUGE_PAGE).ok_or(Errno::NOMEM)?;
            let mapped = bytes.checked_add(HUGE_PAGE).ok_or(Errno::NOMEM)?;
            let protection = ProtFlags::READ | ProtFlags::WRITE;
            let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
            // SAFETY: a fresh private mapping at an address of the system's choice touches nothing
            // else.
            let first: *mut u8 =
                unsafe { mmap_anonymous(std::ptr::null_mut(), mapped, protection, flags) }?.cast();
            let before = first.align_offset(HUGE_PAGE);
            let start = first.wrapping_add(before);
            // SAFETY: the parts before and after the block, in the new mapping.
            unsafe {
                if before > 0 {
                    munmap(first.cast(), before)?;
                }
                munmap(start.wrapping_add(bytes).cast(), HUGE_PAGE - before)?;
            }
            // SAFETY: the range is the mapping just made, and the advice changes no content. A
            // kernel without huge pages refuses, which costs speed only.
            let _ = unsafe { madvise(start.cast(), bytes, Advice::LinuxHugepage) };
            Ok(Self { start, bytes })
        }
    }

    impl Drop for Block {
        fn drop(&mut self) {
            // SAFETY: exactly the mapping made in `map`; every region in it is gone.
            let _ = unsafe { munmap(self.start.cast(), self.bytes) };
        }
    }

    /// The current block, and its used bytes.
    static OPEN: Mutex<Option<(Arc<Block>, usize)>> = Mutex::new(None);

    /// Fresh zeroed memory for `bytes` bytes, and the block that it is part of.
    pub fn cut(bytes: usize) -> Result<(Arc<Block>, *mut u8), Errno> {
        let bytes = bytes.max(1).checked_next_multiple_of(PAGE).ok_or(Errno::NOMEM)?;
        let mut open = OPEN.lock().unwrap_or_else(PoisonError::into_inner);
        let (block, taken) = match open.take() {
            Some((block, taken)) if block.bytes - taken >= bytes => (block, taken),
            _ => (Arc::new(Block::map(bytes.max(BLOCK))?), 0),
        };
        let start = block.start.wrapping_add(taken);
        *open = Some((Arc::clone(&block), taken + bytes));
        Ok((block, start))
    }

    /// Frees the memory of a region; its addresses stay reserved until its block is unmapped.
    pub fn forget(start: *mut u8, bytes: usize) {
        let bytes = bytes.max(1).next_multiple_of(PAGE);
        // SAFETY: whole pages of this region only.
        let _ = unsafe { madvise(start.cast(), bytes, Advice::LinuxDontNeed) };
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

#[cfg(test)]
mod tests {
    use super::*;

    fn slice(region: &mut Region) -> &mut [u8] {
        // SAFETY: the region owns this many bytes.
        unsafe { std::slice::from_raw_parts_mut(region.as_mut_ptr(), region.bytes) }
    }

    #[test]
    fn regions_are_zeroed_aligned_and_apart() {
        let sizes = [1, 4096, 5000, 3 << 20, 300 << 20, 7];
        let mut regions: Vec<Region> =
            sizes.iter().map(|&bytes| Region::zeroed(bytes).unwrap()).collect();
        for (index, region) in regions.iter_mut().enumerate() {
            assert!(region.as_ptr().addr().is_multiple_of(64));
            let bytes = slice(region);
            let last = bytes.len() - 1;
            assert_eq!((bytes[0], bytes[last / 2], bytes[last]), (0, 0, 0), "region {index}");
            bytes[0] = index as u8 + 1;
            bytes[last] = index as u8 + 1;
        }
        // Half of them are freed; the others keep their content.
        let mut index = 0;
        regions.retain(|_| {
            index += 1;
            index % 2 == 0
        });
        for (region, index) in regions.iter_mut().zip([1, 3, 5]) {
            let bytes = slice(region);
            assert_eq!((bytes[0], bytes[bytes.len() - 1]), (index + 1, index + 1));
        }
    }

    #[test]
    fn too_much_is_refused() {
        for bytes in [usize::MAX, usize::MAX / 2, 1 << 60] {
            assert!(matches!(Region::zeroed(bytes), Err(Error::Memory { .. })));
        }
    }
}

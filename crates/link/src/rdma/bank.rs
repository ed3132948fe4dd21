//! Memory for a device: one anonymous mapping that crosses no 4 GiB boundary.
//!
//! Thunderbolt's driver keeps only the low 32 bits of a receive's address, so a region across
//! such a boundary would receive its data 4 GiB away. `mmap` is what every known driver accepts.

use std::ptr::NonNull;

use platform::{map, unmap};

/// The span that the low 32 bits of an address can name.
pub(super) const BANK_SPAN_BYTES: u64 = 1 << 32;

/// Mappings to try. Neighbouring ones cannot all lie on a boundary, so the second almost certainly
/// fits.
const TRIES_MAX: usize = 8;

/// Bytes of a registered bank.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Piece {
    pub at: usize,
    pub len: usize,
}

/// A page-aligned mapping of zero bytes. Devices write to it at any time, so it hands out raw
/// pointers only.
pub(super) struct Bank {
    start: NonNull<u8>,
    len: usize,
}

// SAFETY: the mapping belongs to the process, not to a thread; only `Bank` unmaps it.
unsafe impl Send for Bank {}
// SAFETY: a shared `Bank` only returns addresses; their use is up to the caller's proof.
unsafe impl Sync for Bank {}

impl Bank {
    pub fn new(len: usize) -> std::io::Result<Self> {
        // Held until one fits, so that the kernel does not return the same place again.
        let mut rejected = Vec::new();
        for _ in 0..TRIES_MAX {
            let bank = Self::map(len)?;
            if !bank.crosses_boundary() {
                return Ok(bank);
            }
            rejected.push(bank);
        }
        Err(std::io::Error::other("no mapping inside one 4 GiB bank"))
    }

    fn map(len: usize) -> std::io::Result<Self> {
        Ok(Bank { start: map(len)?, len })
    }

    pub fn crosses_boundary(&self) -> bool {
        let (first, last) = (self.address(0), self.address(self.len - 1));
        first / BANK_SPAN_BYTES != last / BANK_SPAN_BYTES
    }

    pub fn len(&self) -> usize {
        self.len
    }

    /// Byte `at` as the device names it.
    pub fn address(&self, at: usize) -> u64 {
        self.start.as_ptr() as u64 + at as u64
    }

    /// The address of `piece`, good for its length.
    pub fn pointer(&self, piece: Piece) -> NonNull<u8> {
        assert!(self.contains(piece), "outside the bank");
        // SAFETY: the assertion keeps the offset inside the mapping.
        unsafe { self.start.add(piece.at) }
    }

    pub fn contains(&self, piece: Piece) -> bool {
        piece.at.checked_add(piece.len).is_some_and(|end| end <= self.len)
    }
}

impl Drop for Bank {
    fn drop(&mut self) {
        // SAFETY: `start` and `len` are those of the mapping above, and every owner of a pointer
        // into the bank also owns a share of it.
        unsafe { unmap(self.start, self.len) };
    }
}

#[cfg(unix)]
mod platform {
    use std::ptr::NonNull;

    use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};

    pub fn map(len: usize) -> std::io::Result<NonNull<u8>> {
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping at an address of the kernel's choice aliases no Rust object.
        let start =
            unsafe { mmap_anonymous(std::ptr::null_mut(), len, protection, MapFlags::PRIVATE) }?;
        NonNull::new(start.cast()).ok_or_else(|| std::io::Error::other("null map"))
    }

    /// # Safety
    /// `start` and `len` are those of a mapping made here, which nobody uses any more.
    pub unsafe fn unmap(start: NonNull<u8>, len: usize) {
        // SAFETY: as the caller promises.
        let _ = unsafe { munmap(start.as_ptr().cast(), len) };
    }
}

#[cfg(windows)]
mod platform {
    use std::ptr::NonNull;

    pub fn map(_: usize) -> std::io::Result<NonNull<u8>> {
        Err(std::io::Error::new(
            std::io::ErrorKind::Unsupported,
            "RDMA is not supported on Windows; use TCP",
        ))
    }

    /// # Safety
    /// None is needed: nothing is ever mapped here.
    pub unsafe fn unmap(_: NonNull<u8>, _: usize) {}
}

#[cfg(all(test, unix))]
impl Bank {
    /// A bank across a 4 GiB boundary, which [`Bank::new`] never returns.
    pub fn across_boundary(len: usize) -> std::io::Result<Self> {
        use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};
        let span = BANK_SPAN_BYTES as usize + 2 * len;
        // SAFETY: as in `map`; most of it is never touched and takes no memory.
        let start = unsafe {
            mmap_anonymous(
                std::ptr::null_mut(),
                span,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::PRIVATE | MapFlags::NORESERVE,
            )
        }? as usize;
        let boundary = (start + len).next_multiple_of(BANK_SPAN_BYTES as usize);
        let keep = boundary - len / 2;
        // SAFETY: both ranges lie inside the mapping above, on page borders, and have no other
        // user.
        unsafe {
            munmap(start as *mut _, keep - start)?;
            munmap((keep + len) as *mut _, start + span - keep - len)?;
        }
        let start = NonNull::new(keep as *mut u8).expect("inside a mapping");
        Ok(Bank { start, len })
    }
}

#[cfg(unix)]
#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bank_is_zeroed_aligned_and_in_one_span() {
        let bank = Bank::new(1 << 20).unwrap();
        assert!(!bank.crosses_boundary());
        assert_eq!(bank.address(0) % 4096, 0);
        let last = bank.pointer(Piece { at: (1 << 20) - 1, len: 1 });
        // SAFETY: in bounds, and no device has the bank.
        assert_eq!(unsafe { last.read() }, 0);
        assert!(!bank.contains(Piece { at: 1 << 20, len: 1 }));
        assert!(!bank.contains(Piece { at: 1, len: usize::MAX }));
    }

    #[test]
    fn a_bank_across_the_boundary_is_told() {
        assert!(Bank::across_boundary(1 << 16).unwrap().crosses_boundary());
    }
}

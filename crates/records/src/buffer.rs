//! Memory that a disk can fill without a copy in between.

use std::ops::{Deref, DerefMut};

/// What reads past the page cache are aligned to: addresses, offsets and lengths, in bytes. No disk
/// in use has larger sectors.
pub const ALIGN: usize = 4096;

/// Bytes that begin at a multiple of [`ALIGN`].
pub struct Buffer {
    /// `ALIGN - 1` bytes longer than needed: safe Rust cannot ask for an alignment.
    memory: Vec<u8>,
    start: usize,
    len: usize,
}

impl Buffer {
    /// Zeros.
    pub fn zeroed(bytes: usize) -> Self {
        let memory = vec![0; bytes + ALIGN - 1];
        let start = memory.as_ptr().addr().next_multiple_of(ALIGN) - memory.as_ptr().addr();
        Self { memory, start, len: bytes }
    }

    /// Forgets what follows the first `bytes`. A length above the present one changes nothing.
    pub fn truncate(&mut self, bytes: usize) {
        self.len = self.len.min(bytes);
    }

    /// The buffer as long as it was made, for another read.
    pub fn whole(mut self) -> Self {
        self.len = self.memory.len() - (ALIGN - 1);
        self
    }
}

impl AsRef<[u8]> for Buffer {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl Deref for Buffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.memory[self.start..self.start + self.len]
    }
}

impl DerefMut for Buffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.memory[self.start..self.start + self.len]
    }
}

impl std::fmt::Debug for Buffer {
    /// The length alone: contents may be somebody's text.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Buffer({} bytes)", self.len)
    }
}

/// `bytes` rounded up to whole blocks of [`ALIGN`].
pub(crate) fn aligned(bytes: usize) -> usize {
    bytes.next_multiple_of(ALIGN)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_buffer_is_aligned_and_stays_so_when_moved() {
        for bytes in [0, 1, ALIGN, 3 * ALIGN + 1] {
            let buffers: Vec<Buffer> = (0..8).map(|_| Buffer::zeroed(bytes)).collect();
            for mut buffer in buffers {
                assert_eq!(buffer.as_ptr().addr() % ALIGN, 0);
                assert_eq!(buffer.len(), bytes);
                buffer.fill(7);
                buffer.truncate(1);
                assert_eq!(buffer.len(), bytes.min(1));
            }
        }
    }
}

use std::sync::Arc;

use crate::Directory;

/// Equal pieces of a file at equal distances: a row slice is one piece, a column slice one a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Strided {
    /// Offset of the first piece from the start of the file, bytes.
    pub start: u64,
    /// Bytes of one piece.
    pub piece: u64,
    /// Bytes from the start of one piece to the start of the next.
    pub stride: u64,
    /// Number of pieces.
    pub count: u64,
}

impl Strided {
    /// Bytes in all, or `None` on overflow.
    pub fn total(&self) -> Option<u64> {
        self.piece.checked_mul(self.count)
    }

    /// End of the last piece, counted from the start of the file, or `None` on overflow.
    pub fn end(&self) -> Option<u64> {
        match self.count {
            0 => Some(self.start),
            n => (n - 1).checked_mul(self.stride)?.checked_add(self.start)?.checked_add(self.piece),
        }
    }
}

/// Why tensor bytes could not be read.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    #[error("bytes up to {end} were asked for, but the file has {len}")]
    OutOfFile { end: u64, len: u64 },
    #[error("reading the model file failed: {0}. Was it changed while it was in use?")]
    File(std::io::Error),
    #[error("{0}")]
    Changed(String),
    #[error("reading model bytes from a peer failed: {0}")]
    Peer(#[from] std::io::Error),
}

/// A source of tensor bytes: this machine's file, or a peer with it.
pub trait Source: Send + Sync {
    fn directory(&self) -> &Arc<Directory>;

    /// Fills `out` with the pieces in order; `out.len()` is `pieces.total()`.
    ///
    /// # Errors
    /// The range lies outside the file, the disk fails, or the peer is gone.
    fn read(&self, pieces: Strided, out: &mut [u8]) -> Result<(), ReadError>;

    /// Whether it is a file of this machine, which may be read again and again.
    fn is_local(&self) -> bool {
        true
    }

    /// Reads bytes that were read before. A source that checks its bytes only checks here that the
    /// file has not changed since, so it costs no more than the bytes.
    ///
    /// # Errors
    /// As [`Self::read`].
    fn read_again(&self, pieces: Strided, out: &mut [u8]) -> Result<(), ReadError> {
        self.read(pieces, out)
    }
}

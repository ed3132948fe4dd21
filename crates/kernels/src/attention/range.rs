//! The positions that a query attends to.

use std::ops::Range;
use std::sync::Arc;

/// A run of consecutive positions of one sequence in a batch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Segment {
    /// The sequence's pages, in order, at least up to its last position.
    pub table: Arc<[u32]>,
    /// Position of the first row.
    pub first_pos: usize,
    /// Rows of the batch in this run.
    pub rows: usize,
    /// Whether its rows also see later ones: the patches or tokens of a picture. A window still
    /// hides those too far before a row.
    pub mutual: bool,
}

/// The positions that a query attends to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum AttentionRange {
    /// All earlier positions, and its own.
    Full,
    /// The last `n` positions, including its own.
    Window(usize),
    /// All since the last multiple of `n`: its own chunk (Llama 4).
    Chunk(usize),
}

impl AttentionRange {
    /// The first position that a query of plain text at `position` attends to.
    pub fn first_visible(self, position: usize) -> usize {
        match self {
            Self::Full => 0,
            Self::Window(window) => (position + 1).saturating_sub(window),
            Self::Chunk(chunk) => position - position % chunk,
        }
    }

    /// The positions that a query at `position` of `segment` attends to.
    pub fn visible(self, segment: &Segment, position: usize) -> Range<usize> {
        let first = self.first_visible(position);
        let end = if segment.mutual { segment.first_pos + segment.rows } else { position + 1 };
        first..end
    }
}

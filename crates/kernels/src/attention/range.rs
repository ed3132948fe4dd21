//! The positions that a query attends to.

use std::ops::Range;

use super::attend::Segment;

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

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
    /// The end of the positions that all of its rows see, if they see later ones: those of a
    /// picture, or of an encoder's text. A window still hides those too far from a row.
    pub sees_to: Option<usize>,
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
    /// Up to `n` positions before it and, in segments that see later ones, after it (ModernBERT).
    Around(usize),
}

impl AttentionRange {
    /// The first position that a query of plain text at `position` attends to.
    pub fn first_visible(self, position: usize) -> usize {
        match self {
            Self::Full => 0,
            Self::Window(window) => (position + 1).saturating_sub(window),
            Self::Chunk(chunk) => position - position % chunk,
            Self::Around(reach) => position.saturating_sub(reach),
        }
    }

    /// The positions that a query at `position` of `segment` attends to.
    pub fn visible(self, segment: &Segment, position: usize) -> Range<usize> {
        let first = self.first_visible(position);
        let end = segment.sees_to.unwrap_or(position + 1);
        match self {
            Self::Around(reach) => first..end.min(position + reach + 1),
            _ => first..end,
        }
    }
}

//! The positions that a query attends to.

/// The positions that a query attends to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum AttentionRange {
    /// All earlier positions, and its own.
    Full,
    /// The last `n` positions, including its own.
    Window(usize),
    /// All since the last multiple of `n`: its own chunk (Llama 4).
    Chunk(usize),
    /// All earlier positions, and all of its own segment, also those after it: the patches of a
    /// picture.
    Mutual,
}

impl AttentionRange {
    /// The first position that a query at `position` attends to.
    pub fn first_visible(self, position: usize) -> usize {
        match self {
            Self::Full | Self::Mutual => 0,
            Self::Window(window) => (position + 1).saturating_sub(window),
            Self::Chunk(chunk) => position - position % chunk,
        }
    }

    /// The end of the positions that it attends to, in a segment that ends before `segment_end`.
    pub fn end_visible(self, position: usize, segment_end: usize) -> usize {
        match self {
            Self::Mutual => segment_end,
            _ => position + 1,
        }
    }
}

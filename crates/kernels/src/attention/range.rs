//! The earlier positions that a query attends to.

/// The earlier positions that a query attends to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum AttentionRange {
    Full,
    /// The last `n` positions, including its own.
    Window(usize),
    /// All since the last multiple of `n`: its own chunk (Llama 4).
    Chunk(usize),
}

impl AttentionRange {
    /// The first position that a query at `position` attends to.
    pub fn first_visible(self, position: usize) -> usize {
        match self {
            Self::Full => 0,
            Self::Window(window) => (position + 1).saturating_sub(window),
            Self::Chunk(chunk) => position - position % chunk,
        }
    }
}

//! How far back a position sees.

/// Which positions before its own a position sees.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Sight {
    All,
    /// Itself and those before it, so many in all.
    Window(usize),
    /// Those from the last multiple of this on.
    Chunk(usize),
}

impl Sight {
    /// The first position that `position` sees.
    pub fn first_visible(self, position: usize) -> usize {
        match self {
            Self::All => 0,
            Self::Window(window) => (position + 1).saturating_sub(window),
            Self::Chunk(chunk) => position - position % chunk,
        }
    }
}

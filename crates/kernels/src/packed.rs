//! The packed bytes of weight matrices: in memory of their own, or in memory that somebody else has
//! filled, such as a file's.

use std::sync::Arc;

use crate::memory::Region;

/// Changes when the packed bytes of any type do. Files of packed bytes carry it.
pub const PACKING: u32 = 1;

/// Bytes that somebody else keeps.
pub type SharedBytes = Arc<dyn AsRef<[u8]> + Send + Sync>;

/// The bytes of one matrix or of several.
#[derive(Clone)]
pub(crate) enum Packed {
    /// May hold other matrices of the same tensor as well, so that each needs no separate region.
    Own(Arc<Region>),
    Shared(SharedBytes),
}

impl Packed {
    /// # Panics
    /// If the range ends behind the bytes.
    pub fn bytes(&self, start: usize, len: usize) -> &[u8] {
        match self {
            Self::Own(region) => region.slice(start..start + len),
            Self::Shared(bytes) => &(**bytes).as_ref()[start..start + len],
        }
    }
}

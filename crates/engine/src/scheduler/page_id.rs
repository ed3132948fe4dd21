//! The number of a page of the cache, the same in all layers of all ranks.

pub(super) type PageId = u32;

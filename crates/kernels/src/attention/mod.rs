//! Attention over a paged cache.
//!
//! # The order of operations
//!
//! One query vector's output depends only on that vector, its visible keys and values and their
//! positions: not on the rows beside it, on how a prompt was cut, on threads, heads or the machine.
//! The order is fixed:
//!
//! * A score is summed over the head's dimension from left to right by `fma`, then scaled, then
//!   capped. Weights are powers of two: the scale has a factor log2 e.
//! * Positions are taken page by page (64, at multiples of 64) in *spans* of 512. Within a span, a
//!   running maximum, a running sum and a running output are rescaled at each page; a page's
//!   weights are summed as four vectors of 16, and its values added one position after the other.
//! * Quants (8-bit numbers) represent rotated keys and values (`rotation.rs`); queries are rotated
//!   before a score, and outputs at the end. Their scales are applied in sums: within a block of 32
//!   dimensions, a score is summed by `fma` over the quants from zero, and times the block's scale
//!   it is added to the earlier blocks by `fma`; a value's quant is multiplied by its weight times
//!   its scale, which is rounded.
//! * Integers (16 bits) are summed exactly: a score is the sum over all dimensions of the key's and
//!   the query's, times the key's scale, then the query's. A page's weights times the scales of
//!   their values are rounded to integers by a step of the query and the page, the sum of their
//!   products with the values' is exact too, and times that step it is added by `fma`.
//! * Spans are merged from left to right, a head's sink logit last.
//!
//! A hidden position has weight zero, exactly. If rows choose few of many positions (`choose.rs`),
//! only these are taken, page by page as if they were all (`gather.rs`), in f32.

mod attend;
mod cache;
mod choose;
mod chosen;
#[cfg(test)]
mod chosen_tests;
mod compressed;
mod entries;
#[cfg(test)]
mod entries_tests;
mod gather;
mod int_tile;
mod ints;
mod page;
mod positions;
mod quants;
mod range;
mod rotation;
mod shape;
mod softmax;
#[cfg(test)]
mod tests;
mod tile;

pub use attend::attend;
pub use cache::{CacheKind, KvCache};
pub use choose::{Choice, Indexer, Keys, choose};
pub use chosen::Chosen;
pub use compressed::attend_compressed;
pub use entries::{Compression, EntryCache, EntryShape};
pub use page::PAGE_POSITIONS;
pub use range::{AttentionRange, Segment};
pub use shape::AttendShape;

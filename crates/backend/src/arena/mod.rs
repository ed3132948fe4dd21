//! Experts that lie on disk: an arena with a hard budget of bytes holds those that were used last,
//! and a pool of threads reads the others when a row is routed to them.
//!
//! ```text
//! slab    the rank's part of one expert: gate, up and down beside each other, as kernels read them
//! arena   slabs in memory, of all layers together; the one used longest ago goes first
//! call    the experts of one layer that a step uses, in the order of their numbers
//! ```
//!
//! Experts in memory are computed while others are read. The order of summation is the mixture's,
//! so the bits are those of a model that is in memory as a whole. The module knows no routes: it
//! gets numbers of experts and gives matrices.

mod call;
mod error;
mod hot;
mod lru;
mod shape;
mod shared;
mod source;
mod store;

pub(crate) use call::Call;
pub use error::ArenaError;
pub use shape::{ExpertShape, MatrixShape, PackedWeights};
pub use shared::{Arena, StreamedLayer};
pub use source::{InPlace, SlabSource};
pub use store::ArenaCounts;
pub(crate) use store::LoadedExpert;

//! The structure of a model and each rank's share of it: slices of tensors, cache and buffers, and
//! their bytes. Loaders and planners use it.
//!
//! [`Outline`] is read once from a file's directory: a [`Config`], by the table of architectures,
//! and every tensor with its split over ranks. [`Layout`] assigns layers to ranks, [`Shard`] heads
//! and columns, and [`Holding`] combines all three.
//!
//! Pure arithmetic on a file's directory: no I/O, no clock.

mod arch;
mod blocks;
mod buffers;
mod capacity;
mod collect;
mod config;
mod device;
mod factors;
mod file;
mod holding;
mod layout;
mod leaves;
mod load;
mod outline;
mod parts;
mod row;
mod shard;
mod slice;
mod split;
mod tensors;
mod wiring;

pub use arch::{
    Activation, Arch, Gating, HeadOrder, IndexerKind, NormKind, QkNorm, RecurrenceKind, RopeStyle,
    StreamKind, Values, architectures, find as find_arch,
};
pub use blocks::{BlockFile, MtpBlock, check_vocabulary};
pub use buffers::{Buffer, BufferRows, Buffers, Choices};
pub use capacity::{
    Capacity, DRAFTS_MAX, GUESSES_MAX, PAGE_POSITIONS, PICTURES_KEPT, Window, full_cache_tokens,
    rows_max, step_cache_tokens,
};
pub use config::Config;
pub use device::Device;
pub use factors::factors_of;
pub use file::{Error, names};
pub use holding::{Cache, Footprint, Holding, States};
pub use layout::{Layout, Stage};
pub use leaves::Leaves;
pub use load::{LayerLoad, PositionLoad, WeightClass};
pub use outline::Outline;
pub use parts::{
    Assistant, Banks, Blocks, Compressed, Eagle3, Encoder, EntryCache, Experts, Heads, Indexer,
    Latent, LayerHalves, LocalRotation, Mixer, Mixing, Ngrams, Recurrence, RecurrentWidths, Rope,
    Scaling, Sight, Situ, Streams, Temperature,
};
pub use row::{Column, Row};
pub use shard::{HeadShard, RecurrentCut, RecurrentHeads, Shard};
pub use slice::{Slice, Slices};
pub use split::{RANKS_MAX, STAGE_RANKS_MAX, Split, SplitError};
pub use tensors::{Tensor, checked, checked_vector};

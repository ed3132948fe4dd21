//! The structure of a model and each rank's share of it: slices of tensors, cache and buffers, and
//! their bytes. Loaders and planners use it.
//!
//! [`Outline`] is read once from a file's directory: a [`Config`], by the table of architectures,
//! and every tensor with its split over ranks. [`Layout`] assigns layers to ranks, [`Shard`] heads
//! and columns, and [`Holding`] combines all three.
//!
//! Pure arithmetic on a file's directory: no I/O, no clock.

mod arch;
mod assistant;
mod attention;
mod banks;
mod block_file;
mod buffers;
mod capacity;
mod compressed;
mod config;
mod device;
mod eagle3;
mod error;
mod experts;
mod factors;
mod holding;
mod indexer;
mod layout;
mod leaves;
mod limits;
mod load;
mod metadata;
mod mtp;
pub mod names;
mod ngrams;
mod outline;
mod recurrence;
mod rope;
mod shard;
mod sight;
mod streams;
mod temperature;
mod tensors;
mod unread;
mod vocabulary;
mod windows;

pub use arch::{
    Activation, Arch, Gating, HeadOrder, IndexerKind, NormKind, QkNorm, RecurrenceKind, RopeStyle,
    StreamKind, Values, architectures,
};
pub use assistant::Assistant;
pub use attention::Heads;
pub use banks::Banks;
pub use block_file::BlockFile;
pub use buffers::{
    BankBuffers, Buffers, CompressedBuffers, HeadBuffers, IndexerBuffers, LatentBuffers,
    LayerEmbeddingBuffers, NgramBuffers, StreamBuffers,
};
pub use capacity::{
    Capacity, DRAFTS_MAX, GUESSES_MAX, PAGE_POSITIONS, PICTURES_KEPT, Window, full_cache_tokens,
    rows_max,
};
pub use compressed::{Blocks, Compressed, EntryCache};
pub use config::{Config, Latent};
pub use device::Device;
pub use eagle3::Eagle3;
pub use error::Error;
pub use experts::Experts;
pub use factors::factors_of;
pub use holding::{Cache, Footprint, Holding, States};
pub use indexer::Indexer;
pub use layout::{Layout, Stage};
pub use leaves::Leaves;
pub use limits::Situ;
pub use load::{LayerLoad, PositionLoad, WeightClass};
pub use mtp::MtpBlock;
pub use ngrams::Ngrams;
pub use outline::{Outline, checked, checked_vector};
pub use recurrence::{LayerHalves, Mixer, Recurrence, RecurrentWidths};
pub use rope::{LocalRotation, Rope, Scaling};
pub use shard::{
    HeadShard, RANKS_MAX, RecurrentCut, RecurrentHeads, STAGE_RANKS_MAX, Shard, Split, SplitError,
};
pub use sight::Sight;
pub use streams::{Mixing, Streams};
pub use temperature::Temperature;
pub use tensors::{Slice, Slices, Tensor};
pub use vocabulary::check_vocabulary;

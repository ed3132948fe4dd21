//! The parts of which models are made. Each file reads a part's sizes from the file's keys; its
//! `wiring` adds the part's tensors and buffers. `all` lists the parts: what works on whole models
//! (the outline, a rank's buffers) goes through that list.

pub(crate) mod all;
pub(crate) mod assistant;
mod banks;
mod by_layer;
mod clamps;
mod compressed;
pub(crate) mod dense;
pub(crate) mod eagle3;
mod encoder;
mod experts;
pub(crate) mod head;
mod heads;
mod indexer;
mod latent;
mod ngrams;
mod recurrence;
mod residual;
mod rope;
mod row;
mod sight;
mod streams;
mod temperature;
mod windows;

pub use assistant::Assistant;
pub use banks::Banks;
pub use clamps::Situ;
pub(crate) use clamps::clamps;
pub use compressed::{Blocks, Compressed, EntryCache};
pub use eagle3::Eagle3;
pub use encoder::Encoder;
pub(crate) use encoder::context_max;
pub use experts::Experts;
pub(crate) use experts::sparse;
pub(crate) use heads::Attending;
pub use heads::Heads;
pub use indexer::Indexer;
pub(crate) use indexer::choosers;
pub use latent::Latent;
pub use ngrams::Ngrams;
pub(crate) use recurrence::halves;
pub use recurrence::{LayerHalves, Mixer, Recurrence, RecurrentWidths};
pub use rope::{LocalRotation, Rope, Scaling};
pub use sight::Sight;
pub use streams::{Mixing, Streams};
pub use temperature::Temperature;
pub(crate) use windows::windows;

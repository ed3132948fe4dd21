//! Architectures as data, the sharding rules, and the forward pass over a `Backend`.
//!
//! [`Config`] reads a file's metadata; [`Layout`] says which layers a rank runs and with whom, and
//! [`Shard`] which part of their tensors it holds;
//! [`Model`] loads that part and runs it. The forward pass reads as if for a single device: the
//! only trace of the other ranks is [`Reduce`], to which each row-parallel product hands its
//! partial sums.
//!
//! This crate knows no sequences, no sampling, no links and no machines.

mod arch;
mod config;
mod decoder;
mod embedding;
mod error;
mod experts;
mod layout;
mod loader;
mod metadata;
mod names;
mod rope;
mod shard;

pub use config::{Config, Latent};
pub use decoder::{Batch, Capacity, Model, Outputs, Product, Reduce};
pub use embedding::Embedding;
pub use error::ModelError;
pub use experts::Experts;
pub use layout::{Layout, Stage};
pub use loader::Progress;
pub use rope::{Rope, Scaling};
pub use shard::{Leaves, Shard, Split, SplitError};

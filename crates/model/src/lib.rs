//! The forward pass of a decoder over a `Backend`.
//!
//! [`Model`] loads this rank's part of a model's tensors, as assigned by the `layout` crate, and
//! runs it. The forward pass reads as if for a single device: the only trace of the other ranks is
//! [`Reduce`], which gets the partial sums of each row-parallel product.
//!
//! This crate knows no sequences, no sampling, no links and no machines.

mod decoder;
mod embedding;
mod error;
mod loader;
mod operations;
mod pooled;
mod rope;

pub use decoder::{
    Batch, BatchPictures, Cut, Holder, LayerCache, Model, Outputs, Part, Product, Reduce, Shared,
};
pub use embedding::Embedding;
pub use error::ModelError;
pub use loader::Progress;
pub use pooled::Pooled;

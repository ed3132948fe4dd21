//! The forward pass of a decoder over a `Backend`.
//!
//! [`Model`] loads the part of a model's tensors that the `layout` crate gives this rank, and runs
//! it. The forward pass reads as if for a single device: the only trace of the other ranks is
//! [`Reduce`], to which each row-parallel product hands its partial sums.
//!
//! This crate knows no sequences, no sampling, no links and no machines.

mod decoder;
mod embedding;
mod error;
mod loader;
mod operations;
mod rope;

pub use decoder::{Batch, Model, Outputs, Product, Reduce};
pub use embedding::Embedding;
pub use error::ModelError;
pub use loader::Progress;

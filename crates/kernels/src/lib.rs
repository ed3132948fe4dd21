//! CPU numerics: quantised products, attention, norms, rope; instruction-set dispatch; the spin
//! pool.
//!
//! * [`Pool`]: threads that share a job with about a microsecond of overhead.
//! * [`Packer`] makes a [`Matrix`] from rows of a GGUF tensor; [`Input`] holds activations;
//!   [`matmul_parts`] and [`multiply`] are the products.
//! * [`KvCache`] and [`attend`]: attention over a paged cache.
//! * [`States`] and [`recur`]: layers with a state instead of a cache.
//! * [`rms_norm`], [`rope`](fn@rope), [`gated`], [`softmax`] and others: the rest of a layer.
//!
//! **The same numbers everywhere.** Results depend only on the arguments: not on the number of
//! threads, on the rest of the batch, on the instruction set, or on the borders of shards. Every
//! kernel is written once over a small set of vector operations that are exact or correctly rounded
//! on each instruction set, and every order of additions is fixed and documented in its module.
//! This assumes that inputs are finite, and that subnormal numbers are not flushed to zero.
//!
//! This crate knows nothing of models, layers or other machines. Wrong shapes are bugs of the
//! caller and panic; failures that depend on the machine or a file are an [`Error`].

// Kernels index several arrays by the same lane, row or panel.
#![allow(clippy::needless_range_loop)]

mod activation;
mod attention;
mod banks;
mod error;
mod format;
mod input;
mod isa;
mod math;
mod matrix;
mod memory;
mod ngrams;
mod norm;
mod packed;
mod pool;
pub mod portable;
mod product;
mod quantise;
mod recurrent;
mod rope;
mod routing;
mod rows;
mod shared;
mod simd;
mod streams;
mod temperature;
mod tile;

pub use activation::{Activation, activate, exact_gelu, gated, soft_cap};
pub use attention::{
    AttendShape, AttentionRange, CacheKind, Choice, Chosen, Compression, EntryCache, EntryShape,
    Indexer, Keys, KvCache, PAGE_POSITIONS, Segment, attend, attend_compressed, choose,
};
pub use banks::{BANKS_MAX, bank, read_banks};
pub use error::Error;
pub use input::{Forms, Input};
pub use isa::{check_isa, isa};
pub use matrix::{Dequantizer, Matrix, Packer};
pub use ngrams::gate_ngrams;
pub use norm::{
    add, add_bias, add_row, add_scaled, inverse_rms, layer_norm, rms_norm, rms_norm_in_place,
    scale, sum_of_squares,
};
pub use packed::{PACKING, SharedBytes, pack_rows};
pub use pool::Pool;
pub use product::{Parts, Product, matmul_parts, multiply, tune};
pub use recurrent::{
    Begin, RecurrentLayer, RecurrentRows, RecurrentScratch, RecurrentShape, RecurrentWeights, Rule,
    StateSegment, States, TAPS_MAX, recur,
};
pub use rope::{RopeAngles, RopeStyle, RopeTable, rope};
pub use routing::{root_softplus_in_place, sigmoid_in_place, softmax, top_k};
pub use rows::{for_each_row, keep_rows};
pub use streams::{MatrixMix, StreamMix};
pub use temperature::{Temperature, scale_by_temperature};

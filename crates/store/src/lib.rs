//! Model files of this machine: names, digests, and slices of a file for peers that lack it.
//!
//! [`Store`] finds a model by path or name, in the node's own folder and in those of other programs
//! ([`shelves`]), and identifies each by the BLAKE3 digest of its content, so that two machines can
//! compare their copies. A [`Tree`] of hashes checks single parts. [`slices`] is the protocol by
//! which a worker reads only its own slices of a file from another machine; [`PeerFile`] is its
//! client and looks to the model loader like any other `gguf::Source`.
//!
//! This crate opens files and uses streams from its caller; it knows no cluster, no TLS.

mod checked;
mod digest;
mod error;
mod identity;
mod index;
mod judge;
mod naming;
mod peer;
pub mod private;
mod quant;
mod rename;
pub mod repository;
pub mod shelves;
pub mod slices;
mod store;
mod towers;
mod tree;

pub use checked::{Checked, CheckedFile, Groups};
pub use digest::Digest;
pub use error::StoreError;
pub use identity::{Identity, identity};
pub use peer::{PeerFile, RelayAddress};
pub use quant::{quant_fit, quant_gone, quant_of, quant_rank, quant_runs};
pub use rename::rename;
pub use shelves::{HOME, Incomplete, Places, Shelf, Shelved};
pub use store::{Listed, ModelFile, Store};
pub use tree::{GROUP_BYTES, HashWatch, Tree};

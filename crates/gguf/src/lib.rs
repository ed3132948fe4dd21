//! The GGUF file format: metadata, tensor directory, tensor bytes.
//!
//! [`Directory::parse`] reads everything in front of the tensor data from a byte slice and checks
//! it completely; [`File`] opens a file and reads tensor bytes; [`Writer`] makes such files.
//! Hostile input is an [`Error`], never a panic. No allocation exceeds the size of the input:
//! strings and arrays stay encoded and are decoded on demand.
//!
//! This crate knows nothing of models, shards or machines.
//!
//! Source: the GGUF specification of the ggml project (versions 2 and 3, little-endian).

mod directory;
mod disk;
mod error;
mod file;
mod memory;
mod reader;
mod source;
mod split;
mod tensor_type;
mod value;
mod writer;

pub use directory::{Directory, TensorInfo};
pub use disk::{Bytes, on_disk, read_exact_at, read_header};
pub use error::Error;
pub use file::File;
pub use memory::Memory;
pub use source::{ReadError, Source, Strided};
pub use split::{part_name, parts_of};
pub use tensor_type::{OWN_TYPES, TensorType, WEIGHT_TYPES};
pub use value::{Array, Value, ValueType};
pub use writer::Writer;

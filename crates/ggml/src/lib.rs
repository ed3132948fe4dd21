//! ggml's devices (CUDA, Metal, Vulkan, ROCm, its own CPU engine), opened at run time.
//!
//! * [`Library`] opens the shared libraries of a folder and lists the [`Device`]s that they find.
//! * [`Stream`] is a running device: it computes [`Graph`]s over [`Array`]s.
//!
//! No part of ggml is linked: a machine without its libraries runs the same program, and one
//! program serves every device. Nothing is ever unloaded, because drivers do not survive that.
//!
//! This crate knows nothing of models. A wrong shape is a bug of the caller and ends the process,
//! as most faults of CUDA do: a device must be used in a process that may die.

mod barrier;
mod crossing;
mod device;
mod error;
mod ffi;
mod graph;
mod library;
mod memory;
mod operations;
mod words;

pub use crossing::HostNumbers;
pub use device::{Device, Kind, Stream};
pub use error::Error;
pub use graph::{Graph, Node, Recorder, Temporary};
pub use library::{Library, VERSION};
pub use memory::{Array, Memory, Type, Usage};
pub use operations::{Glu, Rope, Unary};

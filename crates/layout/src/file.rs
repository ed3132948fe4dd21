//! A model file's directory: its keys and names, with limits. Nothing here knows a part of a model.

mod block_counts;
mod error;
pub(crate) mod limits;
mod metadata;
pub mod names;
pub(crate) mod unread;

pub(crate) use block_counts::BlockCounts;
pub use error::Error;
pub(crate) use metadata::{Metadata, in_range};

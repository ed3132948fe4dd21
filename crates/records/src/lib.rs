//! The tier below memory: aligned reads past the page cache, and two kinds of files for them.
//!
//! - [`Pool`]: threads that read aligned ranges of files. Submitting does not block.
//! - [`Records`]: a cache of sealed records in segment files, with a budget of bytes. Whatever is
//!   wrong with a file is a miss, never a wrong byte.
//! - [`Slabs`]: one file of equal slabs, written once, read by number.
//!
//! The crate knows neither tokens nor weights: keys, headers and identities are the caller's.
//! Format and reasons: `docs/decisions/0052-records.md`.

mod buffer;
mod catalog;
mod direct;
mod disk;
mod forget;
mod index;
mod measure;
mod notes;
mod options;
mod pool;
mod reader;
mod records;
mod recover;
mod seal;
mod segment;
mod shared;
mod slabs;
mod status;
mod throttle;
mod writer;

#[cfg(test)]
mod tests;

pub use buffer::{ALIGN, Buffer};
pub use direct::DirectFile;
pub use disk::free_bytes;
pub use forget::forget;
pub use measure::measure_disk;
pub use notes::{add_note, notes};
pub use options::{Options, RecordsError};
pub use pool::{Pending, Pool, PoolCounts, Read};
pub use reader::Reader;
pub use records::{Put, Record, Records};
pub use seal::{HEADER_BYTES_MAX, Key, PAYLOAD_BYTES_MAX};
pub use slabs::{Slabs, SlabsError, SlabsSpec, SlabsWriter};
pub use status::{Counts, Event};

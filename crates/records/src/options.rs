//! How a folder of records is kept, and why it cannot be.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::seal::Key;
use crate::segment::{SEGMENT_BYTES_MAX, SEGMENT_BYTES_MIN};

/// What waits to be written, by default: a fifth of a second of a fast disk.
const QUEUE_BYTES: usize = 128 << 20;
/// How long a disk that failed, or has no room, is left alone.
const RETRY_AFTER: Duration = Duration::from_secs(5);
/// The least budget: eight of the smallest segments, and what else lies in the folder.
const BUDGET_BYTES_MIN: u64 = 8 * SEGMENT_BYTES_MIN + FOLDER_BYTES;
/// The folder itself, its lock and its count of written bytes, generously.
pub(crate) const FOLDER_BYTES: u64 = 256 << 10;
/// Eviction takes whole segments, so that it takes no more of the budget at once.
const SEGMENTS_OF_BUDGET: u64 = 8;

/// How a folder of records is kept.
#[derive(Clone)]
pub struct Options {
    pub folder: PathBuf,
    /// What records are sealed with. Records of another key are not read, and are evicted first.
    pub sealing_key: Key,
    /// What the folder may take of the disk, as the file system counts. At least 3 MiB.
    pub budget_bytes: u64,
    /// Nothing is written while the disk has less room than this.
    pub reserve_bytes: u64,
    /// A ceiling for writing.
    pub write_bytes_per_sec: Option<u64>,
    /// What may wait to be written; more is dropped.
    pub queue_bytes: usize,
    /// How long nothing is written after the disk has failed or had no room.
    pub retry_after: Duration,
}

impl Options {
    /// No ceiling, no reserve, and a queue of 128 MiB.
    pub fn new(folder: impl Into<PathBuf>, sealing_key: Key, budget_bytes: u64) -> Self {
        Self {
            folder: folder.into(),
            sealing_key,
            budget_bytes,
            reserve_bytes: 0,
            write_bytes_per_sec: None,
            queue_bytes: QUEUE_BYTES,
            retry_after: RETRY_AFTER,
        }
    }

    /// Bytes of a segment: 64 MiB, less under a small budget.
    pub(crate) fn segment_bytes(&self) -> u64 {
        let part = self.budget_bytes.saturating_sub(FOLDER_BYTES) / SEGMENTS_OF_BUDGET;
        part.clamp(SEGMENT_BYTES_MIN, SEGMENT_BYTES_MAX)
    }

    pub(crate) fn check(&self) -> Result<(), RecordsError> {
        if self.budget_bytes < BUDGET_BYTES_MIN {
            return Err(RecordsError::Budget {
                budget_bytes: self.budget_bytes,
                least_bytes: BUDGET_BYTES_MIN,
            });
        }
        Ok(())
    }
}

/// Why a folder of records cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum RecordsError {
    #[error(
        "{folder} is in use by another process. Stop that one, or give this one a folder of its own",
        folder = .folder.display()
    )]
    Locked { folder: PathBuf },
    #[error("a budget of {budget_bytes} bytes is too small: give at least {least_bytes}")]
    Budget { budget_bytes: u64, least_bytes: u64 },
    #[error("cannot use {path}: {source}", path = .path.display())]
    Io { path: PathBuf, source: io::Error },
}

impl RecordsError {
    /// For `map_err`.
    pub(crate) fn io(path: &Path) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::Io { path: path.to_owned(), source }
    }
}

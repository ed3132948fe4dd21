use std::io;
use std::path::PathBuf;

/// Why a conversation cannot be read or kept.
#[derive(Debug, thiserror::Error)]
pub enum ChatsError {
    #[error("{name} is no name: 1 to {most} letters, digits, - and _ are one")]
    Name { name: String, most: usize },
    #[error("no conversation is kept as {id}")]
    Unknown { id: String },
    #[error("{} is no conversation: {why}. Delete it", path.display())]
    Damaged { path: PathBuf, why: String },
    #[error(
        "{} has {bytes} bytes, and a conversation has at most {most}; load another", path.display()
    )]
    Large { path: PathBuf, bytes: u64, most: u64 },
    #[error("a conversation with {what} cannot be kept: at most {most}. Begin a new one")]
    TooMuch { what: String, most: String },
    #[error(
        "the conversations kept here have {bytes} bytes in {count} files, and {bytes_max} bytes in \
         {count_max} files are the most. Forget some"
    )]
    Full { bytes: u64, bytes_max: u64, count: usize, count_max: usize },
    #[error(
        "the conversation was changed meanwhile: it has version {found}, and {wanted} was to be \
         changed. Read it again"
    )]
    Changed { found: u64, wanted: u64 },
    #[error("message {message} is not there: the conversation has {count}")]
    NoMessage { message: usize, count: usize },
    #[error("cannot {act} {}: {source}", path.display())]
    Disk { act: &'static str, path: PathBuf, source: io::Error },
}

impl ChatsError {
    /// Whether the disk or its user's share of it is full.
    pub fn is_full_disk(&self) -> bool {
        let full = [io::ErrorKind::StorageFull, io::ErrorKind::QuotaExceeded];
        matches!(self, Self::Disk { source, .. } if full.contains(&source.kind()))
    }
}

/// Says what was done with which file.
pub(crate) trait Doing<T> {
    fn doing(self, act: &'static str, path: impl Into<PathBuf>) -> Result<T, ChatsError>;
}

impl<T> Doing<T> for io::Result<T> {
    fn doing(self, act: &'static str, path: impl Into<PathBuf>) -> Result<T, ChatsError> {
        self.map_err(|source| ChatsError::Disk { act, path: path.into(), source })
    }
}

//! A conversation's file.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use crate::conversation::Conversation;
use crate::error::{ChatsError, Doing};

/// A conversation's pictures are part of its file; more than requests may have is no conversation.
pub const FILE_BYTES_MAX: u64 = 256 << 20;

pub(crate) fn read_file(path: &Path) -> Result<Conversation, ChatsError> {
    let file = File::open(path).doing("read", path)?;
    let bytes = file.metadata().doing("read", path)?.len();
    if bytes > FILE_BYTES_MAX {
        let path = path.to_path_buf();
        return Err(ChatsError::Large { path, bytes, most: FILE_BYTES_MAX });
    }
    let mut text = Vec::with_capacity(bytes as usize);
    file.take(FILE_BYTES_MAX).read_to_end(&mut text).doing("read", path)?;
    let damaged = |why| ChatsError::Damaged { path: path.to_path_buf(), why };
    Conversation::parse(&text).map_err(damaged)
}

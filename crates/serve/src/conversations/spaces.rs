//! Whose conversations lie in which folder.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use axum::http::StatusCode;
use chats::{ChatsError, Folder, Limits};

use super::disk::on_disk;
use crate::http::error::ApiError;

/// A key is for one person or program, and the disk is the owner's.
const KEY_LIMITS: Limits = Limits { count_max: 1000, bytes_max: 256 << 20 };
const KEY_FOLDER: &str = "key-";

/// The folders of this node's users.
#[derive(Debug, Default)]
pub(crate) struct Spaces {
    root: Option<PathBuf>,
    open: Mutex<HashMap<u64, Arc<Folder>>>,
}

/// A user's conversations.
#[derive(Debug, Clone)]
pub(crate) struct Space {
    /// 0 is the node's owner; others are clients' numbers.
    pub whose: u64,
    pub folder: Arc<Folder>,
}

impl Spaces {
    pub fn new(root: Option<PathBuf>) -> Self {
        Self { root, open: Mutex::default() }
    }

    /// The folder of a user; 0 is the node's owner, others are clients' numbers.
    ///
    /// # Errors
    /// This node keeps none, or it cannot be made.
    pub fn open(&self, whose: u64) -> Result<Space, ApiError> {
        let Some(root) = &self.root else {
            let message = "this node keeps no conversations";
            return Err(ApiError::request(StatusCode::NOT_FOUND, "no_conversations", message));
        };
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(folder) = open.get(&whose) {
            return Ok(Space { whose, folder: Arc::clone(folder) });
        }
        let (path, limits) = match whose {
            0 => (root.clone(), Limits::default()),
            key => (root.join(format!("{KEY_FOLDER}{key:016x}")), KEY_LIMITS),
        };
        let folder = Arc::new(Folder::open(path, limits)?);
        open.insert(whose, Arc::clone(&folder));
        Ok(Space { whose, folder })
    }

    /// The spaces that are there already.
    pub fn all(&self) -> Vec<Space> {
        let entries = self.root.iter().flat_map(std::fs::read_dir).flatten().flatten();
        let keys = entries.filter_map(|entry| {
            let name = entry.file_name();
            let number = name.to_str()?.strip_prefix(KEY_FOLDER)?.to_owned();
            // A link is no folder here.
            let is_folder = entry.file_type().ok()?.is_dir();
            u64::from_str_radix(&number, 16).ok().filter(|_| is_folder)
        });
        let all: Vec<u64> = std::iter::once(0).chain(keys).collect();
        all.into_iter().filter_map(|whose| self.open(whose).ok()).collect()
    }
}

impl Space {
    /// Does something in the folder where that delays no other request.
    ///
    /// # Errors
    /// Those of `act`.
    pub async fn run<T: Send + 'static>(
        &self,
        act: impl FnOnce(&Folder) -> Result<T, ChatsError> + Send + 'static,
    ) -> Result<T, ApiError> {
        let folder = Arc::clone(&self.folder);
        on_disk(move || act(&folder)).await
    }
}

//! The list of a folder's conversations, kept in memory: only files that changed are read again.

use std::collections::HashMap;
use std::fs::{self, Metadata};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use serde::Serialize;

use crate::conversation::Conversation;
use crate::error::{ChatsError, Doing};
use crate::file::read_file;
use crate::id::check;

/// Clocks of file systems tick in up to 2 s (FAT): a folder that changed less than this ago may
/// change once more at the same time of its clock.
const SETTLED: Duration = Duration::from_secs(3);

/// A line of the list.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Summary {
    pub id: String,
    pub title: String,
    pub tags: Vec<String>,
    pub model: String,
    pub changed_ms: u64,
    pub version: u64,
    pub messages: usize,
}

/// A folder's conversations, the newest first.
#[derive(Debug, Clone, Default)]
pub struct Listing {
    /// Another number after each change.
    pub revision: u64,
    pub chats: Arc<[Summary]>,
    /// Names of files that are no conversations.
    pub damaged: Arc<[String]>,
    pub bytes: u64,
}

#[derive(Debug, Clone, Copy, PartialEq)]
struct Seen {
    modified: Option<SystemTime>,
    bytes: u64,
}

impl Seen {
    fn of(metadata: &Metadata) -> Self {
        Self { modified: metadata.modified().ok(), bytes: metadata.len() }
    }
}

#[derive(Debug, Default)]
pub(crate) struct Index {
    /// The folder's own time when it was read, once nothing can have been missed.
    folder: Option<SystemTime>,
    /// `None` for what is no conversation.
    files: HashMap<String, (Seen, Option<Summary>)>,
    shown: Listing,
}

impl Index {
    /// The list as it is on the disk now.
    pub fn refresh(&mut self, folder: &Path) -> Result<Listing, ChatsError> {
        let modified = fs::metadata(folder).doing("read", folder)?.modified().ok();
        if modified.is_some() && modified == self.folder {
            return Ok(self.shown.clone());
        }
        let is_settled = modified.and_then(|at| SystemTime::now().duration_since(at).ok());
        self.folder = modified.filter(|_| is_settled.is_some_and(|age| age > SETTLED));
        let entries = fs::read_dir(folder).doing("read", folder)?;
        let mut found = HashMap::new();
        let mut has_changed = false;
        for entry in entries.flatten() {
            let name = entry.file_name();
            let Some(id) = name.to_str().and_then(|name| name.strip_suffix(".json")) else {
                continue;
            };
            // A link could name any file of this user.
            let metadata = entry.metadata().ok().filter(|found| found.is_file());
            let Some(seen) = metadata.as_ref().map(Seen::of).filter(|_| check(id).is_ok()) else {
                continue;
            };
            let known = self.files.remove(id).filter(|(known, _)| *known == seen);
            let summary = match known {
                Some((_, summary)) => summary,
                None => {
                    has_changed = true;
                    let read = read_file(&entry.path());
                    read.ok().map(|read| summary(id, &read, seen.modified))
                }
            };
            found.insert(id.to_owned(), (seen, summary));
        }
        has_changed |= !self.files.is_empty();
        self.files = found;
        if has_changed || self.shown.revision == 0 {
            self.show();
        }
        Ok(self.shown.clone())
    }

    /// Forgets what it knows of the folder's time: this process changed a file.
    pub fn touch(&mut self) {
        self.folder = None;
    }

    fn show(&mut self) {
        let chats = self.files.values().filter_map(|(_, summary)| summary.clone());
        let mut chats: Vec<Summary> = chats.collect();
        chats.sort_by(|a, b| (b.changed_ms, &a.id).cmp(&(a.changed_ms, &b.id)));
        let damaged = self.files.iter().filter(|(_, (_, summary))| summary.is_none());
        let mut damaged: Vec<String> = damaged.map(|(id, _)| format!("{id}.json")).collect();
        damaged.sort();
        self.shown = Listing {
            revision: self.shown.revision + 1,
            chats: chats.into(),
            damaged: damaged.into(),
            bytes: self.files.values().map(|(seen, _)| seen.bytes).sum(),
        };
    }
}

fn summary(id: &str, read: &Conversation, modified: Option<SystemTime>) -> Summary {
    let since = modified.and_then(|at| at.duration_since(SystemTime::UNIX_EPOCH).ok());
    let modified_ms = since.map_or(0, |since| since.as_millis() as u64);
    let title = read.title();
    Summary {
        id: id.to_owned(),
        title: if title.is_empty() { id.to_owned() } else { title },
        tags: read.tags.clone(),
        model: read.model.clone(),
        changed_ms: if read.changed_ms == 0 { modified_ms } else { read.changed_ms },
        version: read.version,
        messages: read.messages.len(),
    }
}

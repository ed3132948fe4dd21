//! The answers in progress: what has come of each, and who may stop it.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use axum::http::StatusCode;
use chats::Draft;
use tokio::sync::watch;

use crate::http::error::ApiError;

/// Answers in progress of one user, beyond the limit of all.
const RUNNING_MAX: usize = 64;

/// The answers in progress, by user and conversation.
#[derive(Debug, Default)]
pub(crate) struct Answering(Mutex<Table>);

#[derive(Debug, Default)]
struct Table {
    running: HashMap<(u64, String), Arc<Progress>>,
    /// Raised with each change.
    revision: u64,
}

/// An answer in progress.
#[derive(Debug)]
pub(crate) struct Progress {
    /// The message that it follows.
    pub after: usize,
    /// The unfinished message that it goes on with; 0 if it is a new one.
    pub extends: usize,
    pub model: String,
    text: Mutex<Text>,
    /// Raised with each change of the text.
    pub changes: watch::Sender<u64>,
    stop: watch::Sender<bool>,
}

/// What those who follow an answer see of it.
#[derive(Debug, Clone, Default)]
pub(crate) struct Text {
    pub text: String,
    pub thoughts: String,
    /// Why nothing comes at the moment.
    pub waiting: Option<String>,
    /// Why what comes is not on the disk.
    pub unsaved: Option<String>,
    pub is_over: bool,
}

impl Progress {
    pub fn new(draft: &Draft) -> Self {
        let (text, thoughts) = (draft.text.clone(), draft.thoughts.clone());
        Self {
            after: draft.after,
            extends: draft.extends,
            model: draft.model.clone(),
            text: Mutex::new(Text { text, thoughts, ..Text::default() }),
            changes: watch::Sender::new(0),
            stop: watch::Sender::new(false),
        }
    }

    /// Becomes true when somebody stops it.
    pub fn stopped(&self) -> watch::Receiver<bool> {
        self.stop.subscribe()
    }

    pub fn text(&self) -> MutexGuard<'_, Text> {
        self.text.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Has its writer stop.
    pub fn end(&self) {
        self.stop.send_replace(true);
    }

    pub fn change(&self, change: impl FnOnce(&mut Text)) {
        change(&mut self.text());
        self.changes.send_modify(|count| *count += 1);
    }
}

impl Answering {
    /// Makes this the conversation's answer in progress.
    ///
    /// # Errors
    /// 409: it has another one. 429: the user has too many.
    pub fn begin(&self, whose: u64, id: &str, progress: Progress) -> Result<Running<'_>, ApiError> {
        let mut table = self.table();
        let key = (whose, id.to_owned());
        if table.running.contains_key(&key) {
            let message =
                "this conversation has an answer in progress. Wait for its end or stop it";
            return Err(ApiError::request(StatusCode::CONFLICT, "answer_in_progress", message));
        }
        if table.running.keys().filter(|(other, _)| *other == whose).count() >= RUNNING_MAX {
            let message = format!("{RUNNING_MAX} answers of yours are in progress. Stop some");
            return Err(ApiError::busy(message));
        }
        let progress = Arc::new(progress);
        table.running.insert(key.clone(), Arc::clone(&progress));
        table.revision += 1;
        Ok(Running { table: self, key, progress, is_kept: false })
    }

    pub fn find(&self, whose: u64, id: &str) -> Option<Arc<Progress>> {
        self.table().running.get(&(whose, id.to_owned())).cloned()
    }

    /// A user's conversations with answers in progress, and a number that changes with them.
    pub fn of(&self, whose: u64) -> (u64, Vec<String>) {
        let table = self.table();
        let ids = table.running.keys().filter(|(other, _)| *other == whose);
        (table.revision, ids.map(|(_, id)| id.clone()).collect())
    }

    pub fn end(&self, whose: u64, id: &str) {
        let mut table = self.table();
        let ended = table.running.remove(&(whose, id.to_owned()));
        table.revision += 1;
        drop(table);
        ended.iter().for_each(|progress| progress.change(|text| text.is_over = true));
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A place in the table, given up again unless it is kept.
pub(crate) struct Running<'a> {
    table: &'a Answering,
    key: (u64, String),
    pub progress: Arc<Progress>,
    is_kept: bool,
}

impl Running<'_> {
    pub fn keep(mut self) {
        self.is_kept = true;
    }
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        if !self.is_kept {
            self.table.end(self.key.0, &self.key.1);
        }
    }
}

/// Waits until a switch is on, or nobody can turn it on any more.
pub(crate) async fn until(switch: &mut watch::Receiver<bool>) {
    let _ = switch.wait_for(|on| *on).await;
}

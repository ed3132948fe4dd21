//! Answers in progress. Each has a task that takes it from the model, keeps its text for those who
//! follow it, and writes it down every second; at its end it becomes a message.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use axum::http::StatusCode;
use chats::{ChatsError, Conversation, Draft, DraftFile, Message};
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::time::{MissedTickBehavior, interval};

use super::spaces::Space;
use crate::app::App;
use crate::completion::{Answer, AnswerEvent, Finish, Outcome, Part};
use crate::http::error::ApiError;
use crate::openai::response::{Timings, Usage};

/// What comes between two writes is lost if the process is killed.
const WRITE_EVERY: Duration = Duration::from_secs(1);
/// A full disk is tried again after so long.
const TRY_EVERY: Duration = Duration::from_secs(5);
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
pub(super) async fn until(switch: &mut watch::Receiver<bool>) {
    let _ = switch.wait_for(|on| *on).await;
}

/// Where an answer is written to.
pub(crate) struct Place {
    pub app: Arc<App>,
    pub space: Space,
    pub id: String,
    pub progress: Arc<Progress>,
    pub draft: Arc<Mutex<DraftFile>>,
}

/// How an answer ended.
pub(crate) enum End {
    Whole(Outcome),
    /// Stopped, or lost; for people.
    Cut(String),
    /// The node is being stopped: the draft stays, for the next start.
    Left,
}

impl Place {
    /// Takes an answer to its end.
    pub async fn write(self, answer: Answer) {
        let end = self.take(answer).await;
        self.finish(end).await;
    }

    pub async fn finish(self, end: End) {
        if matches!(end, End::Left) {
            return;
        }
        self.keep(&end).await;
        self.app.answering.end(self.space.whose, &self.id);
    }

    async fn take(&self, mut answer: Answer) -> End {
        let mut saved = Saved::of(&self.progress.text());
        let mut writes = interval(WRITE_EVERY);
        writes.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut stopped = self.progress.stopped();
        let mut leaving = self.app.stopping.subscribe();
        loop {
            let event = tokio::select! {
                event = answer.next() => event,
                _ = writes.tick() => {
                    self.save(&mut saved).await;
                    continue;
                }
                () = until(&mut stopped) => return End::Cut("stopped".to_owned()),
                () = until(&mut leaving) => {
                    self.save(&mut saved).await;
                    return End::Left;
                }
            };
            match event {
                Ok(AnswerEvent::Part(part)) => self.progress.change(|text| {
                    text.waiting = None;
                    match part {
                        Part::Text(piece) => text.text.push_str(&piece.text),
                        Part::Reasoning(piece) => text.thoughts.push_str(&piece.text),
                        // No tools are offered.
                        Part::Call(_) => {}
                    }
                }),
                Ok(AnswerEvent::Waiting(reason)) => {
                    self.progress.change(|text| text.waiting = Some(reason));
                }
                Ok(AnswerEvent::Done(outcome)) => return End::Whole(outcome),
                // The workers may end before this task sees that the node does.
                Err(_) if *self.app.stopping.borrow() => return End::Left,
                Err(error) => return End::Cut(error.to_string()),
            }
        }
    }

    /// Writes down what has come since the last time.
    async fn save(&self, saved: &mut Saved) {
        let (text, thoughts, next) = {
            let shown = self.progress.text();
            let (text, thoughts) = (&shown.text[saved.text..], &shown.thoughts[saved.thoughts..]);
            (text.to_owned(), thoughts.to_owned(), Saved::of(&shown))
        };
        if text.is_empty() && thoughts.is_empty() {
            return;
        }
        let draft = Arc::clone(&self.draft);
        let append = move || {
            let mut file = draft.lock().unwrap_or_else(PoisonError::into_inner);
            file.append(&text, &thoughts)
        };
        match super::on_disk(append).await {
            Ok(()) => {
                *saved = next;
                self.say_unsaved(None);
            }
            Err(error) => self.say_unsaved(Some(error.message)),
        }
    }

    fn say_unsaved(&self, why: Option<String>) {
        if self.progress.text().unsaved != why {
            self.progress.change(|text| text.unsaved = why);
        }
    }

    /// Makes a message of the answer. While the disk is full the answer stays in memory, for those
    /// who follow it, and is tried again.
    async fn keep(&self, end: &End) {
        let message = self.message(end);
        let (after, extends) = (self.progress.after, self.progress.extends);
        let mut leaving = self.app.stopping.subscribe();
        loop {
            let (message, id) = (message.clone(), self.id.clone());
            let add = move |folder: &chats::Folder| {
                let added = folder.change(&id, None, |talk| add(talk, message, after, extends));
                match added {
                    // It was forgotten meanwhile, with its draft.
                    Err(ChatsError::Unknown { .. }) => Ok(()),
                    added => added.map(drop),
                }?;
                folder.remove_draft(&id);
                Ok(())
            };
            let Err(error) = self.space.run(add).await else { return };
            tracing::warn!(error = error.message, "an answer cannot be kept");
            self.say_unsaved(Some(error.message));
            tokio::select! {
                () = tokio::time::sleep(TRY_EVERY) => {}
                () = until(&mut leaving) => return,
            }
        }
    }

    fn message(&self, end: &End) -> Message {
        let shown = self.progress.text().clone();
        let mut message = Message::new("assistant", shown.text);
        message.reasoning_content = Some(shown.thoughts).filter(|thoughts| !thoughts.is_empty());
        message.model = Some(self.progress.model.clone());
        match end {
            End::Whole(outcome) => figures(&mut message, outcome),
            End::Cut(why) => message.ended = Some(why.clone()),
            End::Left => {}
        }
        message
    }
}

/// Bytes of an answer that are on the disk.
#[derive(Debug, Clone, Copy)]
struct Saved {
    text: usize,
    thoughts: usize,
}

impl Saved {
    fn of(shown: &Text) -> Self {
        Self { text: shown.text.len(), thoughts: shown.thoughts.len() }
    }
}

fn add(
    talk: &mut Conversation,
    message: Message,
    after: usize,
    extends: usize,
) -> Result<(), ChatsError> {
    let begun = extends.checked_sub(1).and_then(|at| talk.messages.get_mut(at));
    match begun {
        Some(begun) if message.text().starts_with(&begun.text()) => {
            *begun = Message { after: begun.after, ..message };
        }
        _ => {
            talk.has(after)?;
            talk.push(message, after);
        }
    }
    Ok(())
}

fn figures(message: &mut Message, outcome: &Outcome) {
    let reason = if outcome.finish == Finish::Length { "length" } else { "stop" };
    let figures: [(&str, Value); 3] = [
        ("usage", json!(Usage::from(outcome))),
        ("timings", json!(Timings::from(outcome))),
        ("finish_reason", json!(reason)),
    ];
    message.more.extend(figures.map(|(name, value)| (name.to_owned(), value)));
}

//! Answers in progress. Each has a task that takes it from the model, keeps its text for those who
//! follow it, and writes it down every second; at its end it becomes a message.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use chats::{ChatsError, Conversation, DraftFile, Message};
use serde_json::{Value, json};
use tokio::time::{MissedTickBehavior, interval};

use crate::app::App;
use crate::completion::{Answer, AnswerEvent, Finish, Outcome, Part};
use crate::conversations::{Progress, Space, Text, on_disk, until};
use crate::openai::response::{Timings, Usage};

/// What comes between two writes is lost if the process is killed.
const WRITE_EVERY: Duration = Duration::from_secs(1);
/// A full disk is tried again after so long.
const TRY_EVERY: Duration = Duration::from_secs(5);
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
                        Part::Begin { .. } | Part::Arguments(_) | Part::Call(_) => {}
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
        match on_disk(append).await {
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

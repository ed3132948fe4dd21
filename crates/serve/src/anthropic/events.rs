//! An answer as Anthropic's events: blocks start, grow and stop, one after the other.

use std::collections::VecDeque;

use super::error::{RequestId, error_body};
use super::request::Thoughts;
use super::response::{Block, Delta, Ending, Event, Message, SIGNATURE, Usage};
use crate::completion::{Answer, AnswerEvent, CompletionError, Outcome, Part};
use crate::http::stream::Item;

/// The event stream of one answer.
pub(super) struct Events {
    answer: Answer,
    thoughts: Thoughts,
    max_tokens: Option<usize>,
    id: RequestId,
    ready: VecDeque<Item>,
    /// The open block.
    open: Option<Kind>,
    index: usize,
    ended: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Text,
    Thinking,
}

impl Events {
    pub fn new(
        answer: Answer,
        mut message: Message,
        thoughts: Thoughts,
        max_tokens: Option<usize>,
        id: RequestId,
    ) -> Self {
        message.usage = Usage::of_prompt(answer.prompt_tokens());
        let ready = VecDeque::from([Event::MessageStart { message }.item(), Event::Ping.item()]);
        Self { answer, thoughts, max_tokens, id, ready, open: None, index: 0, ended: false }
    }

    /// The next item. Dropping the future loses nothing.
    pub async fn next(&mut self) -> Option<Item> {
        while self.ready.is_empty() {
            if self.ended {
                return None;
            }
            let event = self.answer.next().await;
            self.take(event);
        }
        self.ready.pop_front()
    }

    pub fn take(&mut self, event: Result<AnswerEvent, CompletionError>) {
        match event {
            Ok(AnswerEvent::Waiting(reason)) => self.ready.push_back(Item::Comment(reason)),
            Ok(AnswerEvent::Part(part)) => self.part(part),
            Ok(AnswerEvent::Done(outcome)) => self.finish(&outcome),
            Err(error) => {
                self.ended = true;
                let body = error_body(&error.into(), &self.id).to_string();
                self.ready.push_back(Item::FailEvent("error", body));
            }
        }
    }

    fn part(&mut self, part: Part) {
        match part {
            Part::Text(piece) => {
                self.open(Kind::Text);
                self.delta(Delta::TextDelta { text: piece.text });
            }
            Part::Reasoning(piece) => match self.thoughts {
                Thoughts::Hidden => {}
                Thoughts::Omitted => self.open(Kind::Thinking),
                Thoughts::Shown => {
                    self.open(Kind::Thinking);
                    self.delta(Delta::ThinkingDelta { thinking: piece.text });
                }
            },
            Part::Begin { id, name } => {
                self.close();
                self.start(Block::ToolUse { id, name, input: serde_json::json!({}) });
            }
            Part::Arguments(partial_json) => self.delta(Delta::InputJsonDelta { partial_json }),
            Part::Call(_) => self.stop(),
        }
    }

    fn finish(&mut self, outcome: &Outcome) {
        self.close();
        self.ended = true;
        let delta = Ending::new(outcome, self.max_tokens);
        self.push(&Event::MessageDelta { delta, usage: outcome.into() });
        self.push(&Event::MessageStop);
    }

    /// Opens a block unless one of that kind is already open.
    fn open(&mut self, kind: Kind) {
        if self.open == Some(kind) {
            return;
        }
        self.close();
        self.open = Some(kind);
        self.start(match kind {
            Kind::Text => Block::Text { text: String::new() },
            Kind::Thinking => Block::Thinking { thinking: String::new(), signature: "" },
        });
    }

    fn close(&mut self) {
        let Some(kind) = self.open.take() else { return };
        if kind == Kind::Thinking {
            self.delta(Delta::SignatureDelta { signature: SIGNATURE });
        }
        self.stop();
    }

    fn start(&mut self, content_block: Block) {
        self.push(&Event::ContentBlockStart { index: self.index, content_block });
    }

    fn delta(&mut self, delta: Delta) {
        self.push(&Event::ContentBlockDelta { index: self.index, delta });
    }

    fn stop(&mut self) {
        self.push(&Event::ContentBlockStop { index: self.index });
        self.index += 1;
    }

    fn push(&mut self, event: &Event) {
        self.ready.push_back(event.item());
    }
}

//! gpt-oss's replies: messages on channels.
//!
//! `<|channel|>analysis<|message|>...<|end|><|start|>assistant<|channel|>final<|message|>...`
//! and, for calls,
//! `<|channel|>commentary to=functions.NAME <|constrain|>json<|message|>{...}<|call|>`.
//!
//! Source: OpenAI's harmony response format.

use serde_json::{Map, Value};

use super::calls::BLOCK_BYTES_MAX;
use super::format::HARMONY;
use super::read::{End, Read, Reader, Stop, Waiting};
use super::{Held, ReplyPart, held_back};
use crate::ToolCall;

const MESSAGE: &str = "<|message|>";
const ENDS: [&str; 4] = ["<|end|>", "<|call|>", "<|return|>", "<|start|>"];
/// Bytes of a header; a longer one is none.
const HEADER_BYTES_MAX: usize = 1024;

#[derive(Debug, Clone)]
pub(super) struct Harmony {
    state: State,
    held: Held,
    waiting: Waiting,
}

#[derive(Debug, Clone)]
enum State {
    /// What comes in front of `<|message|>`.
    Header,
    Body(Body),
}

#[derive(Debug, Clone, PartialEq)]
enum Body {
    Reasoning,
    Text,
    Call { name: String },
}

impl Harmony {
    /// A prompt may end with a header, after which the reply is the message itself.
    pub(super) fn new(prompt: &str) -> Self {
        let last = prompt.rsplit("<|start|>").next().unwrap_or("");
        let state = match last.strip_suffix(MESSAGE) {
            Some(header) => State::Body(body_of(header)),
            None => State::Header,
        };
        Self { state, held: Held::Free, waiting: Waiting::default() }
    }

    pub(super) fn is_reasoning(&self) -> bool {
        matches!(self.state, State::Body(Body::Reasoning))
    }

    /// A reply that a grammar holds: its text has no end before the reply's. A grammar of the
    /// client's own has to write the headers itself, so that they are still looked for.
    pub(super) fn hold(&mut self, held: Held) {
        self.held = held;
    }

    pub(super) fn run(&mut self, pending: &mut String, end: End, parts: &mut Vec<ReplyPart>) {
        if end == End::Open && !self.waiting.is_over(pending) {
            return;
        }
        self.waiting = Waiting::default();
        loop {
            let next = match &self.state {
                State::Header => header(pending, end != End::Open),
                State::Body(Body::Text) if matches!(self.held, Held::Text | Held::TextOrCalls) => {
                    if !pending.is_empty() {
                        parts.push(ReplyPart::Text(std::mem::take(pending)));
                    }
                    None
                }
                State::Body(body) => body_step(body, pending, end, parts),
            };
            match next {
                Some(state) => self.state = state,
                None => break,
            }
        }
        if matches!(self.state, State::Body(Body::Call { .. })) {
            self.waiting = Waiting::new(pending.len(), "");
        }
    }
}

/// How a header can begin.
fn begins_header(text: &str) -> bool {
    let begins = |start: &&str| text.starts_with(*start) || start.starts_with(text);
    HARMONY.iter().chain(&["assistant", "to="]).any(begins)
}

fn header(pending: &mut String, at_end: bool) -> Option<State> {
    let first = pending.trim_start();
    if !begins_header(first) {
        // A model that writes no header at all writes text.
        return Some(State::Body(Body::Text));
    }
    match pending.find(MESSAGE) {
        Some(at) if at <= HEADER_BYTES_MAX => {
            let body = body_of(&pending[..at]);
            pending.drain(..at + MESSAGE.len());
            Some(State::Body(body))
        }
        Some(_) => Some(State::Body(Body::Text)),
        None => {
            let is_too_long = pending.len() > HEADER_BYTES_MAX + MESSAGE.len();
            let is_broken = is_too_long || (at_end && !first.is_empty());
            is_broken.then_some(State::Body(Body::Text))
        }
    }
}

/// What a header announces: the channel, and whom the message is for.
fn body_of(header: &str) -> Body {
    let word = |mark: &str| {
        let after = header.split_once(mark)?.1;
        after.split(|ch: char| ch.is_whitespace() || ch == '<').next()
    };
    match (word("to="), word("<|channel|>")) {
        (Some(recipient), _) => {
            let name = recipient.strip_prefix("functions.").unwrap_or(recipient);
            Body::Call { name: name.to_owned() }
        }
        (None, Some("analysis")) => Body::Reasoning,
        _ => Body::Text,
    }
}

fn body_step(
    body: &Body,
    pending: &mut String,
    end: End,
    parts: &mut Vec<ReplyPart>,
) -> Option<State> {
    let part = match body {
        Body::Call { name } => return call(name, pending, end, parts),
        Body::Reasoning => ReplyPart::Reasoning,
        Body::Text => ReplyPart::Text,
    };
    let found = ENDS.iter().filter_map(|mark| Some((pending.find(mark)?, *mark))).min();
    let held = match found {
        Some((at, _)) => pending.len() - at,
        None if end == End::Open => held_back(pending, ENDS.into_iter()),
        None => 0,
    };
    let kept = pending.split_off(pending.len() - held);
    let text = std::mem::replace(pending, kept);
    if !text.is_empty() {
        parts.push(part(text));
    }
    let (_, mark) = found?;
    pending.drain(..mark.len());
    Some(State::Header)
}

/// A call's arguments: one value, whatever marks its strings hold, and the mark behind it. Anything
/// else is text.
fn call(name: &str, pending: &mut String, end: End, parts: &mut Vec<ReplyPart>) -> Option<State> {
    let is_too_long = pending.len() > BLOCK_BYTES_MAX;
    let mut reader = Reader::new(pending, if is_too_long { End::Cut } else { end });
    match arguments(&mut reader) {
        Ok((arguments, is_ended)) => {
            let bytes = reader.at();
            pending.drain(..bytes);
            parts.push(ReplyPart::Call(ToolCall {
                id: String::new(),
                name: name.to_owned(),
                arguments,
            }));
            Some(if is_ended { State::Header } else { State::Body(Body::Text) })
        }
        Err(Stop::More) => None,
        Err(Stop::Broken) => Some(State::Body(Body::Text)),
    }
}

/// The arguments, and whether the message's end stands behind them.
fn arguments(reader: &mut Reader) -> Read<(Value, bool)> {
    reader.skip_space();
    let empty = || Value::Object(Map::new());
    if reader.is_at_end() && !reader.is_cut() {
        return Ok((empty(), false));
    }
    let is_empty = end_mark(reader)?;
    let value = if is_empty { empty() } else { reader.value("")? };
    let is_ended = is_empty || end_mark(reader)?;
    Ok((value, is_ended))
}

/// Steps over a mark that ends a message.
fn end_mark(reader: &mut Reader) -> Read<bool> {
    let mut ahead = *reader;
    ahead.skip_space();
    for mark in ENDS {
        if ahead.take(mark)? {
            *reader = ahead;
            return Ok(true);
        }
    }
    Ok(false)
}

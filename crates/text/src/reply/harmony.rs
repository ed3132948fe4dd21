//! gpt-oss's replies: messages on channels.
//!
//! `<|channel|>analysis<|message|>...<|end|><|start|>assistant<|channel|>final<|message|>...`
//! and, for calls,
//! `<|channel|>commentary to=functions.NAME <|constrain|>json<|message|>{...}<|call|>`.
//!
//! Source: OpenAI's harmony response format.

use serde_json::{Map, Value};

use super::format::HARMONY;
use super::{BLOCK_BYTES_MAX, ReplyPart, held_back};
use crate::ToolCall;

const MESSAGE: &str = "<|message|>";
const ENDS: [&str; 4] = ["<|end|>", "<|call|>", "<|return|>", "<|start|>"];
/// Bytes of a header; a longer one is none.
const HEADER_BYTES_MAX: usize = 1024;

#[derive(Debug, Clone)]
pub(super) struct Harmony {
    state: State,
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
        Self { state }
    }

    pub(super) fn is_reasoning(&self) -> bool {
        matches!(self.state, State::Body(Body::Reasoning))
    }

    pub(super) fn run(&mut self, pending: &mut String, at_end: bool, parts: &mut Vec<ReplyPart>) {
        loop {
            let next = match &self.state {
                State::Header => header(pending, at_end),
                State::Body(body) => body_step(body, pending, at_end, parts),
            };
            match next {
                Some(state) => self.state = state,
                None => return,
            }
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
    at_end: bool,
    parts: &mut Vec<ReplyPart>,
) -> Option<State> {
    let found = ENDS.iter().filter_map(|end| Some((pending.find(end)?, *end))).min();
    let is_call = matches!(body, Body::Call { .. });
    let held = match found {
        Some((at, _)) => pending.len() - at,
        None if at_end || (is_call && pending.len() > BLOCK_BYTES_MAX) => 0,
        None if is_call => pending.len(),
        None => held_back(pending, ENDS.into_iter()),
    };
    let kept = pending.split_off(pending.len() - held);
    let text = std::mem::replace(pending, kept);
    if !text.is_empty() {
        parts.push(part(body, text));
    }
    let (_, end) = found?;
    pending.drain(..end.len());
    Some(State::Header)
}

fn part(body: &Body, text: String) -> ReplyPart {
    let Body::Call { name } = body else {
        return if *body == Body::Reasoning {
            ReplyPart::Reasoning(text)
        } else {
            ReplyPart::Text(text)
        };
    };
    let arguments = match text.trim() {
        "" => Ok(Value::Object(Map::new())),
        json => serde_json::from_str(json),
    };
    match arguments {
        Ok(arguments) => {
            ReplyPart::Call(ToolCall { id: String::new(), name: name.clone(), arguments })
        }
        Err(_) => ReplyPart::Text(text),
    }
}

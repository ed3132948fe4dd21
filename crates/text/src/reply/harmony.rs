//! gpt-oss's replies, which are messages on channels, and Muse Glimmer's, which are messages to
//! recipients.
//!
//! `<|channel|>analysis<|message|>...<|end|><|start|>assistant<|channel|>final<|message|>...`
//! and, for calls,
//! `<|channel|>commentary to=functions.NAME <|constrain|>json<|message|>{...}<|call|>`.
//!
//! Muse Glimmer writes
//! `to=self<|message|>...<|eom|><|start|>assistant to=user<|message|>...<|eot|>`
//! and, for calls,
//! `to=NAME<|message|><atem:function_calls>...</atem:function_calls><|eot|>`.
//!
//! Source: OpenAI's harmony response format; Muse Glimmer's chat template.

use serde_json::{Map, Value};

use super::calls::{BLOCK_BYTES_MAX, Offer};
use super::format::{ADDRESSED, HARMONY};
use super::forms::Form;
use super::read::{End, Read, Reader, Stop, Waiting};
use super::{Held, ReplyFormat, ReplyPart, held_back};
use crate::ToolCall;

const MESSAGE: &str = "<|message|>";
/// Ends a message that is a call.
const CALL: &str = "<|call|>";
/// The ends of gpt-oss's messages, and of Muse Glimmer's.
const ENDS: &[&str] = &["<|end|>", CALL, "<|return|>", "<|start|>"];
const ADDRESSED_ENDS: &[&str] = &["<|eom|>", "<|eot|>", "<|start|>"];
/// The most bytes of a header; a longer one is text.
const HEADER_BYTES_MAX: usize = 1024;

#[derive(Debug, Clone)]
pub(super) struct Harmony {
    state: State,
    held: Held,
    waiting: Waiting,
    marks: Marks,
}

/// The marks of messages.
#[derive(Debug, Clone, Copy)]
struct Marks {
    all: &'static [&'static str],
    ends: &'static [&'static str],
    /// The form of calls, if they are not JSON.
    form: Option<&'static Form>,
}

#[derive(Debug, Clone)]
enum State {
    /// The part before `<|message|>`.
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
    /// A prompt may end with a header; the reply is then the message itself. A prompt to be
    /// continued ends with a part of the message.
    pub(super) fn new(format: &ReplyFormat, prompt: &str) -> Self {
        let marks = match format.recipients {
            true => {
                let form = format.forms.first().copied();
                Marks { all: ADDRESSED, ends: ADDRESSED_ENDS, form }
            }
            false => Marks { all: HARMONY, ends: ENDS, form: None },
        };
        let last = prompt.rsplit("<|start|>").next().unwrap_or("");
        let state = match last.split_once(MESSAGE) {
            Some((header, _)) => State::Body(body_of(header)),
            None => State::Header,
        };
        Self { state, held: Held::Free, waiting: Waiting::default(), marks }
    }

    pub(super) fn is_reasoning(&self) -> bool {
        matches!(self.state, State::Body(Body::Reasoning))
    }

    /// Sets the grammar of the reply: its text ends only at the reply's end. The client's own
    /// grammar has to write the headers itself, so they are still parsed.
    pub(super) fn hold(&mut self, held: Held) {
        self.held = held;
    }

    pub(super) fn run(
        &mut self,
        pending: &mut String,
        tools: &[Value],
        end: End,
        parts: &mut Vec<ReplyPart>,
    ) {
        if end == End::Open && !self.waiting.is_over(pending) {
            return;
        }
        self.waiting = Waiting::default();
        loop {
            let next = match &self.state {
                State::Header => header(self.marks, pending, end != End::Open),
                State::Body(Body::Text) if matches!(self.held, Held::Text | Held::TextOrCalls) => {
                    if !pending.is_empty() {
                        parts.push(ReplyPart::Text(std::mem::take(pending)));
                    }
                    None
                }
                State::Body(Body::Call { .. }) if self.marks.form.is_some() => {
                    let exact = matches!(self.held, Held::Calls | Held::TextOrCalls);
                    block(self.marks, &Offer { tools, exact, end }, pending, parts)
                }
                State::Body(body) => body_step(self.marks, body, pending, end, parts),
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

/// Whether the text can be the start of a header.
fn begins_header(marks: Marks, text: &str) -> bool {
    let begins = |start: &&str| text.starts_with(*start) || start.starts_with(text);
    marks.all.iter().chain(&["assistant", "to="]).any(begins)
}

fn header(marks: Marks, pending: &mut String, at_end: bool) -> Option<State> {
    let first = pending.trim_start();
    if !begins_header(marks, first) {
        // A model without headers writes text.
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

/// The kind of message that a header announces, from its channel and recipient.
fn body_of(header: &str) -> Body {
    let word = |mark: &str| {
        let after = header.split_once(mark)?.1;
        after.split(|ch: char| ch.is_whitespace() || ch == '<').next()
    };
    match (word("to="), word("<|channel|>")) {
        (Some("self"), _) => Body::Reasoning,
        (Some("user"), _) => Body::Text,
        (Some(recipient), _) => {
            let name = recipient.strip_prefix("functions.").unwrap_or(recipient);
            Body::Call { name: name.to_owned() }
        }
        (None, Some("analysis")) => Body::Reasoning,
        _ => Body::Text,
    }
}

/// Parses a message of tagged calls and its end mark. Anything else is text.
fn block(
    marks: Marks,
    offer: &Offer,
    pending: &mut String,
    parts: &mut Vec<ReplyPart>,
) -> Option<State> {
    let spaces = pending.len() - pending.trim_start().len();
    if spaces == pending.len() && offer.end == End::Open {
        return None;
    }
    let read = marks.form.ok_or(Stop::Broken).and_then(|form| {
        let found = offer.block(form, &pending[spaces..])?;
        let mut after = Reader::new(&pending[spaces + found.bytes..], offer.end);
        let is_ended = end_mark(marks.ends, &mut after)?;
        Ok((found.calls, spaces + found.bytes + after.at(), is_ended))
    });
    match read {
        Ok((calls, bytes, is_ended)) => {
            pending.drain(..bytes);
            parts.extend(calls.into_iter().map(ReplyPart::Call));
            Some(if is_ended { State::Header } else { State::Body(Body::Text) })
        }
        Err(Stop::More) => None,
        Err(Stop::Broken) => Some(State::Body(Body::Text)),
    }
}

fn body_step(
    marks: Marks,
    body: &Body,
    pending: &mut String,
    end: End,
    parts: &mut Vec<ReplyPart>,
) -> Option<State> {
    let part = match body {
        Body::Call { name } => return call(marks, name, pending, end, parts),
        Body::Reasoning => ReplyPart::Reasoning,
        Body::Text => ReplyPart::Text,
    };
    let found = marks.ends.iter().filter_map(|mark| Some((pending.find(mark)?, *mark))).min();
    let held = match found {
        Some((at, _)) => pending.len() - at,
        None if end == End::Open => held_back(pending, marks.ends.iter().copied()),
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

/// Parses a call's arguments: one value, whatever marks its strings contain, and the end mark.
/// Anything else is text.
fn call(
    marks: Marks,
    name: &str,
    pending: &mut String,
    end: End,
    parts: &mut Vec<ReplyPart>,
) -> Option<State> {
    let is_too_long = pending.len() > BLOCK_BYTES_MAX;
    let mut reader = Reader::new(pending, if is_too_long { End::Cut } else { end });
    match arguments(marks.ends, &mut reader) {
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

/// The arguments, and whether the message's end follows.
fn arguments(ends: &[&str], reader: &mut Reader) -> Read<(Value, bool)> {
    reader.skip_space();
    let empty = || Value::Object(Map::new());
    if reader.is_at_end() && !reader.is_cut() {
        return Ok((empty(), false));
    }
    if end_mark(ends, reader)? {
        return Ok((empty(), true));
    }
    let value = reader.value(CALL)?;
    // Models may write a superfluous brace.
    let mut ahead = *reader;
    ahead.skip(|ch| ch.is_whitespace() || "]}".contains(ch));
    let is_ended = end_mark(ends, &mut ahead)?;
    if is_ended || ahead.is_at_end() {
        *reader = ahead;
    }
    Ok((value, is_ended))
}

/// Steps over an end mark of a message.
fn end_mark(ends: &[&str], reader: &mut Reader) -> Read<bool> {
    let mut ahead = *reader;
    ahead.skip_space();
    for mark in ends {
        if ahead.take(mark)? {
            *reader = ahead;
            return Ok(true);
        }
    }
    Ok(false)
}

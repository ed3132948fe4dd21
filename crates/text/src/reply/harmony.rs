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

use super::format::{ADDRESSED, HARMONY, ReplyFormat};
use super::forms::Form;
use super::offer::{BLOCK_BYTES_MAX, Offer, call as call_of};
use super::part::{Held, ReplyPart};
use super::read::{End, Read, Reader, Stop, Waiting, held_back};
use super::told::{Broken, Sent, Told};
use crate::ToolCall;

const MESSAGE: &str = "<|message|>";
const CHANNEL: &str = "<|channel|>";
const CHANNELS: &[&str] = &["analysis", "commentary", "final"];
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
    /// What has been emitted of the calls in progress.
    sent: Sent,
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
        let (waiting, sent) = Default::default();
        Self { state, held: Held::Free, waiting, marks, sent }
    }

    pub(super) fn is_reasoning(&self) -> bool {
        matches!(self.state, State::Body(Body::Reasoning))
    }

    /// Sets the grammar of the reply: its text ends only at the reply's end. The client's own
    /// grammar has to write the headers itself, so they are still parsed.
    pub(super) fn hold(&mut self, held: Held) {
        self.held = held;
    }

    pub(super) fn run(&mut self, pending: &mut String, offer: Offer, parts: &mut Vec<ReplyPart>) {
        let end = offer.end;
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
                State::Body(Body::Call { name }) => {
                    let exact = matches!(self.held, Held::Calls | Held::TextOrCalls);
                    let offer = Offer { exact, ..offer };
                    calls(self.marks, name, &offer, pending, &mut self.sent, parts)
                }
                State::Body(body) => body_step(self.marks, body, pending, end, parts),
            };
            match next {
                Some(state) => {
                    self.state = state;
                    self.sent = Sent::default();
                }
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
    let message = pending.find(MESSAGE);
    let is_over = |at: &usize| message.is_none_or(|message| *at < message);
    if let Some(end) = end_of_header(marks, pending).filter(is_over) {
        // The message's mark is missing: the message begins behind the channel.
        let bytes = channel_bytes(&pending[..end]);
        let body = match body_of(&pending[..bytes]) {
            Body::Call { .. } => Body::Text,
            body => body,
        };
        let is_named = CHANNELS.iter().any(|name| pending[..bytes].ends_with(name));
        pending.drain(..bytes);
        return Some(State::Body(if is_named { body } else { Body::Reasoning }));
    }
    match message {
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

/// Where a message ends whose header has no end.
fn end_of_header(marks: Marks, header: &str) -> Option<usize> {
    let begins = header.len() - header.trim_start().len();
    let ends = marks.ends.iter().filter_map(|mark| header.find(mark));
    // A header may start with the mark of a message.
    ends.filter(|at| *at > begins).min()
}

/// The bytes of a header with its channel, if it has one.
fn channel_bytes(header: &str) -> usize {
    let Some(at) = header.find(CHANNEL) else { return 0 };
    let from = at + CHANNEL.len();
    let name = CHANNELS.iter().find(|name| header[from..].starts_with(**name));
    from + name.map_or(0, |name| name.len())
}

/// The kind of message that a header announces, from its channel and recipient.
fn body_of(header: &str) -> Body {
    let word = |mark: &str| {
        let after = header.split_once(mark)?.1;
        after.split(|ch: char| ch.is_whitespace() || ch == '<').next()
    };
    match (word("to="), word(CHANNEL)) {
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

/// The calls of a message, its bytes, and whether its end mark is there.
type Message = (Vec<ToolCall>, usize, bool);

/// Parses a message of calls and its end mark, and emits what is certain of them. Anything else is
/// text.
fn calls(
    marks: Marks,
    name: &str,
    offer: &Offer,
    pending: &mut String,
    sent: &mut Sent,
    parts: &mut Vec<ReplyPart>,
) -> Option<State> {
    let mut told = Told::default();
    match message(marks, name, offer, pending, &mut told) {
        Ok((calls, bytes, is_ended)) => {
            pending.drain(..bytes);
            told.emit_all(calls, sent, parts);
            Some(if is_ended { State::Header } else { State::Body(Body::Text) })
        }
        Err(Stop::More) => {
            told.emit(sent, parts);
            None
        }
        Err(Stop::Broken) => {
            if !told.is_empty() {
                let open = Offer { end: End::Open, ..*offer };
                let read = || message(marks, name, &open, pending, &mut Told::mute()).err();
                let why = Broken::of(offer.end, read);
                let bytes = told.emit_broken(pending, why, sent, parts);
                pending.drain(..bytes);
            }
            Some(State::Body(Body::Text))
        }
    }
}

fn message(marks: Marks, name: &str, offer: &Offer, text: &str, told: &mut Told) -> Read<Message> {
    let Some(form) = marks.form else { return one_call(marks, name, offer, text, told) };
    let spaces = text.len() - text.trim_start().len();
    if spaces == text.len() && offer.end == End::Open {
        return Err(Stop::More);
    }
    let read = offer.block(form, &text[spaces..], told);
    told.at += spaces;
    let found = read?;
    let mut after = Reader::new(&text[spaces + found.bytes..], offer.end);
    let is_ended = end_mark(marks.ends, &mut after)?;
    Ok((found.calls, spaces + found.bytes + after.at(), is_ended))
}

/// A call's arguments: one value, whatever marks its strings contain, and the end mark.
fn one_call(marks: Marks, name: &str, offer: &Offer, text: &str, told: &mut Told) -> Read<Message> {
    let is_too_long = text.len() > BLOCK_BYTES_MAX;
    let mut reader = Reader::new(text, if is_too_long { End::Cut } else { offer.end });
    if offer.only && !offer.has(name) {
        return Err(Stop::Broken);
    }
    let (arguments, is_ended) = arguments(marks.ends, name, offer, &mut reader, told)?;
    Ok((vec![call_of("", name, arguments)], reader.at(), is_ended))
}

fn body_step(
    marks: Marks,
    body: &Body,
    pending: &mut String,
    end: End,
    parts: &mut Vec<ReplyPart>,
) -> Option<State> {
    let part = if *body == Body::Reasoning { ReplyPart::Reasoning } else { ReplyPart::Text };
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

/// The arguments, and whether the message's end follows.
fn arguments(
    ends: &[&str],
    name: &str,
    offer: &Offer,
    reader: &mut Reader,
    told: &mut Told,
) -> Read<(Value, bool)> {
    reader.skip_space();
    let empty = || Value::Object(Map::new());
    if reader.is_at_end() && !reader.is_cut() {
        return Ok((empty(), false));
    }
    if end_mark(ends, reader)? {
        return Ok((empty(), true));
    }
    if reader.peek()? == '{' {
        told.begin(offer, "", name, reader.at());
    }
    let value = told.value(reader, CALL)?;
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

//! What is certain of a block of calls while it is written.
//!
//! A call of an offered tool is certain once its name is read and its arguments have begun: from
//! there on it is a call, whatever follows. Its arguments come out as they are written, the same
//! bytes that the whole call has. If they break off, they stay a start of JSON.

use serde_json::Value;

use super::offer::Offer;
use super::part::ReplyPart;
use super::read::{End, Read, Reader, Stop};
use super::value::{Written, whole_value};
use crate::{ToolCall, json_text};

/// The certain calls of a block.
#[derive(Debug, Default)]
pub(super) struct Told {
    pub(super) calls: Vec<ToldCall>,
    /// Bytes of the block up to which it is told.
    pub(super) at: usize,
    /// The calls that are read to their ends, told or not.
    done: usize,
    /// The end of the block decides about the calls that follow.
    is_mute: bool,
    /// Calls are certain by their arguments alone.
    is_early: bool,
}

/// A call, so far.
#[derive(Debug)]
pub(super) struct ToldCall {
    id: String,
    name: String,
    /// JSON.
    arguments: String,
    /// The arguments, once the call is over.
    whole: Option<Value>,
}

/// What of a block's calls has been emitted.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Sent {
    calls: usize,
    /// Bytes of the next call's arguments, if it has begun.
    bytes: Option<usize>,
}

impl Told {
    /// Tells nothing before the block's end.
    pub(super) fn mute() -> Self {
        Self { is_mute: true, ..Self::default() }
    }

    /// Tells of calls whose arguments have begun, and of no others.
    pub(super) fn early() -> Self {
        Self { is_early: true, ..Self::default() }
    }

    /// Begins a call if it is certain, and returns whether it is.
    pub(super) fn begin(&mut self, offer: &Offer, id: &str, name: &str, at: usize) -> bool {
        let name = offer.offered(name.trim());
        let Some(name) = name.filter(|_| !self.is_mute && self.calls.len() == self.done) else {
            return false;
        };
        let (id, name) = (id.trim().to_owned(), name.to_owned());
        self.calls.push(ToldCall { id, name, arguments: String::new(), whole: None });
        self.at = at;
        true
    }

    /// The call that has begun.
    fn open(&mut self) -> Option<&mut ToldCall> {
        if self.calls.len() > self.done { self.calls.last_mut() } else { None }
    }

    /// Adds to the arguments of the call that has begun.
    pub(super) fn write(&mut self, written: &Written) {
        if let Some(open) = self.open().filter(|_| !written.json.is_empty()) {
            open.arguments.push_str(&written.json);
            self.at = written.at;
        }
    }

    /// Reads a value as the arguments of the call that has begun.
    pub(super) fn value(&mut self, reader: &mut Reader, close: &str) -> Read<Value> {
        let mut written = Written::default();
        let read = reader.written_value(close, &mut written);
        self.write(&written);
        read
    }

    /// Reads a value as a field of those arguments.
    pub(super) fn field(
        &mut self,
        key: &str,
        is_first: bool,
        reader: &mut Reader,
        close: &str,
    ) -> Read<Value> {
        // The value follows for certain once its first character is there.
        reader.peek()?;
        let mut written = Written::default();
        written.begin_field(key, is_first, reader.at());
        let read = reader.written_value(close, &mut written);
        self.write(&written);
        read
    }

    /// Writes a field of those arguments; `first`: whether it is the first, `None` if its name was
    /// there before.
    pub(super) fn whole_field(&mut self, key: &str, value: &Value, first: Option<bool>, at: usize) {
        let Some(is_first) = first else { return };
        let mut whole = Written::default();
        whole.begin_field(key, is_first, at);
        whole.raw(&json_text(value), at);
        self.write(&whole);
    }

    /// The same of a text that goes on.
    pub(super) fn begun_field(&mut self, key: &str, text: &str, first: Option<bool>, at: usize) {
        let Some(is_first) = first else { return };
        let mut begun = Written::default();
        begun.begin_field(key, is_first, at);
        begun.raw("\"", at);
        begun.escaped(text, at);
        self.write(&begun);
    }

    /// Tells nothing of the calls that follow.
    pub(super) fn silence(&mut self) {
        self.is_mute = true;
    }

    pub(super) fn is_early(&self) -> bool {
        self.is_early && !self.is_mute
    }

    /// Whether the text ends in a call, or at most at the beginning of another one.
    pub(super) fn is_in_call(&self, text: &str) -> bool {
        let rest =
            text[self.at..].trim_start_matches(|ch: char| ch.is_whitespace() || ";,".contains(ch));
        self.calls.len() > self.done || rest.is_empty() || rest.starts_with('{')
    }

    pub(super) fn is_mute(&self) -> bool {
        self.is_mute
    }

    /// Ends a call.
    pub(super) fn done(&mut self, offer: &Offer, call: &ToolCall, at: usize) {
        if self.calls.len() == self.done && !self.begin(offer, &call.id, &call.name, at) {
            self.is_mute = true;
        }
        if let Some(open) = self.open() {
            let text = call.arguments_text();
            let is_same = text.starts_with(&open.arguments);
            open.whole = match is_same {
                true => Some(call.arguments.clone()),
                false => whole_value(&open.arguments),
            };
            if is_same || open.whole.is_none() {
                (open.arguments, open.whole) = (text, Some(call.arguments.clone()));
            }
            self.at = at;
        }
        self.done += 1;
    }

    pub(super) fn is_empty(&self) -> bool {
        self.calls.is_empty()
    }

    /// Emits what has not been emitted.
    pub(super) fn emit(&self, sent: &mut Sent, parts: &mut Vec<ReplyPart>) {
        while let Some(call) = self.calls.get(sent.calls) {
            call.emit_begun(sent, parts);
            let Some(whole) = &call.whole else { return };
            call.emit_end(whole.clone(), sent, parts);
        }
    }

    /// Emits the rest of the calls of a block that is whole.
    pub(super) fn emit_all(&self, all: Vec<ToolCall>, sent: &mut Sent, parts: &mut Vec<ReplyPart>) {
        self.emit(sent, parts);
        let rest = all.into_iter().skip(sent.calls);
        parts.extend(rest.map(ReplyPart::Call));
    }

    /// Emits the calls of a block that breaks off. Returns the bytes that belong to them.
    pub(super) fn emit_broken(
        &self,
        text: &str,
        why: Broken,
        sent: &mut Sent,
        parts: &mut Vec<ReplyPart>,
    ) -> usize {
        self.emit(sent, parts);
        if let Some(call) = self.calls.get(sent.calls) {
            let begun = || Value::String(call.arguments.clone());
            call.emit_end(whole_value(&call.arguments).unwrap_or_else(begun), sent, parts);
        }
        if why == Broken::Unfinished { text.len() } else { self.at }
    }
}

impl ToldCall {
    fn emit_begun(&self, sent: &mut Sent, parts: &mut Vec<ReplyPart>) {
        if sent.bytes.is_none() {
            parts.push(ReplyPart::Begin { id: self.id.clone(), name: self.name.clone() });
        }
        let bytes = sent.bytes.unwrap_or(0);
        if let Some(piece) = self.arguments.get(bytes..).filter(|piece| !piece.is_empty()) {
            parts.push(ReplyPart::Arguments(piece.to_owned()));
        }
        sent.bytes = Some(self.arguments.len());
    }

    fn emit_end(&self, arguments: Value, sent: &mut Sent, parts: &mut Vec<ReplyPart>) {
        let (id, name) = (self.id.clone(), self.name.clone());
        parts.push(ReplyPart::Call(ToolCall { id, name, arguments }));
        *sent = Sent { calls: sent.calls + 1, bytes: None };
    }
}

/// How a block with certain calls breaks off.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Broken {
    /// The reply ends in the middle of a call.
    Unfinished,
    /// Something follows that is no part of a call.
    Odd,
}

impl Broken {
    /// `open`: what the same text would be if more could come.
    pub(super) fn of(end: End, open: impl FnOnce() -> Option<Stop>) -> Self {
        match end != End::Open && open() == Some(Stop::More) {
            true => Self::Unfinished,
            false => Self::Odd,
        }
    }
}

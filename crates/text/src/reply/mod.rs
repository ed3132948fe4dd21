//! Taking a model's reply apart while it comes: thoughts, text, and calls of tools.
//!
//! A pure state machine over text, fed by a [`crate::TextStream`] that shows the format's markers.
//! Text and thoughts go through as soon as they cannot be the beginning of a marker; a call is
//! given out whole. What looks like a call but cannot be parsed is text: nothing that a model
//! wrote is ever lost.

mod calls;
mod format;
mod harmony;
mod lark;
mod schema;

use serde_json::Value;

use crate::ToolCall;
pub use format::ReplyFormat;
use harmony::Harmony;
pub use lark::{lark_json, lark_regex};
pub use schema::tight_schema;

/// Bytes of a block of calls; a longer one is given out as text.
const BLOCK_BYTES_MAX: usize = 4 << 20;

/// A part of a reply. Consecutive parts of a kind belong together.
#[derive(Debug, Clone, PartialEq)]
pub enum ReplyPart {
    Reasoning(String),
    Text(String),
    /// Its `id` is empty where the format has none.
    Call(ToolCall),
}

/// Takes one reply apart.
#[derive(Debug, Clone)]
pub struct ReplyParser {
    tools: Vec<Value>,
    grammar: Grammar,
    /// Text that was not given out yet.
    pending: String,
}

#[derive(Debug, Clone)]
enum Grammar {
    Marked { format: ReplyFormat, state: State },
    Harmony(Harmony),
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum State {
    /// Nothing but white space came yet, dropped if `trim`; if `bare`, JSON here is a call.
    Start {
        bare: bool,
        trim: bool,
    },
    Text,
    ReasoningStart {
        close: &'static str,
    },
    Reasoning {
        close: &'static str,
    },
    Call {
        open: &'static str,
        close: &'static str,
    },
    /// Whatever it looks like, it is text.
    Verbatim,
}

impl ReplyParser {
    /// For the reply to `prompt`, the rendered chat template: it may end inside the model's
    /// thoughts. Calls are only looked for if `tools` were offered.
    pub fn new(format: &ReplyFormat, prompt: &str, tools: &[Value]) -> Self {
        let grammar = if format.harmony {
            Grammar::Harmony(Harmony::new(prompt))
        } else {
            let mut format = format.clone();
            if tools.is_empty() {
                format.calls.clear();
                format.bare_json = false;
            }
            let prompt = prompt.trim_end();
            let open = format.thinking.iter().find(|(open, _)| prompt.ends_with(open));
            let state = match open {
                Some((_, close)) => State::ReasoningStart { close },
                None => State::Start { bare: format.bare_json, trim: false },
            };
            Grammar::Marked { format, state }
        };
        Self { tools: tools.to_vec(), grammar, pending: String::new() }
    }

    /// Takes the next piece of text.
    pub fn push(&mut self, piece: &str) -> Vec<ReplyPart> {
        self.pending.push_str(piece);
        self.run(false)
    }

    /// The end of the reply: everything that was held back comes out.
    pub fn finish(&mut self) -> Vec<ReplyPart> {
        self.run(true)
    }

    /// The end of a reply that a limit cut: like [`Self::finish`], but a block of calls whose end
    /// did not come is text, since what would be read of it may be half of what was meant.
    pub fn cut(&mut self) -> Vec<ReplyPart> {
        if let Grammar::Marked { state, .. } = &mut self.grammar
            && let State::Call { open, close } = *state
            && !close.is_empty()
        {
            self.pending.insert_str(0, open);
            *state = State::Verbatim;
        }
        self.run(true)
    }

    /// Whether what comes next is a thought, as far as can be told.
    pub fn is_reasoning(&self) -> bool {
        match &self.grammar {
            Grammar::Marked { state, .. } => {
                matches!(state, State::ReasoningStart { .. } | State::Reasoning { .. })
            }
            Grammar::Harmony(harmony) => harmony.is_reasoning(),
        }
    }

    fn run(&mut self, at_end: bool) -> Vec<ReplyPart> {
        let mut parts = Vec::new();
        match &mut self.grammar {
            Grammar::Harmony(harmony) => harmony.run(&mut self.pending, at_end, &mut parts),
            Grammar::Marked { format, state } => {
                let mut run = Run { format, tools: &self.tools, at_end, parts: &mut parts };
                while let Some(next) = run.step(*state, &mut self.pending) {
                    *state = next;
                }
            }
        }
        parts
    }
}

/// One run over the pending text.
struct Run<'a> {
    format: &'a ReplyFormat,
    tools: &'a [Value],
    at_end: bool,
    parts: &'a mut Vec<ReplyPart>,
}

impl Run<'_> {
    /// Takes what it can from `pending`; the state after it, or `None` if more text is needed.
    fn step(&mut self, state: State, pending: &mut String) -> Option<State> {
        match state {
            State::Start { bare, trim } => {
                if trim {
                    trim_start(pending);
                }
                let text = pending.trim_start();
                if text.is_empty() && !self.at_end {
                    return None;
                }
                let is_json = bare && text.starts_with(['{', '[']) && !self.opens_here(text);
                Some(if is_json { State::Call { open: "", close: "" } } else { State::Text })
            }
            State::Text => self.text(pending),
            State::ReasoningStart { close } => {
                trim_start(pending);
                (!pending.is_empty()).then_some(State::Reasoning { close })
            }
            State::Reasoning { close } => self.reasoning(pending, close),
            State::Call { open, close } => self.call(pending, open, close),
            State::Verbatim => {
                self.emit(std::mem::take(pending), ReplyPart::Text);
                None
            }
        }
    }

    fn opens_here(&self, text: &str) -> bool {
        self.format.calls.iter().any(|(open, _)| text.starts_with(open) || open.starts_with(text))
    }

    fn text(&mut self, pending: &mut String) -> Option<State> {
        let thinking = self.format.thinking.iter().map(|pair| (pair, true));
        let opens = thinking.chain(self.format.calls.iter().map(|pair| (pair, false)));
        let found = opens.clone().filter_map(|(pair, thinks)| {
            let at = pending.find(pair.0)?;
            Some((at, pair, thinks))
        });
        if let Some((at, &(open, close), thinks)) = found.min_by_key(|(at, ..)| *at) {
            // White space in front of a block only sets it apart.
            let before = pending[..at].trim_end().to_owned();
            self.emit(before, ReplyPart::Text);
            pending.drain(..at + open.len());
            return Some(match thinks {
                true => State::ReasoningStart { close },
                false => State::Call { open, close },
            });
        }
        let text = if opens.clone().next().is_none() {
            std::mem::take(pending)
        } else {
            self.take_sure(pending, opens.map(|(pair, _)| pair.0))
        };
        self.emit(text, ReplyPart::Text);
        None
    }

    fn reasoning(&mut self, pending: &mut String, close: &str) -> Option<State> {
        if let Some(at) = pending.find(close) {
            let thought = pending[..at].trim_end().to_owned();
            self.emit(thought, ReplyPart::Reasoning);
            pending.drain(..at + close.len());
            return Some(State::Start { bare: self.format.bare_json, trim: true });
        }
        let thought = self.take_sure(pending, [close].into_iter());
        self.emit(thought, ReplyPart::Reasoning);
        None
    }

    /// What cannot be the beginning of a mark, nor white space in front of one.
    fn take_sure<'m>(&self, pending: &mut String, marks: impl Iterator<Item = &'m str>) -> String {
        let held = if self.at_end { 0 } else { held_back(pending, marks) };
        let sure = &pending[..pending.len() - held];
        let sure = if self.at_end { sure } else { sure.trim_end() };
        let kept = pending.split_off(sure.len());
        std::mem::replace(pending, kept)
    }

    fn call(&mut self, pending: &mut String, open: &str, close: &str) -> Option<State> {
        let found = if close.is_empty() { None } else { pending.find(close) };
        let is_too_long = found.is_none() && pending.len() > BLOCK_BYTES_MAX;
        if found.is_none() && !self.at_end && !is_too_long {
            return None;
        }
        let end = found.unwrap_or(pending.len());
        let calls = if is_too_long { None } else { calls::parse(&pending[..end], self.tools) };
        // Without a marker, only the name of a tool that was offered makes JSON a call.
        let offered = |call: &ToolCall| {
            self.tools.iter().any(|tool| calls::name_of(tool) == Some(call.name.as_str()))
        };
        let calls = calls.filter(|calls| !open.is_empty() || calls.iter().all(offered));
        let end = found.map_or(pending.len(), |at| at + close.len());
        let block: String = pending.drain(..end).collect();
        match calls {
            Some(calls) => {
                self.parts.extend(calls.into_iter().map(ReplyPart::Call));
                Some(State::Start { bare: false, trim: true })
            }
            None => {
                self.emit(open.to_owned() + &block, ReplyPart::Text);
                Some(State::Text)
            }
        }
    }

    fn emit(&mut self, text: String, part: fn(String) -> ReplyPart) {
        if !text.is_empty() {
            self.parts.push(part(text));
        }
    }
}

fn trim_start(text: &mut String) {
    let spaces = text.len() - text.trim_start().len();
    text.drain(..spaces);
}

/// Bytes at the end of `text` that could be the beginning of one of `marks`.
fn held_back<'m>(text: &str, marks: impl Iterator<Item = &'m str>) -> usize {
    let longest = |mark: &str| {
        (1..mark.len().min(text.len() + 1))
            .rev()
            .find(|&len| mark.is_char_boundary(len) && text.ends_with(&mark[..len]))
    };
    marks.filter_map(longest).max().unwrap_or(0)
}

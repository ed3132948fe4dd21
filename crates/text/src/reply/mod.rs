//! Parses a model's reply while it arrives: thoughts, text, and tool calls.
//!
//! A pure state machine over text, fed by a [`crate::TextStream`] that shows the format's marks.
//! Text and thoughts are emitted as soon as they cannot be the start of a mark; a call is emitted
//! as a whole. A call that cannot be parsed is emitted as text: no output of a model is lost. The
//! parts do not depend on how the reply is cut into pieces.

mod bare;
mod calls;
mod elements;
mod fault;
mod fields;
mod format;
mod formats;
mod forms;
mod harmony;
mod lark;
mod marked;
mod object;
mod read;
mod refs;
mod schema;
mod tagged;
mod texts;
mod typed;
mod value;
mod write;

use serde_json::Value;

use crate::ToolCall;
pub(crate) use calls::whole_value;
pub use fault::{SchemaFault, schema_fault};
pub(crate) use format::CallIds;
pub use format::ReplyFormat;
use harmony::Harmony;
pub use lark::{lark_json, lark_regex};
use marked::Marked;
use read::End;
pub(crate) use refs::resolve;
pub use schema::tight_schema;

/// A part of a reply. Consecutive parts of the same kind belong together.
#[derive(Debug, Clone, PartialEq)]
pub enum ReplyPart {
    Reasoning(String),
    Text(String),
    /// Its `id` is empty where the format has none.
    Call(ToolCall),
}

/// The grammar that constrained a reply. The parser looks for nothing else in it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Held {
    /// No grammar.
    #[default]
    Free,
    /// [`ReplyFormat::text_grammar`]: thoughts, then text to the end.
    Text,
    /// [`ReplyFormat::call_grammar`]: thoughts, then calls.
    Calls,
    /// The same with a text as the alternative.
    TextOrCalls,
    /// A grammar of the client's own: all of it is text, except gpt-oss's channels.
    Whole,
}

/// Parses one reply.
#[derive(Debug, Clone)]
pub struct ReplyParser {
    tools: Vec<Value>,
    grammar: Grammar,
    /// Text that has not been emitted.
    pending: String,
}

#[derive(Debug, Clone)]
enum Grammar {
    Marked(Marked),
    Harmony(Harmony),
}

impl ReplyParser {
    /// A parser for the reply to `prompt`, the rendered chat template, which may end inside the
    /// model's thoughts. Calls are parsed only if `tools` were offered.
    pub fn new(format: &ReplyFormat, prompt: &str, tools: &[Value]) -> Self {
        let grammar = match format.harmony || format.recipients {
            true => Grammar::Harmony(Harmony::new(format, prompt)),
            false => Grammar::Marked(Marked::new(format, prompt, !tools.is_empty())),
        };
        Self { tools: tools.to_vec(), grammar, pending: format.begun(prompt).to_owned() }
    }

    /// Sets the grammar of the reply.
    pub fn held(mut self, held: Held) -> Self {
        if held == Held::Whole {
            self.pending.clear();
        }
        match &mut self.grammar {
            Grammar::Marked(marked) => marked.hold(held),
            Grammar::Harmony(harmony) => harmony.hold(held),
        }
        self
    }

    /// Takes the next piece of text.
    pub fn push(&mut self, piece: &str) -> Vec<ReplyPart> {
        self.pending.push_str(piece);
        self.run(End::Open)
    }

    /// Ends the reply and emits all held-back text.
    pub fn finish(&mut self) -> Vec<ReplyPart> {
        self.run(End::Finished)
    }

    /// Ends a reply that was cut by a limit: like [`Self::finish`], but an unfinished block of
    /// calls is text, since it may be incomplete.
    pub fn cut(&mut self) -> Vec<ReplyPart> {
        self.run(End::Cut)
    }

    /// Whether the next part is a thought, as far as known.
    pub fn is_reasoning(&self) -> bool {
        match &self.grammar {
            Grammar::Marked(marked) => marked.is_reasoning(),
            Grammar::Harmony(harmony) => harmony.is_reasoning(),
        }
    }

    fn run(&mut self, end: End) -> Vec<ReplyPart> {
        let mut parts = Vec::new();
        match &mut self.grammar {
            Grammar::Marked(marked) => {
                marked.run(&mut self.pending, &self.tools, end, &mut parts);
            }
            Grammar::Harmony(harmony) => {
                harmony.run(&mut self.pending, &self.tools, end, &mut parts);
            }
        }
        parts
    }
}

/// The number of bytes at the end of `text` that could start one of `marks`.
fn held_back<'m>(text: &str, marks: impl Iterator<Item = &'m str>) -> usize {
    let longest = |mark: &str| {
        (1..mark.len().min(text.len() + 1))
            .rev()
            .find(|&len| mark.is_char_boundary(len) && text.ends_with(&mark[..len]))
    };
    marks.filter_map(longest).max().unwrap_or(0)
}

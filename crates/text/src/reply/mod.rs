//! Parses a model's reply while it arrives: thoughts, text, and tool calls.
//!
//! A pure state machine over text, fed by a [`crate::TextStream`] that shows the format's marks.
//! Text and thoughts are emitted as soon as they cannot be the start of a mark, a call's arguments
//! as soon as they are certain. A call that cannot be parsed is emitted as text: no output of a
//! model is lost. What the parts add up to does not depend on how the reply is cut into pieces.

mod bare;
mod begun;
mod calls;
mod counts;
mod elements;
mod exact;
mod fault;
mod fields;
mod format;
mod formats;
mod forms;
mod gemma;
mod harmony;
mod integers;
mod json;
mod lark;
mod marked;
mod marks;
mod object;
mod offer;
mod part;
mod read;
mod refs;
mod schema;
mod tagged;
mod terms;
mod texts;
mod told;
mod typed;
mod value;
mod whole;
mod write;

use serde_json::Value;

pub use begun::begun_object;
pub use fault::{SchemaFault, schema_fault};
pub(crate) use format::CallIds;
pub use format::ReplyFormat;
use harmony::Harmony;
pub use json::lark_json;
use marked::Marked;
use offer::Offer;
pub use part::{Held, ReplyPart};
use read::End;
pub(crate) use refs::resolve;
pub use schema::tight_schema;
pub use terms::lark_regex;
pub use value::exact_value;
pub(crate) use value::whole_value;

/// Parses one reply.
#[derive(Debug, Clone)]
pub struct ReplyParser {
    tools: Vec<Value>,
    grammar: Grammar,
    /// Whether a call of any other tool is text.
    only_offered: bool,
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
        let (tools, pending) = (tools.to_vec(), format.begun(prompt).to_owned());
        Self { tools, grammar, only_offered: false, pending }
    }

    /// Takes calls of other tools than the offered ones for text. Otherwise the client is told of
    /// them, so that it can tell the model.
    pub fn only_offered(mut self) -> Self {
        self.only_offered = true;
        self
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

    /// Ends a reply that was cut by a limit: like [`Self::finish`], but a value that may be
    /// incomplete is not taken for a whole one.
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
        let offer = Offer { tools: &self.tools, exact: false, only: self.only_offered, end };
        match &mut self.grammar {
            Grammar::Marked(marked) => marked.run(&mut self.pending, offer, &mut parts),
            Grammar::Harmony(harmony) => harmony.run(&mut self.pending, offer, &mut parts),
        }
        parts
    }
}

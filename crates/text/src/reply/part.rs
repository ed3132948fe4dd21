//! What a reply is parsed into, and what it is known to be before.

use crate::ToolCall;

/// A part of a reply. Consecutive parts of the same kind belong together.
#[derive(Debug, Clone, PartialEq)]
pub enum ReplyPart {
    Reasoning(String),
    Text(String),
    /// A call that has begun, before its end is known. Its `id` is empty where the format has none.
    Begin {
        id: String,
        name: String,
    },
    /// The next piece of the arguments of the call that has begun: of the text that
    /// [`ToolCall::arguments_text`] gives for the whole call. A rest may come with the call.
    Arguments(String),
    /// A call at its end. If the reply broke off in the middle of its arguments, they are a string:
    /// the start of their JSON. Its `id` is empty where the format has none.
    Call(ToolCall),
}

/// The grammar that constrained a reply. The parser looks for nothing else in it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Held {
    /// No grammar.
    #[default]
    Free,
    /// [`super::ReplyFormat::text_grammar`]: thoughts, then text to the end.
    Text,
    /// [`super::ReplyFormat::call_grammar`]: thoughts, then calls.
    Calls,
    /// The same with a text as the alternative.
    TextOrCalls,
    /// A grammar of the client's own: all of it is text, except gpt-oss's channels.
    Whole,
}

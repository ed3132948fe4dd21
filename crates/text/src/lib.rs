//! Tokenizers, chat templates and the streaming detokenizer, from a GGUF file's metadata.
//!
//! - [`Tokenizer`] turns text into token ids and back: byte-level BPE, SentencePiece BPE.
//! - [`TextStream`] turns generated ids into text piece by piece; every piece is valid UTF-8.
//! - [`StopMatcher`] holds back text that may be the beginning of a stop string.
//! - [`ChatTemplate`] renders messages into a prompt with the model's own template, in a sandbox:
//!   templates and vocabularies are untrusted, so every loop and size here has a limit.
//! - [`Gbnf`] converts grammars of llama.cpp.
//! - [`ReplyParser`] splits a reply while it arrives into thoughts, text and tool calls.
//!
//! This crate is pure: no I/O, no clock, no model. It knows neither HTTP nor logits.

mod digits;
mod error;
mod gbnf;
mod reply;
mod stop;
mod stream;
mod template;
mod tokenizer;

pub use digits::{json_text, long_number, with_digits};
pub use error::TextError;
pub use gbnf::{Gbnf, GbnfError};
pub use reply::{
    Held, ReplyFormat, ReplyParser, ReplyPart, SchemaFault, begun_object, exact_value, lark_json,
    lark_regex, schema_fault, tight_schema,
};
pub use stop::{StopMatcher, StopStep};
pub use stream::TextStream;
pub use template::{
    ChatTemplate, Effort, Message, Placed, Placeholder, Prompt, Render, Settings, Thinking,
    ToolCall, Unmet, Wish,
};
pub use tokenizer::{FillTokens, Special, Tokenizer};

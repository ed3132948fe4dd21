//! What the readers of calls know: the offered tools, and how the reply may end.

use serde_json::Value;

use super::read::End;
use super::typed::name_of;
use crate::ToolCall;

/// The most bytes of a block of calls; a longer one is text.
pub(super) const BLOCK_BYTES_MAX: usize = 4 << 20;
/// The most bytes of a tool's name or of a call's id.
pub(super) const NAME_BYTES_MAX: usize = 256;

/// The context for reading calls.
#[derive(Debug, Clone, Copy)]
pub(super) struct Offer<'a> {
    /// The offered tools.
    pub(super) tools: &'a [Value],
    /// The reply was constrained by a grammar: values end at the grammar's own marks.
    pub(super) exact: bool,
    /// A call of any other tool is text.
    pub(super) only: bool,
    pub(super) end: End,
}

impl Offer<'_> {
    /// The name of the offered tool that a call's name means.
    pub(super) fn offered<'n>(&self, name: &'n str) -> Option<&'n str> {
        let short = || name.strip_prefix("functions.").filter(|name| self.has(name));
        if self.has(name) { Some(name) } else { short() }
    }

    pub(super) fn has(&self, name: &str) -> bool {
        self.tools.iter().any(|tool| name_of(tool) == Some(name))
    }
}

/// The longest prefix of a text that a block can have, and whether there is more.
pub(super) fn limited(text: &str) -> (&str, bool) {
    if text.len() <= BLOCK_BYTES_MAX {
        return (text, false);
    }
    let mut end = BLOCK_BYTES_MAX;
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    (&text[..end], true)
}

pub(super) fn call(id: &str, name: &str, arguments: Value) -> ToolCall {
    ToolCall { id: id.trim().to_owned(), name: name.trim().to_owned(), arguments }
}

/// A character of tools' names and ids.
pub(super) fn is_name(ch: char) -> bool {
    ch.is_alphanumeric() || "_-.:/".contains(ch)
}

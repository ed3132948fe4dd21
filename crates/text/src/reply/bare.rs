//! Calls without the marks of their form: a reply of nothing but such calls still counts as calls.
//!
//! Small models write a call as an object, in a fence, or between their own tags.

use super::calls::{Block, NAMES};
use super::forms::Form;
use super::offer::{Offer, is_name, limited};
use super::read::{End, Read, Reader, Stop};
use super::told::Told;
use crate::ToolCall;

/// Pairs of marks that models put around a call.
const WRAPS: &[(&str, &str)] = &[
    (FENCE, FENCE),
    ("<tools>", "</tools>"),
    ("<tool>", "</tool>"),
    ("<function_call>", "</function_call>"),
    ("<response>", "</response>"),
    ("<json>", "</json>"),
    ("<xml>", "</xml>"),
];
const FENCE: &str = "```";
/// The labels of a fence around a call.
const LANGUAGES: &[&str] = &["", "json", "tool_call", "python", "xml"];

impl Offer<'_> {
    /// A text of nothing but calls of offered tools, with a mark missing. Only its end shows that
    /// it is one. With `told` it is one as soon as a tool's name and the beginning of its arguments
    /// are there: such an object is the format's own call, or a grammar makes sure of it.
    pub(super) fn bare(&self, forms: &[&Form], text: &str, told: &mut Told) -> Read<Block> {
        let (text, is_too_long) = limited(text);
        let mut reader = Reader::new(text, if is_too_long { End::Cut } else { self.end });
        let mut calls = Vec::new();
        loop {
            calls.extend(self.wrapped(forms, &mut reader, told)?);
            step_over(forms, &mut reader)?;
            if reader.is_at_end() {
                break;
            }
        }
        let all_offered = calls.iter().all(|call| self.has(&call.name));
        let block = Block { calls, bytes: reader.at(), is_whole: false };
        if all_offered && !block.calls.is_empty() { Ok(block) } else { Err(Stop::Broken) }
    }

    /// A call, or several between marks that a model put around them.
    fn wrapped(
        &self,
        forms: &[&Form],
        reader: &mut Reader,
        told: &mut Told,
    ) -> Read<Vec<ToolCall>> {
        let mut close = "";
        for (open, end) in WRAPS {
            if close.is_empty() && reader.take(open)? {
                close = end;
            }
        }
        if close.is_empty() {
            return self.bare_item(reader, told);
        }
        if close == FENCE
            && !LANGUAGES.contains(&reader.word(|ch| ch.is_alphanumeric() || ch == '_')?)
        {
            return Err(Stop::Broken);
        }
        told.silence();
        let mut calls = Vec::new();
        loop {
            reader.skip_space();
            calls.extend(self.marked_item(forms, reader)?);
            reader.skip(|ch| ch.is_whitespace() || ";,".contains(ch));
            if reader.is_at_end() || reader.take(close)? {
                return Ok(calls);
            }
        }
    }

    /// A call between such marks; it may also have the marks of its form.
    fn marked_item(&self, forms: &[&Form], reader: &mut Reader) -> Read<Vec<ToolCall>> {
        for form in forms.iter().filter(|form| !form.open.is_empty()) {
            if reader.sees(form.open)? {
                let block = self.block(form, reader.rest(), &mut Told::mute())?;
                reader.advance(block.bytes);
                return Ok(block.calls);
            }
        }
        self.bare_item(reader, &mut Told::mute())
    }

    /// A call without a mark. It is recognised early, so that other text is not held back.
    fn bare_item(&self, reader: &mut Reader, told: &mut Told) -> Read<Vec<ToolCall>> {
        let mut ahead = *reader;
        if ahead.take("[")? {
            ahead.skip_space();
        }
        if ahead.peek()? != '{' {
            let name = ahead.word(is_name)?;
            let is_call = self.has(name) || self.has(name.strip_suffix(".call").unwrap_or(name));
            if !is_call {
                return Err(Stop::Broken);
            }
            // A text can begin like that.
            if told.is_early() {
                told.silence();
            }
            return self.python(reader, told);
        }
        let is_early = told.is_early();
        if (told.is_mute() || is_early) && !self.object_of_call(&mut ahead, is_early)? {
            told.silence();
        }
        self.json(reader, "", told)
    }

    /// Steps over an object that is a call of an offered tool and nothing else; if `early`, at most
    /// up to its arguments. Returns whether they have begun.
    fn object_of_call(&self, ahead: &mut Reader, early: bool) -> Read<bool> {
        ahead.advance(1);
        let (mut is_first, mut is_named) = (true, false);
        loop {
            ahead.skip_space();
            if ahead.take("}")? {
                return if is_first { Err(Stop::Broken) } else { Ok(false) };
            }
            if ahead.peek()? != '"' {
                return Err(Stop::Broken);
            }
            let key = ahead.string()?;
            ahead.skip_space();
            ahead.expect(":")?;
            ahead.skip_space();
            let is_text = ahead.peek()? == '"';
            let has_begun = ["arguments", "parameters"].contains(&&*key) && ahead.peek()? == '{';
            if early && is_named && has_begun {
                return Ok(true);
            }
            is_named |= is_text && NAMES.contains(&&*key);
            let fits = match key.as_str() {
                "name" | "tool_name" => is_text && self.has(&ahead.string()?),
                "type" => is_text && ahead.string()? == "function",
                "function" if is_text => self.has(&ahead.string()?),
                "id" | "tool_call_id" | "function" | "arguments" | "parameters" => {
                    ahead.value("").map(|_| true)?
                }
                name => is_first && self.has(name) && ahead.value("").map(|_| true)?,
            };
            ahead.skip_space();
            if !fits || !ahead.take(",")? && !ahead.sees("}")? {
                return Err(Stop::Broken);
            }
            is_first = false;
        }
    }
}

/// Steps over separators between calls, and over a closing mark without an opening one.
fn step_over(forms: &[&Form], reader: &mut Reader) -> Read<()> {
    let skip = |reader: &mut Reader| reader.skip(|ch| ch.is_whitespace() || ";,".contains(ch));
    skip(reader);
    for form in forms.iter().filter(|form| !form.close.is_empty()) {
        if !reader.rest().is_empty() && reader.take(form.close)? {
            skip(reader);
        }
    }
    if reader.rest().is_empty() && !reader.is_at_end() { Err(Stop::More) } else { Ok(()) }
}

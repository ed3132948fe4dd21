//! Calls with a tag for each argument, whose values are written as plain text.
//!
//! A value can hold any text, marks included. It ends at its end mark followed by what can come
//! after a field: the next field, or the call's end. Examples of calls inside a value are stepped
//! over as long as their marks come in pairs.

use serde_json::Value;

use super::calls::{NAME_BYTES_MAX, Offer, call, is_name};
use super::forms::{Breaks, Tags};
use super::read::{Read, Reader, Stop};
use super::typed::{parameters, typed};
use crate::ToolCall;

/// One call, in a block that `close` ends.
pub(super) fn call_of(
    offer: &Offer,
    tags: &Tags,
    close: &str,
    reader: &mut Reader,
) -> Read<ToolCall> {
    let name = head(tags, reader)?;
    // functionary writes the arguments as JSON.
    if !tags.close.is_empty() {
        reader.skip_space();
        if reader.peek()? == '{' {
            let arguments = reader.value(tags.close)?;
            reader.skip_space();
            reader.take(tags.close)?;
            return Ok(call("", name, arguments));
        }
    }
    let mut fields = Vec::new();
    loop {
        reader.skip_space();
        if ends(tags, close, reader)? {
            break;
        }
        reader.expect(tags.field)?;
        let key = reader.line_until(tags.key_end, NAME_BYTES_MAX)?.trim();
        let attributes = match tags.attributes {
            "" => "",
            end => reader.line_until(end, NAME_BYTES_MAX)?,
        };
        if !tags.value.is_empty() {
            reader.skip_space();
            reader.expect(tags.value)?;
        }
        let says = |what| attributes.contains(what);
        let is_string = says("string=\"true\"") || says("type=\"string\"");
        fields.push((key, is_string, value(offer, tags, close, reader)?));
    }
    // Where a template has no line breaks next to its marks, a model that writes them does so for
    // every value.
    let pair = |text: &'_ str| text.len() > 1 && text.starts_with('\n') && text.ends_with('\n');
    let breaks = match tags.breaks {
        Breaks::Pair if offer.exact || !fields.iter().all(|(.., text)| pair(text)) => Breaks::None,
        breaks => breaks,
    };
    let schema = parameters(offer.tools, name);
    let arguments = fields.into_iter().map(|(key, is_string, text)| {
        let key = if tags.name_attributes.is_empty() { key.to_owned() } else { unquoted(key) };
        let text = if breaks == Breaks::None { text } else { without_breaks(text) };
        let value = match is_string {
            true => Value::String(text.to_owned()),
            false => typed(text, schema, &key),
        };
        (key, value)
    });
    Ok(call("", name, Value::Object(arguments.collect())))
}

/// What stands between an attribute's quotes.
fn unquoted(text: &str) -> String {
    text.replace("&quot;", "\"").replace("&amp;", "&")
}

/// A value without one line break on each side.
fn without_breaks(text: &str) -> &str {
    let text = text.strip_prefix('\n').unwrap_or(text);
    text.strip_suffix('\n').unwrap_or(text)
}

fn head<'t>(tags: &Tags, reader: &mut Reader<'t>) -> Read<&'t str> {
    reader.expect(tags.open)?;
    let name = match tags.name_end {
        "" => reader.word(is_name)?,
        end => reader.line_until(end, NAME_BYTES_MAX)?.trim(),
    };
    if !tags.name_attributes.is_empty() {
        reader.line_until(tags.name_attributes, NAME_BYTES_MAX)?;
    }
    let is_name = !name.is_empty() && name.chars().all(is_name);
    if is_name { Ok(name) } else { Err(Stop::Broken) }
}

/// Whether the call ends here; steps over its own mark. Where that is missing, the end of the block
/// or of the reply ends the call too.
fn ends(tags: &Tags, close: &str, reader: &mut Reader) -> Read<bool> {
    if !tags.close.is_empty() && reader.take(tags.close)? {
        return Ok(true);
    }
    if reader.is_at_end() && !reader.is_cut() {
        return Ok(true);
    }
    if close.is_empty() { Ok(false) } else { reader.sees(close) }
}

/// The value up to its end mark, which is stepped over.
fn value<'t>(offer: &Offer, tags: &Tags, close: &str, reader: &mut Reader<'t>) -> Read<&'t str> {
    let rest = reader.rest();
    let (end, mark) = match offer.exact {
        true => {
            // The grammar's mark begins with the line break at the end of the value.
            let line = usize::from(tags.exact_close.starts_with('\n'));
            (rest.find(tags.exact_close).ok_or(reader.stop())? + line, tags.field_close)
        }
        false => end_of_value(tags, close, *reader)?,
    };
    reader.advance(end + mark.len());
    Ok(&rest[..end])
}

/// Where a value ends, and the mark that ends it.
fn end_of_value<'m>(tags: &'m Tags, close: &str, reader: Reader) -> Read<(usize, &'m str)> {
    let start = reader.at();
    let mut ahead = reader;
    let (mut first, mut first_likely) = (None, None);
    // Fields that were opened inside the value.
    let mut depth = 0usize;
    loop {
        let rest = ahead.rest();
        let Some(found) = rest.find(tags.field_close) else { break };
        depth += rest[..found].matches(tags.field).count();
        ahead.advance(found);
        let end = ahead.at() - start;
        ahead.advance(tags.field_close.len());
        match what_follows(tags, close, ahead)? {
            Follows::Call if depth == 0 => return Ok((end, tags.field_close)),
            Follows::Call => first_likely = first_likely.or(Some(end)),
            Follows::HalfOfCall => first = first.or(Some(end)),
            Follows::Text => {}
        }
        depth = depth.saturating_sub(1);
    }
    match first_likely.or(first) {
        _ if reader.stop() == Stop::More => Err(Stop::More),
        // The value speaks of the marks without closing what it opens.
        Some(end) => Ok((end, tags.field_close)),
        None if reader.is_cut() => Err(Stop::Broken),
        None => Ok((reader.rest().len(), "")),
    }
}

/// What stands behind a value's end mark.
enum Follows {
    /// The next field, or the call's end and the block's.
    Call,
    /// The call's end, but not the block's.
    HalfOfCall,
    /// Nothing that can stand behind a value.
    Text,
}

fn what_follows(tags: &Tags, close: &str, mut after: Reader) -> Read<Follows> {
    after.skip_space();
    if after.rest().is_empty() {
        return if after.is_at_end() { Ok(Follows::Call) } else { Err(Stop::More) };
    }
    if after.sees(tags.field)? {
        return Ok(Follows::Call);
    }
    let is_closed = tags.close.is_empty() || after.take(tags.close)?;
    if is_closed && close.is_empty() {
        return Ok(Follows::Call);
    }
    after.skip_space();
    if after.rest().is_empty() && !after.is_at_end() {
        return Err(Stop::More);
    }
    let begins = is_closed && !tags.open.is_empty() && after.sees(tags.open)?;
    let ends = after.is_at_end() || (!close.is_empty() && after.sees(close)?);
    Ok(match is_closed {
        _ if begins || ends => Follows::Call,
        true if !tags.close.is_empty() => Follows::HalfOfCall,
        _ => Follows::Text,
    })
}

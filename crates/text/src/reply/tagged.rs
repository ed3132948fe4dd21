//! Calls with a tag for each argument and values as plain text.
//!
//! A value can contain any text, marks included. It ends at its end mark followed by a valid
//! continuation: the next field, or the call's end. Example calls inside a value are skipped if
//! their marks come in pairs. A value without an end mark ends before the next known field of the
//! tool, or before the call's end.

use serde_json::{Map, Value};

use super::forms::{Breaks, Tags};
use super::offer::{NAME_BYTES_MAX, Offer, call, is_name};
use super::read::{Read, Reader, Stop, held_back};
use super::refs::resolve;
use super::told::Told;
use super::typed::{field, first_of, is_text, parameters, typed};
use crate::ToolCall;

/// One call, in a block that ends with `close`.
pub(super) fn call_of(
    offer: &Offer,
    tags: &Tags,
    close: &str,
    reader: &mut Reader,
    told: &mut Told,
) -> Read<ToolCall> {
    let Head { name, is_closed } = head(tags, reader)?;
    if is_closed {
        return Ok(call("", name, Value::Object(Map::new())));
    }
    let schema = offer.offered(name).and_then(|name| parameters(offer.tools, name));
    let mut marks = Marks { tags, close, schema, given: Vec::new() };
    // functionary writes the arguments as JSON.
    if !tags.close.is_empty() {
        reader.skip_space();
        if reader.peek()? == '{' {
            told.begin(offer, "", name, reader.at());
            let arguments = told.value(reader, tags.close)?;
            reader.skip_space();
            reader.take(tags.close)?;
            return Ok(call("", name, arguments));
        }
    }
    let [object, object_close] = tags.object;
    if !object.is_empty() && reader.take(object)? {
        reader.line_until(tags.attributes, NAME_BYTES_MAX)?;
        if reader.peek()? == '{' {
            told.begin(offer, "", name, reader.at());
        }
        let arguments = told.value(reader, object_close)?;
        reader.take(object_close)?;
        reader.skip_space();
        let is_ended = marks.end_call(reader)? && arguments.is_object();
        return if is_ended { Ok(call("", name, arguments)) } else { Err(Stop::Broken) };
    }
    let mut fields = Fields { tags, exact: offer.exact, schema, all: Vec::new(), told: 0 };
    loop {
        reader.skip_space();
        if marks.end_call(reader)? {
            return Ok(call("", name, fields.into_arguments()));
        }
        let mut field = marks.begin_field(reader)?;
        told.begin(offer, "", name, reader.at());
        if !field.is_empty {
            let start = *reader;
            let read = marks.value(offer.exact, reader);
            field.text = read.unwrap_or_else(|_| marks.sure_value(offer.exact, start.rest()));
            field.end = if read.is_ok() { reader.at() } else { start.at() + field.text.len() };
            if let Err(stop) = read {
                fields.tell_begun(field, told);
                return Err(stop);
            }
        }
        fields.all.push(field);
        if let Some(breaks) = fields.breaks(None) {
            fields.tell(breaks, told);
        }
    }
}

/// A field of a call.
struct Field<'t> {
    key: String,
    /// Its attributes say that it is a text.
    is_string: bool,
    /// Its tag ends itself, so it has no text.
    is_empty: bool,
    text: &'t str,
    /// Where the reader was after it.
    end: usize,
}

/// The fields of a call, in their order.
struct Fields<'a, 't> {
    tags: &'a Tags,
    exact: bool,
    /// Of the call's arguments.
    schema: Option<&'a Value>,
    all: Vec<Field<'t>>,
    /// Those that are told.
    told: usize,
}

impl Fields<'_, '_> {
    /// Which line breaks around values do not belong to them; `None` if that is not known before
    /// the call's end. If a template has none next to its marks, a model that adds them does so for
    /// every value.
    fn breaks(&self, more: Option<&str>) -> Option<Breaks> {
        let pair = |text: &str| text.len() > 1 && text.starts_with('\n') && text.ends_with('\n');
        let is_none = || {
            let begun = more.is_some_and(|text| !text.is_empty() && !text.starts_with('\n'));
            self.exact || begun || !self.all.iter().all(|field| pair(field.text))
        };
        match self.tags.breaks {
            Breaks::Pair if is_none() => Some(Breaks::None),
            Breaks::Pair => None,
            breaks => Some(breaks),
        }
    }

    fn value(&self, field: &Field, breaks: Breaks) -> Value {
        let text = if breaks == Breaks::None { field.text } else { without_breaks(field.text) };
        match field.is_string {
            true => Value::String(text.to_owned()),
            false => typed(text, self.schema, &field.key),
        }
    }

    /// Whether the field at an index is the first; `None` if its name was there before.
    fn first(&self, index: usize, key: &str) -> Option<bool> {
        self.all[..index].iter().all(|field| field.key != key).then_some(index == 0)
    }

    /// Tells the fields.
    fn tell(&mut self, breaks: Breaks, told: &mut Told) {
        for (index, field) in self.all.iter().enumerate().skip(self.told) {
            let first = self.first(index, &field.key);
            told.whole_field(&field.key, &self.value(field, breaks), first, field.end);
        }
        self.told = self.all.len();
    }

    /// Tells the fields and what there is of the next.
    fn tell_begun(&mut self, field: Field, told: &mut Told) {
        let Some(breaks) = self.breaks(Some(field.text)) else { return };
        self.tell(breaks, told);
        let known = self.schema.and_then(|root| self::field(root, root, &field.key));
        if field.text.is_empty() || !field.is_string && !is_text(self.schema, known) {
            return;
        }
        let mut text = field.text;
        if breaks != Breaks::None {
            text = text.strip_prefix('\n').unwrap_or(text);
            text = text.strip_suffix('\n').unwrap_or(text);
        }
        let first = self.first(self.all.len(), &field.key);
        told.begun_field(&field.key, text, first, field.end);
    }

    fn into_arguments(self) -> Value {
        let breaks = self.breaks(None).unwrap_or(Breaks::Pair);
        let fields = self.all.iter().map(|field| (field.key.clone(), self.value(field, breaks)));
        Value::Object(first_of(fields))
    }
}

/// Unescapes an attribute's value.
fn unquoted(text: &str) -> String {
    text.replace("&quot;", "\"").replace("&amp;", "&")
}

/// A value without one line break on each side.
fn without_breaks(text: &str) -> &str {
    let text = text.strip_prefix('\n').unwrap_or(text);
    text.strip_suffix('\n').unwrap_or(text)
}

/// The start of a call.
struct Head<'t> {
    name: &'t str,
    /// It has no fields and no end.
    is_closed: bool,
}

fn head<'t>(tags: &Tags, reader: &mut Reader<'t>) -> Read<Head<'t>> {
    reader.expect(tags.open)?;
    let mut name = match tags.name_end {
        "" => reader.word(is_name)?,
        // The mark's last character ends the tag, whatever stands before it.
        "\">" => reader.line_until(">", NAME_BYTES_MAX)?.trim(),
        end => reader.line_until(end, NAME_BYTES_MAX)?.trim(),
    };
    let tag = name.strip_suffix('/').filter(|_| tags.name_end.ends_with('>'));
    let is_closed = tag.is_some();
    name = tag.unwrap_or(name).trim_end();
    if !tags.name_end.is_empty() {
        name = name.trim_matches('"');
    }
    if !tags.name_attributes.is_empty() {
        reader.line_until(tags.name_attributes, NAME_BYTES_MAX)?;
    }
    let is_name = !name.is_empty() && name.chars().all(is_name);
    if is_name { Ok(Head { name, is_closed }) } else { Err(Stop::Broken) }
}

/// What follows a value's end mark.
enum Follows {
    /// The next field, or the call's end and the block's.
    Call,
    /// The call's end, but not the block's.
    HalfOfCall,
    /// Nothing that can follow a value.
    Text,
}

/// The marks of one call, and the schema of its fields.
struct Marks<'a> {
    tags: &'a Tags,
    /// The closing mark of the block of calls.
    close: &'a str,
    schema: Option<&'a Value>,
    /// The names of the fields so far.
    given: Vec<String>,
}

impl Marks<'_> {
    /// Whether the call ends here; steps over its own mark. If that is missing, the end of the
    /// block or of the reply ends the call too.
    fn end_call(&self, reader: &mut Reader) -> Read<bool> {
        if !self.tags.close.is_empty() && reader.take(self.tags.close)? {
            return Ok(true);
        }
        if reader.is_at_end() && !reader.is_cut() {
            return Ok(true);
        }
        if self.close.is_empty() { Ok(false) } else { reader.sees(self.close) }
    }

    /// The next field, up to its value.
    fn begin_field<'t>(&mut self, reader: &mut Reader<'t>) -> Read<Field<'t>> {
        let tags = self.tags;
        reader.expect(tags.field)?;
        let key = reader.line_until(tags.key_end, NAME_BYTES_MAX)?.trim().trim_matches('"');
        let attributes = match tags.attributes {
            "" => "",
            end => reader.line_until(end, NAME_BYTES_MAX)?,
        };
        if !tags.value.is_empty() {
            reader.skip_space();
            reader.expect(tags.value)?;
        }
        self.given.push(key.to_owned());
        let says = |what| attributes.contains(what);
        let is_string = says("string=\"true\"") || says("type=\"string\"");
        let key = if tags.name_attributes.is_empty() { key.to_owned() } else { unquoted(key) };
        let is_empty = tags.attributes == ">" && attributes.trim_end().ends_with('/');
        Ok(Field { key, is_string, is_empty, text: "", end: reader.at() })
    }

    /// The value up to its end mark, which is skipped.
    fn value<'t>(&self, exact: bool, reader: &mut Reader<'t>) -> Read<&'t str> {
        let (rest, tags) = (reader.rest(), self.tags);
        let (end, mark) = match exact {
            true => {
                // The grammar's mark includes the line break after the value.
                let line = usize::from(tags.exact_close.starts_with('\n'));
                (rest.find(tags.exact_close).ok_or(reader.stop())? + line, tags.field_close)
            }
            false => self.end_of_value(*reader)?,
        };
        reader.advance(end + mark.len());
        Ok(&rest[..end])
    }

    /// What there certainly is of a value that has not ended: the text in front of the first mark
    /// that may end it.
    fn sure_value<'t>(&self, exact: bool, rest: &'t str) -> &'t str {
        let tags = self.tags;
        let all = [tags.field_close, tags.field, tags.close, self.close];
        let marks = if exact { &[tags.exact_close][..] } else { &all[..] };
        let marks = || marks.iter().copied().filter(|mark| !mark.is_empty());
        let end = marks().filter_map(|mark| rest.find(mark)).min();
        &rest[..end.unwrap_or_else(|| rest.len() - held_back(rest, marks()))]
    }

    /// The end of a value, and its end mark.
    fn end_of_value(&self, reader: Reader) -> Read<(usize, &str)> {
        let start = reader.at();
        let mut ahead = reader;
        let (mut first, mut first_likely) = (None, None);
        // Fields opened inside the value.
        let mut depth = 0usize;
        loop {
            let rest = ahead.rest();
            let Some(found) = rest.find(self.tags.field_close) else { break };
            depth += rest[..found].matches(self.tags.field).count();
            ahead.advance(found);
            let end = ahead.at() - start;
            ahead.advance(self.tags.field_close.len());
            match self.what_follows(ahead)? {
                Follows::Call if depth == 0 => return Ok((end, self.tags.field_close)),
                Follows::Call => first_likely = first_likely.or(Some(end)),
                Follows::HalfOfCall => first = first.or(Some(end)),
                Follows::Text => {}
            }
            depth = depth.saturating_sub(1);
        }
        if reader.stop() == Stop::More {
            return Err(Stop::More);
        }
        // The value mentions marks without closing them, or lacks its own.
        let end = first_likely.or(first);
        let text = &reader.rest()[..end.unwrap_or(reader.rest().len())];
        match (self.unmarked_end(text), end) {
            (Some(at), _) => Ok((at, "")),
            (None, Some(end)) => Ok((end, self.tags.field_close)),
            (None, None) if reader.is_cut() => Err(Stop::Broken),
            (None, None) => Ok((text.len(), "")),
        }
    }

    /// The end of a value without an end mark: before a new known field at the start of a line, or
    /// before the end of the call and its block.
    fn unmarked_end(&self, text: &str) -> Option<usize> {
        let known = self.schema.and_then(|schema| resolve(schema, schema)?.get("properties"));
        let is_field = |at: &usize| {
            let key = text[at + self.tags.field.len()..].split_once(self.tags.key_end);
            let begins_line = text[..*at].trim_end_matches(' ').ends_with('\n');
            let is_there = |key: &str| known.is_some_and(|all| all.get(key).is_some());
            let is_given = |key: &str| self.given.iter().any(|given| given == key);
            begins_line && key.is_some_and(|(key, _)| is_there(key) && !is_given(key))
        };
        let places = |mark: &str| text.match_indices(mark).map(|(at, _)| at).collect::<Vec<_>>();
        let field = places(self.tags.field).into_iter().find(is_field);
        let is_end = |at: &usize| {
            let after = text[at + self.tags.close.len()..].trim_start();
            after.starts_with(self.close)
        };
        let mark = if self.tags.close.is_empty() { self.close } else { self.tags.close };
        let end = match self.close.is_empty() && self.tags.close.is_empty() {
            true => None,
            false => places(mark).into_iter().find(is_end),
        };
        field.into_iter().chain(end).min()
    }

    fn what_follows(&self, mut after: Reader) -> Read<Follows> {
        let tags = self.tags;
        after.skip_space();
        if after.rest().is_empty() {
            return if after.is_at_end() { Ok(Follows::Call) } else { Err(Stop::More) };
        }
        if after.sees(tags.field)? {
            let begins = begins_field(tags, after)?;
            return Ok(if begins { Follows::Call } else { Follows::Text });
        }
        let is_closed = tags.close.is_empty() || after.take(tags.close)?;
        if is_closed && self.close.is_empty() {
            return Ok(Follows::Call);
        }
        after.skip_space();
        if after.rest().is_empty() && !after.is_at_end() {
            return Err(Stop::More);
        }
        let begins = is_closed && !tags.open.is_empty() && after.sees(tags.open)?;
        let ends = after.is_at_end() || (!self.close.is_empty() && after.sees(self.close)?);
        Ok(match is_closed {
            _ if begins || ends => Follows::Call,
            true if !tags.close.is_empty() => Follows::HalfOfCall,
            _ => Follows::Text,
        })
    }
}

/// Whether a field starts here, with the mark before its value.
fn begins_field(tags: &Tags, mut reader: Reader) -> Read<bool> {
    reader.expect(tags.field)?;
    match reader.line_until(tags.key_end, NAME_BYTES_MAX) {
        Err(Stop::Broken) => Ok(false),
        Err(Stop::More) => Err(Stop::More),
        Ok(_) if tags.value.is_empty() => Ok(true),
        Ok(_) => {
            reader.skip_space();
            reader.sees(tags.value)
        }
    }
}

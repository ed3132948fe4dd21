//! Calls with arguments as elements, nested for their parts (MiniMax-M3).
//!
//! Source: MiniMax-M3's chat template. A special mark precedes each tag, so that a text may contain
//! tags: `]<]minimax[>[<city>Rome]<]minimax[>[</city>`.

use serde_json::{Map, Value};

use super::offer::{NAME_BYTES_MAX, Offer, call, is_name};
use super::read::{Read, Reader, Stop, held_back};
use super::refs::resolve;
use super::told::Told;
use super::typed::{field, first_of, is_text, parameters, typed_as};
use crate::ToolCall;

/// The deepest nesting of elements that is read.
const DEPTH_MAX: usize = 100;
/// The element of a list item.
const ITEM: &str = "item";

/// One call; `before` is the mark before each tag.
pub(super) fn call_of(
    offer: &Offer,
    before: &str,
    reader: &mut Reader,
    told: &mut Told,
) -> Read<ToolCall> {
    reader.expect(before)?;
    reader.expect("<invoke name=\"")?;
    let name = reader.line_until("\">", NAME_BYTES_MAX)?.trim();
    if name.is_empty() || !name.chars().all(is_name) {
        return Err(Stop::Broken);
    }
    let root = offer.offered(name).and_then(|name| parameters(offer.tools, name));
    let mut fields: Vec<(String, Value)> = Vec::new();
    let elements = Elements { before, root };
    loop {
        let next = elements.next_field(reader)?;
        let (Next::Begins(key) | Next::Ends(key, _)) = next else { break };
        told.begin(offer, "", name, reader.at());
        let is_new = fields.iter().all(|(known, _)| known != key);
        let first = is_new.then_some(fields.is_empty());
        let schema = root.and_then(|root| part(root, root, key));
        let value = match next {
            Next::Ends(_, text) => elements.leaf(text, schema),
            _ if is_text(root, schema) => {
                let start = *reader;
                let text = elements.text(key, reader).inspect_err(|_| {
                    let sure = elements.sure(start.rest());
                    told.begun_field(key, sure, first, start.at() + sure.len());
                });
                Value::String(text?.to_owned())
            }
            _ => elements.value(key, schema, reader, 1)?,
        };
        told.whole_field(key, &value, first, reader.at());
        fields.push((key.to_owned(), value));
    }
    Ok(call("", name, Value::Object(first_of(fields))))
}

/// What follows in a call.
#[derive(Clone, Copy)]
enum Next<'t> {
    /// A field, after its opening tag.
    Begins(&'t str),
    /// A field without its opening mark or tag, with its text, after its closing tag.
    Ends(&'t str, &'t str),
    /// The call's end.
    End,
}

struct Elements<'a> {
    before: &'a str,
    root: Option<&'a Value>,
}

impl<'a> Elements<'a> {
    fn next_field<'t>(&self, reader: &mut Reader<'t>) -> Read<Next<'t>> {
        let start = reader.at();
        let plain = reader.rest().find(self.before).ok_or(reader.stop())?;
        reader.advance(plain);
        let text = reader.since(start);
        reader.advance(self.before.len());
        if !reader.take("</")? {
            reader.expect("<")?;
            return Ok(Next::Begins(reader.line_until(">", NAME_BYTES_MAX)?));
        }
        let key = reader.line_until(">", NAME_BYTES_MAX)?;
        let tagged = text.trim_start().strip_prefix('<');
        let opened = tagged.and_then(|text| text.strip_prefix(key)?.strip_prefix('>'));
        Ok(if key == "invoke" { Next::End } else { Next::Ends(key, opened.unwrap_or(text)) })
    }

    /// The text of an element that has no parts.
    fn text<'t>(&self, name: &str, reader: &mut Reader<'t>) -> Read<&'t str> {
        let start = reader.at();
        let plain = reader.rest().find(self.before).ok_or(reader.stop())?;
        reader.advance(plain);
        let text = reader.since(start);
        reader.advance(self.before.len());
        for piece in ["</", name, ">"] {
            reader.expect(piece)?;
        }
        Ok(text)
    }

    /// What of a text is certainly in front of the next tag.
    fn sure<'t>(&self, text: &'t str) -> &'t str {
        let end = text.find(self.before);
        let held = || held_back(text, std::iter::once(self.before));
        &text[..end.unwrap_or_else(|| text.len() - held())]
    }

    /// The text and the elements up to the end of the element `name` with this schema.
    fn content<'t>(
        &self,
        name: &str,
        schema: Option<&'a Value>,
        reader: &mut Reader<'t>,
        depth: usize,
    ) -> Read<(&'t str, Vec<(String, Value)>)> {
        if depth > DEPTH_MAX {
            return Err(Stop::Broken);
        }
        let mut children = Vec::new();
        let start = reader.at();
        let mut text = None;
        loop {
            let plain = reader.rest().find(self.before).ok_or(reader.stop())?;
            reader.advance(plain);
            text.get_or_insert(reader.since(start));
            reader.advance(self.before.len());
            if reader.take("</")? {
                reader.expect(name)?;
                reader.expect(">")?;
                return Ok((text.unwrap_or_default(), children));
            }
            reader.expect("<")?;
            let key = reader.line_until(">", NAME_BYTES_MAX)?;
            let inner = self.root.zip(schema).and_then(|(root, schema)| part(root, schema, key));
            let value = self.value(key, inner, reader, depth + 1)?;
            children.push((key.to_owned(), value));
        }
    }

    fn value(
        &self,
        name: &str,
        schema: Option<&'a Value>,
        reader: &mut Reader,
        depth: usize,
    ) -> Read<Value> {
        let (text, children) = self.content(name, schema, reader, depth)?;
        if children.is_empty() {
            return Ok(self.leaf(text, schema));
        }
        let is_list = children.iter().all(|(name, _)| name == ITEM) && self.may_be(schema, "array");
        Ok(match is_list {
            true => children.into_iter().map(|(_, value)| value).collect(),
            false => Value::Object(first_of(children)),
        })
    }

    /// A value without parts; a list or an object may be empty.
    fn leaf(&self, text: &str, schema: Option<&Value>) -> Value {
        let is =
            |kind| schema.is_some() && self.may_be(schema, kind) && !self.may_be(schema, "string");
        match text.trim().is_empty() {
            true if is("array") => Value::Array(Vec::new()),
            true if is("object") => Value::Object(Map::new()),
            _ => typed_as(text, self.root, schema),
        }
    }

    /// Whether a schema allows a type, or does not restrict types.
    fn may_be(&self, schema: Option<&Value>, kind: &str) -> bool {
        let schema = self.root.zip(schema).and_then(|(root, schema)| resolve(root, schema));
        match schema.and_then(|schema| schema.get("type")) {
            None => true,
            Some(Value::Array(kinds)) => kinds.iter().any(|one| one == kind),
            Some(one) => one == kind,
        }
    }
}

/// The schema of an element inside another.
fn part<'s>(root: &'s Value, schema: &'s Value, key: &str) -> Option<&'s Value> {
    let items = || resolve(root, schema)?.get("items").filter(|_| key == ITEM);
    field(root, schema, key).or_else(items)
}

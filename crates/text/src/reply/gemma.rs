//! Gemma 4's calls: `call:NAME{KEY:<|"|>TEXT<|"|>,KEY:7}`.
//!
//! Source: Gemma 4's chat template. Keys have no quotes, and texts have a mark of their own. A
//! model may leave out a text's marks: such a value is typed by its schema, as in other forms.

use serde_json::Value;

use super::offer::{Offer, call, is_name};
use super::read::{Read, Reader, Stop};
use super::refs::resolve;
use super::told::Told;
use super::typed::{field, parameters, typed_word};
use super::value::Written;
use crate::{ToolCall, json_text};

/// The deepest nesting of lists and objects that is read.
const DEPTH_MAX: usize = 100;

/// One call, in a block that ends with `close`.
pub(super) fn call_of(
    offer: &Offer,
    reader: &mut Reader,
    close: &str,
    told: &mut Told,
) -> Read<ToolCall> {
    reader.expect("call:")?;
    let name = reader.word(is_name)?;
    if name.is_empty() || reader.peek()? != '{' {
        return Err(Stop::Broken);
    }
    let root = offer.offered(name).and_then(|name| parameters(offer.tools, name));
    told.begin(offer, "", name, reader.at());
    let mut written = Written::default();
    let read = Values { root, close }.value(reader, root, '}', 0, &mut written);
    told.write(&written);
    Ok(call("", name, read?))
}

struct Values<'a> {
    root: Option<&'a Value>,
    close: &'a str,
}

impl<'a> Values<'a> {
    /// A value of this schema, inside brackets that end with `bracket`.
    fn value(
        &self,
        reader: &mut Reader,
        schema: Option<&'a Value>,
        bracket: char,
        depth: usize,
        out: &mut Written,
    ) -> Read<Value> {
        if depth > DEPTH_MAX {
            return Err(Stop::Broken);
        }
        match reader.peek()? {
            '{' => self.object(reader, schema, depth, out),
            '[' => self.list(reader, schema, depth, out),
            '"' | '\'' | '<' => reader.written_value(self.close, out),
            _ => {
                let text = self.word(reader, bracket)?;
                let value = typed_word(text, self.root, schema);
                out.raw(&json_text(&value), reader.at());
                Ok(value)
            }
        }
    }

    fn object(
        &self,
        reader: &mut Reader,
        schema: Option<&'a Value>,
        depth: usize,
        out: &mut Written,
    ) -> Read<Value> {
        out.raw("{", reader.at() + 1);
        let fields = reader.members(self.close, |reader, key, fields| {
            let (root, mut scratch) = (self.root, Written::default());
            let inner = root.zip(schema).and_then(|(root, schema)| field(root, schema, key));
            if fields.contains_key(key) {
                return self.value(reader, inner, '}', depth + 1, &mut scratch);
            }
            reader.peek()?;
            out.key(key, fields.is_empty(), reader.at());
            self.value(reader, inner, '}', depth + 1, out)
        })?;
        out.raw("}", reader.at());
        Ok(Value::Object(fields))
    }

    fn list(
        &self,
        reader: &mut Reader,
        schema: Option<&'a Value>,
        depth: usize,
        out: &mut Written,
    ) -> Read<Value> {
        reader.expect("[")?;
        out.raw("[", reader.at());
        let schema = self.root.zip(schema).and_then(|(root, schema)| resolve(root, schema));
        let inner = schema.and_then(|schema| schema.get("items"));
        let mut items = Vec::new();
        loop {
            reader.skip_space();
            if reader.ends(self.close, ']')? {
                out.raw("]", reader.at());
                return Ok(Value::Array(items));
            }
            if !items.is_empty() {
                out.raw(",", reader.at());
            }
            items.push(self.value(reader, inner, ']', depth + 1, out)?);
            reader.skip_space();
            if !reader.take(",")? && !reader.sees("]")? && !reader.closes(self.close)? {
                return Err(Stop::Broken);
            }
        }
    }

    /// A value without marks: up to the bracket, the block's end, or the next item or field.
    fn word<'t>(&self, reader: &mut Reader<'t>, bracket: char) -> Read<&'t str> {
        let start = reader.at();
        loop {
            let rest = reader.rest();
            let end = rest.find([bracket, ',', '<', '\n']).ok_or(reader.stop())?;
            reader.advance(end);
            let ends = match reader.peek()? {
                ',' if bracket == '}' => begins_field(*reader)?,
                '<' => reader.closes(self.close)?,
                _ => true,
            };
            if ends {
                return Ok(reader.since(start).trim());
            }
            reader.advance(1);
        }
    }
}

/// Whether a comma and the next field's name are here, or nothing but the comma.
fn begins_field(mut reader: Reader) -> Read<bool> {
    reader.expect(",")?;
    reader.skip_space();
    if matches!(reader.peek()?, '"' | '\'' | '<' | '}') {
        return Ok(true);
    }
    let key = reader.word(|ch| ch.is_alphanumeric() || "_-.$".contains(ch))?;
    reader.skip_space();
    Ok(!key.is_empty() && reader.peek()? == ':')
}

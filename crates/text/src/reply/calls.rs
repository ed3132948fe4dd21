//! The grammars of tool calls, read from the mark at the start of a block.
//!
//! A string or a field may contain the same marks that end calls. So a block is read by its
//! grammar, one value or field after the other, and a mark counts only where the grammar expects
//! it.

use serde_json::{Map, Value};

use super::forms::{Body, Form, Named};
use super::offer::{Offer, call, is_name, limited};
use super::read::{End, Read, Reader, Stop};
use super::told::Told;
use super::typed::parameters;
use super::value::whole_value;
use super::{elements, gemma, tagged};
use crate::ToolCall;

/// Fields of a call's object beside its arguments.
const OF_CALL: &[&str] = &["name", "tool_name", "function", "id", "tool_call_id", "type"];
/// Those that have the tool's name, and those that have the call's id.
pub(super) const NAMES: &[&str] = &["name", "tool_name", "function"];
const IDS: &[&str] = &["id", "tool_call_id"];

/// A block of calls at the beginning of a text.
#[derive(Debug, PartialEq)]
pub(super) struct Block {
    pub(super) calls: Vec<ToolCall>,
    pub(super) bytes: usize,
    /// No mark is missing. Otherwise it is a block only if all its tools were offered.
    pub(super) is_whole: bool,
}

impl Offer<'_> {
    /// The block of `form` at the start of `text`.
    pub(super) fn block(&self, form: &Form, text: &str, told: &mut Told) -> Read<Block> {
        let (text, is_too_long) = limited(text);
        let mut start = Reader::new(text, if is_too_long { End::Cut } else { self.end });
        let is_marked = !form.open.is_empty() && start.take(form.open)?;
        if is_marked {
            skip_again(form.open, &mut start)?;
        }
        // Without the opening mark, the closing one may be missing too.
        let close = if is_marked { form.close } else { "" };
        let is_mute = told.is_mute();
        for body in form.bodies {
            let mut reader = start;
            *told = if is_mute { Told::mute() } else { Told::default() };
            match self.items(form, body, close, &mut reader, told) {
                Ok((mut calls, is_closed)) => {
                    calls.iter_mut().for_each(|call| self.rename(call));
                    let is_whole = is_marked && is_closed;
                    let block = Block { calls, bytes: reader.at(), is_whole };
                    return if self.accepts(&block, close) { Ok(block) } else { Err(Stop::Broken) };
                }
                Err(Stop::More) => return Err(Stop::More),
                Err(Stop::Broken) if !told.is_empty() => return Err(Stop::Broken),
                Err(Stop::Broken) => {}
            }
        }
        Err(Stop::Broken)
    }

    /// Strips `functions.` from the name of an offered tool.
    fn rename(&self, call: &mut ToolCall) {
        if let Some(name) = self.offered(&call.name).filter(|name| *name != call.name) {
            call.name = name.to_owned();
        }
    }

    fn accepts(&self, block: &Block, close: &str) -> bool {
        let has_all = || block.calls.iter().all(|call| self.has(&call.name));
        // A block cut by a limit may be incomplete.
        let is_cut = !block.is_whole && self.end == End::Cut && !close.is_empty();
        !block.calls.is_empty()
            && block.calls.iter().all(|call| !call.name.is_empty())
            && (block.is_whole && !self.only || has_all() && !is_cut)
    }

    /// All calls up to the block's end, and whether that end is complete.
    fn items(
        &self,
        form: &Form,
        body: &Body,
        close: &str,
        reader: &mut Reader,
        told: &mut Told,
    ) -> Read<(Vec<ToolCall>, bool)> {
        let mut calls = self.item(body, close, reader, told)?;
        loop {
            let after = *reader;
            reader.skip(|ch| ch.is_whitespace() || ";,".contains(ch));
            if !form.close.is_empty() && closes(form, body, reader)? {
                return Ok((calls, true));
            }
            if reader.rest().is_empty() && !reader.is_at_end() {
                // Without marks around calls, each has its own end.
                let is_done = form.open.is_empty();
                *reader = after;
                return if is_done { Ok((calls, true)) } else { Err(Stop::More) };
            }
            // Mistral repeats the mark before each call.
            if form.close.is_empty() && !form.open.is_empty() {
                reader.take(form.open)?;
            }
            let more = match reader.is_at_end() {
                true => Err(Stop::Broken),
                false => self.item(body, close, reader, told),
            };
            match more {
                Ok(more) => calls.extend(more),
                Err(Stop::More) => return Err(Stop::More),
                Err(Stop::Broken) => {
                    *reader = after;
                    return Ok((calls, close.is_empty()));
                }
            }
        }
    }

    fn item(
        &self,
        body: &Body,
        close: &str,
        reader: &mut Reader,
        told: &mut Told,
    ) -> Read<Vec<ToolCall>> {
        reader.skip_space();
        let call = match body {
            Body::Json => return self.json(reader, close, told),
            Body::Python => return self.python(reader, told),
            Body::Tagged(tags) => tagged::call_of(self, tags, close, reader, told),
            Body::Named(named) => self.named(named, close, reader, told),
            Body::Gemma => gemma::call_of(self, reader, close, told),
            Body::Elements(before) => elements::call_of(self, before, reader, told),
        }?;
        told.done(self, &call, reader.at());
        Ok(vec![call])
    }

    /// An object or a list of objects, possibly in a fence.
    pub(super) fn json(
        &self,
        reader: &mut Reader,
        close: &str,
        told: &mut Told,
    ) -> Read<Vec<ToolCall>> {
        let is_fenced = reader.peek()? == '`';
        if is_fenced {
            reader.expect("```")?;
            reader.word(char::is_alphanumeric)?;
            reader.skip_space();
        }
        let calls = match reader.peek()? {
            '{' => vec![self.json_object(reader, close, told)?],
            '[' => self.json_list(reader, close, told)?,
            _ => return Err(Stop::Broken),
        };
        if is_fenced {
            reader.skip_space();
            reader.take("```")?;
        }
        Ok(calls)
    }

    fn json_list(&self, reader: &mut Reader, close: &str, told: &mut Told) -> Read<Vec<ToolCall>> {
        let mut calls = Vec::new();
        reader.expect("[")?;
        loop {
            reader.skip_space();
            if reader.ends(close, ']')? {
                return Ok(calls);
            }
            if reader.peek()? != '{' {
                return Err(Stop::Broken);
            }
            calls.push(self.json_object(reader, close, told)?);
            reader.skip_space();
            if !reader.take(",")? && !reader.sees("]")? && !reader.closes(close)? {
                return Err(Stop::Broken);
            }
        }
    }

    fn json_object(&self, reader: &mut Reader, close: &str, told: &mut Told) -> Read<ToolCall> {
        let fields = reader.members(close, |reader, key, fields| {
            let is_function = key == "function" && reader.peek()? == '{';
            if !is_function {
                return self.json_field(reader, close, key, [fields, fields], told);
            }
            let inner = reader.members(close, |reader, key, inner| {
                self.json_field(reader, close, key, [inner, fields], told)
            });
            inner.map(Value::Object)
        })?;
        let call = self.json_call(&Value::Object(fields)).ok_or(Stop::Broken)?;
        told.done(self, &call, reader.at());
        Ok(call)
    }

    /// A field of a call's object after the `fields` beside it; its id stands in `outer`. The
    /// arguments are told while they are read.
    fn json_field(
        &self,
        reader: &mut Reader,
        close: &str,
        key: &str,
        [fields, outer]: [&Map<String, Value>; 2],
        told: &mut Told,
    ) -> Read<Value> {
        let text = |fields: &Map<String, Value>, keys: &[&str]| {
            keys.iter().find_map(|key| fields.get(*key)?.as_str()).map(str::to_owned)
        };
        let name = match key {
            "arguments" | "parameters" => text(fields, NAMES),
            // Apertus writes the name as the key.
            key => {
                Some(key.to_owned()).filter(|key| fields.is_empty() && !OF_CALL.contains(&&**key))
            }
        };
        let id = text(outer, IDS).unwrap_or_default();
        let begins = name.filter(|_| !fields.contains_key(key));
        let Some(name) = begins.filter(|name| self.offered(name).is_some()) else {
            return reader.value(close);
        };
        if reader.peek()? != '{' || !told.begin(self, &id, &name, reader.at()) {
            return reader.value(close);
        }
        told.value(reader, close)
    }

    fn json_call(&self, value: &Value) -> Option<ToolCall> {
        let function = value.get("function").filter(|function| function.is_object());
        let function = function.unwrap_or(value).as_object()?;
        let field = |keys: &[&str]| keys.iter().find_map(|key| function.get(*key));
        let Some(name) = field(NAMES).and_then(Value::as_str) else {
            return self.by_name(function);
        };
        let other = || field(&["args", "input"]).filter(|value| value.is_object());
        let arguments = match field(&["arguments", "parameters"]).or_else(other) {
            // Some models write the arguments beside the name.
            None => {
                let is_argument = |(key, _): &(&String, &Value)| !OF_CALL.contains(&key.as_str());
                let fields = function.iter().filter(is_argument);
                fields.map(|(key, value)| (key.clone(), value.clone())).collect()
            }
            Some(Value::Null) => Value::Object(Map::new()),
            Some(Value::String(text)) if text.trim().is_empty() => Value::Object(Map::new()),
            Some(Value::String(text)) => whole_value(text)?,
            Some(other) => other.clone(),
        };
        let id = IDS.iter().find_map(|key| value.get(*key)?.as_str());
        Some(call(id.unwrap_or(""), name, arguments))
    }

    /// `{NAME: {...}}`, Apertus's form.
    fn by_name(&self, fields: &Map<String, Value>) -> Option<ToolCall> {
        let (name, arguments) = fields.iter().next().filter(|_| fields.len() == 1)?;
        let is_call = self.has(name) && arguments.is_object();
        is_call.then(|| call("", name, arguments.clone()))
    }

    /// A name, marks, and arguments as JSON; older DeepSeek versions put them into a fence.
    fn named(
        &self,
        named: &Named,
        close: &str,
        reader: &mut Reader,
        told: &mut Told,
    ) -> Read<ToolCall> {
        let is_opened = reader.take(named.open)?;
        reader.skip_space();
        let mut name = reader.word(is_name)?;
        reader.skip_space();
        let mut id = if named.in_id { name } else { "" };
        if !named.id.is_empty() && reader.take(named.id)? {
            id = reader.word(is_name)?;
        }
        if !named.name.is_empty() && reader.take(named.name)? {
            (id, name) = (name, reader.word(is_name)?);
        }
        let is_marked = reader.take(named.arguments)?;
        reader.skip_space();
        let is_ended = reader.is_at_end() && !reader.is_cut();
        if is_marked && !named.in_id && !is_ended && is_name(reader.peek()?) {
            name = reader.word(is_name)?;
            reader.skip_space();
        }
        if named.in_id {
            name = name.rsplit_once(':').map_or(name, |(name, _)| name);
            name = name.strip_prefix("functions.").unwrap_or(name);
        }
        let is_meant = is_marked || is_opened && self.has(name);
        if name.is_empty() || !is_meant {
            return Err(Stop::Broken);
        }
        let is_fenced = reader.take("```")?;
        if is_fenced {
            reader.word(char::is_alphanumeric)?;
            reader.skip_space();
        }
        let is_empty =
            is_marked && (is_ended || !named.close.is_empty() && reader.sees(named.close)?);
        let arguments = match is_empty {
            true => Value::Object(Map::new()),
            false if reader.peek()? != '{' => return Err(Stop::Broken),
            false => {
                told.begin(self, id, name, reader.at());
                told.value(reader, if named.close.is_empty() { close } else { named.close })?
            }
        };
        if is_fenced {
            reader.skip_space();
            reader.take("```")?;
        }
        if !named.close.is_empty() {
            reader.skip_space();
            reader.take(named.close)?;
        }
        Ok(call(id, name, arguments))
    }

    /// One call, or a list of them in brackets.
    pub(super) fn python(&self, reader: &mut Reader, told: &mut Told) -> Read<Vec<ToolCall>> {
        if !reader.take("[")? {
            return self.python_call(reader, told).map(|call| vec![call]);
        }
        let mut calls = Vec::new();
        loop {
            reader.skip(|ch| ch.is_whitespace() || ch == ',');
            if reader.take("]")? {
                return Ok(calls);
            }
            calls.push(self.python_call(reader, told)?);
        }
    }

    /// `NAME(KEY=VALUE, ...)`; values without a key go to the tool's fields in order. Llama writes
    /// `NAME.call(...)`.
    fn python_call(&self, reader: &mut Reader, told: &mut Told) -> Read<ToolCall> {
        let mut name = reader.word(is_name)?;
        if !self.has(name) {
            name = name.strip_suffix(".call").unwrap_or(name);
        }
        if name.is_empty() || reader.peek()? != '(' {
            return Err(Stop::Broken);
        }
        reader.advance(1);
        let properties = parameters(self.tools, name).and_then(|schema| schema.get("properties"));
        let properties = properties.and_then(Value::as_object);
        let mut keys = properties.into_iter().flat_map(Map::keys);
        let mut arguments = Map::new();
        told.begin(self, "", name, reader.at());
        loop {
            reader.skip(|ch| ch.is_whitespace() || ch == ',');
            if reader.take(")")? {
                let call = call("", name, Value::Object(arguments));
                told.done(self, &call, reader.at());
                return Ok(call);
            }
            let key = match keyword(properties, reader)? {
                Some(key) => key,
                None => keys.next().ok_or(Stop::Broken)?.clone(),
            };
            let value = match arguments.contains_key(&key) {
                true => reader.value("")?,
                false => told.field(&key, arguments.is_empty(), reader, "")?,
            };
            arguments.entry(key).or_insert(value);
        }
    }
}

/// Steps over repetitions of the same mark, which small models write.
fn skip_again(mark: &str, reader: &mut Reader) -> Read<()> {
    loop {
        let mut again = *reader;
        again.skip_space();
        if !again.take(mark)? {
            return Ok(());
        }
        *reader = again;
    }
}

/// Steps over `KEY=`. A grammar writes any of a tool's fields this way, whatever characters its
/// name contains.
fn keyword(properties: Option<&Map<String, Value>>, reader: &mut Reader) -> Read<Option<String>> {
    for key in properties.into_iter().flat_map(Map::keys) {
        if reader.take(&format!("{key}="))? {
            reader.skip_space();
            return Ok(Some(key.clone()));
        }
    }
    let mut ahead = *reader;
    let key = ahead.word(|ch| ch.is_alphanumeric() || ch == '_')?;
    ahead.skip_space();
    if key.is_empty() || !ahead.take("=")? {
        return Ok(None);
    }
    ahead.skip_space();
    *reader = ahead;
    Ok(Some(key.to_owned()))
}

/// Steps over the closing mark of a block; JSON may have a superfluous brace before it.
fn closes(form: &Form, body: &Body, reader: &mut Reader) -> Read<bool> {
    // MiniMax-M3's mark starts with a bracket.
    if reader.take(form.close)? {
        return Ok(true);
    }
    let mut ahead = *reader;
    if matches!(body, Body::Json) {
        ahead.skip(|ch| ch.is_whitespace() || "]}".contains(ch));
    }
    let closes = ahead.take(form.close)?;
    if closes {
        *reader = ahead;
    }
    Ok(closes)
}

//! The grammars of tool calls, on complete blocks.

use serde_json::{Map, Value};

use crate::ToolCall;

/// The calls in a block, or `None` if it is not one that is understood. `tools` are those that the
/// model was offered: their schemas tell text from numbers where the grammar does not.
pub(super) fn parse(block: &str, tools: &[Value]) -> Option<Vec<ToolCall>> {
    let block = block.trim();
    let calls = if block.contains("<｜tool▁call▁begin｜>") {
        parse_deepseek(block)
    } else if block.contains("<|tool_call_begin|>") {
        parse_kimi(block)
    } else if block.starts_with("<function=") {
        parse_tagged(block, "<function=", ">", "</function>", ["<parameter=", ">"], tools)
    } else if block.contains("<invoke name=\"") {
        let parameter = ["<parameter name=\"", "\">"];
        parse_tagged(block, "<invoke name=\"", "\">", "</invoke>", parameter, tools)
    } else if block.contains("<arg_key>") {
        parse_glm(block, tools).map(|call| vec![call])
    } else if let Some(calls) = parse_json(block) {
        Some(calls)
    } else if block.contains("[ARGS]") {
        parse_mistral(block)
    } else {
        // GLM writes a call without arguments as the name alone.
        let is_known = tools.iter().any(|tool| name_of(tool) == Some(block));
        is_known.then(|| vec![call("", block, Value::Object(Map::new()))])
    };
    calls.filter(|calls| !calls.is_empty() && calls.iter().all(|call| !call.name.is_empty()))
}

/// The name of an offered tool.
pub(super) fn name_of(tool: &Value) -> Option<&str> {
    tool.get("function").unwrap_or(tool).get("name")?.as_str()
}

fn call(id: &str, name: &str, arguments: Value) -> ToolCall {
    ToolCall { id: id.trim().to_owned(), name: name.trim().to_owned(), arguments }
}

/// Hermes, Qwen, Llama 3, Mistral: objects, or a list of them, divided by white space, `;` or `,`.
fn parse_json(block: &str) -> Option<Vec<ToolCall>> {
    let mut calls = Vec::new();
    let mut rest = block;
    while !rest.is_empty() {
        let mut values = serde_json::Deserializer::from_str(rest).into_iter::<Value>();
        match values.next()?.ok()? {
            Value::Array(items) => {
                for item in &items {
                    calls.push(json_call(item)?);
                }
            }
            value => calls.push(json_call(&value)?),
        }
        let end = values.byte_offset();
        rest = rest[end..].trim_start_matches(|ch: char| ch.is_whitespace() || ";,".contains(ch));
    }
    Some(calls)
}

fn json_call(value: &Value) -> Option<ToolCall> {
    let function = value.get("function").filter(|function| function.is_object()).unwrap_or(value);
    let name = function.get("name")?.as_str()?;
    let arguments = function.get("arguments").or_else(|| function.get("parameters"));
    let arguments = match arguments {
        None | Some(Value::Null) => Value::Object(Map::new()),
        Some(Value::String(text)) => serde_json::from_str(text).ok()?,
        Some(other) => other.clone(),
    };
    let id = value.get("id").and_then(Value::as_str).unwrap_or("");
    Some(call(id, name, arguments))
}

/// Mistral since Small 3.2: `NAME[ARGS]{...}`, one after the other, with `[CALL_ID]ID` in between.
fn parse_mistral(block: &str) -> Option<Vec<ToolCall>> {
    let calls = block.split("[TOOL_CALLS]").map(str::trim).filter(|part| !part.is_empty());
    let parse = |part: &str| {
        let (head, arguments) = part.split_once("[ARGS]")?;
        let (name, id) = head.split_once("[CALL_ID]").unwrap_or((head, ""));
        Some(call(id, name, serde_json::from_str(arguments).ok()?))
    };
    calls.map(parse).collect()
}

/// DeepSeek: `function<sep>NAME` and the arguments in a fence, or `NAME<sep>{...}` since V3.1.
fn parse_deepseek(block: &str) -> Option<Vec<ToolCall>> {
    let parts = block.split("<｜tool▁call▁begin｜>").skip(1);
    let parse = |part: &str| {
        let part = part.split("<｜tool▁call▁end｜>").next()?;
        let (head, rest) = part.split_once("<｜tool▁sep｜>")?;
        let (name, arguments) = match rest.split_once("```json") {
            Some((name, fenced)) => (name, fenced.trim().trim_end_matches("```")),
            None => (head, rest),
        };
        Some(call("", name, serde_json::from_str(arguments).ok()?))
    };
    parts.map(parse).collect()
}

/// Kimi K2: `functions.NAME:INDEX<|tool_call_argument_begin|>{...}`; the first part is the id.
fn parse_kimi(block: &str) -> Option<Vec<ToolCall>> {
    let parts = block.split("<|tool_call_begin|>").skip(1);
    let parse = |part: &str| {
        let part = part.split("<|tool_call_end|>").next()?;
        let (id, arguments) = part.split_once("<|tool_call_argument_begin|>")?;
        let name = id.trim().rsplit_once(':').map_or(id.trim(), |(name, _)| name);
        let name = name.strip_prefix("functions.").unwrap_or(name);
        Some(call(id, name, serde_json::from_str(arguments).ok()?))
    };
    parts.map(parse).collect()
}

/// Qwen 3 Coder and MiniMax-M2: a tag with the name, and one tag for each parameter.
fn parse_tagged(
    block: &str,
    open: &str,
    open_end: &str,
    close: &str,
    parameter: [&str; 2],
    tools: &[Value],
) -> Option<Vec<ToolCall>> {
    let parse = |part: &str| {
        let (name, body) = part.split_once(open_end)?;
        let body = body.split(close).next()?;
        let mut arguments = Map::new();
        for field in body.split(parameter[0]).skip(1) {
            let (key, value) = field.split_once(parameter[1])?;
            let value = value.rsplit_once("</parameter>").map_or(value, |(value, _)| value);
            // The line breaks next to the tags are the grammar's, any others the value's.
            let value = value.strip_prefix('\n').unwrap_or(value);
            let value = value.strip_suffix('\n').unwrap_or(value);
            arguments.insert(key.to_owned(), typed(value, schema(tools, name, key)));
        }
        Some(call("", name, Value::Object(arguments)))
    };
    block.split(open).skip(1).map(parse).collect()
}

/// GLM 4.5: the name, then `<arg_key>` and `<arg_value>` in turn.
fn parse_glm(block: &str, tools: &[Value]) -> Option<ToolCall> {
    let mut fields = block.split("<arg_key>");
    let name = fields.next()?.trim();
    let mut arguments = Map::new();
    for field in fields {
        let (key, rest) = field.split_once("</arg_key>")?;
        let (_, value) = rest.split_once("<arg_value>")?;
        let value = value.rsplit_once("</arg_value>").map_or(value, |(value, _)| value);
        arguments.insert(key.to_owned(), typed(value, schema(tools, name, key)));
    }
    Some(call("", name, Value::Object(arguments)))
}

fn schema<'t>(tools: &'t [Value], name: &str, key: &str) -> Option<&'t Value> {
    let tool = tools.iter().find(|tool| name_of(tool) == Some(name))?;
    tool.get("function").unwrap_or(tool).get("parameters")?.get("properties")?.get(key)
}

/// A value that was written as plain text: JSON where the schema does not say it is a string.
fn typed(text: &str, schema: Option<&Value>) -> Value {
    let is_string = schema.and_then(|schema| schema.get("type")).is_some_and(|ty| ty == "string");
    let parsed = if is_string { None } else { serde_json::from_str(text.trim()).ok() };
    parsed.unwrap_or_else(|| Value::String(text.to_owned()))
}

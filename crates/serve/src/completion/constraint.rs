//! Converts the requested format of an answer to the grammar that constrains the sampler.

use std::borrow::Cow;
use std::collections::HashMap;

use protocol::Grammar;
use serde_json::{Value, json};
use text::{Gbnf, Held, ReplyFormat, Tokenizer, lark_json, lark_regex, schema_fault};

use super::{Chat, CompletionError, CompletionRequest, Format, Prompt, ToolChoice};

/// The model and prompt that a grammar is built for.
pub(super) struct Target<'a> {
    pub tokenizer: &'a Tokenizer,
    pub reply: &'a ReplyFormat,
    /// The prompt as text; it may end inside the model's thoughts.
    pub prompt: &'a str,
}

/// A grammar and the request field that sets it.
pub(super) type Demand = (Grammar, &'static str);

/// The request with a grammar in GBNF converted to one of the other formats.
///
/// # Errors
/// The grammar cannot be used.
pub(super) fn converted<'r>(
    request: &'r CompletionRequest,
    tokenizer: &Tokenizer,
) -> Result<Cow<'r, CompletionRequest>, CompletionError> {
    let Format::Gbnf(source) = &request.format else { return Ok(Cow::Borrowed(request)) };
    let format = match Gbnf::convert(source, tokenizer) {
        Ok(Gbnf::Regex(regex)) => Format::Regex(regex),
        Ok(Gbnf::Lark(lark)) => Format::Lark(lark),
        Err(error) => {
            let field = request.format_field;
            let message = format!("{field}, {error}");
            return Err(CompletionError::Unusable { field, message });
        }
    };
    Ok(Cow::Owned(CompletionRequest { format, ..request.clone() }))
}

/// The grammar of an answer, if it has one.
///
/// # Errors
/// A call is required of a tool that is not in `tools`, or no answer can match the schema.
pub(super) fn grammar(
    request: &CompletionRequest,
    target: &Target,
) -> Result<Option<Demand>, CompletionError> {
    let of_format = |grammar| (grammar, request.format_field);
    if let Format::JsonSchema(schema) = &request.format
        && let Some(fault) = schema_fault(schema)
    {
        let field = request.format_field;
        let message = format!(
            "{field} has a schema that no answer can be held to: {} {}. Change it, or leave it out",
            fault.path, fault.why
        );
        return Err(CompletionError::Unusable { field, message });
    }
    let Prompt::Chat(chat) = &request.prompt else {
        return Ok(plain(&request.format).map(of_format));
    };
    let tools = match &chat.tool_choice {
        ToolChoice::Auto | ToolChoice::None => {
            return Ok(text(chat, &request.format, target).map(of_format));
        }
        ToolChoice::Required => chat.tools.clone(),
        ToolChoice::Named(name) => {
            chat.tools.iter().filter(|tool| tool_name(tool) == Some(name)).cloned().collect()
        }
    };
    if tools.is_empty() {
        let message = "tool_choice asks for a call of a tool that tools does not have. Add the \
                       tool, or send \"auto\"";
        return Err(CompletionError::Unusable { field: "tool_choice", message: message.into() });
    }
    let many = !chat.single_call && chat.tool_choice == ToolChoice::Required;
    let tools = usable(&tools);
    let Target { tokenizer, reply, prompt } = target;
    let grammar = Grammar::Lark(reply.call_grammar(tokenizer, prompt, &tools, many, None));
    Ok(Some((grammar, "tools")))
}

/// The constraint that [`grammar`] sets on a chat's answer, for parsing the answer.
pub(super) fn held(chat: &Chat, format: &Format) -> Held {
    match (&chat.tool_choice, format) {
        (ToolChoice::Required | ToolChoice::Named(_), _) => Held::Calls,
        (_, Format::Text) => Held::Free,
        (_, Format::Lark(_)) => Held::Whole,
        _ if chat.offered_tools().is_empty() => Held::Text,
        _ => Held::TextOrCalls,
    }
}

/// The grammar of a text in a given format. If the model may call a tool instead, the grammar
/// allows calls too.
fn text(chat: &Chat, format: &Format, target: &Target) -> Option<Grammar> {
    let tools = chat.offered_tools();
    if tools.is_empty() && !target.reply.thinks() {
        return plain(format);
    }
    let body = match format {
        Format::Text | Format::Gbnf(_) => return None,
        // The client's own grammar covers the whole answer.
        Format::Lark(lark) => return Some(Grammar::Lark(lark.clone())),
        Format::JsonObject => lark_json(&any_object()),
        Format::JsonSchema(schema) => lark_json(schema),
        Format::Regex(regex) => lark_regex(regex),
    };
    let Target { tokenizer, reply, prompt } = target;
    Some(Grammar::Lark(match tools {
        [] => reply.text_grammar(tokenizer, prompt, &body),
        tools => {
            let tools = usable(tools);
            reply.call_grammar(tokenizer, prompt, &tools, !chat.single_call, Some(&body))
        }
    }))
}

fn plain(format: &Format) -> Option<Grammar> {
    Some(match format {
        Format::Text => return None,
        Format::JsonObject => of_schema(&any_object()),
        Format::JsonSchema(schema) => of_schema(schema),
        Format::Regex(regex) => Grammar::Regex(regex.clone()),
        Format::Lark(lark) => Grammar::Lark(lark.clone()),
        // It was converted before.
        Format::Gbnf(_) => return None,
    })
}

fn of_schema(schema: &Value) -> Grammar {
    let lark = lark_json(schema);
    match lark.strip_prefix("%json ") {
        Some(schema) => Grammar::JsonSchema(schema.to_owned()),
        None => Grammar::Lark(format!("start: {lark}")),
    }
}

/// The tools. A tool whose schema cannot constrain a call accepts any object.
fn usable(tools: &[Value]) -> Vec<Value> {
    let mut tools = tools.to_vec();
    for (at, tool) in tools.iter_mut().enumerate() {
        let name = tool_name(tool).unwrap_or_default().to_owned();
        let Some(schema) = tool.pointer_mut("/function/parameters") else { continue };
        let fault = schema_fault(schema).filter(|_| !schema.is_null());
        if let Some(fault) = fault {
            let (path, why) = (fault.path, fault.why);
            tracing::warn!(tool = at, name, path, why, "a call of this tool may have any fields");
            *schema = any_object();
        }
    }
    tools
}

fn any_object() -> Value {
    json!({"type": "object"})
}

/// The index and name of the first tool that has the same name as an earlier one and a different
/// definition: a call could mean either. Identical duplicates are harmless.
pub(crate) fn other_of_one_name(tools: &[Value]) -> Option<(usize, &str)> {
    let mut known = HashMap::new();
    tools.iter().enumerate().find_map(|(at, tool)| {
        let name = tool_name(tool)?;
        (known.entry(name).or_insert(tool) != &tool).then_some((at, name))
    })
}

/// The name of a tool in OpenAI's format, or of the tool in a choice.
pub(crate) fn tool_name(tool: &Value) -> Option<&str> {
    let fields = ["function", "custom"].iter().find_map(|key| tool.get(*key)).unwrap_or(tool);
    fields.get("name")?.as_str()
}

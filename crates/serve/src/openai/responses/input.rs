//! Converts the items of a response's input to messages.

use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::namespace::told_name;
use super::output::thoughts_in;
use crate::foreign;
use crate::http::error::ApiError;
use crate::openai::custom::arguments_of;
use crate::openai::fields::shaped;
use crate::openai::message::{ChatMessage, Content};
use crate::pictures::Pictures;

/// More items than fit any context.
const ITEMS_MAX: usize = 16_384;

/// What stands for a call that another program ran without a function, by the item's type.
const RUN_ELSEWHERE: &[(&str, &str)] = &[
    ("local_shell_call", "local_shell"),
    ("shell_call", "shell"),
    ("apply_patch_call", "apply_patch"),
    ("computer_call", "computer"),
];

#[derive(Debug, Deserialize)]
struct FunctionCall {
    call_id: String,
    name: String,
    namespace: Option<String>,
    /// JSON as text; some clients send the object, or nothing.
    #[serde(default)]
    arguments: Value,
}

#[derive(Debug, Deserialize)]
struct CustomToolCall {
    call_id: String,
    name: String,
    namespace: Option<String>,
    #[serde(default)]
    input: String,
}

#[derive(Debug, Deserialize)]
struct FunctionCallOutput {
    call_id: String,
    output: Option<Content>,
}

#[derive(Debug, Deserialize)]
struct Reasoning {
    #[serde(default)]
    summary: Vec<Thought>,
    content: Option<Vec<Thought>>,
    encrypted_content: Option<String>,
}

#[derive(Debug, Deserialize)]
struct Thought {
    text: String,
}

/// `instructions` and the items of `input`, in the order in which the model reads them.
///
/// # Errors
/// 400 naming an item that is invalid or of an unknown type.
pub(super) fn messages(
    instructions: Option<String>,
    input: Option<Value>,
    pictures: &mut Pictures,
) -> Result<Vec<text::Message>, ApiError> {
    let mut turns = Turns::default();
    turns.0.extend(instructions.map(|text| text::Message::new("system", text)));
    match input {
        Some(Value::String(text)) => turns.0.push(text::Message::new("user", text)),
        Some(Value::Array(items)) if (1..=ITEMS_MAX).contains(&items.len()) => {
            for (at, item) in items.into_iter().enumerate() {
                turns.item(&format!("input[{at}]"), item, pictures)?;
            }
        }
        _ => {
            let message = format!("input must be a text or a list of 1 to {ITEMS_MAX} items");
            return Err(ApiError::invalid_value("input", message));
        }
    }
    Ok(turns.finish())
}

/// Messages under construction: the thoughts, text and calls of one turn are separate items.
#[derive(Default)]
struct Turns(Vec<text::Message>);

impl Turns {
    fn item(&mut self, at: &str, mut item: Value, pictures: &mut Pictures) -> Result<(), ApiError> {
        let fields: &Map<String, Value> = match &mut item {
            Value::Object(fields) => {
                // Clients send null for absent fields.
                fields.retain(|_, value| !value.is_null());
                fields
            }
            _ => return Err(ApiError::invalid_value(at, format!("{at} must be an object"))),
        };
        match fields.get("type").and_then(Value::as_str).unwrap_or("message") {
            "message" => {
                self.message(shaped::<ChatMessage>(at, item)?.into_message(at, pictures)?);
            }
            "reasoning" => self.reasoning(shaped(at, item)?),
            "function_call" => {
                let FunctionCall { call_id, name, namespace, arguments } = shaped(at, item)?;
                let name = namespace.map_or(name.clone(), |space| told_name(&space, &name));
                self.call(text::ToolCall { id: call_id, name, arguments });
            }
            "custom_tool_call" => {
                let CustomToolCall { call_id, name, namespace, input } = shaped(at, item)?;
                let name = namespace.map_or(name.clone(), |space| told_name(&space, &name));
                let arguments = arguments_of(input);
                self.call(text::ToolCall { id: call_id, name, arguments });
            }
            "function_call_output" | "custom_tool_call_output" => {
                let found: FunctionCallOutput = shaped(at, item)?;
                let at = format!("{at}.output");
                let text = |output: Content| output.into_text(&at, Some(pictures), true);
                let content = found.output.map(text).transpose()?.unwrap_or_default();
                self.result(found.call_id, content);
            }
            "item_reference" => {
                let param = format!("{at}.type");
                let message = format!(
                    "{param} is item_reference, and nothing is kept between requests here. Send the \
                     item itself"
                );
                return Err(ApiError::unsupported(&param, message));
            }
            kind => self.foreign(kind, fields),
        }
        Ok(())
    }

    fn result(&mut self, call_id: String, content: String) {
        let tool_call_id = Some(call_id);
        self.0.push(text::Message { tool_call_id, ..text::Message::new("tool", content) });
    }

    /// An item that only another server understands. A call with its output stays one.
    fn foreign(&mut self, kind: &str, fields: &Map<String, Value>) {
        let text = |key: &str| fields.get(key).and_then(Value::as_str).map(str::to_owned);
        let run = |(own, name): &(&str, &str)| (*own == kind).then(|| (*name).to_owned());
        let called = RUN_ELSEWHERE.iter().find_map(run);
        let answers = |(own, _): &(&str, &str)| kind.strip_suffix("_output") == Some(*own);
        match (called, text("call_id").or(text("id"))) {
            (Some(name), Some(id)) => {
                let keys = ["action", "operation", "actions"];
                let arguments = keys.iter().find_map(|key| fields.get(*key)).cloned();
                let arguments = arguments.filter(Value::is_object).unwrap_or_else(|| json!({}));
                self.call(text::ToolCall { id, name, arguments });
            }
            (None, Some(id)) if RUN_ELSEWHERE.iter().any(answers) => {
                let mut fields = fields.clone();
                fields.remove("type");
                let output = foreign::texts(&fields);
                self.result(id, output);
            }
            _ => {
                let text = foreign::readable(fields);
                if !text.is_empty() {
                    self.message(text::Message::new("assistant", text));
                }
            }
        }
    }

    /// The assistant message under construction, if the last message is one without calls.
    fn open(&mut self) -> Option<&mut text::Message> {
        self.0.last_mut().filter(|last| last.role == "assistant" && last.tool_calls.is_empty())
    }

    fn message(&mut self, message: text::Message) {
        match self.open() {
            Some(open) if message.role == "assistant" && open.content.is_empty() => {
                open.content = message.content;
            }
            _ => self.0.push(message),
        }
    }

    fn reasoning(&mut self, item: Reasoning) {
        let content = item.content.filter(|content| !content.is_empty());
        let given = item.encrypted_content.as_deref().and_then(thoughts_in).map(str::to_owned);
        let texts = |thoughts: Vec<Thought>| {
            thoughts.into_iter().map(|thought| thought.text).collect::<Vec<_>>().join("\n")
        };
        let thought = content.map(texts).or(given).unwrap_or_else(|| texts(item.summary));
        if thought.is_empty() {
            return;
        }
        // Consecutive reasoning items before an answer are joined.
        let open = self.open().filter(|open| open.content.is_empty());
        if let Some(before) = open.and_then(|open| open.reasoning.as_mut()) {
            *before += &format!("\n{thought}");
            return;
        }
        let reasoning = Some(thought);
        self.0.push(text::Message { reasoning, ..text::Message::new("assistant", "") });
    }

    fn call(&mut self, call: text::ToolCall) {
        match self.0.last_mut().filter(|last| last.role == "assistant") {
            Some(last) => last.tool_calls.push(call),
            None => {
                let tool_calls = vec![call];
                self.0.push(text::Message { tool_calls, ..text::Message::new("assistant", "") });
            }
        }
    }

    /// Many templates accept one system message, the first: leading system messages become one.
    fn finish(mut self) -> Vec<text::Message> {
        let leading = self.0.iter().take_while(|message| message.role == "system").count();
        if leading > 1 {
            let rest = self.0.split_off(leading);
            let texts: Vec<String> = self.0.into_iter().map(|message| message.content).collect();
            self.0 = vec![text::Message::new("system", texts.join("\n\n"))];
            self.0.extend(rest);
        }
        self.0
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn read(input: Value) -> Result<Vec<text::Message>, ApiError> {
        messages(Some("Be brief.".to_owned()), Some(input), &mut Pictures::new())
    }

    #[test]
    fn items_of_a_turn_become_one_message() {
        let found = read(json!([
            {"role": "developer", "content": "Be kind."},
            {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "hi"}]},
            {"type": "reasoning", "id": "rs_1", "summary": null, "content": null,
                "encrypted_content": super::super::output::encrypted("Hm.")},
            {"type": "reasoning", "id": "rs_2",
                "summary": [{"type": "summary_text", "text": "So."}]},
            {"type": "message", "role": "assistant", "id": "msg_1", "status": "completed",
                "content": [{"type": "output_text", "text": "Let me see.", "annotations": []}]},
            {"type": "function_call", "call_id": "c1", "name": "f", "arguments": "{}"},
            {"type": "function_call", "call_id": "c2", "name": "g", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "c1", "output": "one"},
            {"type": "function_call_output", "call_id": "c2",
                "output": [{"type": "input_text", "text": "two"}]},
            {"type": "function_call", "call_id": "c3", "name": "f", "arguments": "{}"},
            {"type": "web_search_call", "id": "ws_1", "status": "completed"},
        ]))
        .unwrap();
        let roles: Vec<&str> = found.iter().map(|one| one.role.as_str()).collect();
        assert_eq!(roles, ["system", "user", "assistant", "tool", "tool", "assistant"]);
        assert_eq!(found[0].content, "Be brief.\n\nBe kind.");
        assert_eq!(found[2].reasoning.as_deref(), Some("Hm.\nSo."));
        assert_eq!((found[2].content.as_str(), found[2].tool_calls.len()), ("Let me see.", 2));
        assert_eq!(
            (found[4].content.as_str(), found[4].tool_call_id.as_deref()),
            ("two", Some("c2"))
        );
        assert_eq!(found[5].tool_calls[0].id, "c3");
    }

    #[test]
    fn what_cannot_be_read_is_named() {
        let image = json!({"type": "input_image", "image_url": "x"});
        let cases = [
            (json!([]), "input"),
            (json!(7), "input"),
            (json!([7]), "input[0]"),
            (json!([{"type": "item_reference", "id": "x"}]), "input[0].type"),
            (json!([{"type": "function_call", "name": "f"}]), "input[0]"),
            (json!([{"role": "user", "content": [image]}]), "input[0].content[0]"),
            (json!([{"role": "king", "content": "x"}]), "input[0].role"),
            (
                json!([{"type": "function_call_output", "call_id": "c", "output": [image]}]),
                "input[0].output[0]",
            ),
        ];
        for (input, param) in cases {
            let error = read(input.clone()).expect_err(&input.to_string());
            assert_eq!(error.param.as_deref(), Some(param), "{input}");
        }
    }
}

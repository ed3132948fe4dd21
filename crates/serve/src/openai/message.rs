//! One message of a chat completion.

use serde::Deserialize;
use serde_json::Value;

use protocol::Detail;

use super::custom::arguments_of;
use super::fields::shown;
use crate::http::error::ApiError;
use crate::pictures::{Pictures, join, misplaced};

const PARTS_MAX: usize = 4096;
const CALLS_MAX: usize = 512;
/// The part of an unknown detail that a message shows.
const DETAIL_SHOWN: usize = 16;

/// A message; its role determines the required fields.
#[derive(Debug, Deserialize)]
pub(super) struct ChatMessage {
    role: Role,
    content: Option<Content>,
    name: Option<String>,
    tool_calls: Option<Vec<Call>>,
    /// The older format of a single call.
    function_call: Option<Function>,
    tool_call_id: Option<String>,
    /// Thoughts of open models, under the two names by which clients return them.
    reasoning_content: Option<String>,
    reasoning: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Role {
    System,
    /// OpenAI's newer name for `system`.
    Developer,
    User,
    Assistant,
    Tool,
    /// The older role of a tool result.
    Function,
}

#[derive(Debug, Deserialize)]
#[serde(untagged, expecting = "content must be a string or a list of content parts")]
pub(super) enum Content {
    Text(String),
    Parts(Vec<Part>),
}

#[derive(Debug, Deserialize)]
pub(super) struct Part {
    #[serde(rename = "type")]
    kind: String,
    text: Option<String>,
    refusal: Option<String>,
    /// An address, or an object with it and its detail.
    image_url: Option<Value>,
    /// Beside an address.
    detail: Option<String>,
}

#[derive(Debug, Deserialize)]
struct Call {
    id: Option<String>,
    function: Option<Function>,
    custom: Option<Custom>,
}

/// A call of a custom tool.
#[derive(Debug, Deserialize)]
struct Custom {
    name: String,
    #[serde(default)]
    input: String,
}

#[derive(Debug, Deserialize)]
struct Function {
    name: String,
    /// JSON as text in OpenAI's API; some clients send the object.
    arguments: Option<Value>,
}

impl ChatMessage {
    /// The message in the form that templates expect; `at` is its path in the request.
    ///
    /// # Errors
    /// 400 naming the field: missing text, or parts that cannot be read.
    pub fn into_message(
        self,
        at: &str,
        pictures: &mut Pictures,
    ) -> Result<text::Message, ApiError> {
        let mut calls = self.tool_calls.unwrap_or_default();
        // The older format has no ids, so the name is the id.
        calls.extend(self.function_call.map(|function| {
            let id = Some(function.name.clone());
            Call { id, function: Some(function), custom: None }
        }));
        if calls.len() > CALLS_MAX {
            let message = format!("{} tool calls; {CALLS_MAX} are the most", calls.len());
            return Err(ApiError::invalid_value(&format!("{at}.tool_calls"), message));
        }
        let content = match self.content {
            Some(content) => {
                let pictures = (self.role != Role::Assistant).then_some(pictures);
                let is_result = matches!(self.role, Role::Tool | Role::Function);
                content.into_text(&format!("{at}.content"), pictures, is_result)?
            }
            // An assistant that only calls tools has no text, and neither has a tool without a
            // result.
            None if matches!(self.role, Role::Assistant | Role::Tool | Role::Function) => {
                String::new()
            }
            None => {
                let message = format!("{at} has no content");
                return Err(ApiError::invalid_value(&format!("{at}.content"), message));
            }
        };
        let tool_calls = calls.into_iter().enumerate().map(|(index, call)| {
            let at = format!("{at}.tool_calls[{index}]");
            call.into_call().ok_or_else(|| {
                let message = format!("{at} has neither a function nor a custom tool");
                ApiError::invalid_value(&at, message)
            })
        });
        let old_id = self.name.clone().filter(|_| self.role == Role::Function);
        Ok(text::Message {
            role: self.role.as_str().to_owned(),
            content,
            name: self.name,
            tool_calls: tool_calls.collect::<Result<_, _>>()?,
            tool_call_id: self.tool_call_id.or(old_id),
            reasoning: self.reasoning_content.or(self.reasoning),
        })
    }
}

impl Role {
    fn as_str(self) -> &'static str {
        match self {
            Self::System | Self::Developer => "system",
            Self::User => "user",
            Self::Assistant => "assistant",
            Self::Tool | Self::Function => "tool",
        }
    }
}

impl Content {
    /// Text parts become lines of one text, as in llama-server and vLLM, with pictures' places
    /// between them; `at` is the content's path in the request. Without `pictures` there may be
    /// none. In the result of a tool, which nobody can take back, a sentence stands for a part that
    /// cannot be read.
    ///
    /// # Errors
    /// 400 naming the part that cannot be read.
    pub fn into_text(
        self,
        at: &str,
        mut pictures: Option<&mut Pictures>,
        is_result: bool,
    ) -> Result<String, ApiError> {
        let parts = match self {
            Self::Text(text) => return Ok(text),
            Self::Parts(parts) => parts,
        };
        if parts.len() > PARTS_MAX {
            let message = format!("{} content parts; {PARTS_MAX} are the most", parts.len());
            return Err(ApiError::invalid_value(at, message));
        }
        let mut content: Option<String> = None;
        for (part_at, part) in parts.into_iter().enumerate() {
            let param = format!("{at}[{part_at}]");
            let text = match part.kind.as_str() {
                "text" | "input_text" | "output_text" => part.text,
                "refusal" => part.refusal,
                "image_url" | "input_image" => {
                    let pictures = pictures.as_deref_mut().ok_or_else(|| misplaced(&param))?;
                    Some(part.into_picture(&param, pictures)?)
                }
                kind if is_result => {
                    Some(format!("[a part of type {} that this model cannot read]", shown(kind)))
                }
                kind => {
                    let message = format!(
                        "{param} is of type {kind}; only text and pictures can be read. Send parts \
                         of type text or image_url"
                    );
                    return Err(ApiError::unsupported(&param, message));
                }
            };
            let missing = || ApiError::invalid_value(&param, format!("{param} has no text"));
            let text = text.ok_or_else(missing)?;
            match &mut content {
                Some(content) => join(content, &text),
                None => content = Some(text),
            }
        }
        Ok(content.unwrap_or_default())
    }
}

impl Part {
    fn into_picture(self, at: &str, pictures: &mut Pictures) -> Result<String, ApiError> {
        let (address, detail) = match self.image_url {
            Some(Value::String(address)) => (address, self.detail),
            Some(Value::Object(mut object)) => {
                let mut text = |key| match object.remove(key) {
                    Some(Value::String(text)) => Some(text),
                    _ => None,
                };
                (text("url").unwrap_or_default(), text("detail"))
            }
            _ => {
                let message = format!(
                    "{at} has no image_url. Send the picture itself, as data:image/png;base64,..."
                );
                return Err(ApiError::invalid_value(at, message));
            }
        };
        let detail = match detail.as_deref() {
            None | Some("auto") => Detail::Auto,
            Some("low") => Detail::Low,
            Some("high" | "original") => Detail::High,
            Some(other) => {
                let other: String = other.chars().take(DETAIL_SHOWN).collect();
                let message =
                    format!("{at} has the detail {other:?}; it may be low, high, auto or original");
                return Err(ApiError::invalid_value(at, message));
            }
        };
        pictures.address(at, &address, detail)
    }
}

impl Call {
    fn into_call(self) -> Option<text::ToolCall> {
        let id = self.id.unwrap_or_default();
        let (name, arguments) = match (self.function, self.custom) {
            (Some(function), _) => (function.name, function.arguments.unwrap_or_default()),
            (None, Some(custom)) => (custom.name, arguments_of(custom.input)),
            (None, None) => return None,
        };
        Some(text::ToolCall { id, name, arguments })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn message(value: Value) -> Result<text::Message, ApiError> {
        let message = serde_json::from_value::<ChatMessage>(value).unwrap();
        message.into_message("messages[3]", &mut Pictures::new())
    }

    #[test]
    fn roles_and_contents() {
        let cases = [
            (json!({"role": "user", "content": "hi"}), ("user", "hi")),
            (json!({"role": "developer", "content": "be brief"}), ("system", "be brief")),
            (json!({"role": "system", "content": []}), ("system", "")),
            (json!({"role": "assistant", "content": null}), ("assistant", "")),
            (json!({"role": "assistant", "content": ""}), ("assistant", "")),
            (json!({"role": "tool", "tool_call_id": "c", "content": null}), ("tool", "")),
            (json!({"role": "tool", "tool_call_id": "c", "content": "42"}), ("tool", "42")),
            (
                json!({"role": "user", "content": [
                    {"type": "text", "text": "a", "cache_control": {"type": "ephemeral"}},
                    {"type": "text", "text": "b"},
                ]}),
                ("user", "a\nb"),
            ),
        ];
        for (value, (role, content)) in cases {
            let found = message(value.clone()).unwrap();
            assert_eq!((found.role.as_str(), found.content.as_str()), (role, content), "{value}");
        }
    }

    #[test]
    fn tool_calls_come_back_as_they_went() {
        let found = message(json!({"role": "assistant", "content": "", "tool_calls": [
            {"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{\"x\":1}"}},
        ]}));
        let call = text::ToolCall {
            id: "c1".to_owned(),
            name: "f".to_owned(),
            arguments: json!("{\"x\":1}"),
        };
        assert_eq!(found.unwrap().tool_calls, [call]);
    }

    #[test]
    fn the_older_form_of_calls_is_understood() {
        let call = json!({"name": "f", "arguments": "{}"});
        let asked = json!({"role": "assistant", "content": null, "function_call": call});
        let asked = message(asked).unwrap();
        let answered = message(json!({"role": "function", "name": "f", "content": "7"})).unwrap();
        assert_eq!((asked.tool_calls[0].name.as_str(), answered.role.as_str()), ("f", "tool"));
        assert_eq!(answered.tool_call_id.as_ref(), Some(&asked.tool_calls[0].id));
    }

    #[test]
    fn what_cannot_be_read_is_named() {
        let image = json!({"type": "image_url", "image_url": {"url": "file:///x"}});
        let cases = [
            (json!({"role": "user"}), "messages[3].content", "invalid_value"),
            (json!({"role": "user", "content": [image]}), "messages[3].content[0]", "unsupported"),
            (
                json!({"role": "user", "content": [{"type": "text"}]}),
                "messages[3].content[0]",
                "invalid_value",
            ),
        ];
        for (value, param, code) in cases {
            let error = message(value.clone()).expect_err(&value.to_string());
            assert_eq!((error.param.as_deref(), error.code), (Some(param), code), "{value}");
        }
    }
}

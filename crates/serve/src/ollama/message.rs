//! Converts Ollama's messages to those that chat templates expect.

use serde::Deserialize;
use serde_json::Value;

use crate::http::error::ApiError;

/// More messages than fit any context.
const MESSAGES_MAX: usize = 16_384;

#[derive(Debug, Deserialize)]
pub(super) struct Message {
    role: String,
    content: Option<String>,
    thinking: Option<String>,
    images: Option<Vec<Value>>,
    tool_calls: Option<Vec<Call>>,
    /// The tool that produced this result, under its newer and its older field name.
    tool_name: Option<String>,
    name: Option<String>,
    tool_call_id: Option<String>,
}

#[derive(Debug, Deserialize)]
struct Call {
    id: Option<String>,
    function: Function,
}

#[derive(Debug, Deserialize)]
struct Function {
    name: String,
    arguments: Option<Value>,
}

/// # Errors
/// 400 naming the first message that cannot be read, or if there are too many.
pub(super) fn messages(input: Vec<Message>) -> Result<Vec<text::Message>, ApiError> {
    if input.len() > MESSAGES_MAX {
        let found = input.len();
        let message = format!("messages has {found} entries; {MESSAGES_MAX} are the most");
        return Err(ApiError::invalid_value("messages", message));
    }
    input.into_iter().enumerate().map(|(at, message)| message.into_message(at)).collect()
}

/// # Errors
/// 400 if there is an image.
pub(super) fn no_images(field: &str, images: Option<&[Value]>) -> Result<(), ApiError> {
    match images {
        None | Some([]) => Ok(()),
        Some(_) => {
            let message = format!("{field}: only text can be read. Leave the images out");
            Err(ApiError::unsupported(field, message))
        }
    }
}

impl Message {
    fn into_message(self, at: usize) -> Result<text::Message, ApiError> {
        no_images(&format!("messages[{at}].images"), self.images.as_deref())?;
        let role = match self.role.as_str() {
            "system" | "user" | "assistant" | "tool" => self.role,
            role => {
                let message = format!(
                    "messages[{at}].role is {role:?}; it may be system, user, assistant or tool"
                );
                return Err(ApiError::invalid_value(&format!("messages[{at}].role"), message));
            }
        };
        Ok(text::Message {
            role,
            content: self.content.unwrap_or_default(),
            name: self.tool_name.or(self.name),
            tool_calls: self
                .tool_calls
                .unwrap_or_default()
                .into_iter()
                .map(Call::into_call)
                .collect(),
            tool_call_id: self.tool_call_id,
            reasoning: self.thinking,
        })
    }
}

impl Call {
    fn into_call(self) -> text::ToolCall {
        let arguments = self.function.arguments.unwrap_or_default();
        text::ToolCall { id: self.id.unwrap_or_default(), name: self.function.name, arguments }
    }
}

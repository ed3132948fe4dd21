//! Converts Ollama's messages to those that chat templates expect.

use serde::Deserialize;
use serde_json::Value;

use crate::http::error::ApiError;
use crate::pictures::{Pictures, misplaced};

/// More messages than fit any context.
const MESSAGES_MAX: usize = 16_384;

#[derive(Debug, Deserialize)]
pub(super) struct Message {
    role: String,
    content: Option<String>,
    thinking: Option<String>,
    /// In Base64.
    images: Option<Vec<String>>,
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
pub(super) fn messages(
    input: Vec<Message>,
    pictures: &mut Pictures,
) -> Result<Vec<text::Message>, ApiError> {
    if input.len() > MESSAGES_MAX {
        let found = input.len();
        let message = format!("messages has {found} entries; {MESSAGES_MAX} are the most");
        return Err(ApiError::invalid_value("messages", message));
    }
    let read = |(at, message): (usize, Message)| message.into_message(at, pictures);
    input.into_iter().enumerate().map(read).collect()
}

/// The places of images in a text, which come before it.
///
/// # Errors
/// 400 naming the first image that cannot be read.
pub(super) fn images(
    at: &str,
    images: Option<Vec<String>>,
    pictures: &mut Pictures,
) -> Result<String, ApiError> {
    let images = images.unwrap_or_default().into_iter().enumerate();
    images.map(|(index, image)| pictures.either(&format!("{at}[{index}]"), &image)).collect()
}

impl Message {
    fn into_message(self, at: usize, pictures: &mut Pictures) -> Result<text::Message, ApiError> {
        let images_at = format!("messages[{at}].images");
        if self.role == "assistant" && self.images.as_ref().is_some_and(|all| !all.is_empty()) {
            return Err(misplaced(&images_at));
        }
        let images = images(&images_at, self.images, pictures)?;
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
            content: images + self.content.as_deref().unwrap_or_default(),
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

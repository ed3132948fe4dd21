//! `POST /api/chat`.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::response::Response;
use serde::Deserialize;
use serde_json::Value;

use super::answer::{Shape, load, respond};
use super::message::{Message, messages};
use super::request::Common;
use crate::app::App;
use crate::caller::Caller;
use crate::completion::{Chat, Prompt, other_of_one_name};
use crate::http::error::ApiError;
use crate::known::Endpoint;
use crate::openai::fields::Fields;
use crate::pictures::Pictures;

const TOOLS_MAX: usize = 512;

#[derive(Debug, Deserialize)]
struct ChatRequest {
    #[serde(flatten)]
    common: Common,
    messages: Option<Vec<Message>>,
    tools: Option<Vec<Value>>,
}

pub(super) async fn chat(
    State(app): State<Arc<App>>,
    request: Request,
) -> Result<Response, ApiError> {
    let caller = Caller::of(&app, &request);
    let read = app.intake.read_as(request, |fields: Fields| {
        let mut request: ChatRequest = fields.whole(Endpoint::OllamaChat)?;
        let mut pictures = Pictures::new();
        let messages = messages(request.messages.take().unwrap_or_default(), &mut pictures)?;
        let tools = tools(request.tools.take().unwrap_or_default())?;
        Ok((request, messages, pictures.into_read(), tools))
    });
    let (request, messages, pictures, tools) = read.await?;
    let wants_stream = request.common.stream != Some(false);
    let is_load = messages.is_empty();
    let chat = Chat { messages, pictures, tools, ..Chat::default() };
    let (request, asked) = request.common.into_request(&app, Prompt::Chat(chat), caller).await?;
    if is_load {
        return load(&app, &request, asked, Shape::Chat).await;
    }
    respond(&app, request, asked, Shape::Chat, wants_stream).await
}

/// Tools come in OpenAI's format, which templates expect.
fn tools(tools: Vec<Value>) -> Result<Vec<Value>, ApiError> {
    if tools.len() > TOOLS_MAX {
        let message = format!("tools has {} entries; {TOOLS_MAX} are the most", tools.len());
        return Err(ApiError::invalid_value("tools", message));
    }
    let is_function = |tool: &Value| tool.pointer("/function/name").is_some_and(Value::is_string);
    if let Some(at) = tools.iter().position(|tool| !is_function(tool)) {
        let message = format!("tools[{at}] has no function with a name");
        return Err(ApiError::invalid_value(&format!("tools[{at}]"), message));
    }
    if let Some((at, name)) = other_of_one_name(&tools) {
        return Err(ApiError::other_tool("tools", at, name));
    }
    Ok(tools)
}

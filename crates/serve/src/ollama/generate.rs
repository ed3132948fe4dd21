//! `POST /api/generate`: one prompt, in the model's template, raw, or before a suffix.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::response::Response;
use serde::Deserialize;
use serde_json::Value;

use super::answer::{Shape, load, respond};
use super::message::no_images;
use super::request::Common;
use crate::app::App;
use crate::caller::Caller;
use crate::completion::{Chat, Fill, Prompt};
use crate::http::error::ApiError;

#[derive(Debug, Deserialize)]
struct GenerateRequest {
    #[serde(flatten)]
    common: Common,
    prompt: Option<String>,
    system: Option<String>,
    raw: Option<bool>,
    suffix: Option<String>,
    template: Option<String>,
    context: Option<Vec<Value>>,
    images: Option<Vec<Value>>,
}

pub(super) async fn generate(
    State(app): State<Arc<App>>,
    request: Request,
) -> Result<Response, ApiError> {
    let caller = Caller::of(&app, &request);
    let request: GenerateRequest = app.intake.read_json(request).await?;
    request.check_unsupported()?;
    let wants_stream = request.common.stream != Some(false);
    let text = request.prompt.unwrap_or_default();
    let suffix = request.suffix.filter(|suffix| !suffix.is_empty());
    let is_load = text.is_empty() && suffix.is_none();
    let prompt = if let Some(suffix) = suffix {
        let fill = Fill { prefix: text, suffix, field: "suffix", ..Fill::default() };
        Prompt::Fill(fill)
    } else if request.raw == Some(true) {
        Prompt::Text(text)
    } else {
        let system = request.system.filter(|system| !system.is_empty());
        let system = system.map(|system| text::Message::new("system", system));
        let messages = system.into_iter().chain([text::Message::new("user", text)]).collect();
        Prompt::Chat(Chat { messages, ..Chat::default() })
    };
    let (request, asked) = request.common.into_request(&app, prompt, caller).await?;
    if is_load {
        return load(&app, &request, asked, Shape::Generate).await;
    }
    respond(&app, request, asked, Shape::Generate, wants_stream).await
}

impl GenerateRequest {
    fn check_unsupported(&self) -> Result<(), ApiError> {
        no_images("images", self.images.as_deref())?;
        let is_given = |text: &Option<String>| text.as_ref().is_some_and(|text| !text.is_empty());
        let refused = if is_given(&self.template) {
            (
                "template",
                "template: the model's own template is the one that is used. Leave it out, or send \
                 the whole prompt with \"raw\": true",
            )
        } else if self.context.as_ref().is_some_and(|context| !context.is_empty()) {
            ("context", "context: send the conversation to /api/chat instead")
        } else if self.raw == Some(true) && is_given(&self.system) {
            ("system", "system: a raw prompt is used as it stands. Write it into the prompt")
        } else if is_given(&self.suffix) && is_given(&self.system) {
            ("system", "system: with a suffix, the model sees only the text around the gap")
        } else {
            return Ok(());
        };
        Err(ApiError::unsupported(refused.0, refused.1))
    }
}

//! `POST /api/generate`: one prompt, in the model's template, raw, or before a suffix.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::response::Response;
use serde::Deserialize;

use super::answer::{Shape, load, respond};
use super::message::images;
use super::request::Common;
use crate::app::App;
use crate::caller::Caller;
use crate::completion::{Chat, Fill, Prompt};
use crate::http::error::ApiError;
use crate::known::Endpoint;
use crate::openai::fields::Fields;
use crate::pictures::Pictures;

#[derive(Debug, Deserialize)]
struct GenerateRequest {
    #[serde(flatten)]
    common: Common,
    prompt: Option<String>,
    system: Option<String>,
    raw: Option<bool>,
    suffix: Option<String>,
    images: Option<Vec<String>>,
}

pub(super) async fn generate(
    State(app): State<Arc<App>>,
    request: Request,
) -> Result<Response, ApiError> {
    let caller = Caller::of(&app, &request);
    let read = app.intake.read_as(request, |fields: Fields| {
        let mut request: GenerateRequest = fields.whole(Endpoint::OllamaGenerate)?;
        request.check_unsupported()?;
        let mut pictures = Pictures::new();
        let places = images("images", request.images.take(), &mut pictures)?;
        Ok((request, places, pictures.into_read()))
    });
    let (request, places, pictures) = read.await?;
    let wants_stream = request.common.stream != Some(false);
    let text = request.prompt.unwrap_or_default();
    let suffix = request.suffix.filter(|suffix| !suffix.is_empty());
    let is_load = text.is_empty() && suffix.is_none() && pictures.is_empty();
    let prompt = if let Some(suffix) = suffix {
        let fill = Fill { prefix: text, suffix, field: "suffix", ..Fill::default() };
        Prompt::Fill(fill)
    } else if request.raw == Some(true) {
        Prompt::Text(text)
    } else {
        let system = request.system.filter(|system| !system.is_empty());
        let system = system.map(|system| text::Message::new("system", system));
        let messages =
            system.into_iter().chain([text::Message::new("user", places + &text)]).collect();
        Prompt::Chat(Chat { messages, pictures, ..Chat::default() })
    };
    let (request, asked) = request.common.into_request(&app, prompt, caller).await?;
    if is_load {
        return load(&app, &request, asked, Shape::Generate).await;
    }
    respond(&app, request, asked, Shape::Generate, wants_stream).await
}

impl GenerateRequest {
    fn check_unsupported(&self) -> Result<(), ApiError> {
        let has_images = self.images.as_ref().is_some_and(|images| !images.is_empty());
        let is_given = |text: &Option<String>| text.as_ref().is_some_and(|text| !text.is_empty());
        let refused = if self.raw == Some(true) && has_images {
            ("images", "images: a raw prompt has no place for them. Leave raw out")
        } else if self.raw == Some(true) && is_given(&self.system) {
            ("system", "system: a raw prompt is used as it stands. Write it into the prompt")
        } else if is_given(&self.suffix) && has_images {
            ("images", "images: with a suffix, the model sees only the text around the gap")
        } else if is_given(&self.suffix) && is_given(&self.system) {
            ("system", "system: with a suffix, the model sees only the text around the gap")
        } else {
            return Ok(());
        };
        Err(ApiError::unsupported(refused.0, refused.1))
    }
}

//! `POST /embedding`: texts as vectors, in a list of lists.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::response::Response;
use serde::Serialize;

use crate::app::App;
use crate::caller::Caller;
use crate::completion::{EmbeddingRequest, Norm, Prompt};
use crate::http::body::long_json;
use crate::http::error::ApiError;
use crate::known::Endpoint;
use crate::openai::embeddings::norm;
use crate::openai::fields::Fields;
use crate::openai::prompts::prompts;

/// Texts of one request.
const TEXTS_MAX: usize = 2048;

struct Asked {
    model: Option<String>,
    texts: Vec<Prompt>,
    norm: Norm,
}

impl Asked {
    fn read(mut fields: Fields) -> Result<Self, ApiError> {
        fields.settle(Endpoint::Embedding)?;
        let (content, input) = (fields.take("content"), fields.take("input"));
        let name = if content.is_none() && input.is_some() { "input" } else { "content" };
        let texts = prompts(name, content.or(input), TEXTS_MAX)?;
        let (model, norm) = (fields.read("model")?, norm(&mut fields)?);
        fields.finish();
        Ok(Self { model, texts, norm })
    }
}

/// The rows of a text: one, for all are pooled.
#[derive(Serialize)]
struct Entry {
    index: usize,
    embedding: [Vec<f32>; 1],
}

pub(super) async fn embed(
    State(app): State<Arc<App>>,
    request: Request,
) -> Result<Response, ApiError> {
    let caller = Caller::of(&app, &request);
    let Asked { model, texts, norm } = app.intake.read_as(request, Asked::read).await?;
    let model = caller.serve_or_only(&app, model).await?;
    let request = EmbeddingRequest {
        model,
        texts,
        truncates: false,
        dimensions: None,
        norm,
        client: caller.number,
        keep_alive: None,
    };
    let embeddings = app.completer.embed(request).await?.into_iter().enumerate();
    let entries = embeddings.map(|(index, one)| Entry { index, embedding: [one.values] });
    long_json(entries.collect::<Vec<_>>()).await
}

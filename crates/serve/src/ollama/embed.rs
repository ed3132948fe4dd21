//! `POST /api/embed` and the older `/api/embeddings`: texts as vectors.

use std::sync::Arc;
use std::time::Instant;

use axum::extract::{Request, State};
use axum::response::Response;
use protocol::KeepAlive;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::request::{keep_alive, served_name};
use crate::app::App;
use crate::caller::Caller;
use crate::completion::{Embedding, EmbeddingRequest, Norm, Prompt};
use crate::http::body::long_json;
use crate::http::error::ApiError;
use crate::known::Endpoint;
use crate::openai::fields::Fields;

/// Texts of one request.
const TEXTS_MAX: usize = 2048;

#[derive(Debug, Deserialize)]
#[serde(untagged, expecting = "a text or a list of texts")]
enum Input {
    Text(String),
    Texts(Vec<String>),
}

/// Every field may be null.
#[derive(Debug, Deserialize)]
struct Body {
    model: Option<String>,
    input: Option<Input>,
    /// The single text of the older endpoint.
    prompt: Option<String>,
    truncate: Option<bool>,
    keep_alive: Option<Value>,
    dimensions: Option<usize>,
}

#[derive(Serialize)]
struct Answer {
    model: String,
    embeddings: Vec<Vec<f32>>,
    total_duration: u64,
    load_duration: u64,
    prompt_eval_count: usize,
}

#[derive(Serialize)]
struct AnswerOfOne {
    embedding: Vec<f32>,
}

/// What is asked, however it is written.
struct Asked {
    model: String,
    texts: Vec<String>,
    truncates: bool,
    keep_alive: Option<KeepAlive>,
    dimensions: Option<usize>,
}

impl Asked {
    /// # Errors
    /// 400 naming the first field that is invalid or not supported.
    fn of(body: Body, texts: Vec<String>) -> Result<Self, ApiError> {
        let model = body.model.unwrap_or_default();
        if model.is_empty() {
            return Err(ApiError::invalid_value("model", "model must name a served model"));
        }
        if texts.len() > TEXTS_MAX {
            let message =
                format!("input has {} texts; up to {TEXTS_MAX} are accepted", texts.len());
            return Err(ApiError::invalid_value("input", message));
        }
        let keep_alive = keep_alive(body.keep_alive.as_ref())?;
        let (truncates, dimensions) = (body.truncate != Some(false), body.dimensions);
        Ok(Self { model, texts, truncates, keep_alive, dimensions })
    }
}

impl Body {
    fn read(fields: Fields) -> Result<Self, ApiError> {
        fields.whole(Endpoint::OllamaEmbed)
    }
}

pub(super) async fn embed(
    State(app): State<Arc<App>>,
    request: Request,
) -> Result<Response, ApiError> {
    let begun = Instant::now();
    let caller = Caller::of(&app, &request);
    let read = app.intake.read_as(request, |fields| {
        let mut body = Body::read(fields)?;
        let texts = match body.input.take() {
            Some(Input::Text(text)) => vec![text],
            Some(Input::Texts(texts)) => texts,
            None => Vec::new(),
        };
        Asked::of(body, texts)
    });
    let (model, embeddings) = run(&app, read.await?, caller).await?;
    let prompt_eval_count = embeddings.iter().map(|embedding| embedding.prompt_tokens).sum();
    long_json(Answer {
        model,
        embeddings: embeddings.into_iter().map(|embedding| embedding.values).collect(),
        total_duration: begun.elapsed().as_nanos() as u64,
        load_duration: 0,
        prompt_eval_count,
    })
    .await
}

pub(super) async fn embed_one(
    State(app): State<Arc<App>>,
    request: Request,
) -> Result<Response, ApiError> {
    let caller = Caller::of(&app, &request);
    let read = app.intake.read_as(request, |fields| {
        let mut body = Body::read(fields)?;
        let texts = vec![body.prompt.take().unwrap_or_default()];
        Asked::of(body, texts)
    });
    let (_, embeddings) = run(&app, read.await?, caller).await?;
    let embedding = embeddings.into_iter().flat_map(|embedding| embedding.values).collect();
    long_json(AnswerOfOne { embedding }).await
}

/// The model's name as requested, and the texts' embeddings.
async fn run(
    app: &App,
    asked: Asked,
    caller: Caller,
) -> Result<(String, Vec<Embedding>), ApiError> {
    let keep_alive = caller.keep_alive(app, asked.keep_alive).await?;
    let model = caller.serve_if_found(app, served_name(app, &asked.model), keep_alive).await?;
    let request = EmbeddingRequest {
        model,
        texts: asked.texts.into_iter().map(Prompt::Text).collect(),
        truncates: asked.truncates,
        dimensions: asked.dimensions,
        norm: Norm::Euclidean,
        client: caller.number,
        keep_alive,
    };
    Ok((asked.model, app.completer.embed(request).await?))
}

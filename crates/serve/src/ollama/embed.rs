//! `POST /api/embed` and the older `/api/embeddings`: texts as vectors.

use std::sync::Arc;
use std::time::Instant;

use axum::Json;
use axum::extract::{Request, State};
use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::request::{keep_alive, served_name};
use crate::app::App;
use crate::caller::Caller;
use crate::completion::{Embedding, EmbeddingRequest, Prompt};
use crate::http::error::ApiError;

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
    dimensions: Option<Value>,
    options: Option<Map<String, Value>>,
    keep_alive: Option<Value>,
}

pub(super) async fn embed(
    State(app): State<Arc<App>>,
    request: Request,
) -> Result<Json<Value>, ApiError> {
    let begun = Instant::now();
    let caller = Caller::of(&app, &request);
    let body: Body = app.intake.read_json(request).await?;
    let texts = match &body.input {
        Some(Input::Text(text)) => vec![text.clone()],
        Some(Input::Texts(texts)) => texts.clone(),
        None => Vec::new(),
    };
    let (model, embeddings) = run(&app, body, texts, caller).await?;
    let tokens: usize = embeddings.iter().map(|embedding| embedding.prompt_tokens).sum();
    let values: Vec<Vec<f32>> = embeddings.into_iter().map(|embedding| embedding.values).collect();
    Ok(Json(json!({
        "model": model,
        "embeddings": values,
        "total_duration": begun.elapsed().as_nanos() as u64,
        "load_duration": 0,
        "prompt_eval_count": tokens,
    })))
}

pub(super) async fn embed_one(
    State(app): State<Arc<App>>,
    request: Request,
) -> Result<Json<Value>, ApiError> {
    let caller = Caller::of(&app, &request);
    let body: Body = app.intake.read_json(request).await?;
    let texts = vec![body.prompt.clone().unwrap_or_default()];
    let (_, embeddings) = run(&app, body, texts, caller).await?;
    let values: Vec<f32> = embeddings.into_iter().flat_map(|embedding| embedding.values).collect();
    Ok(Json(json!({ "embedding": values })))
}

/// The model's name as requested, and the texts' embeddings.
async fn run(
    app: &App,
    body: Body,
    texts: Vec<String>,
    caller: Caller,
) -> Result<(String, Vec<Embedding>), ApiError> {
    let asked = body.model.unwrap_or_default();
    if asked.is_empty() {
        return Err(ApiError::invalid_value("model", "model must name a served model"));
    }
    if body.dimensions.is_some_and(|dimensions| !dimensions.is_null()) {
        let message = "dimensions: vectors are as wide as the model makes them. Leave it out";
        return Err(ApiError::unsupported("dimensions", message));
    }
    if let Some(name) = body.options.iter().flat_map(Map::keys).next() {
        let message = format!("options.{name}: no option changes an embedding. Leave it out");
        return Err(ApiError::unsupported("options", message));
    }
    if texts.len() > TEXTS_MAX {
        let message = format!("input has {} texts; up to {TEXTS_MAX} are accepted", texts.len());
        return Err(ApiError::invalid_value("input", message));
    }
    let keep_alive = caller.keep_alive(app, keep_alive(body.keep_alive.as_ref())?).await?;
    let model = caller.serve_if_found(app, served_name(app, &asked), keep_alive).await?;
    let request = EmbeddingRequest {
        model,
        texts: texts.into_iter().map(Prompt::Text).collect(),
        truncates: body.truncate != Some(false),
        client: caller.number,
        keep_alive,
    };
    Ok((asked, app.completer.embed(request).await?))
}

//! `POST /v1/embeddings`: texts as vectors.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::response::Response;
use data_encoding::BASE64;
use serde::Serialize;

use super::fields::Fields;
use super::prompts::prompts;
use super::sampling::model;
use crate::app::App;
use crate::caller::Caller;
use crate::completion::{Embedding, EmbeddingRequest, Norm, Prompt};
use crate::http::body::long_json;
use crate::http::error::ApiError;
use crate::http::fields::TOKENS_MAX;
use crate::known::Endpoint;

/// OpenAI's limit.
const TEXTS_MAX: usize = 2048;
/// The highest power of a norm: beyond it numbers of one row vanish.
const NORM_MAX: i64 = 100;

/// What is asked, besides the client and how long the model is kept.
struct Asked {
    model: String,
    texts: Vec<Prompt>,
    is_base64: bool,
    dimensions: Option<usize>,
    norm: Norm,
}

/// llama-server's `embd_normalize`: the length that becomes one.
///
/// # Errors
/// 400 if there is no such length.
pub(crate) fn norm(fields: &mut Fields) -> Result<Norm, ApiError> {
    Ok(match fields.integer("embd_normalize", -1..=NORM_MAX)? {
        None | Some(2) => Norm::Euclidean,
        Some(-1) => Norm::Kept,
        Some(0) => Norm::Largest,
        Some(power) => Norm::Power(power as u32),
    })
}

impl Asked {
    fn read(mut fields: Fields) -> Result<Self, ApiError> {
        fields.settle(Endpoint::Embeddings)?;
        let encoding = fields.word("encoding_format", &["float", "base64"])?;
        let model = model(&mut fields)?;
        let dimensions = fields.count("dimensions", 1..=TOKENS_MAX)?;
        let texts = prompts("input", fields.take("input"), TEXTS_MAX)?;
        let norm = norm(&mut fields)?;
        fields.finish();
        let is_base64 = encoding.as_deref() == Some("base64");
        Ok(Self { model, texts, is_base64, dimensions, norm })
    }
}

#[derive(Serialize)]
struct Answer {
    object: &'static str,
    data: Vec<Entry>,
    model: String,
    usage: Usage,
}

#[derive(Serialize)]
struct Usage {
    prompt_tokens: usize,
    total_tokens: usize,
}

#[derive(Serialize)]
struct Entry {
    object: &'static str,
    index: usize,
    embedding: Vector,
}

#[derive(Serialize)]
#[serde(untagged)]
enum Vector {
    Floats(Vec<f32>),
    Base64(String),
}

pub(super) async fn create(
    State(app): State<Arc<App>>,
    request: Request,
) -> Result<Response, ApiError> {
    let caller = Caller::of(&app, &request);
    let Asked { model, texts, is_base64, dimensions, norm } =
        app.intake.read_as(request, Asked::read).await?;
    let model = caller.serve_if_found(&app, model, None).await?;
    let request = EmbeddingRequest {
        model: model.clone(),
        texts,
        truncates: false,
        dimensions,
        norm,
        client: caller.number,
        keep_alive: None,
    };
    let embeddings = app.completer.embed(request).await?;
    let tokens: usize = embeddings.iter().map(|embedding| embedding.prompt_tokens).sum();
    let entry = |(index, Embedding { values, .. })| {
        let embedding = if is_base64 { base64(&values) } else { Vector::Floats(values) };
        Entry { object: "embedding", index, embedding }
    };
    long_json(Answer {
        object: "list",
        data: embeddings.into_iter().enumerate().map(entry).collect(),
        model,
        usage: Usage { prompt_tokens: tokens, total_tokens: tokens },
    })
    .await
}

/// The values' bytes as little-endian f32, in base64.
fn base64(values: &[f32]) -> Vector {
    let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
    Vector::Base64(BASE64.encode(&bytes))
}

//! `POST /v1/embeddings`: texts as vectors.

use std::sync::Arc;

use axum::Json;
use axum::extract::{Request, State};
use data_encoding::BASE64;
use serde_json::{Value, json};

use super::fields::{Fields, Refused};
use super::prompts::prompts;
use super::sampling::model;
use crate::app::App;
use crate::caller::Caller;
use crate::completion::{Embedding, EmbeddingRequest};
use crate::http::error::ApiError;

/// OpenAI's limit.
const TEXTS_MAX: usize = 2048;

const REFUSED: &[Refused] = &[Refused {
    name: "dimensions",
    why: "vectors are as wide as the model makes them. Leave it out and shorten them yourself",
}];

pub(super) async fn create(
    State(app): State<Arc<App>>,
    request: Request,
) -> Result<Json<Value>, ApiError> {
    let caller = Caller::of(&app, &request);
    let mut fields: Fields = app.intake.read_json(request).await?;
    fields.refuse(REFUSED)?;
    let encoding = fields.word("encoding_format", &["float", "base64"])?;
    let model = model(&mut fields)?;
    let texts = prompts("input", fields.take("input"), TEXTS_MAX)?;
    fields.ignore(&["user"]);
    fields.finish();
    let model = caller.serve_if_found(&app, model, None).await?;
    let request = EmbeddingRequest {
        model: model.clone(),
        texts,
        truncates: false,
        client: caller.number,
        keep_alive: None,
    };
    let embeddings = app.completer.embed(request).await?;
    let tokens: usize = embeddings.iter().map(|embedding| embedding.prompt_tokens).sum();
    let is_base64 = encoding.as_deref() == Some("base64");
    let data: Vec<Value> = embeddings
        .iter()
        .enumerate()
        .map(|(index, embedding)| {
            let values = if is_base64 { base64(embedding) } else { json!(embedding.values) };
            json!({ "object": "embedding", "index": index, "embedding": values })
        })
        .collect();
    Ok(Json(json!({
        "object": "list",
        "data": data,
        "model": model,
        "usage": { "prompt_tokens": tokens, "total_tokens": tokens },
    })))
}

/// The values' bytes as little-endian f32, in base64.
fn base64(embedding: &Embedding) -> Value {
    let bytes: Vec<u8> = embedding.values.iter().flat_map(|value| value.to_le_bytes()).collect();
    json!(BASE64.encode(&bytes))
}

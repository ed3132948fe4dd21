//! The OpenAI dialect under `/v1`: what the `openai` client libraries, and the many programs built
//! on them, send and expect.
//!
//! Source: OpenAI's API reference, and what its Python client 3.52 really sends. Beyond it:
//! `top_k`, `min_p`, `repetition_penalty`, `min_tokens`, `ignore_eos`, `chat_template_kwargs` and
//! `structured_outputs` as vLLM has them, `reasoning_content` as DeepSeek has it, and
//! llama-server's `timings`. Fields that are not known are ignored, because clients send more each
//! month; fields that are known and cannot be honoured are refused by name.

mod answers;
mod chat;
mod completions;
mod embeddings;
mod error;
mod fields;
mod format;
mod logprobs;
mod message;
mod models;
mod request;
mod response;
mod responses;
mod sampling;
mod tools;

use std::sync::Arc;

use axum::Router;
use axum::routing::{get, post};

use crate::app::App;

/// The routes, without what guards them.
pub(crate) fn routes() -> Router<Arc<App>> {
    Router::new()
        .route("/v1/chat/completions", post(chat::complete))
        .route("/v1/completions", post(completions::complete))
        .route("/v1/embeddings", post(embeddings::create))
        .route("/v1/responses", post(responses::create))
        .route("/v1/responses/input_tokens", post(responses::count))
        .route("/v1/responses/{*id}", get(responses::not_kept).delete(responses::not_kept))
        .route("/v1/models", get(models::list))
        .route("/v1/models/{*id}", get(models::show))
}

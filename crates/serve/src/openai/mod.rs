//! The OpenAI dialect under `/v1`, for the `openai` client libraries and the many programs built on
//! them.
//!
//! Source: OpenAI's API reference, and the requests of its Python client 3.52. Extensions: vLLM's
//! `top_k`, `min_p`, `repetition_penalty`, `min_tokens`, `ignore_eos`, `chat_template_kwargs` and
//! `structured_outputs`, DeepSeek's `reasoning_content`, and llama-server's `timings`. Its
//! fields are in the table of [`crate::known`].

pub(crate) mod answers;
mod chat;
mod completions;
mod count;
mod custom;
pub(crate) mod embeddings;
pub(crate) mod error;
pub(crate) mod fields;
pub(crate) mod format;
mod logprobs;
mod message;
mod models;
pub(crate) mod prompts;
pub(crate) mod request;
mod rerank;
pub(crate) mod response;
mod responses;
pub(crate) mod samplers;
mod sampling;
mod tools;

use std::sync::Arc;

use axum::Router;
use axum::routing::{get, post};

use crate::app::App;

/// The routes, without the guard.
pub(crate) fn routes() -> Router<Arc<App>> {
    Router::new()
        .route("/v1/chat/completions", post(chat::complete))
        .route("/v1/chat/completions/input_tokens", post(count::of_chat))
        .route("/v1/completions", post(completions::complete))
        .route("/v1/embeddings", post(embeddings::create))
        .route("/v1/responses", post(responses::create))
        .route("/v1/responses/input_tokens", post(count::of_response))
        .route("/v1/responses/{*id}", get(responses::not_kept).delete(responses::not_kept))
        .route("/v1/models", get(models::list))
        .route("/v1/models/{*id}", get(models::show))
        .route("/v1/rerank", post(rerank::rerank))
        .route("/v1/reranking", post(rerank::rerank))
        .route("/v2/rerank", post(rerank::rerank))
        // Many clients are configured with a base that lacks `/v1`.
        .route("/chat/completions", post(chat::complete))
        .route("/chat/completions/input_tokens", post(count::of_chat))
        .route("/completions", post(completions::complete))
        .route("/embeddings", post(embeddings::create))
        .route("/rerank", post(rerank::rerank))
        .route("/reranking", post(rerank::rerank))
        .route("/models", get(models::list))
        .route("/models/{*id}", get(models::show))
}

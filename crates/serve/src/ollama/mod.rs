//! The Ollama dialect under `/api`, for the `ollama` client libraries and the many programs that
//! discover models of a running Ollama.
//!
//! Source: Ollama's API documentation, and the requests of its Python client 0.6. Unknown fields
//! are ignored, because clients send new ones each month. Unknown options and unsupported features
//! are rejected by name; `docs/api.md` lists them.
//!
//! A request loads an unloaded model, and `keep_alive` sets how long a model stays loaded without
//! requests.

mod answer;
mod chat;
mod create;
mod embed;
mod generate;
mod message;
mod models;
mod options;
mod pull;
mod request;
mod show;

use std::sync::Arc;

use axum::Router;
use axum::routing::{delete, get, post};
use serde_json::{Value, json};

use crate::app::App;
use crate::http::error::ApiError;

/// The routes, without the guard.
pub(crate) fn routes() -> Router<Arc<App>> {
    Router::new()
        .route("/api/version", get(models::version))
        .route("/api/tags", get(models::tags))
        .route("/api/ps", get(models::ps))
        .route("/api/show", post(show::show))
        .route("/api/chat", post(chat::chat))
        .route("/api/generate", post(generate::generate))
        .route("/api/embed", post(embed::embed))
        .route("/api/embeddings", post(embed::embed_one))
        .route("/api/pull", post(pull::pull))
        .route("/api/delete", delete(pull::delete))
        .route("/api/create", post(create::create))
        .route("/api/copy", post(create::copy))
        .route("/api/push", post(create::push))
}

/// An error in Ollama's format: `{"error": "text"}`, as a body or as a line of a stream.
pub(crate) fn error_body(error: &ApiError) -> Value {
    json!({ "error": error.message })
}

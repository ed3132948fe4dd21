//! The Ollama dialect under `/api`: what the `ollama` client libraries, and the many programs that
//! find models by themselves where Ollama runs, send and expect.
//!
//! Source: Ollama's API documentation, and what its Python client 0.6 really sends. Fields that
//! are not known are ignored, because clients send more each month; options that are not known,
//! and whatever is known and cannot be honoured, are refused by name. `docs/api.md` lists them.
//!
//! A request loads what is unloaded, and `keep_alive` says for how long a model stays that nobody
//! asks for anything.

mod answer;
mod chat;
mod embed;
mod generate;
mod message;
mod models;
mod options;
mod pull;
mod refuse;
mod request;
mod show;

use std::sync::Arc;

use axum::Router;
use axum::routing::{delete, get, post};
use serde_json::{Value, json};

use crate::app::App;
use crate::http::error::ApiError;

/// The routes, without what guards them.
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
        .route("/api/create", post(refuse::store))
        .route("/api/copy", post(refuse::store))
        .route("/api/push", post(refuse::store))
}

/// An error as Ollama's clients read it: `{"error": "text"}`, as a body or as a line of a stream.
pub(crate) fn error_body(error: &ApiError) -> Value {
    json!({ "error": error.message })
}

//! The Anthropic dialect under `/v1/messages`, for the `anthropic` client libraries and Claude
//! Code.
//!
//! Source: Anthropic's API reference (messages, count tokens, streaming, errors), and the requests
//! of its Python client 2.11 and Claude Code 2.1. Its fields are in the table of
//! [`crate::known`].

mod content;
mod count;
mod error;
mod events;
mod message;
mod messages;
mod request;
mod response;
mod tools;

use std::sync::Arc;

use axum::Router;
use axum::routing::post;

use crate::app::App;

pub(crate) use error::{RequestId, error_body};

/// The routes, without the guard.
pub(crate) fn routes() -> Router<Arc<App>> {
    Router::new()
        .route("/v1/messages", post(messages::create))
        .route("/v1/messages/count_tokens", post(count::count))
}

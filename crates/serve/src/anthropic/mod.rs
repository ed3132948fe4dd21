//! The Anthropic dialect under `/v1/messages`: what the `anthropic` client libraries and Claude
//! Code send and expect.
//!
//! Source: Anthropic's API reference (messages, count tokens, streaming, errors), and what its
//! Python client 2.11 and Claude Code 2.1 really send. Fields that are not known are ignored,
//! because clients send more each month; fields that are known and cannot be honoured are refused
//! by name; `docs/api.md` lists those that have no effect here.

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

/// The routes, without what guards them.
pub(crate) fn routes() -> Router<Arc<App>> {
    Router::new()
        .route("/v1/messages", post(messages::create))
        .route("/v1/messages/count_tokens", post(count::count))
}

//! The dialect of llama.cpp's `llama-server`, for code completion in editors, chat front ends and
//! scripts.
//!
//! Source: the documentation of `llama-server`, its tests, and the requests of llama.vim and
//! Continue. A request without a model's name goes to the only model that is served. Its
//! fields are in the table of [`crate::known`].

mod answer;
mod completion;
mod embedding;
mod infill;
mod request;
mod sampling;
mod settings;
mod slots;
mod tokens;

use std::sync::Arc;

use axum::Router;
use axum::http::StatusCode;
use axum::routing::{get, post};
use serde_json::{Value, json};

use crate::app::App;
use crate::http::error::ApiError;

/// The paths of this dialect, below which its errors are sent.
pub(crate) const PATHS: &[&str] = &[
    "/apply-template",
    "/completion",
    "/detokenize",
    "/embedding",
    "/infill",
    "/props",
    "/slots",
    "/tokenize",
];

/// The routes, without the guard.
pub(crate) fn routes() -> Router<Arc<App>> {
    Router::new()
        .route("/completion", post(completion::complete))
        .route("/infill", post(infill::complete))
        .route("/embedding", post(embedding::embed))
        .route("/tokenize", post(tokens::tokenize))
        .route("/detokenize", post(tokens::detokenize))
        .route("/apply-template", post(tokens::apply_template))
        .route("/props", get(slots::props))
        .route("/slots", get(slots::slots))
}

/// An error in `llama-server`'s format: `{"error": {code, message, type}}`, where `code` is the
/// status.
pub(crate) fn error_body(error: &ApiError) -> Value {
    let kind = match error.status {
        _ if error.size.is_some() => "exceed_context_size_error",
        StatusCode::UNAUTHORIZED => "authentication_error",
        StatusCode::FORBIDDEN => "permission_error",
        StatusCode::NOT_FOUND => "not_found_error",
        StatusCode::NOT_IMPLEMENTED => "not_supported_error",
        StatusCode::SERVICE_UNAVAILABLE | StatusCode::TOO_MANY_REQUESTS => "unavailable_error",
        status if status.is_client_error() => "invalid_request_error",
        _ => "server_error",
    };
    let mut body = json!({
        "code": error.status.as_u16(),
        "message": error.message,
        "type": kind,
        "param": error.param,
    });
    error.write_size(&mut body);
    json!({ "error": body })
}

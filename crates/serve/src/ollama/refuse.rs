//! Unsupported features of Ollama: refused with an alternative.

use axum::http::StatusCode;

use crate::http::error::ApiError;

pub(super) async fn store() -> ApiError {
    let message = "models are served from GGUF files as they are: \"sinew serve FILE\"";
    ApiError::server(StatusCode::NOT_IMPLEMENTED, "not_implemented", message)
}

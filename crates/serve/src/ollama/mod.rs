//! The Ollama dialect under `/api`.

use serde_json::{Value, json};

use crate::http::error::ApiError;

/// An error as Ollama's clients read it: `{"error": "text"}`, as a body or as a line of a stream.
pub(crate) fn error_body(error: &ApiError) -> Value {
    json!({ "error": error.message })
}

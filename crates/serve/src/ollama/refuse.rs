//! What Ollama has and this node does not: each said plainly, with what to do instead.

use std::sync::Arc;

use axum::Json;
use axum::extract::{Request, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use serde::Deserialize;
use serde_json::json;

use super::request::served_name;
use crate::app::App;
use crate::http::error::ApiError;

#[derive(Debug, Deserialize)]
struct Named {
    model: Option<String>,
    /// The field's older name.
    name: Option<String>,
}

/// A model that is served is there already.
pub(super) async fn pull(
    State(app): State<Arc<App>>,
    request: Request,
) -> Result<Response, ApiError> {
    let request: Named = app.intake.read_json(request).await?;
    let asked = request.model.or(request.name).unwrap_or_default();
    if app.completer.find(&served_name(&app, &asked)).await.is_ok() {
        return Ok(Json(json!({ "status": "success" })).into_response());
    }
    Err(absent(format!(
        "{asked:?} is not served here, and models are not downloaded by name in this version. Put \
         its GGUF file on a node and run \"sinew serve FILE\""
    )))
}

pub(super) async fn delete() -> ApiError {
    absent(
        "models are not deleted by requests: a model's file belongs to the owner of its node. \
         \"sinew stop MODEL\" ends serving it",
    )
}

pub(super) async fn store() -> ApiError {
    absent("models are served from GGUF files as they are: \"sinew serve FILE\"")
}

fn absent(message: impl Into<String>) -> ApiError {
    ApiError::server(StatusCode::NOT_IMPLEMENTED, "not_implemented", message)
}

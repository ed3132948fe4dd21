//! `POST /v1/chat/completions/input_tokens` and `POST /v1/responses/input_tokens`: count a prompt's
//! tokens without running the model.

use std::sync::Arc;

use axum::Json;
use axum::extract::{Request, State};
use serde_json::{Value, json};

use super::error::at;
use super::request::ChatRequest;
use super::responses::ResponseRequest;
use crate::app::App;
use crate::caller::Caller;
use crate::completion::CompletionRequest;
use crate::http::error::ApiError;

pub(super) async fn of_chat(
    State(app): State<Arc<App>>,
    request: Request,
) -> Result<Json<Value>, ApiError> {
    let caller = Caller::of(&app, &request);
    let asked = app.intake.read_as(request, ChatRequest::read).await?;
    count(&app, caller, asked.completion, "messages").await
}

pub(super) async fn of_response(
    State(app): State<Arc<App>>,
    request: Request,
) -> Result<Json<Value>, ApiError> {
    let caller = Caller::of(&app, &request);
    let asked = app.intake.read_as(request, ResponseRequest::read).await?;
    count(&app, caller, asked.completion, "input").await
}

/// The count of a prompt, which the request has in `field`.
async fn count(
    app: &Arc<App>,
    caller: Caller,
    completion: CompletionRequest,
    field: &'static str,
) -> Result<Json<Value>, ApiError> {
    let asked = caller.asks(app, completion).await?;
    let tokens = app.completer.count_tokens(&asked.model, asked.prompt).await;
    let tokens = tokens.map_err(at(field))?;
    Ok(Json(json!({ "object": "response.input_tokens", "input_tokens": tokens })))
}

//! `POST /v1/messages/count_tokens`: counts a prompt's tokens without running the model.

use std::sync::Arc;

use axum::Json;
use axum::extract::{Request, State};
use serde::Serialize;

use super::request::MessagesRequest;
use crate::app::App;
use crate::caller::Caller;
use crate::http::error::ApiError;

#[derive(Serialize)]
pub(super) struct Count {
    input_tokens: usize,
}

pub(super) async fn count(
    State(app): State<Arc<App>>,
    request: Request,
) -> Result<Json<Count>, ApiError> {
    let caller = Caller::of(&app, &request);
    let read = |fields| MessagesRequest::read(fields)?.into_prompt();
    let (model, prompt) = app.intake.read_as(request, read).await?;
    let model = caller.serve_if_found(&app, model, None).await?;
    let input_tokens = app.completer.count_tokens(&model, prompt).await?;
    Ok(Json(Count { input_tokens }))
}

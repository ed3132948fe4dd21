//! `POST /v1/responses`: OpenAI's newer API, used by its clients and Codex.
//!
//! Nothing is stored between requests. References to an earlier response are rejected by name, and
//! clients send the whole conversation, including thoughts, each time.

mod events;
mod input;
mod namespace;
mod output;
mod request;

use std::sync::Arc;

use axum::Json;
use axum::extract::{Path, Request, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};

use super::answers::Answers;
use super::error::at;
use crate::app::App;
use crate::caller::Caller;
use crate::http::error::ApiError;
use events::Events;
use output::Output;
pub(super) use request::ResponseRequest;

pub(super) async fn create(
    State(app): State<Arc<App>>,
    request: Request,
) -> Result<Response, ApiError> {
    let caller = Caller::of(&app, &request);
    let asked = app.intake.read_as(request, ResponseRequest::read).await?;
    let completion = caller.asks(&app, asked.completion).await?;
    let answer = app.completer.start(completion).await.map_err(at("input"))?;
    let answers = Answers::new(vec![answer], 1);
    if asked.stream {
        let events = Events::new(asked.told, asked.wants, asked.names);
        return Ok(answers.respond(events, app.config.limits.keep_alive).await?);
    }
    let (gathered, outcome) = answers.gather().await?;
    let mut output = Output::new(asked.wants, asked.names);
    for part in gathered.into_iter().flat_map(|one| one.parts) {
        output.part(part, &mut |_, _| {});
    }
    output.close(&outcome.finish, &mut |_, _| {});
    Ok(Json(asked.told.finished(&outcome, output.items)).into_response())
}

/// Handles requests for an earlier response.
pub(super) async fn not_kept(Path(id): Path<String>) -> ApiError {
    let id = super::fields::shown(&id).to_owned();
    let message = format!("{id}: responses are not kept here. Send the conversation again instead");
    ApiError::request(StatusCode::NOT_FOUND, "response_not_found", message)
}

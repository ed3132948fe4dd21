//! `POST /completion`: continues a text.

use std::sync::Arc;

use axum::Json;
use axum::extract::{Request, State};
use axum::response::{IntoResponse, Response};
use serde_json::Value;

use super::answer::{Events, Teller};
use super::request::{ANSWERS_MAX, Asked, Wants};
use super::settings::generation_settings;
use crate::app::App;
use crate::caller::Caller;
use crate::completion::{CompletionRequest, Prompt};
use crate::http::error::ApiError;
use crate::known::Endpoint;
use crate::openai::answers::Answers;
use crate::openai::error::at;
use crate::openai::fields::Fields;
use crate::openai::prompts::prompts;

/// Prompts per request; each takes a place in the queue.
const PROMPTS_MAX: usize = 128;

pub(super) async fn complete(
    State(app): State<Arc<App>>,
    request: Request,
) -> Result<Response, ApiError> {
    let caller = Caller::of(&app, &request);
    let read = |mut fields: Fields| {
        fields.settle(Endpoint::Completion)?;
        let prompts = prompts("prompt", fields.take("prompt"), PROMPTS_MAX)?;
        let asked = Asked::read(&mut fields)?;
        fields.finish();
        Ok((asked, prompts))
    };
    let (asked, prompts) = app.intake.read_as(request, read).await?;
    let (completion, answers, wants) = asked.into_request(&app, caller).await?;
    respond(&app, completion, prompts, answers, wants).await
}

/// Starts `per_prompt` answers to each prompt and returns them.
///
/// # Errors
/// Any failure before the first event.
pub(super) async fn respond(
    app: &App,
    completion: CompletionRequest,
    prompts: Vec<Prompt>,
    per_prompt: usize,
    wants: Wants,
) -> Result<Response, ApiError> {
    let all = prompts.len() * per_prompt;
    if all > ANSWERS_MAX {
        let message = format!("n_cmpl answers to each prompt are {all}; {ANSWERS_MAX} fit");
        return Err(ApiError::invalid_value("n_cmpl", message));
    }
    let model = app.completer.model(&completion.model).await?;
    let context_tokens = app.completer.find(&completion.model).await?.context_tokens;
    let settings = generation_settings(&completion, &wants, &model);
    let mut started = Vec::with_capacity(all);
    for prompt in prompts {
        let one = CompletionRequest { prompt, ..completion.clone() };
        let answers = app.completer.start_several(one, per_prompt).await;
        started.extend(answers.map_err(at("prompt"))?);
    }
    let teller = Teller {
        has_probs: completion.logprobs.is_some(),
        model_name: completion.model,
        context_tokens,
        settings,
        prompts: started.iter().map(|answer| answer.prompt()).collect(),
        model,
        wants,
    };
    let answers = Answers::new(started, per_prompt);
    if teller.wants.stream {
        let keep_alive = app.config.limits.keep_alive;
        return Ok(answers.respond(Events::new(teller), keep_alive).await?);
    }
    let (gathered, _) = answers.gather().await?;
    let answers = gathered.into_iter().enumerate();
    let mut answers: Vec<Value> =
        answers.map(|(index, answer)| teller.whole(index, answer)).collect();
    // One answer stands alone.
    let body = if answers.len() == 1 { answers.remove(0) } else { Value::Array(answers) };
    Ok(Json(body).into_response())
}

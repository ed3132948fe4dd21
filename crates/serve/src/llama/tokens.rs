//! `/tokenize`, `/detokenize` and `/apply-template`: the text side of a model, without running it.

use std::sync::Arc;

use axum::Json;
use axum::extract::{Request, State};
use serde_json::{Value, json};
use text::Special;

use crate::app::App;
use crate::caller::Caller;
use crate::http::error::ApiError;
use crate::openai::error::at;
use crate::openai::fields::Fields;
use crate::openai::prompts::prompt;
use crate::openai::request::ChatRequest;

pub(super) async fn tokenize(
    State(app): State<Arc<App>>,
    request: Request,
) -> Result<Json<Value>, ApiError> {
    let caller = Caller::of(&app, &request);
    let mut fields: Fields = app.intake.read_json(request).await?;
    let content = fields.take("content").unwrap_or_default();
    let content = if content.is_null() { "".into() } else { content };
    let content = prompt("content", content)?;
    let add_bos = fields.flag("add_special")?;
    let parses = fields.read::<bool>("parse_special")?.unwrap_or(true);
    let with_pieces = fields.flag("with_pieces")?;
    let model = caller.serve_or_only(&app, fields.read("model")?).await?;
    fields.finish();
    let model = app.completer.model(&model).await?;
    let special = if parses { Special::Parse } else { Special::Plain };
    let tokens = app.completer.tokenize(&model, content, special, add_bos).await?;
    let piece = |token: u32| {
        let bytes = model.tokenizer.token_bytes(token);
        let piece = std::str::from_utf8(bytes).map_or_else(|_| json!(bytes), Value::from);
        json!({ "id": token, "piece": piece })
    };
    let tokens = match with_pieces {
        true => tokens.into_iter().map(piece).collect(),
        false => json!(tokens),
    };
    Ok(Json(json!({ "tokens": tokens })))
}

pub(super) async fn detokenize(
    State(app): State<Arc<App>>,
    request: Request,
) -> Result<Json<Value>, ApiError> {
    let caller = Caller::of(&app, &request);
    let mut fields: Fields = app.intake.read_json(request).await?;
    let tokens: Vec<u32> = fields.read("tokens")?.unwrap_or_default();
    let model = caller.serve_or_only(&app, fields.read("model")?).await?;
    fields.finish();
    let model = app.completer.model(&model).await?;
    let known = model.tokenizer.len();
    if let Some(token) = tokens.iter().find(|token| **token as usize >= known) {
        let message = format!("tokens has {token}, and the vocabulary has {known} tokens");
        return Err(ApiError::invalid_value("tokens", message));
    }
    let mut stream = text::TextStream::continuing(&*model.tokenizer).with_special();
    let mut content: String = tokens.iter().map(|token| stream.push(*token)).collect();
    content.push_str(&stream.finish());
    Ok(Json(json!({ "content": content })))
}

/// The prompt that a chat completion with these fields would have.
pub(super) async fn apply_template(
    State(app): State<Arc<App>>,
    request: Request,
) -> Result<Json<Value>, ApiError> {
    let caller = Caller::of(&app, &request);
    let asked = app.intake.read_as(request, ChatRequest::read).await?;
    let (model, prompt) = (asked.completion.model, asked.completion.prompt);
    let model = caller.serve_or_only(&app, Some(model)).await?;
    let prompt = app.completer.rendered(&model, prompt).await.map_err(at("messages"))?;
    Ok(Json(json!({ "prompt": prompt })))
}

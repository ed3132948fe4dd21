//! `/tokenize`, `/detokenize` and `/apply-template`: the text side of a model, without running it.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::response::Response;
use protocol::Token;
use serde::{Serialize, Serializer};
use text::Special;

use crate::app::App;
use crate::caller::Caller;
use crate::completion::{Prompt, TextModel};
use crate::http::body::long_json;
use crate::http::error::ApiError;
use crate::openai::error::at;
use crate::openai::fields::Fields;
use crate::openai::prompts::prompt;
use crate::openai::request::ChatRequest;

/// What `/tokenize` is asked.
struct Asked {
    content: Prompt,
    add_special: bool,
    special: Special,
    with_pieces: bool,
    model: Option<String>,
}

impl Asked {
    fn read(mut fields: Fields) -> Result<Self, ApiError> {
        let content = fields.take("content").unwrap_or_default();
        let content = if content.is_null() { "".into() } else { content };
        let parses = fields.read::<bool>("parse_special")?.unwrap_or(true);
        let asked = Self {
            content: prompt("content", content)?,
            add_special: fields.flag("add_special")?,
            special: if parses { Special::Parse } else { Special::Plain },
            with_pieces: fields.flag("with_pieces")?,
            model: fields.read("model")?,
        };
        fields.finish();
        Ok(asked)
    }
}

/// Tokens, alone or with their texts.
struct Tokens {
    tokens: Vec<Token>,
    /// The model, if the texts are wanted.
    pieces: Option<Arc<TextModel>>,
}

/// A token and its text; its bytes, if they are no text.
#[derive(Serialize)]
struct Piece<'t> {
    id: Token,
    piece: Bytes<'t>,
}

#[derive(Serialize)]
#[serde(untagged)]
enum Bytes<'t> {
    Text(&'t str),
    Others(&'t [u8]),
}

impl Serialize for Tokens {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let Some(model) = &self.pieces else { return self.tokens.serialize(serializer) };
        serializer.collect_seq(self.tokens.iter().map(|&id| {
            let bytes = model.tokenizer.token_bytes(id);
            let piece = std::str::from_utf8(bytes).map_or(Bytes::Others(bytes), Bytes::Text);
            Piece { id, piece }
        }))
    }
}

#[derive(Serialize)]
struct Tokenized {
    tokens: Tokens,
}

#[derive(Serialize)]
struct Detokenized {
    content: String,
}

#[derive(Serialize)]
struct Rendered {
    prompt: String,
}

pub(super) async fn tokenize(
    State(app): State<Arc<App>>,
    request: Request,
) -> Result<Response, ApiError> {
    let caller = Caller::of(&app, &request);
    let asked = app.intake.read_as(request, Asked::read).await?;
    let model = caller.serve_or_only(&app, asked.model.clone()).await?;
    let model = app.completer.model(&model).await?;
    let Asked { content, special, add_special, with_pieces, .. } = asked;
    let tokens = app.completer.tokenize(&model, content, special, add_special).await?;
    let pieces = with_pieces.then_some(model);
    long_json(Tokenized { tokens: Tokens { tokens, pieces } }).await
}

pub(super) async fn detokenize(
    State(app): State<Arc<App>>,
    request: Request,
) -> Result<Response, ApiError> {
    let caller = Caller::of(&app, &request);
    let read = |mut fields: Fields| {
        let tokens: Vec<Token> = fields.read("tokens")?.unwrap_or_default();
        let model: Option<String> = fields.read("model")?;
        fields.finish();
        Ok((tokens, model))
    };
    let (tokens, model) = app.intake.read_as(request, read).await?;
    let model = caller.serve_or_only(&app, model).await?;
    let model = app.completer.model(&model).await?;
    let known = model.tokenizer.len();
    if let Some(token) = tokens.iter().find(|token| **token as usize >= known) {
        let message = format!("tokens has {token}, and the vocabulary has {known} tokens");
        return Err(ApiError::invalid_value("tokens", message));
    }
    long_json(Detokenized { content: app.completer.detokenize(&model, tokens).await? }).await
}

/// The prompt that a chat completion with these fields would have. For all but the owner a preset's
/// own words are left out.
pub(super) async fn apply_template(
    State(app): State<Arc<App>>,
    request: Request,
) -> Result<Response, ApiError> {
    let caller = Caller::of(&app, &request);
    let asked = app.intake.read_as(request, ChatRequest::read).await?;
    let (model, prompt) = (asked.completion.model, asked.completion.prompt);
    let model = caller.serve_or_only(&app, Some(model)).await?;
    let is_owner = caller.is_owner(&app).await;
    let prompt = app.completer.rendered(&model, prompt, is_owner).await.map_err(at("messages"))?;
    long_json(Rendered { prompt }).await
}

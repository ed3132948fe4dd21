//! `POST /v1/rerank` and its other names: texts in the order in which they answer a query.
//!
//! Source: the API references of Cohere and Jina, llama-server and Hugging Face's
//! text-embeddings-inference, whose clients name the list `texts` and expect a bare list.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::response::Response;
use serde::Serialize;
use serde_json::Value;

use super::fields::Fields;
use super::response::new_id;
use super::sampling::model;
use crate::app::App;
use crate::caller::Caller;
use crate::completion::{RankRequest, Ranked};
use crate::http::body::long_json;
use crate::http::error::ApiError;
use crate::http::fields::TOKENS_MAX;
use crate::known::Endpoint;

/// Documents of one request: Cohere's limit is 1000, and Jina's 2048.
const DOCUMENTS_MAX: usize = 2048;

/// What is asked, besides the client.
struct Asked {
    request: RankRequest,
    /// The most results.
    top_n: usize,
    /// Whether results have their texts.
    returns_texts: bool,
    /// Whether the list was called `texts`.
    is_bare: bool,
}

impl Asked {
    fn read(mut fields: Fields) -> Result<Self, ApiError> {
        fields.settle(Endpoint::Rerank)?;
        let model = model(&mut fields)?;
        let query: Option<String> = fields.read("query")?;
        let query =
            query.ok_or_else(|| ApiError::invalid_value("query", "query must be a text"))?;
        let (documents, texts) = (fields.take("documents"), fields.take("texts"));
        let is_bare = documents.is_none() && texts.is_some();
        let name = if is_bare { "texts" } else { "documents" };
        let documents = documents_of(name, documents.or(texts).unwrap_or_default())?;
        let all = documents.len();
        let top_n = fields.count("top_n", 1..=TOKENS_MAX)?.unwrap_or(all);
        let returns = [fields.flag("return_documents")?, fields.flag("return_text")?];
        let request = RankRequest {
            model,
            query,
            documents,
            instruction: fields.read("instruction")?,
            truncates: fields.read("truncate")?.unwrap_or(true),
            tokens_max: fields.count("max_tokens_per_doc", 1..=TOKENS_MAX)?,
            raw: fields.flag("raw_scores")?,
            client: 0,
        };
        fields.finish();
        Ok(Self { request, top_n, returns_texts: returns.contains(&true), is_bare })
    }
}

/// Texts, or objects with a text.
fn documents_of(name: &str, value: Value) -> Result<Vec<String>, ApiError> {
    let wrong = |message| ApiError::invalid_value(name, message);
    let Value::Array(values) = value else {
        return Err(wrong(format!("{name} must be a list of texts")));
    };
    if values.is_empty() || values.len() > DOCUMENTS_MAX {
        let found = values.len();
        let message = format!("{name} has {found} texts; 1 to {DOCUMENTS_MAX} are accepted");
        return Err(wrong(message));
    }
    let text = |(at, value): (usize, Value)| match value {
        Value::String(text) => Ok(text),
        Value::Object(mut object) => match object.remove("text") {
            Some(Value::String(text)) => Ok(text),
            _ => Err(format!("{name}[{at}] is an object without a text. Send its text")),
        },
        _ => Err(format!("{name}[{at}] is neither a text nor an object with one")),
    };
    values.into_iter().enumerate().map(|value| text(value).map_err(wrong)).collect()
}

/// Cohere reads `id` and `results`, Jina and llama-server the rest.
#[derive(Serialize)]
struct Answer {
    id: String,
    object: &'static str,
    model: String,
    usage: Usage,
    results: Vec<Entry>,
}

#[derive(Serialize)]
struct Usage {
    prompt_tokens: usize,
    total_tokens: usize,
}

#[derive(Serialize)]
struct Entry {
    index: usize,
    relevance_score: f32,
    #[serde(skip_serializing_if = "Option::is_none")]
    document: Option<Document>,
}

#[derive(Serialize)]
struct Document {
    text: String,
}

/// An entry of the bare list.
#[derive(Serialize)]
struct BareEntry {
    index: usize,
    score: f32,
    #[serde(skip_serializing_if = "Option::is_none")]
    text: Option<String>,
}

pub(super) async fn rerank(
    State(app): State<Arc<App>>,
    request: Request,
) -> Result<Response, ApiError> {
    let caller = Caller::of(&app, &request);
    let asked = app.intake.read_as(request, Asked::read).await?;
    let Asked { request, top_n, returns_texts, is_bare } = asked;
    let named = Some(request.model.clone());
    let model = caller.serve_or_only(&app, named).await?;
    let texts = if returns_texts { request.documents.clone() } else { Vec::new() };
    let request = RankRequest { model: model.clone(), client: caller.number, ..request };
    let ranked = app.completer.rank(request).await?;
    let tokens = ranked.iter().map(|one| one.prompt_tokens).sum();
    let best = ranked.into_iter().take(top_n);
    let text = |index: usize| texts.get(index).cloned();
    if is_bare {
        let entry = |Ranked { index, score, .. }| BareEntry { index, score, text: text(index) };
        return long_json(best.map(entry).collect::<Vec<_>>()).await;
    }
    let entry = |Ranked { index, score, .. }| Entry {
        index,
        relevance_score: score,
        document: text(index).map(|text| Document { text }),
    };
    long_json(Answer {
        id: new_id("rerank-"),
        object: "list",
        model,
        usage: Usage { prompt_tokens: tokens, total_tokens: tokens },
        results: best.map(entry).collect(),
    })
    .await
}

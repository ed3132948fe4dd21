//! `GET /v1/models`: one answer that suits both OpenAI's and Anthropic's clients.

use std::sync::Arc;

use axum::Json;
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, State};
use cluster::InstanceState;
use futures_util::future::join_all;
use serde::Serialize;

use super::error::unknown_model;
use crate::app::App;
use crate::clock::rfc3339;
use crate::completion::CompletionError;
use crate::http::error::ApiError;

/// OpenAI reads `object` and `data`; Anthropic reads the rest.
#[derive(Serialize)]
pub(super) struct ModelList {
    object: &'static str,
    data: Vec<Model>,
    has_more: bool,
    first_id: Option<String>,
    last_id: Option<String>,
}

/// OpenAI reads `id`, `object`, `created`, `owned_by`. Anthropic reads `id`, `type`,
/// `display_name`, `created_at`. Agents read the context size under either of its names.
#[derive(Serialize)]
pub(super) struct Model {
    id: String,
    object: &'static str,
    created: u64,
    owned_by: &'static str,
    #[serde(rename = "type")]
    kind: &'static str,
    display_name: String,
    created_at: String,
    context_length: usize,
    max_model_len: usize,
    /// Absent while the model's file is not known.
    #[serde(skip_serializing_if = "Option::is_none")]
    architecture: Option<Architecture>,
}

/// What a model reads and writes, as OpenRouter lists it.
#[derive(Serialize)]
struct Architecture {
    input_modalities: &'static [&'static str],
    output_modalities: &'static [&'static str],
}

impl Architecture {
    fn new(sees: bool) -> Self {
        let input_modalities = if sees { &["text", "image"][..] } else { &["text"] };
        Self { input_modalities, output_modalities: &["text"] }
    }
}

/// A dead node must not hang a client's model menu: what its models read is left out then.
pub(super) async fn list(State(app): State<Arc<App>>) -> Json<ModelList> {
    let data = served(&app).await;
    let first_id = data.first().map(|model| model.id.clone());
    let last_id = data.last().map(|model| model.id.clone());
    Json(ModelList { object: "list", data, has_more: false, first_id, last_id })
}

pub(super) async fn show(
    State(app): State<Arc<App>>,
    path: Result<Path<String>, PathRejection>,
) -> Result<Json<Model>, ApiError> {
    let Path(id) = path.map_err(|error| ApiError::invalid("invalid_path", error.body_text()))?;
    if let Err(error @ CompletionError::Unsettled { .. }) = app.completer.served(&id).await {
        return Err(error.into());
    }
    let models = served(&app).await;
    let names = models.iter().map(|model| model.id.clone()).collect();
    let found = models.into_iter().find(|model| model.id == id);
    found.map(Json).ok_or_else(|| unknown_model(id, names))
}

/// The models that can answer, each once, by name; failed ones are left out.
async fn served(app: &App) -> Vec<Model> {
    let mut instances = app.cluster.status().instances;
    instances.retain(|one| !matches!(one.state, InstanceState::Failed { .. }));
    instances.sort_by(|a, b| a.model.cmp(&b.model));
    instances.dedup_by(|a, b| a.model == b.model);
    let models = instances.into_iter().map(async |one| Model {
        id: one.model.clone(),
        object: "model",
        created: one.created_unix_s,
        owned_by: "sinew",
        kind: "model",
        created_at: rfc3339(one.created_unix_s),
        context_length: one.context_tokens,
        max_model_len: one.context_tokens,
        architecture: app.completer.sees(&one.id).await.map(Architecture::new),
        display_name: one.model,
    });
    join_all(models).await
}

//! `GET /v1/models`: one answer that suits both OpenAI's and Anthropic's clients.

use std::sync::Arc;

use axum::Json;
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, Request, State};
use cluster::InstanceState;
use futures_util::future::join_all;
use serde::Serialize;

use super::error::unknown_model;
use crate::app::App;
use crate::caller::Caller;
use crate::clock::rfc3339;
use crate::completion::{CompletionError, Purpose, usable};
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
#[derive(Clone, Serialize)]
pub(super) struct Model {
    id: String,
    object: &'static str,
    created: u64,
    owned_by: &'static str,
    #[serde(rename = "type")]
    kind: &'static str,
    display_name: String,
    created_at: String,
    /// Absent of a model that is not placed.
    #[serde(skip_serializing_if = "Option::is_none")]
    context_length: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    max_model_len: Option<usize>,
    status: Status,
    /// Absent while the model's file is not known.
    #[serde(skip_serializing_if = "Option::is_none")]
    architecture: Option<Architecture>,
}

/// Whether a model is loaded, as llama-server lists it.
#[derive(Clone, Serialize)]
struct Status {
    value: &'static str,
}

impl Status {
    /// `unloaded`: the next request loads it.
    fn of(state: &InstanceState) -> Self {
        let value = match state {
            InstanceState::Unloaded => "unloaded",
            InstanceState::Ready => "loaded",
            _ => "loading",
        };
        Self { value }
    }
}

/// What a model reads and writes, as OpenRouter lists it.
#[derive(Clone, Serialize)]
struct Architecture {
    input_modalities: &'static [&'static str],
    output_modalities: &'static [&'static str],
}

impl Architecture {
    fn new((sees, purpose): (bool, Purpose)) -> Self {
        let input_modalities = if sees { &["text", "image"][..] } else { &["text"] };
        let output_modalities = match purpose {
            Purpose::Answers => &["text"],
            Purpose::Embeddings => &["embeddings"],
            Purpose::Ranking => &["rerank"],
        };
        Self { input_modalities, output_modalities }
    }
}

/// A dead node must not hang a client's model menu: what its models read is left out then.
pub(super) async fn list(State(app): State<Arc<App>>, request: Request) -> Json<ModelList> {
    let data = listed(&app, Caller::of(&app, &request)).await;
    let first_id = data.first().map(|model| model.id.clone());
    let last_id = data.last().map(|model| model.id.clone());
    Json(ModelList { object: "list", data, has_more: false, first_id, last_id })
}

pub(super) async fn show(
    State(app): State<Arc<App>>,
    path: Result<Path<String>, PathRejection>,
    request: Request,
) -> Result<Json<Model>, ApiError> {
    let caller = Caller::of(&app, &request);
    let Path(id) = path.map_err(|error| ApiError::invalid("invalid_path", error.body_text()))?;
    if let Err(error @ CompletionError::Unsettled { .. }) = app.completer.served(&id).await {
        return Err(error.into());
    }
    let models = listed(&app, caller).await;
    let names = models.iter().map(|model| model.id.clone()).collect();
    let found = models.into_iter().find(|model| model.id == id);
    found.map(Json).ok_or_else(|| unknown_model(id, names))
}

/// The models that can answer, each once: the served ones, those that a request would load, and the
/// presets of both.
async fn listed(app: &App, caller: Caller) -> Vec<Model> {
    let unloaded = caller.loadable(app).await;
    let mut models = served(app).await;
    models.extend(unloaded.into_iter().map(|held| Model {
        id: held.listed.model.name.clone(),
        object: "model",
        created: 0,
        owned_by: "sinew",
        kind: "model",
        created_at: rfc3339(0),
        context_length: None,
        max_model_len: None,
        status: Status::of(&InstanceState::Unloaded),
        architecture: None,
        display_name: held.listed.model.name,
    }));
    for preset in app.cluster.presets().iter() {
        let of = models.iter().find(|model| model.id == preset.model);
        let name = || preset.name.clone();
        let listed = of.map(|of| Model { id: name(), display_name: name(), ..of.clone() });
        models.extend(listed);
    }
    models
}

/// The served models, by name; failed ones are left out.
async fn served(app: &App) -> Vec<Model> {
    let status = app.cluster.status();
    let usable = status.models().filter_map(|one| usable(&status, one));
    let mut instances: Vec<_> = usable.collect();
    instances.sort_by(|a, b| a.model.cmp(&b.model));
    instances.dedup_by(|a, b| a.model == b.model);
    let models = instances.into_iter().map(async |one| Model {
        id: one.model.clone(),
        object: "model",
        created: one.created_unix_s,
        owned_by: "sinew",
        kind: "model",
        created_at: rfc3339(one.created_unix_s),
        context_length: Some(one.context_tokens),
        max_model_len: Some(one.context_tokens),
        status: Status::of(&one.state),
        architecture: app.completer.use_of(&one.id).await.map(Architecture::new),
        display_name: one.model,
    });
    join_all(models).await
}

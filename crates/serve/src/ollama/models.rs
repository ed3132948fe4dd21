//! Lists of models: `/api/version`, `/api/tags`, `/api/ps`.

use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher};
use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::extract::{Request, State};
use cluster::{InstanceState, InstanceStatus};
use futures_util::future::join_all;
use protocol::KeepAlive;
use serde_json::{Value, json};

use super::show::details;
use crate::app::App;
use crate::caller::Caller;
use crate::clock::{rfc3339, unix_secs};
use crate::completion::usable;

/// The version of Ollama whose API this implements. Clients check it: Codex requires at least
/// 0.13.4.
const OLLAMA_VERSION: &str = "0.14.0";
/// Menus must not wait for a slow or dead node: its models are listed without details.
const DETAILS_WAIT: Duration = Duration::from_secs(1);
/// The expiry of models that stay loaded forever: clients expect a date.
const STAYS_SECS: u64 = 100 * 365 * 86_400;

pub(super) async fn version() -> Json<Value> {
    Json(json!({ "version": OLLAMA_VERSION }))
}

/// The served models, those that a request would load, and the presets of both.
pub(super) async fn tags(State(app): State<Arc<App>>, request: Request) -> Json<Value> {
    let caller = Caller::of(&app, &request);
    let unloaded = caller.loadable(&app).await;
    let models = served(&app).into_iter().map(async |one| {
        let mut model = entry(&app, &one).await;
        model["modified_at"] = rfc3339(one.created_unix_s).into();
        model
    });
    let mut models = join_all(models).await;
    models.extend(unloaded.into_iter().map(|held| {
        let model = held.listed.model;
        json!({
            "name": model.name,
            "model": model.name,
            "modified_at": rfc3339(0),
            "size": model.bytes,
            "digest": digest(&model.name),
            "details": details(None),
        })
    }));
    for preset in app.cluster.presets().iter() {
        let of = models.iter().find(|model| model["name"] == preset.model.as_str());
        let listed = of.cloned().map(|mut model| {
            model["name"] = preset.name.clone().into();
            model["model"] = preset.name.clone().into();
            model["digest"] = digest(&preset.name).into();
            model["details"]["parent_model"] = preset.model.clone().into();
            model
        });
        models.extend(listed);
    }
    Json(json!({ "models": models }))
}

pub(super) async fn ps(State(app): State<Arc<App>>) -> Json<Value> {
    let loaded = served(&app).into_iter().filter(|one| one.state != InstanceState::Unloaded);
    let models = loaded.map(async |one| {
        let mut model = entry(&app, &one).await;
        let keep = one.keep_alive.and_then(KeepAlive::limit).map(|keep| keep.as_secs());
        let stays = unix_secs() + keep.unwrap_or(STAYS_SECS);
        model["expires_at"] = rfc3339(one.unloads_at_unix_s.unwrap_or(stays)).into();
        // Shards are in the nodes' main memory.
        model["size_vram"] = 0.into();
        model["context_length"] = one.context_tokens.into();
        model
    });
    Json(json!({ "models": join_all(models).await }))
}

/// The instances that can answer, one per model; failed ones are left out.
fn served(app: &App) -> Vec<InstanceStatus> {
    let status = app.cluster.status();
    let mut found: Vec<_> = status.models().filter_map(|one| usable(&status, one)).collect();
    found.sort_by(|a, b| a.model.cmp(&b.model));
    found.dedup_by(|a, b| a.model == b.model);
    found
}

async fn entry(app: &App, one: &InstanceStatus) -> Value {
    let header = tokio::time::timeout(DETAILS_WAIT, app.cluster.model_header(&one.id)).await;
    let header = header.ok().and_then(Result::ok);
    json!({
        "name": one.model,
        "model": one.model,
        "size": match one.ranks.iter().map(|rank| rank.total_bytes).sum::<u64>() {
            0 => one.model_bytes,
            loaded => loaded,
        },
        "digest": digest(&one.id),
        "details": details(header.as_deref()),
    })
}

/// 64 hexadecimal digits, as clients expect. They identify the instance, not a file's content.
fn digest(id: &str) -> String {
    let hasher = BuildHasherDefault::<DefaultHasher>::default();
    (0..4).map(|part| format!("{:016x}", hasher.hash_one((part, id)))).collect()
}

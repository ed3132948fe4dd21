//! Models on the nodes' disks: list, fetch and delete.

use std::sync::Arc;

use axum::Json;
use axum::extract::{Request, State};
use axum::response::Response;
use cluster::{
    Forgotten, Found, Held, Identified, Library, ModelAbout, Offer, PullStage, PullStatus,
};
use futures_util::StreamExt;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::app::App;
use crate::http::error::ApiError;
use crate::http::stream::{Framing, Item, respond};

#[derive(Deserialize)]
struct Named {
    model: String,
}

#[derive(Deserialize)]
struct Pulled {
    model: String,
    /// Whether to fetch files again that have changed on the hub.
    #[serde(default)]
    update: bool,
    /// Whether the download goes on when the client has left, and after a restart of this node.
    #[serde(default)]
    goes_on: bool,
}

/// Every model on the nodes' disks, this machine's first.
pub(super) async fn list(State(app): State<Arc<App>>) -> Json<Vec<Held>> {
    Json(app.cluster.models().await)
}

/// What this cluster could serve: the models on its disks, and those with a short name.
pub(super) async fn library(State(app): State<Arc<App>>) -> Json<Library> {
    Json(app.cluster.library().await)
}

/// The quantisations of a model on the hub.
pub(super) async fn variants(
    State(app): State<Arc<App>>,
    request: Request,
) -> Result<Json<Vec<Offer>>, ApiError> {
    let named: Named = app.intake.read_json(request).await?;
    Ok(Json(app.cluster.variants(&named.model).await?))
}

#[derive(Deserialize)]
struct Sought {
    words: String,
}

/// Searches the hub.
pub(super) async fn search(
    State(app): State<Arc<App>>,
    request: Request,
) -> Result<Json<Vec<Found>>, ApiError> {
    let sought: Sought = app.intake.read_json(request).await?;
    if sought.words.trim().is_empty() {
        return Err(ApiError::invalid_value("words", "words must say what to look for"));
    }
    Ok(Json(app.cluster.search(&sought.words).await?))
}

/// Stops a download of this node; what has come is kept.
pub(super) async fn stop_pull(
    State(app): State<Arc<App>>,
    request: Request,
) -> Result<Json<Value>, ApiError> {
    let named: Named = app.intake.read_json(request).await?;
    app.cluster.stop_pull(&named.model).await?;
    Ok(Json(json!({ "stopped": named.model })))
}

/// Whether a model is served, identified by its content, and under which name.
pub(super) async fn identify(
    State(app): State<Arc<App>>,
    request: Request,
) -> Result<Json<Identified>, ApiError> {
    let named: Named = app.intake.read_json(request).await?;
    Ok(Json(app.cluster.identify(&named.model).await?))
}

/// Details of a model.
pub(super) async fn show(
    State(app): State<Arc<App>>,
    request: Request,
) -> Result<Json<ModelAbout>, ApiError> {
    let named: Named = app.intake.read_json(request).await?;
    Ok(Json(app.cluster.describe(&named.model).await?))
}

/// Fetches a model. The answer's lines are [`PullStatus`]; the last one is `done` or an error.
pub(super) async fn pull(
    State(app): State<Arc<App>>,
    request: Request,
) -> Result<Response, ApiError> {
    let Pulled { model, update, goes_on } = app.intake.read_json(request).await?;
    let progress = app.cluster.pull(&model, update, goes_on).await?;
    let item = |status: PullStatus| match status.stage {
        PullStage::Failed => Item::Fail(failed(&status).body().to_string()),
        _ => Item::json(&status),
    };
    let keep_alive = app.config.limits.keep_alive;
    Ok(respond(Framing::JsonLines, progress.map(item), keep_alive))
}

#[derive(Deserialize)]
struct Removed {
    model: String,
    /// The node's name; this node if absent.
    node: Option<String>,
}

/// Deletes a model from a node's own folder.
pub(super) async fn remove(
    State(app): State<Arc<App>>,
    request: Request,
) -> Result<Json<Value>, ApiError> {
    let Removed { model, node } = app.intake.read_json(request).await?;
    let freed = app.cluster.remove_model(&model, node.as_deref()).await?;
    Ok(Json(json!({ "removed": model, "freed_bytes": freed })))
}

/// Deletes the prompts that the nodes keep on disk.
pub(super) async fn forget_prompts(State(app): State<Arc<App>>) -> Json<Vec<Forgotten>> {
    Json(app.cluster.forget_prompts().await)
}

pub(super) fn failed(status: &PullStatus) -> ApiError {
    let code = axum::http::StatusCode::BAD_GATEWAY;
    ApiError::server(code, "pull_failed", status.note.clone())
}

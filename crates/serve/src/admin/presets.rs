//! Presets: list, write and remove.

use std::sync::Arc;

use axum::Json;
use axum::extract::{Request, State};
use protocol::Preset;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::app::App;
use crate::http::error::ApiError;

/// All presets, by name.
pub(super) async fn list(State(app): State<Arc<App>>) -> Json<Vec<Preset>> {
    Json(app.cluster.presets().to_vec())
}

/// Writes a preset, instead of one of the same name; returns it as it is kept.
pub(super) async fn write(
    State(app): State<Arc<App>>,
    request: Request,
) -> Result<Json<Preset>, ApiError> {
    let preset: Preset = app.intake.read_json(request).await?;
    let name = preset.name.clone();
    app.cluster.write_preset(preset).await?;
    let gone = || ApiError::invalid("preset_removed", format!("{name} was removed meanwhile"));
    app.preset(&name).map(Json).ok_or_else(gone)
}

#[derive(Deserialize)]
struct Named {
    name: String,
}

pub(super) async fn remove(
    State(app): State<Arc<App>>,
    request: Request,
) -> Result<Json<Value>, ApiError> {
    let named: Named = app.intake.read_json(request).await?;
    app.cluster.remove_preset(&named.name).await?;
    Ok(Json(json!({ "removed": named.name })))
}

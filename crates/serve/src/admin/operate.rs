//! `GET /sinew/v1/keys`: the usage of each API key. `POST /sinew/v1/log-level`: what the node logs
//! from now on.

use std::sync::Arc;

use axum::Json;
use axum::extract::{Request, State};
use axum::http::StatusCode;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::app::App;
use crate::http::error::ApiError;
use crate::metrics::KeysUsage;

pub(super) async fn keys(State(app): State<Arc<App>>) -> Json<KeysUsage> {
    Json(app.metrics.keys_usage())
}

#[derive(Deserialize)]
struct LevelBody {
    level: String,
}

pub(super) async fn log_level(
    State(app): State<Arc<App>>,
    request: Request,
) -> Result<Json<Value>, ApiError> {
    let body: LevelBody = app.intake.read_json(request).await?;
    let Some(set) = &app.config.set_log_level else {
        let message = "the log level of this node is fixed. Set SINEW_LOG and start it again";
        return Err(ApiError::server(StatusCode::NOT_IMPLEMENTED, "not_implemented", message));
    };
    set(&body.level).map_err(|why| ApiError::invalid_value("level", why))?;
    tracing::info!(level = body.level, "the log level was set");
    Ok(Json(json!({ "level": body.level })))
}

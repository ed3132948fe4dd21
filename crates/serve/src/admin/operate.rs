//! `GET /sinew/v1/keys`: the usage of each API key.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;

use crate::app::App;
use crate::metrics::KeysUsage;

pub(super) async fn keys(State(app): State<Arc<App>>) -> Json<KeysUsage> {
    Json(app.metrics.keys_usage())
}

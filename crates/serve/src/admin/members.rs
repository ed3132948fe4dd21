//! Members of the cluster.

use std::sync::Arc;

use axum::Json;
use axum::extract::{Request, State};
use cluster::Parted;
use serde::Deserialize;

use crate::app::App;
use crate::http::error::ApiError;

#[derive(Deserialize)]
pub(super) struct RemoveBody {
    /// A member's name or at least four digits of its id's beginning.
    node: String,
}

pub(super) async fn remove(
    State(app): State<Arc<App>>,
    request: Request,
) -> Result<Json<Parted>, ApiError> {
    let body: RemoveBody = app.intake.read_json(request).await?;
    Ok(Json(app.cluster.remove(&body.node).await?))
}

pub(super) async fn leave(State(app): State<Arc<App>>) -> Result<Json<Parted>, ApiError> {
    Ok(Json(app.cluster.leave().await?))
}

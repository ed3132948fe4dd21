//! Pairing: one machine shows a number, and a person types it on another one. All routes are
//! reserved to the owner, because anyone with the number can impersonate the machine that shows it.

use std::sync::Arc;

use axum::Json;
use axum::extract::{Request, State};
use cluster::{PairAsking, PairRequest, PairWith, Paired, Pairing};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::app::App;
use crate::http::error::ApiError;

#[derive(Deserialize)]
pub(super) struct AcceptBody {
    number: String,
    /// Selects one of several requests: the machine's name or at least four digits of its id.
    node: Option<String>,
}

#[derive(Deserialize)]
pub(super) struct RefuseBody {
    node: String,
}

/// Machines that request to join here, and requests sent by this node.
pub(super) async fn pairing(State(app): State<Arc<App>>) -> Result<Json<Pairing>, ApiError> {
    Ok(Json(app.cluster.pairing().await?))
}

/// Sends a request to join a node nearby or at an address. Answers once the request waits there.
pub(super) async fn pair(
    State(app): State<Arc<App>>,
    request: Request,
) -> Result<Json<PairAsking>, ApiError> {
    let with: PairWith = app.intake.read_json(request).await?;
    Ok(Json(app.cluster.pair(with).await?))
}

/// Admits the machine that shows this number.
pub(super) async fn accept(
    State(app): State<Arc<App>>,
    request: Request,
) -> Result<Json<Paired>, ApiError> {
    let body: AcceptBody = app.intake.read_json(request).await?;
    Ok(Json(app.cluster.accept(&body.number, body.node.as_deref()).await?))
}

/// Refuses a machine's request to join.
pub(super) async fn refuse(
    State(app): State<Arc<App>>,
    request: Request,
) -> Result<Json<PairRequest>, ApiError> {
    let body: RefuseBody = app.intake.read_json(request).await?;
    Ok(Json(app.cluster.refuse(&body.node).await?))
}

/// Ends this node's own request.
pub(super) async fn withdraw(State(app): State<Arc<App>>) -> Result<Json<Value>, ApiError> {
    app.cluster.withdraw().await?;
    Ok(Json(json!({})))
}

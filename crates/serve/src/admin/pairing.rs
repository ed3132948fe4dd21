//! Joining by a number that one machine shows and a person types at another one. All of it is the
//! owner's alone: whoever knows the number can stand in for the machine that shows it.

use std::sync::Arc;

use axum::Json;
use axum::extract::{Request, State};
use cluster::{PairAsking, PairRequest, PairWith, Paired, Pairing};
use serde::Deserialize;

use crate::app::App;
use crate::http::error::ApiError;

#[derive(Deserialize)]
pub(super) struct AcceptBody {
    number: String,
    /// Whose it is, where several ask: a name, or at least four digits with which an id begins.
    node: Option<String>,
}

#[derive(Deserialize)]
pub(super) struct RefuseBody {
    node: String,
}

/// Who asks to be let in here, and what this node has asked.
pub(super) async fn pairing(State(app): State<Arc<App>>) -> Result<Json<Pairing>, ApiError> {
    Ok(Json(app.cluster.pairing().await?))
}

/// Asks a node nearby or at an address to let this one in; answered once the request waits there.
pub(super) async fn pair(
    State(app): State<Arc<App>>,
    request: Request,
) -> Result<Json<PairAsking>, ApiError> {
    let with: PairWith = app.intake.read_json(request).await?;
    Ok(Json(app.cluster.pair(with).await?))
}

/// Lets in the machine that shows this number.
pub(super) async fn accept(
    State(app): State<Arc<App>>,
    request: Request,
) -> Result<Json<Paired>, ApiError> {
    let body: AcceptBody = app.intake.read_json(request).await?;
    Ok(Json(app.cluster.accept(&body.number, body.node.as_deref()).await?))
}

/// Sends a machine that asks away.
pub(super) async fn refuse(
    State(app): State<Arc<App>>,
    request: Request,
) -> Result<Json<PairRequest>, ApiError> {
    let body: RefuseBody = app.intake.read_json(request).await?;
    Ok(Json(app.cluster.refuse(&body.node).await?))
}

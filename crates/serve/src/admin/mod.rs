//! Administration of the node, as JSON under `/sinew/v1`. The `sinew` command and the status page
//! use it.

use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::Router;
use axum::extract::{Request, State};
use axum::routing::{get, post};
use cluster::{BurnReport, BurnSpec, ClusterStatus, InstanceSpec, Invite, Joined, Planned};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::app::App;
use crate::http::error::ApiError;

mod clients;
mod drain;
mod events;
mod members;
mod models;
mod operate;
mod pairing;
mod presets;
mod serve;

/// Invitations are short-lived: at most a day.
const INVITE_SECS: std::ops::RangeInclusive<u64> = 1..=86_400;
const INVITE_SECS_DEFAULT: u64 = 600;

/// Routes that only read the status; they need no admin token.
pub(crate) fn status_routes() -> Router<Arc<App>> {
    Router::new()
        .route("/sinew/v1/status", get(status))
        .route("/sinew/v1/events", get(events::events))
        .route("/sinew/v1/clients", get(clients::clients))
}

/// Routes that change something, or that show data reserved to the owner.
pub(crate) fn routes() -> Router<Arc<App>> {
    Router::new()
        .route("/sinew/v1/invite", post(invite))
        .route("/sinew/v1/join", post(join))
        .route("/sinew/v1/pairing", get(pairing::pairing))
        .route("/sinew/v1/pair", post(pairing::pair))
        .route("/sinew/v1/pair/accept", post(pairing::accept))
        .route("/sinew/v1/pair/refuse", post(pairing::refuse))
        .route("/sinew/v1/pair/withdraw", post(pairing::withdraw))
        .route("/sinew/v1/remove", post(members::remove))
        .route("/sinew/v1/leave", post(members::leave))
        .route("/sinew/v1/plan", post(plan))
        .route("/sinew/v1/burn", post(burn))
        .route("/sinew/v1/serve", post(serve::serve))
        .route("/sinew/v1/models", get(models::list))
        .route("/sinew/v1/library", get(models::library))
        .route("/sinew/v1/library/variants", post(models::variants))
        .route("/sinew/v1/library/search", post(models::search))
        .route("/sinew/v1/pull", post(models::pull))
        .route("/sinew/v1/pull/stop", post(models::stop_pull))
        .route("/sinew/v1/models/identify", post(models::identify))
        .route("/sinew/v1/models/show", post(models::show))
        .route("/sinew/v1/models/remove", post(models::remove))
        .route("/sinew/v1/prompts/remove", post(models::forget_prompts))
        .route("/sinew/v1/presets", get(presets::list).post(presets::write))
        .route("/sinew/v1/presets/remove", post(presets::remove))
        .route("/sinew/v1/stop", post(stop))
        .route("/sinew/v1/drain", post(drain::drain))
        .route("/sinew/v1/undrain", post(drain::undrain))
        .route("/sinew/v1/shutdown", post(shutdown))
        .route("/sinew/v1/trace", get(trace))
        .route("/sinew/v1/keys", get(operate::keys))
        .route("/sinew/v1/log-level", post(operate::log_level))
}

async fn status(State(app): State<Arc<App>>) -> Json<ClusterStatus> {
    Json(app.cluster.status())
}

#[derive(Deserialize)]
struct InviteBody {
    ttl_secs: Option<u64>,
}

async fn invite(State(app): State<Arc<App>>, request: Request) -> Result<Json<Invite>, ApiError> {
    let body: InviteBody = app.intake.read_json(request).await?;
    let ttl_secs = body.ttl_secs.unwrap_or(INVITE_SECS_DEFAULT);
    if !INVITE_SECS.contains(&ttl_secs) {
        let (low, high) = INVITE_SECS.into_inner();
        let message = format!("ttl_secs is {ttl_secs}; it must be from {low} to {high}");
        return Err(ApiError::invalid_value("ttl_secs", message));
    }
    Ok(Json(app.cluster.invite(Duration::from_secs(ttl_secs)).await?))
}

#[derive(Deserialize)]
struct JoinBody {
    code: String,
}

async fn join(State(app): State<Arc<App>>, request: Request) -> Result<Json<Joined>, ApiError> {
    let body: JoinBody = app.intake.read_json(request).await?;
    Ok(Json(app.cluster.join(&body.code).await?))
}

/// How a model would be placed and its estimated speed, or why it cannot be placed.
async fn plan(State(app): State<Arc<App>>, request: Request) -> Result<Json<Planned>, ApiError> {
    let spec: InstanceSpec = app.intake.read_json(request).await?;
    Ok(Json(app.cluster.plan(spec).await?))
}

/// Loads all nodes and links. The test ends if the client disconnects.
async fn burn(State(app): State<Arc<App>>, request: Request) -> Result<Json<BurnReport>, ApiError> {
    let spec: BurnSpec = app.intake.read_json(request).await?;
    Ok(Json(app.cluster.burn(spec).await?))
}

/// Both fields mean the same: an instance's id or its model's name.
#[derive(Deserialize)]
struct StopBody {
    instance: Option<String>,
    model: Option<String>,
}

async fn stop(State(app): State<Arc<App>>, request: Request) -> Result<Json<Value>, ApiError> {
    let body: StopBody = app.intake.read_json(request).await?;
    let Some(name) = body.instance.or(body.model) else {
        let message = "instance or model must say what to stop";
        return Err(ApiError::invalid_value("instance", message));
    };
    app.cluster.stop(&name).await?;
    Ok(Json(json!({ "stopped": name })))
}

/// The last requests to this node's API, as a Chrome trace.
async fn trace(State(app): State<Arc<App>>) -> Json<Value> {
    Json(app.metrics.requests.trace.json())
}

/// Notifies the daemon, and stops the server after this answer is sent.
async fn shutdown(State(app): State<Arc<App>>) -> Json<Value> {
    if let Some(on_shutdown) = &app.config.on_shutdown {
        on_shutdown();
    }
    app.stopping.send_replace(true);
    Json(json!({ "status": "stopping" }))
}

//! `POST /sinew/v1/drain`: empties a node and, unless told otherwise, reports until it is empty;
//! `POST /sinew/v1/undrain` lets it have work again.

use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::Json;
use axum::extract::{Request, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use cluster::{ClusterStatus, InstanceStatus, NodeId};
use futures_util::{Stream, stream};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::app::App;
use crate::http::error::ApiError;
use crate::http::stream::{Framing, Item, respond};
use crate::node::Cluster;

/// How often progress is looked at.
const LOOK_EVERY: Duration = Duration::from_millis(250);
/// How often a line is sent although nothing has changed.
const REPEAT_EVERY: Duration = Duration::from_secs(5);

#[derive(Deserialize)]
struct DrainBody {
    /// Its name, or at least four digits with which its id begins.
    node: String,
    /// Report until it is empty.
    wait: Option<bool>,
}

#[derive(Deserialize)]
struct UndrainBody {
    node: String,
}

/// A line of progress.
#[derive(Debug, Clone, PartialEq, Serialize)]
struct Progress {
    /// `draining` or `drained`; the last line of all is `drained`, or an error.
    status: &'static str,
    node: String,
    /// What is still on the node.
    left: Vec<Left>,
    /// Taken by what is still there.
    memory_used_bytes: u64,
}

#[derive(Debug, Clone, PartialEq, Serialize)]
struct Left {
    model: String,
    /// For a person: where it goes and how far that is.
    notes: Vec<String>,
}

pub(super) async fn drain(
    State(app): State<Arc<App>>,
    request: Request,
) -> Result<Response, ApiError> {
    let body: DrainBody = app.intake.read_json(request).await?;
    let node = app.cluster.drain(&body.node).await?;
    if body.wait == Some(false) {
        return Ok(Json(json!({ "status": "draining", "node": body.node })).into_response());
    }
    let watch = Watch {
        cluster: Arc::clone(&app.cluster),
        node,
        last: None,
        sent: Instant::now(),
        ended: false,
    };
    Ok(respond(Framing::JsonLines, watch.into_stream(), app.config.limits.keep_alive))
}

pub(super) async fn undrain(
    State(app): State<Arc<App>>,
    request: Request,
) -> Result<Json<Value>, ApiError> {
    let body: UndrainBody = app.intake.read_json(request).await?;
    app.cluster.undrain(&body.node).await?;
    Ok(Json(json!({ "undrained": body.node })))
}

/// One node on its way to being empty.
struct Watch {
    cluster: Arc<dyn Cluster>,
    node: NodeId,
    last: Option<Progress>,
    sent: Instant,
    ended: bool,
}

impl Watch {
    fn into_stream(self) -> impl Stream<Item = Item> + Send {
        stream::unfold(self, |mut watch| async move {
            let item = watch.next().await?;
            Some((item, watch))
        })
    }

    async fn next(&mut self) -> Option<Item> {
        if self.ended {
            return None;
        }
        loop {
            let progress = match look(&self.cluster.status(), self.node) {
                Ok(progress) => progress,
                Err(error) => {
                    self.ended = true;
                    return Some(Item::Fail(error.body().to_string()));
                }
            };
            if self.last.as_ref() != Some(&progress) || self.sent.elapsed() > REPEAT_EVERY {
                self.ended = progress.status == "drained";
                self.sent = Instant::now();
                let item = Item::json(&progress);
                self.last = Some(progress);
                return Some(item);
            }
            tokio::time::sleep(LOOK_EVERY).await;
        }
    }
}

/// How far a node is.
///
/// # Errors
/// Somebody wants it to have work again, or it is no member any more.
fn look(status: &ClusterStatus, node: NodeId) -> Result<Progress, ApiError> {
    let ended = |why: &str| {
        let message = format!("the node is not being emptied: {why}");
        ApiError::request(StatusCode::CONFLICT, "conflict", message)
    };
    let Some(found) = status.nodes.iter().find(|one| one.id == node) else {
        return Err(ended("it is no member any more"));
    };
    if !found.drained {
        return Err(ended("somebody has undrained it"));
    }
    let left = |one: &InstanceStatus| Left { model: one.model.clone(), notes: one.notes.clone() };
    let held = status.instances.iter().filter(|one| one.is_held_by(node));
    let left: Vec<Left> = held.map(left).collect();
    let memory_used_bytes = found.memory_used_bytes;
    let is_empty = left.is_empty() && memory_used_bytes == 0;
    let status = if is_empty { "drained" } else { "draining" };
    Ok(Progress { status, node: found.name.clone(), left, memory_used_bytes })
}

//! `POST /sinew/v1/drain`: empties a node and reports progress until it is empty, unless `wait` is
//! false. `POST /sinew/v1/undrain` lets the node take work again.

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

/// Interval between checks of the progress.
const LOOK_EVERY: Duration = Duration::from_millis(250);
/// Interval at which a line is sent without any change.
const REPEAT_EVERY: Duration = Duration::from_secs(5);

#[derive(Deserialize)]
struct DrainBody {
    /// The node's name or at least four digits of its id's beginning.
    node: String,
    /// Whether to report until the node is empty.
    wait: Option<bool>,
}

#[derive(Deserialize)]
struct UndrainBody {
    node: String,
}

/// A line of progress.
#[derive(Debug, Clone, PartialEq, Serialize)]
struct Progress {
    /// `draining` or `drained`. The last line is `drained` or an error.
    status: &'static str,
    node: String,
    /// Work left on the node.
    left: Vec<Left>,
    /// Memory used by the work that is left.
    memory_used_bytes: u64,
}

#[derive(Debug, Clone, PartialEq, Serialize)]
struct Left {
    model: String,
    /// For people: where the work moves to, and its progress.
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

/// Watches one node until it is empty.
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

/// The node's progress.
///
/// # Errors
/// The drain was cancelled, or the node is no longer a member.
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

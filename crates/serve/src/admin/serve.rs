//! `POST /sinew/v1/serve`: places a model and, unless told otherwise, reports until it is ready.

use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::Json;
use axum::extract::{Request, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use cluster::{ClusterStatus, InstanceSpec, InstanceState};
use futures_util::{Stream, stream};
use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::app::App;
use crate::http::error::{ApiError, Retry};
use crate::http::stream::{Framing, Item, respond};
use crate::node::Cluster;

/// How often progress is looked at: a bar moves smoothly at four steps a second.
const LOOK_EVERY: Duration = Duration::from_millis(250);
/// How often a line is sent although nothing has changed.
const REPEAT_EVERY: Duration = Duration::from_secs(5);

#[derive(Deserialize)]
struct ServeBody {
    #[serde(flatten)]
    request: InstanceSpec,
    /// Report until it is ready.
    wait: Option<bool>,
}

/// A line of progress.
#[derive(Debug, Clone, PartialEq, Serialize)]
struct Progress {
    /// `loading`, `recovering` or `ready`; the last line of all is `ready`, or an error.
    status: &'static str,
    instance: String,
    done_bytes: u64,
    total_bytes: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<String>,
}

pub(super) async fn serve(
    State(app): State<Arc<App>>,
    request: Request,
) -> Result<Response, ApiError> {
    let body: ServeBody = app.intake.read_json(request).await?;
    let instance = app.cluster.serve(body.request).await?;
    if body.wait == Some(false) {
        return Ok(Json(json!({ "status": "loading", "instance": instance })).into_response());
    }
    let limits = &app.config.limits;
    let watch = Watch {
        cluster: Arc::clone(&app.cluster),
        instance,
        stall: limits.load_stall,
        last: None,
        sent: Instant::now(),
        moved: Instant::now(),
        ended: false,
    };
    Ok(respond(Framing::JsonLines, watch.into_stream(), limits.keep_alive))
}

/// One instance on its way to being ready.
struct Watch {
    cluster: Arc<dyn Cluster>,
    instance: String,
    stall: Duration,
    last: Option<Progress>,
    sent: Instant,
    /// When something last changed.
    moved: Instant,
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
            let now = Instant::now();
            match look(&self.cluster.status(), &self.instance) {
                Err(error) => return Some(self.fail(&error)),
                Ok(progress) if self.last.as_ref() != Some(&progress) => {
                    self.moved = now;
                    return Some(self.send(progress, now));
                }
                Ok(_) if now - self.moved > self.stall => {
                    let error = stalled(&self.instance, self.stall);
                    return Some(self.fail(&error));
                }
                Ok(progress) if now - self.sent > REPEAT_EVERY => {
                    return Some(self.send(progress, now));
                }
                Ok(_) => tokio::time::sleep(LOOK_EVERY).await,
            }
        }
    }

    fn send(&mut self, progress: Progress, now: Instant) -> Item {
        self.ended = progress.status == "ready";
        self.sent = now;
        let item = Item::json(&progress);
        self.last = Some(progress);
        item
    }

    fn fail(&mut self, error: &ApiError) -> Item {
        self.ended = true;
        Item::Fail(error.body().to_string())
    }
}

/// Where an instance stands.
///
/// # Errors
/// It failed, or it is gone.
fn look(status: &ClusterStatus, instance: &str) -> Result<Progress, ApiError> {
    let unavailable = |message: String| {
        ApiError::server(StatusCode::SERVICE_UNAVAILABLE, "model_failed", message)
            .with_retry(Retry::Never)
    };
    let Some(found) = status.instances.iter().find(|one| one.id == instance) else {
        return Err(unavailable(format!("{instance} was stopped before it was ready")));
    };
    let (status, reason) = match &found.state {
        InstanceState::Loading => ("loading", None),
        InstanceState::Ready => ("ready", None),
        InstanceState::Recovering { reason } => ("recovering", Some(reason.clone())),
        InstanceState::Failed { reason } => {
            return Err(unavailable(format!("{} cannot be served: {reason}", found.model)));
        }
    };
    Ok(Progress {
        status,
        instance: instance.to_owned(),
        done_bytes: found.ranks.iter().map(|rank| rank.loaded_bytes).sum(),
        total_bytes: found.ranks.iter().map(|rank| rank.total_bytes).sum(),
        reason,
    })
}

fn stalled(instance: &str, stall: Duration) -> ApiError {
    let secs = stall.as_secs();
    let message = format!(
        "{instance} has not moved for {secs} s. It is left loading; look at its nodes' logs, or \
         stop it"
    );
    ApiError::server(StatusCode::GATEWAY_TIMEOUT, "load_stalled", message)
}

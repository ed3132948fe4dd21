//! `POST /sinew/v1/serve`: places a model and reports progress until it is ready, unless `wait` is
//! false.

use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::Json;
use axum::extract::{Request, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use cluster::{ClusterStatus, InstanceSpec, InstanceState, PullStage, PullStatus, RankStatus};
use futures_util::{Stream, StreamExt, stream};
use serde::{Deserialize, Serialize};
use serde_json::json;
use tokio::sync::mpsc;

use super::models::failed;

use crate::app::App;
use crate::http::error::{ApiError, Retry};
use crate::http::stream::{Framing, Item, respond};
use crate::node::{Cluster, PullStream, RefusalKind};

/// Interval between checks of the progress: a bar moves smoothly at four steps a second.
const LOOK_EVERY: Duration = Duration::from_millis(250);
/// Interval at which a line is sent without any change. A client notices its own Ctrl-C at the next
/// line.
const REPEAT_EVERY: Duration = Duration::from_secs(1);
/// Lines of progress queued for a client.
const LINES_MAX: usize = 16;

#[derive(Deserialize)]
struct ServeBody {
    #[serde(flatten)]
    request: InstanceSpec,
    /// Whether to report until the instance is ready.
    wait: Option<bool>,
    /// Whether a download and what follows it go on when the client has left.
    #[serde(default)]
    goes_on: bool,
}

/// A line of progress.
#[derive(Debug, Clone, PartialEq, Serialize)]
struct Progress {
    /// `pulling`, `verifying`, `loading`, `recovering`, `ready` or `unloaded`. The last line is
    /// `ready`, `unloaded` for an instance that loads on request, or an error.
    status: &'static str,
    instance: String,
    done_bytes: u64,
    total_bytes: u64,
    /// Progress of each node that loads a share, in rank order.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    nodes: Vec<Share>,
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<String>,
}

/// Loading progress of a rank's share.
#[derive(Debug, Clone, PartialEq, Serialize)]
struct Share {
    node: String,
    done_bytes: u64,
    total_bytes: u64,
}

pub(super) async fn serve(
    State(app): State<Arc<App>>,
    request: Request,
) -> Result<Response, ApiError> {
    let body: ServeBody = app.intake.read_json(request).await?;
    let instance = match app.cluster.serve(body.request.clone()).await {
        Ok(instance) => instance,
        Err(refusal) if refusal.kind == RefusalKind::NotFound => {
            let pull = app.cluster.pull(&body.request.model, false, body.goes_on).await?;
            return Ok(pull_and_serve(&app, pull, body));
        }
        Err(refusal) => return Err(refusal.into()),
    };
    if body.wait == Some(false) {
        return Ok(Json(json!({ "status": "loading", "instance": instance })).into_response());
    }
    let limits = &app.config.limits;
    let watch = Watch::new(&app, instance);
    Ok(respond(Framing::JsonLines, watch.into_stream(), limits.keep_alive))
}

/// Fetches a model that no node has, then serves it. The answer's lines report both steps. Without
/// `wait` the work runs in the background.
fn pull_and_serve(app: &Arc<App>, pull: PullStream, body: ServeBody) -> Response {
    let (sender, lines) = mpsc::channel(LINES_MAX);
    let waits = body.wait != Some(false);
    let teller = Teller { sender, waits, goes_on: body.goes_on };
    let task = Arc::clone(app);
    tokio::spawn(async move {
        fetch_then_load(&task, pull, body.request, teller).await;
    });
    if !waits {
        return Json(json!({ "status": "pulling" })).into_response();
    }
    let items = stream::unfold(lines, |mut lines| async move {
        let item = lines.recv().await?;
        Some((item, lines))
    });
    respond(Framing::JsonLines, items, app.config.limits.keep_alive)
}

/// Sends progress to the client, if it waits.
struct Teller {
    sender: mpsc::Sender<Item>,
    waits: bool,
    goes_on: bool,
}

impl Teller {
    /// Whether to continue. If a waiting client disconnects, the work stops, unless it was to go
    /// on; without `wait` it always continues.
    async fn tell(&self, item: Item) -> bool {
        !self.waits || self.sender.send(item).await.is_ok() || self.goes_on
    }
}

async fn fetch_then_load(app: &App, mut pull: PullStream, request: InstanceSpec, teller: Teller) {
    while let Some(status) = pull.next().await {
        let item = match status.stage {
            PullStage::Failed => Item::Fail(failed(&status).body().to_string()),
            _ => Item::json(&Progress::of_pull(&status)),
        };
        if !teller.tell(item).await || status.stage == PullStage::Failed {
            return;
        }
    }
    match app.cluster.serve(request).await {
        Err(refusal) => {
            teller.tell(Item::Fail(ApiError::from(refusal).body().to_string())).await;
        }
        Ok(instance) => {
            let mut watch = Watch::new(app, instance);
            while let Some(item) = watch.next().await {
                if !teller.tell(item).await {
                    return;
                }
            }
        }
    }
}

/// Watches one instance until it is ready.
struct Watch {
    cluster: Arc<dyn Cluster>,
    instance: String,
    stall: Duration,
    last: Option<Progress>,
    sent: Instant,
    /// Time of the last change.
    moved: Instant,
    ended: bool,
}

impl Progress {
    fn of_pull(status: &PullStatus) -> Self {
        Self {
            status: match status.stage {
                PullStage::Hashing | PullStage::Verifying => "verifying",
                _ => "pulling",
            },
            instance: String::new(),
            done_bytes: status.done_bytes,
            total_bytes: status.total_bytes,
            nodes: Vec::new(),
            reason: Some(status.note.clone()).filter(|note| !note.is_empty()),
        }
    }
}

impl Watch {
    fn new(app: &App, instance: String) -> Self {
        Self {
            cluster: Arc::clone(&app.cluster),
            instance,
            stall: app.config.limits.load_stall,
            last: None,
            sent: Instant::now(),
            moved: Instant::now(),
            ended: false,
        }
    }

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
        self.ended = ["ready", "unloaded"].contains(&progress.status);
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

/// The instance's progress.
///
/// # Errors
/// The instance failed or is gone.
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
        InstanceState::Unloaded => ("unloaded", None),
        InstanceState::Recovering { reason } => ("recovering", Some(reason.clone())),
        InstanceState::Failed { reason } => {
            return Err(unavailable(format!("{} cannot be served: {reason}", found.model)));
        }
    };
    let share = |rank: &RankStatus| Share {
        node: rank.node_name.clone(),
        done_bytes: rank.loaded_bytes,
        total_bytes: rank.total_bytes,
    };
    let nodes: Vec<Share> = found.ranks.iter().map(share).collect();
    Ok(Progress {
        status,
        instance: instance.to_owned(),
        done_bytes: nodes.iter().map(|share| share.done_bytes).sum(),
        total_bytes: nodes.iter().map(|share| share.total_bytes).sum(),
        nodes,
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

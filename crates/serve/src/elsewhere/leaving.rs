//! Requests for what another member keeps.

use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, to_bytes};
use axum::extract::{Request, State};
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, Response, StatusCode, header};
use axum::middleware::Next;
use axum::response::IntoResponse;
use cluster::NodeState;
use futures_util::future::join_all;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use tokio::time::timeout;
use tracing::debug;

use crate::app::App;
use crate::http::error::ApiError;
use crate::node::{Refusal, RefusalKind};

/// The id or name of the node that keeps the conversations.
const NODE: HeaderName = HeaderName::from_static("x-sinew-node");
/// The key of that node. This node's own key stands where it always does.
const NODE_KEY: HeaderName = HeaderName::from_static("x-sinew-node-key");
/// What else of a request and of its answer concerns the other side.
const PASSED_ON: [HeaderName; 5] = [
    header::CONTENT_TYPE,
    header::CONTENT_LENGTH,
    header::CONTENT_DISPOSITION,
    header::RETRY_AFTER,
    HeaderName::from_static("x-accel-buffering"),
];
/// How often a member that has not answered is looked for among those that are connected.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// A number is looked for on members for this long, and on so many.
const PAIR_MAX: Duration = Duration::from_secs(5);
const ASKED_MAX: usize = 64;
const PAIRED_BYTES_MAX: usize = 64 << 10;

/// Sends a request with the header `x-sinew-node` to that node; the others stay here.
pub(crate) async fn pass_on(
    State(app): State<Arc<App>>,
    mut request: Request,
    next: Next,
) -> axum::response::Response {
    let named = request.headers().get(&NODE).map(|node| node.to_str().map(str::to_owned));
    let node = match named {
        None => return next.run(request).await,
        Some(Ok(node)) if node == app.cluster.status().node.to_string() => {
            return next.run(request).await;
        }
        Some(Ok(node)) => node,
        Some(Err(_)) => {
            let message = "x-sinew-node must be the id or the name of a node";
            return ApiError::invalid_value("x-sinew-node", message).into_response();
        }
    };
    let body = std::mem::take(request.body_mut());
    let (parts, _) = request.into_parts();
    match send(&app, &node, head(&parts), body).await {
        Ok(answer) => answer,
        Err(error) => error.into_response(),
    }
}

/// What of a request goes to the other node.
fn head(parts: &Parts) -> Parts {
    let path = parts.uri.path_and_query().map_or("/", |path| path.as_str());
    let (mut head, ()) = Request::builder()
        .method(parts.method.clone())
        .uri(path)
        .body(())
        .unwrap_or_default()
        .into_parts();
    head.headers = kept(&parts.headers);
    head.headers.insert(header::HOST, HeaderValue::from_static("member"));
    if let Some(key) = parts.headers.get(&NODE_KEY) {
        head.headers.insert(HeaderName::from_static("x-api-key"), key.clone());
    }
    head
}

fn kept(headers: &HeaderMap) -> HeaderMap {
    let known = PASSED_ON.into_iter();
    known.filter_map(|name| headers.get(&name).cloned().map(|value| (name, value))).collect()
}

/// # Errors
/// The member is away, or goes away before it answers.
async fn send(
    app: &App,
    node: &str,
    head: Parts,
    body: Body,
) -> Result<axum::response::Response, ApiError> {
    let lost = |refusal: Refusal| {
        let message = format!(
            "{refusal}. It keeps these conversations, and they are shown again when it is back"
        );
        match refusal.kind {
            RefusalKind::Unavailable => {
                ApiError::server(StatusCode::SERVICE_UNAVAILABLE, "node_away", message)
            }
            _ => refusal.into(),
        }
    };
    let broken = |error: hyper::Error| {
        lost(Refusal::new(RefusalKind::Unavailable, format!("node {node} did not answer: {error}")))
    };
    let stream = app.cluster.visit(node).await.map_err(lost)?;
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await.map_err(broken)?;
    // It ends when the answer is read, or nobody reads it any more.
    tokio::spawn(async move {
        if let Err(error) = connection.await {
            debug!(%error, "a request to a member ended");
        }
    });
    let asked = sender.send_request(Request::from_parts(head, body));
    let answer = tokio::select! {
        answer = asked => answer.map_err(broken)?,
        () = gone(app, node) => {
            let message = format!("node {node} is not connected");
            return Err(lost(Refusal::new(RefusalKind::Unavailable, message)));
        }
    };
    let mut passed = Response::new(Body::empty());
    *passed.status_mut() = answer.status();
    *passed.headers_mut() = kept(answer.headers());
    Ok(passed.map(|_| Body::new(answer.into_body())))
}

/// Returns once a member is not connected.
async fn gone(app: &App, node: &str) {
    let is_here = || {
        let nodes = app.cluster.status().nodes;
        let mut named = nodes.iter().filter(|one| one.id.to_string() == node || one.name == node);
        named.any(|one| one.state != NodeState::Lost)
    };
    while is_here() {
        tokio::time::sleep(LOOK_EVERY).await;
    }
}

/// Pairs a browser with the member that shows this number: the member, and its key for the browser.
pub(crate) async fn pair(app: &App, number: &str, name: &str) -> Option<Value> {
    let status = app.cluster.status();
    let live = status.nodes.iter().filter(|node| node.state == NodeState::Live);
    let others = live.filter(|node| node.id != status.node).take(ASKED_MAX);
    let asks = others.map(async |other| {
        let id = other.id.to_string();
        let (mut head, ()) = Request::builder()
            .method(Method::POST)
            .uri("/sinew/v1/browsers/pair")
            .body(())
            .unwrap_or_default()
            .into_parts();
        let json = HeaderValue::from_static("application/json");
        head.headers.insert(header::CONTENT_TYPE, json);
        head.headers.insert(header::HOST, HeaderValue::from_static("member"));
        let body = Body::from(json!({ "number": number, "name": name }).to_string());
        let answer = send(app, &id, head, body).await.ok()?;
        if answer.status() != StatusCode::OK {
            return None;
        }
        let bytes = to_bytes(answer.into_body(), PAIRED_BYTES_MAX).await.ok()?;
        let key = serde_json::from_slice::<Value>(&bytes).ok()?.get("key")?.as_str()?.to_owned();
        Some(json!({ "node": id, "name": other.name, "key": key }))
    });
    let paired = timeout(PAIR_MAX, join_all(asks)).await.unwrap_or_default();
    paired.into_iter().flatten().next()
}

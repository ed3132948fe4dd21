//! `GET /sinew/v1/events`: past events of the cluster, then new ones as they happen.
//!
//! The answer is a stream of server-sent events, one JSON object each. It starts with the stored
//! events after the event `after`. With `follow=false` it is one JSON array, sent at once.

use std::sync::Arc;

use axum::Json;
use axum::extract::rejection::QueryRejection;
use axum::extract::{Query, State};
use axum::response::{IntoResponse, Response};
use cluster::{ClusterEvent, History};
use futures_util::{Stream, StreamExt, stream};
use serde::Deserialize;
use tokio::sync::watch;

use crate::app::App;
use crate::http::error::ApiError;
use crate::http::stream::{Framing, Item, respond};

#[derive(Debug, Deserialize)]
pub(super) struct EventsQuery {
    /// The last event that the client has; the stream starts after it.
    after: Option<u64>,
    /// Whether to follow new events; true by default.
    follow: Option<bool>,
}

pub(super) async fn events(
    State(app): State<Arc<App>>,
    query: Result<Query<EventsQuery>, QueryRejection>,
) -> Result<Response, ApiError> {
    let Query(query) = query.map_err(ApiError::query)?;
    let (after, mut history) = (query.after.unwrap_or(0), app.cluster.events());
    if query.follow == Some(false) {
        let known = history.borrow_and_update().clone();
        return Ok(Json(later(&known, after)).into_response());
    }
    let stopping = app.stopping.subscribe();
    let items = follow(history, after).take_until(stopped(stopping));
    Ok(respond(Framing::Sse, items, app.config.limits.keep_alive))
}

fn later(history: &History, after: u64) -> Vec<ClusterEvent> {
    history.iter().filter(|event| event.id > after).cloned().collect()
}

/// The stored events after one event, then each new one.
fn follow(history: watch::Receiver<History>, after: u64) -> impl Stream<Item = Item> + Send {
    let batches =
        stream::unfold((history, after, true), |(mut history, after, first)| async move {
            if !first {
                // The node has stopped, so the stream ends.
                history.changed().await.ok()?;
            }
            let found = later(&history.borrow_and_update().clone(), after);
            let last = found.last().map_or(after, |event| event.id);
            Some((found, (history, last, false)))
        });
    batches.flat_map(|found| stream::iter(found).map(|event| Item::json(&event)))
}

/// Completes when the server stops, so that open event streams do not delay the shutdown.
async fn stopped(mut stopping: watch::Receiver<bool>) {
    // An error means that the server is already gone.
    let _ = stopping.wait_for(|stopping| *stopping).await;
}

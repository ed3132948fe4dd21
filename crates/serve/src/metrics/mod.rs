//! `GET /metrics`: metrics for operators, with vLLM's names and units and a `sinew_` prefix.
//! Dashboards made for vLLM only need the prefix changed.
//!
//! ```text
//! requests  requests of this node's clients and their durations: counters and histograms
//! http      every answer by its status, and requests refused before they reached a model
//! cluster   this node's view of its instances and peers: collected from its status at each scrape
//! ranks     the same for each rank: memory, time, links
//! usage     requests and tokens by API key
//! trace     the last requests, span by span
//! text      OpenMetrics, and the older text format for scrapers that do not request it
//! ```
//!
//! A request counts on the node that received it, and an instance on the node that owns it, so that
//! sums over all nodes count everything once. Labels are names of models, nodes, ranks, accepted
//! keys and reasons, all of them bounded. No label or value comes from client input.

mod cluster;
mod http;
mod ranks;
mod requests;
mod text;
mod trace;
mod usage;

use std::sync::Arc;

use ::cluster::on_thread;
use axum::extract::State;
use axum::http::{HeaderMap, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Router, http::StatusCode};
use prometheus_client::encoding::text::encode;
use prometheus_client::registry::Registry;

pub(crate) use http::count;
pub(crate) use requests::{RequestMetrics, RequestWatch};
pub use usage::{KeyUsage, KeysUsage};

use crate::app::App;
use crate::config::ServeConfig;
use crate::http::keys::ApiKeys;
use crate::node::Cluster;

/// All metrics.
pub(crate) struct Metrics {
    registry: Registry,
    pub requests: Arc<RequestMetrics>,
    answered: http::Answered,
    sources: Arc<NodeSources>,
}

/// What is asked at each scrape.
struct NodeSources {
    cluster: Arc<dyn Cluster>,
    config: Arc<ServeConfig>,
    requests: Arc<RequestMetrics>,
}

impl NodeSources {
    fn keys_usage(&self) -> KeysUsage {
        let keys = self.config.api_keys.as_ref().map(ApiKeys::now).unwrap_or_default();
        self.requests.usage.of(&keys)
    }
}

impl Metrics {
    pub fn new(cluster: Arc<dyn Cluster>, config: Arc<ServeConfig>) -> Self {
        let mut registry = Registry::with_prefix("sinew");
        let requests = Arc::new(RequestMetrics::default());
        requests.register(&mut registry);
        let answered = http::Answered::default();
        let help = "Answers to HTTP requests, by route, method and status";
        registry.register("http_requests", help, answered.clone());
        let sources = NodeSources { cluster, config, requests: Arc::clone(&requests) };
        let sources = Arc::new(sources);
        registry.register_collector(Box::new(cluster::Collector(Arc::clone(&sources))));
        Self { registry, requests, answered, sources }
    }

    /// Requests and tokens by API key.
    pub fn keys_usage(&self) -> KeysUsage {
        self.sources.keys_usage()
    }

    /// All series in the OpenMetrics text format.
    fn open_metrics(&self) -> String {
        let mut text = String::new();
        encode(&mut text, &self.registry).expect("a string takes everything");
        text
    }
}

/// The route, without the guard.
pub(crate) fn routes() -> Router<Arc<App>> {
    Router::new().route("/metrics", get(metrics))
}

async fn metrics(State(app): State<Arc<App>>, headers: HeaderMap) -> Response {
    let accepts = |kind: &str| {
        let mut accept = headers.get_all(header::ACCEPT).iter();
        accept.any(|accept| accept.to_str().is_ok_and(|accept| accept.contains(kind)))
    };
    let is_open = accepts("application/openmetrics-text");
    // A disk is asked, which may be slow.
    let scrape = on_thread(move || app.metrics.open_metrics());
    let Ok(open_metrics) = scrape.await else {
        return StatusCode::INTERNAL_SERVER_ERROR.into_response();
    };
    let (kind, body) = match is_open {
        true => ("application/openmetrics-text; version=1.0.0; charset=utf-8", open_metrics),
        false => ("text/plain; version=0.0.4; charset=utf-8", text::plain(&open_metrics)),
    };
    (StatusCode::OK, [(header::CONTENT_TYPE, kind)], body).into_response()
}

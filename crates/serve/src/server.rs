//! Assembles the parts and runs them.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::http::{Method, StatusCode, Uri};
use axum::middleware::{from_fn, from_fn_with_state};
use axum::routing::get;
use futures_util::FutureExt;
use futures_util::future::OptionFuture;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::timeout;

use crate::app::App;
use crate::browsers::{self, Browsers};
use crate::completion::Completer;
use crate::config::{ServeConfig, StartError};
use crate::conversations::{Answering, Spaces};
use crate::http::body::Intake;
use crate::http::error::ApiError;
use crate::http::guard::{guard, require_admin, require_api_key};
use crate::http::listener::{self, Door};
use crate::http::tls;
use crate::metrics::Metrics;
use crate::node::Cluster;
use crate::{
    admin, anthropic, chats, dialect, elsewhere, health, llama, metrics, ollama, openai, openapi,
    page,
};

/// How long an answer that was ended may take to say so.
const LAST_WORDS: Duration = Duration::from_secs(1);

/// A running server. Dropping it stops it at once; [`Running::stop`] lets running requests finish.
#[derive(Debug)]
pub struct Running {
    addr: SocketAddr,
    stop: watch::Sender<bool>,
    shutdown_grace: Duration,
    task: JoinHandle<()>,
}

/// Serves `cluster` over HTTP.
///
/// # Errors
/// The configuration would give strangers access, or the address cannot be listened on.
pub async fn start(cluster: Arc<dyn Cluster>, config: ServeConfig) -> Result<Running, StartError> {
    config.check()?;
    let tls = config.tls.as_ref().map(tls::acceptor).transpose()?;
    let listen = |source| StartError::Listen { addr: config.api, source };
    let listener = listener::bind(config.api).map_err(listen)?;
    let addr = listener.local_addr().map_err(listen)?;
    let config = Arc::new(config);
    let stop = watch::Sender::new(false);
    let metrics = Metrics::new(Arc::clone(&cluster), Arc::clone(&config));
    let (node, requests) = (Arc::clone(&cluster), Arc::clone(&metrics.requests));
    let app = Arc::new(App {
        completer: Completer::new(node, requests, Arc::clone(&config)),
        cluster,
        metrics,
        spaces: Arc::new(Spaces::new(config.chats.clone())),
        answering: Answering::default(),
        browsers: Browsers::default(),
        intake: Intake::new(config.limits.clone()),
        config: Arc::clone(&config),
        stopping: stop.clone(),
    });
    // Before a client can begin another answer in one of these conversations.
    chats::resume(&app).await;
    let visits = app.cluster.visits().map(|visits| elsewhere::run(visits, Arc::clone(&app)));
    let door = Door { router: router(app), limits: config.limits.clone(), tls };
    let serving = listener::run(listener, door, stop.subscribe());
    tracing::info!(%addr, "http api listens");
    let shutdown_grace = config.limits.shutdown_grace;
    let serving = async move { tokio::join!(serving, OptionFuture::from(visits)) };
    let task = tokio::spawn(serving.map(drop));
    Ok(Running { addr, stop, shutdown_grace, task })
}

impl Running {
    /// The address that it listens on, with the port chosen by the system.
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// Accepts no more requests and gives running ones the grace time to finish. Then it runs
    /// `end_answers`, which ends those of the cluster, and lets them tell their clients so.
    pub async fn stop(mut self, end_answers: impl Future<Output = ()>) {
        self.stop.send_replace(true);
        // An error means that time is up, or that the server has already ended.
        let _ = timeout(self.shutdown_grace, &mut self.task).await;
        end_answers.await;
        if !self.task.is_finished() {
            let _ = timeout(LAST_WORDS, &mut self.task).await;
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.task.abort();
    }
}

fn router(app: Arc<App>) -> Router {
    let config = Arc::clone(&app.config);
    let keyed = openai::routes()
        .merge(anthropic::routes())
        .merge(ollama::routes())
        .merge(llama::routes())
        .merge(admin::status_routes())
        .merge(chats::routes().route_layer(from_fn_with_state(app.clone(), elsewhere::pass_on)))
        .merge(browsers::routes::keyed_routes())
        .merge(metrics::routes());
    let keyed = keyed.route_layer(from_fn_with_state(Arc::clone(&config), require_api_key));
    let admin = admin::routes().merge(browsers::routes::admin_routes());
    let admin = admin.route_layer(from_fn_with_state(Arc::clone(&config), require_admin));
    Router::new()
        .merge(keyed)
        .merge(admin)
        .merge(browsers::routes::open_routes())
        .merge(page::routes())
        .merge(openapi::routes())
        .route("/health", get(health::health))
        .route("/ready", get(health::ready))
        .method_not_allowed_fallback(wrong_method)
        .fallback(not_found)
        .layer(from_fn_with_state(config, guard))
        .layer(from_fn_with_state(Arc::clone(&app), metrics::count))
        .layer(from_fn(dialect::speak))
        .with_state(app)
}

async fn wrong_method(method: Method, uri: Uri) -> ApiError {
    let message = format!("{} cannot be asked with {method}", uri.path());
    ApiError::request(StatusCode::METHOD_NOT_ALLOWED, "method_not_allowed", message)
}

async fn not_found(uri: Uri) -> ApiError {
    let path = uri.path();
    let message = format!("there is nothing at {path}. The API is under /v1, the status page at /");
    ApiError::request(StatusCode::NOT_FOUND, "not_found", message)
}

//! Requests that come from members. Their addresses grant nothing: a person at that member's page
//! shows a key of this node, or a number to get one by.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;

use axum::body::Body;
use axum::http::Request;
use axum::middleware::from_fn_with_state;
use axum::{Extension, Router};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::{Service, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::io::DuplexStream;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tracing::debug;

use crate::app::App;
use crate::conversations::until;
use crate::http::Ends;
use crate::http::guard::require_api_key;
use crate::{browsers, chats};

/// Serves visits until the server stops; dropping it ends them.
pub(crate) async fn run(mut visits: mpsc::Receiver<DuplexStream>, app: Arc<App>) {
    let mut stopping = app.stopping.subscribe();
    let router = router(&app);
    let mut serving = JoinSet::new();
    loop {
        tokio::select! {
            visit = visits.recv() => {
                let Some(stream) = visit else { return };
                serving.spawn(serve(stream, router.clone(), app.clone()));
            }
            () = until(&mut stopping) => break,
            Some(_) = serving.join_next() => {}
        }
    }
    while serving.join_next().await.is_some() {}
}

fn router(app: &Arc<App>) -> Router {
    let nowhere = SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0));
    let ends = Ends { client: nowhere, server: nowhere, is_visit: true };
    let keyed = chats::routes();
    let keyed = keyed.route_layer(from_fn_with_state(app.config.clone(), require_api_key));
    keyed.merge(browsers::routes::visitors_routes()).layer(Extension(ends)).with_state(app.clone())
}

/// One request, like those of other connections.
async fn serve(stream: DuplexStream, router: Router, app: Arc<App>) {
    let router = TowerToHyperService::new(router);
    let service = service_fn(|request: Request<Incoming>| router.call(request.map(Body::new)));
    let limits = &app.config.limits;
    let served = http1::Builder::new()
        .timer(TokioTimer::new())
        .keep_alive(false)
        .header_read_timeout(limits.header_timeout)
        .max_headers(limits.headers_max)
        .max_buf_size(limits.header_bytes_max)
        .serve_connection(TokioIo::new(stream), service);
    if let Err(error) = served.await {
        debug!(%error, "a member's request ended");
    }
}

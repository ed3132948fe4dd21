//! `GET /openapi.json`: what the dialects take and give, for programs.

use axum::Router;
use axum::http::header;
use axum::response::IntoResponse;
use axum::routing::get;

/// Kept by hand beside the code that it describes; tests hold the one against the other.
const DOCUMENT: &str = include_str!("openapi.json");
/// Stands in the document for this program's.
const VERSION: &str = "0.0.0";

/// The route.
pub(crate) fn routes<S: Clone + Send + Sync + 'static>() -> Router<S> {
    Router::new().route("/openapi.json", get(document))
}

async fn document() -> impl IntoResponse {
    let document = DOCUMENT.replacen(VERSION, env!("CARGO_PKG_VERSION"), 1);
    ([(header::CONTENT_TYPE, "application/json")], document)
}

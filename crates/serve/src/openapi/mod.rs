//! `GET /openapi.json`: a machine-readable description of the dialects.

use axum::Router;
use axum::http::header;
use axum::response::IntoResponse;
use axum::routing::get;

/// Maintained by hand beside the code that it describes; tests compare the two.
const DOCUMENT: &str = include_str!("openapi.json");
/// A placeholder in the document for this program's version.
const VERSION: &str = "0.0.0";

/// The route.
pub(crate) fn routes<S: Clone + Send + Sync + 'static>() -> Router<S> {
    Router::new().route("/openapi.json", get(document))
}

async fn document() -> impl IntoResponse {
    let document = DOCUMENT.replacen(VERSION, env!("CARGO_PKG_VERSION"), 1);
    ([(header::CONTENT_TYPE, "application/json")], document)
}

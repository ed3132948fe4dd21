//! The status page at `/`, and a plain line for clients that only knock.
//!
//! The page's files are inside the binary. It works without the Internet, runs no code but its
//! own (its content security policy sees to that), and shows what models write as text only:
//! a model's words are a stranger's words.

use std::sync::Arc;

use axum::Router;
use axum::http::{HeaderMap, HeaderName, HeaderValue, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;

use crate::app::App;

const HTML: &str = include_str!("index.html");
const CSS: &str = include_str!("status.css");
const STATUS_JS: &str = include_str!("status.js");
const CHAT_JS: &str = include_str!("chat.js");
const ICON: &str = include_str!("icon.svg");

/// Nothing from elsewhere, nothing inline, in no frame.
const POLICY: &str = "default-src 'self'; base-uri 'none'; form-action 'none'; \
                      frame-ancestors 'none'";

pub(crate) fn routes() -> Router<Arc<App>> {
    let file = |kind, content| get(move || async move { asset(kind, content) });
    Router::new()
        .route("/", get(index))
        .route("/assets/status.css", file("text/css; charset=utf-8", CSS))
        .route("/assets/status.js", file("text/javascript; charset=utf-8", STATUS_JS))
        .route("/assets/chat.js", file("text/javascript; charset=utf-8", CHAT_JS))
        .route("/assets/icon.svg", file("image/svg+xml", ICON))
}

/// A page for browsers, a line for everything else: some clients probe `/` before they start, and
/// those of Ollama's look for just this line.
async fn index(headers: HeaderMap) -> Response {
    let accept = headers.get(header::ACCEPT).and_then(|accept| accept.to_str().ok());
    if !accept.is_some_and(|accept| accept.contains("text/html")) {
        return asset("text/plain; charset=utf-8", "Ollama is running");
    }
    asset("text/html; charset=utf-8", HTML)
}

fn asset(kind: &'static str, content: &'static str) -> Response {
    const HEADERS: [(HeaderName, &str); 3] = [
        (header::CONTENT_SECURITY_POLICY, POLICY),
        (header::REFERRER_POLICY, "no-referrer"),
        // The page and its script must be of one version.
        (header::CACHE_CONTROL, "no-cache"),
    ];
    let mut response = content.into_response();
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(kind));
    for (name, value) in HEADERS {
        headers.insert(name, HeaderValue::from_static(value));
    }
    response
}

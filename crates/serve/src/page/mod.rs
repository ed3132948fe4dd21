//! The page at `/`, and a plain line for clients that only probe.
//!
//! The page's files are embedded in the binary and served unchanged: JavaScript modules that
//! browsers load directly, without a build tool ([why](../../../../docs/decisions/0029-page.md)).
//! The page works without the Internet and runs only its own code, which its content security
//! policy enforces. Output of models is converted to elements one by one, never to markup, because
//! it is untrusted.

use std::sync::Arc;

use axum::Router;
use axum::http::{HeaderMap, HeaderName, HeaderValue, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;

use crate::app::App;

const HTML: &str = include_str!("index.html");

const CSS_TYPE: &str = "text/css; charset=utf-8";
const JS_TYPE: &str = "text/javascript; charset=utf-8";

macro_rules! assets {
    ($($kind:expr => $($name:literal),+;)+) => {
        &[$($(($name, $kind, include_str!($name))),+),+]
    };
}

/// Name, type and content of each other file.
const ASSETS: &[(&str, &str, &str)] = assets! {
    CSS_TYPE => "base.css", "cluster.css", "chat.css";
    JS_TYPE => "app.js", "admin.js", "attachments.js", "chat.js", "confirm.js", "connect.js", "dom.js", "downloads.js",
        "events.js", "figures.js", "format.js", "formula.js", "highlight.js", "inline.js", "joining.js", "library.js",
        "machines.js", "map.js", "markdown.js", "models.js", "net.js", "options.js", "rates.js", "said.js", "store.js", "talks.js",
        "totals.js", "tree.js";
    "image/svg+xml" => "icon.svg";
    "application/manifest+json" => "manifest.webmanifest";
};

/// Others' files, unchanged.
const OTHERS: &[(&str, &str, &str)] =
    &[("temml.min.js", JS_TYPE, include_str!("../../third-party/temml/temml.min.js"))];

/// Nothing from other origins, nothing inline but the user's own pictures, and no embedding in
/// frames.
const POLICY: &str = "default-src 'self'; img-src 'self' data:; base-uri 'none'; \
                      form-action 'none'; frame-ancestors 'none'";

pub(crate) fn routes() -> Router<Arc<App>> {
    let all = ASSETS.iter().chain(OTHERS);
    all.fold(Router::new().route("/", get(index)), |router, (name, kind, content)| {
        let file = get(move || async move { asset(kind, content) });
        router.route(&format!("/assets/{name}"), file)
    })
}

/// The page for browsers, a line for all other clients: some probe `/` before they start, and
/// Ollama's clients expect exactly this line.
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
        // The page and its script must have the same version.
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

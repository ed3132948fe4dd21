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
        "machines.js", "map.js", "markdown.js", "models.js", "net.js", "options.js", "pdf.js", "rates.js", "said.js", "search.js", "store.js",
        "talks.js", "totals.js", "tree.js";
    "image/svg+xml" => "icon.svg";
    "application/manifest+json" => "manifest.webmanifest";
};

/// Name, type and content: others' programs, unchanged (those that end in `.gz` are unpacked by the
/// browser), and icons for the home screens of phones.
const BINARIES: &[(&str, &str, &[u8])] = &[
    ("temml.min.js", JS_TYPE, include_bytes!("../../third-party/temml/temml.min.js")),
    ("pdf.min.mjs", JS_TYPE, include_bytes!("../../third-party/pdfjs/pdf.min.mjs.gz")),
    (
        "pdf.worker.min.mjs",
        JS_TYPE,
        include_bytes!("../../third-party/pdfjs/pdf.worker.min.mjs.gz"),
    ),
    ("icon-180.png", "image/png", include_bytes!("icon-180.png")),
    ("icon-512.png", "image/png", include_bytes!("icon-512.png")),
];
const GZIP_MAGIC: &[u8] = &[0x1f, 0x8b];

/// Nothing from other origins, nothing inline but the user's own pictures, and no embedding in
/// frames.
const POLICY: &str = "default-src 'self'; img-src 'self' data:; base-uri 'none'; \
                      form-action 'none'; frame-ancestors 'none'";

pub(crate) fn routes() -> Router<Arc<App>> {
    let router = ASSETS.iter().fold(Router::new(), |router, (name, kind, content)| {
        let file = get(move || async move { asset(kind, content.as_bytes()) });
        router.route(&format!("/assets/{name}"), file)
    });
    let router = BINARIES.iter().fold(router, |router, (name, kind, content)| {
        let file = get(move || async move { asset(kind, content) });
        router.route(&format!("/assets/{name}"), file)
    });
    router.route("/", get(index))
}

/// The page for browsers, a line for all other clients: some probe `/` before they start, and
/// Ollama's clients expect exactly this line.
async fn index(headers: HeaderMap) -> Response {
    let accept = headers.get(header::ACCEPT).and_then(|accept| accept.to_str().ok());
    if !accept.is_some_and(|accept| accept.contains("text/html")) {
        return asset("text/plain; charset=utf-8", b"Ollama is running");
    }
    asset("text/html; charset=utf-8", HTML.as_bytes())
}

fn asset(kind: &'static str, content: &'static [u8]) -> Response {
    const HEADERS: [(HeaderName, &str); 3] = [
        (header::CONTENT_SECURITY_POLICY, POLICY),
        (header::REFERRER_POLICY, "no-referrer"),
        // The page and its script must have the same version.
        (header::CACHE_CONTROL, "no-cache"),
    ];
    let mut response = content.into_response();
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(kind));
    if content.starts_with(GZIP_MAGIC) {
        headers.insert(header::CONTENT_ENCODING, HeaderValue::from_static("gzip"));
    }
    for (name, value) in HEADERS {
        headers.insert(name, HeaderValue::from_static(value));
    }
    response
}

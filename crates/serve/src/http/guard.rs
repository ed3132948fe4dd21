//! Access control: runs before every route, before any body is read.

use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::Extension;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode, Uri, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};

use super::body::{Share, drain};
use super::error::{ApiError, Retry};
use super::hosts::{Origin, is_ours, judge_origin, requested};
use super::keys::{self, ApiKeys, Shown};
use super::owner::Claim;
use super::{Ends, Reserved};
use crate::config::ServeConfig;

const METHODS: &str = "GET, HEAD, POST, OPTIONS";
/// Delay after a wrong key on a connection. A 64-bit key is secure without it; the delay limits the
/// log and the CPU load.
const WRONG_KEY_DELAY: Duration = Duration::from_millis(250);

/// Checks `Host`, `Origin` and the content type, answers `OPTIONS`, and adds security headers to
/// every response.
pub(crate) async fn guard(
    State(config): State<Arc<ServeConfig>>,
    Extension(ends): Extension<Ends>,
    mut request: Request,
    next: Next,
) -> Response {
    let (method, began) = (request.method().clone(), Instant::now());
    let is_reserved = request.extensions().get::<Reserved>().is_some();
    let claim = Claim::of(&config, ends, request.headers());
    if is_reserved && !claim.is_owners(&config).await {
        let mut response = closing(no_connections());
        seal(response.headers_mut(), None);
        return response;
    }
    let asked = judge(&config, ends, request.method(), request.uri(), request.headers());
    let (mut response, origin) = match asked {
        Err(error) => (refuse(error, request).await, None),
        Ok(origin) if request.method() == Method::OPTIONS => {
            (preflight(request.headers(), origin.is_some()), origin)
        }
        Ok(origin) => {
            let share = Share::default();
            request.extensions_mut().insert(share.clone());
            let response = next.run(request).await;
            // The answer starts.
            drop(share);
            (response, origin)
        }
    };
    seal(response.headers_mut(), origin);
    // Nothing else of a request is logged: paths and headers can contain private data.
    let (status, took_ms) = (response.status().as_u16(), began.elapsed().as_millis() as u64);
    tracing::debug!(client = %ends.client, %method, status, took_ms, "answered");
    response
}

/// Admits clients on this machine, the node's own commands, and others with an API key.
pub(crate) async fn require_api_key(
    State(config): State<Arc<ServeConfig>>,
    Extension(ends): Extension<Ends>,
    request: Request,
    next: Next,
) -> Response {
    let is_admin = keys::check_bearer(request.headers(), &config.admin_token) == Shown::Right;
    if is_admin || is_local(ends, request.headers()) {
        return next.run(request).await;
    }
    let accepted = config.api_keys.as_ref().map(ApiKeys::now).unwrap_or_default();
    let why = match keys::check(request.headers(), &accepted) {
        Shown::Right => return next.run(request).await,
        Shown::Wrong => {
            tokio::time::sleep(WRONG_KEY_DELAY).await;
            "this API key is not one of this node's"
        }
        Shown::Nothing => "an API key is needed from other machines",
    };
    let hint = "send it as \"Authorization: Bearer KEY\" or \"x-api-key: KEY\"; the owner of the \
                node has it";
    refuse(ApiError::unauthenticated(format!("{why}: {hint}")), request).await
}

/// Admits requests with the admin token.
pub(crate) async fn require_admin(
    State(config): State<Arc<ServeConfig>>,
    request: Request,
    next: Next,
) -> Response {
    let why = match keys::check_bearer(request.headers(), &config.admin_token) {
        Shown::Right => return next.run(request).await,
        Shown::Wrong => {
            tokio::time::sleep(WRONG_KEY_DELAY).await;
            "this is not the node's admin token"
        }
        Shown::Nothing => "the admin token is needed",
    };
    let hint = "send the content of the file admin.token in the node's data directory as \
                \"Authorization: Bearer TOKEN\", or use the sinew command, which does";
    refuse(ApiError::unauthenticated(format!("{why}: {hint}")), request).await
}

/// Whether a request was made on this machine. A request with a proxy's forwarding header is not.
pub(crate) fn is_local(ends: Ends, headers: &HeaderMap) -> bool {
    let forwarded = ["forwarded", "x-forwarded-for"].iter().any(|name| headers.contains_key(*name));
    ends.is_same_machine() && !forwarded
}

/// The foreign origin that may read the answer, if the request has one.
fn judge(
    config: &ServeConfig,
    ends: Ends,
    method: &Method,
    target: &Uri,
    headers: &HeaderMap,
) -> Result<Option<HeaderValue>, ApiError> {
    let Some(host) = requested(headers, target) else {
        let message = "the request must name this node in exactly one Host header";
        return Err(ApiError::request(StatusCode::BAD_REQUEST, "invalid_host", message));
    };
    if !is_ours(&host, ends.server.ip(), &config.host_names) {
        let message = format!(
            "this node is not called \"{0}\". Use localhost or its address, or start the node with \
             --host-name {0} (a guard against DNS rebinding)",
            host.host
        );
        return Err(ApiError::forbidden("host_not_allowed", message));
    }
    let origin = headers.get(header::ORIGIN);
    let judged = judge_origin(origin, &host, &config.allowed_origins);
    match judged {
        Origin::Same if !is_of_another_page(method, headers) => {}
        Origin::Allowed if is_for_clients(target) => {}
        _ => {
            let message = "pages of other sites may not call this node. If this one should, start \
                           the node with --allow-origin and the page's scheme and host, such as \
                           https://chat.example";
            return Err(ApiError::forbidden("origin_not_allowed", message));
        }
    }
    if *method == Method::POST {
        check_content(target, headers)?;
    }
    Ok(origin.filter(|_| judged == Origin::Allowed).cloned())
}

/// Whether a browser says that a page of another site or another port makes the request. The
/// request of a picture or a script has no `Origin`. A person who follows a link is let in.
fn is_of_another_page(method: &Method, headers: &HeaderMap) -> bool {
    let says = |name: &str, values: &[&str]| {
        headers.get(name).is_some_and(|said| values.iter().any(|value| said == value))
    };
    let is_looked_at = matches!(*method, Method::GET | Method::HEAD);
    says("sec-fetch-site", &["cross-site", "same-site"])
        && !(is_looked_at && says("sec-fetch-mode", &["navigate"]))
}

/// Whether pages of allowed origins may call it: requests to models may, administration may not.
fn is_for_clients(target: &Uri) -> bool {
    ["/v1/", "/api/"].iter().any(|root| target.path().starts_with(root))
}

/// Admits only plain JSON: a foreign page can send other types without a preflight, and a
/// compressed body can expand without limit. Ollama's documentation shows `curl -d`, which labels
/// its JSON as a form. Under `/api/` that is accepted from clients without a browser's headers
/// (`Origin`, `Sec-Fetch-*`), and everywhere but in administration a body without a type.
fn check_content(target: &Uri, headers: &HeaderMap) -> Result<(), ApiError> {
    let wrong = |message| {
        let status = StatusCode::UNSUPPORTED_MEDIA_TYPE;
        Err(ApiError::request(status, "unsupported_media_type", message))
    };
    let kind = headers.get(header::CONTENT_TYPE).map_or(&b""[..], HeaderValue::as_bytes);
    let essence = kind.split(|byte| *byte == b';').next().unwrap_or_default().trim_ascii();
    let is_browser = [header::ORIGIN.as_str(), "sec-fetch-site", "sec-fetch-mode"]
        .iter()
        .any(|name| headers.contains_key(*name));
    let is_unsaid = essence.is_empty() && !target.path().starts_with("/sinew/");
    let any_type = (target.path().starts_with("/api/") || is_unsaid) && !is_browser;
    if !any_type && !essence.eq_ignore_ascii_case(b"application/json") {
        return wrong("the body must be JSON: send \"Content-Type: application/json\"");
    }
    match headers.get(header::CONTENT_ENCODING) {
        Some(encoding) if encoding != "identity" => {
            wrong("compressed bodies are not accepted: leave Content-Encoding out")
        }
        _ => Ok(()),
    }
}

/// Answers without calling the route. The connection closes, but the rest of the body is read for a
/// moment; otherwise the client would get a reset instead of the answer.
async fn refuse(error: ApiError, request: Request) -> Response {
    let (parts, body) = request.into_parts();
    drain(&parts.headers, body.into_data_stream()).await;
    closing(error)
}

fn closing(error: ApiError) -> Response {
    let mut response = error.into_response();
    response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
    response
}

fn no_connections() -> ApiError {
    let message = "all connections of this node have requests in work; the last few are kept for \
                   its owner. Try again in a moment";
    let status = StatusCode::SERVICE_UNAVAILABLE;
    ApiError::server(status, "connections_full", message).with_retry(Retry::AfterSecs(2))
}

fn preflight(headers: &HeaderMap, foreign: bool) -> Response {
    let mut response = (StatusCode::NO_CONTENT, Body::empty()).into_response();
    let answer = response.headers_mut();
    answer.insert(header::ALLOW, HeaderValue::from_static(METHODS));
    if foreign {
        answer.insert(header::ACCESS_CONTROL_ALLOW_METHODS, HeaderValue::from_static(METHODS));
        answer.insert(header::ACCESS_CONTROL_MAX_AGE, HeaderValue::from_static("600"));
        // Clients send their own headers (`x-stainless-...`); none of them has an effect here.
        if let Some(wanted) = headers.get(header::ACCESS_CONTROL_REQUEST_HEADERS) {
            answer.insert(header::ACCESS_CONTROL_ALLOW_HEADERS, wanted.clone());
        }
    }
    response
}

fn seal(headers: &mut HeaderMap, origin: Option<HeaderValue>) {
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    headers.entry(header::CACHE_CONTROL).or_insert(HeaderValue::from_static("no-store"));
    headers.insert(header::VARY, HeaderValue::from_static("origin, accept"));
    let policy = if origin.is_some() { "cross-origin" } else { "same-origin" };
    headers.insert("cross-origin-resource-policy", HeaderValue::from_static(policy));
    if let Some(origin) = origin {
        headers.insert(header::ACCESS_CONTROL_ALLOW_ORIGIN, origin);
    }
}

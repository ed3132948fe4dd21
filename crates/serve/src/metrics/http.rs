//! Counts every HTTP answer by its status, and requests refused before they reached a model.

use std::sync::Arc;

use axum::extract::{MatchedPath, Request, State};
use axum::http::{Method, StatusCode};
use axum::middleware::Next;
use axum::response::Response;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;

use crate::app::App;
use crate::http::error::ApiError;

/// By route, method and status, all of them bounded.
pub(super) type Answered = Family<[(&'static str, String); 3], Counter>;

/// Counts an answer. It wraps every layer that may refuse a request.
pub(crate) async fn count(State(app): State<Arc<App>>, request: Request, next: Next) -> Response {
    let is_for_model = *request.method() == Method::POST
        && ["/v1/", "/api/"].iter().any(|root| request.uri().path().starts_with(root));
    let route: Option<MatchedPath> = request.extensions().get().cloned();
    let method = method(request.method());
    let response = next.run(request).await;
    let error = response.extensions().get::<ApiError>();
    if let Some(error) = error.filter(|error| is_for_model && !error.is_counted) {
        app.metrics.requests.turned_away(reason(error.status));
    }
    let handler = route.as_ref().map_or("other", MatchedPath::as_str).to_owned();
    let status = response.status().as_str().to_owned();
    let labels = [("handler", handler), ("method", method.to_owned()), ("status", status)];
    app.metrics.answered.get_or_create(&labels).inc();
    response
}

/// Clients may send any word as a method.
fn method(method: &Method) -> &'static str {
    match *method {
        Method::GET => "GET",
        Method::HEAD => "HEAD",
        Method::POST => "POST",
        Method::DELETE => "DELETE",
        Method::OPTIONS => "OPTIONS",
        _ => "other",
    }
}

/// The label of a refusal.
fn reason(status: StatusCode) -> &'static str {
    match status {
        StatusCode::UNAUTHORIZED => "unauthenticated",
        StatusCode::FORBIDDEN => "forbidden",
        StatusCode::NOT_FOUND | StatusCode::METHOD_NOT_ALLOWED => "no_such_path",
        StatusCode::REQUEST_TIMEOUT => "timeout",
        StatusCode::PAYLOAD_TOO_LARGE => "too_large",
        StatusCode::TOO_MANY_REQUESTS => "busy",
        StatusCode::NOT_IMPLEMENTED => "not_implemented",
        status if status.is_server_error() => "unavailable",
        _ => "invalid",
    }
}

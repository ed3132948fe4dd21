use axum::Json;
use axum::extract::rejection::QueryRejection;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::Serialize;

/// As long as OpenAI lets one be.
const TOOL_NAME_SHOWN: usize = 64;

/// An error, written as OpenAI's clients read it: `{"error": {message, type, code, param}}`. Other
/// dialects write the same error in their own form ([`crate::dialect`]).
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ApiError {
    pub status: StatusCode,
    pub kind: ErrorKind,
    /// What a program can tell errors apart by.
    pub code: &'static str,
    /// What happened, why, what to do next.
    pub message: String,
    /// The request's field at fault.
    pub param: Option<String>,
    pub retry: Retry,
    /// Whoever raised it has counted it; any other is counted on its way to the client.
    pub is_counted: bool,
}

/// The `type` of an error, in OpenAI's words.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub(crate) enum ErrorKind {
    #[serde(rename = "invalid_request_error")]
    InvalidRequest,
    #[serde(rename = "authentication_error")]
    Authentication,
    #[serde(rename = "permission_error")]
    Permission,
    #[serde(rename = "rate_limit_error")]
    RateLimit,
    #[serde(rename = "server_error")]
    Server,
}

/// What an error tells clients about trying again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Retry {
    /// The status says enough.
    Default,
    AfterSecs(u32),
    /// Never by itself, although the status is one that clients retry: several of them would send
    /// thirty requests in half a minute.
    Never,
}

impl ApiError {
    fn new(
        status: StatusCode,
        kind: ErrorKind,
        code: &'static str,
        message: impl Into<String>,
    ) -> Self {
        let message = message.into();
        Self { status, kind, code, message, param: None, retry: Retry::Default, is_counted: false }
    }

    /// 400: the request is wrong as it stands.
    pub fn invalid(code: &'static str, message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, ErrorKind::InvalidRequest, code, message)
    }

    /// 400: two tools of a request have one name and differ.
    pub fn other_tool(list: &str, at: usize, name: &str) -> Self {
        let param = format!("{list}[{at}]");
        let name: String = name.chars().take(TOOL_NAME_SHOWN).collect();
        let message = format!(
            "{param} is another definition of {name:?}, which a tool before it has as its name. \
             Rename or leave out one of them"
        );
        Self::invalid_value(&param, message)
    }

    /// 400: a value that cannot be.
    pub fn invalid_value(param: &str, message: impl Into<String>) -> Self {
        Self::invalid("invalid_value", message).with_param(param)
    }

    /// 400: what follows the path cannot be read.
    pub fn query(rejection: QueryRejection) -> Self {
        Self::invalid("invalid_query", rejection.body_text())
    }

    /// 400: a feature of the dialect that is not there.
    pub fn unsupported(param: &str, message: impl Into<String>) -> Self {
        Self::invalid("unsupported", message).with_param(param)
    }

    /// Any other 4xx about the request itself.
    pub fn request(status: StatusCode, code: &'static str, message: impl Into<String>) -> Self {
        Self::new(status, ErrorKind::InvalidRequest, code, message)
    }

    /// 401: no key, or a wrong one.
    pub fn unauthenticated(message: impl Into<String>) -> Self {
        let (status, kind) = (StatusCode::UNAUTHORIZED, ErrorKind::Authentication);
        Self::new(status, kind, "invalid_api_key", message)
    }

    /// 403: not from there.
    pub fn forbidden(code: &'static str, message: impl Into<String>) -> Self {
        Self::new(StatusCode::FORBIDDEN, ErrorKind::Permission, code, message)
    }

    /// 429: too much at once.
    pub fn busy(message: impl Into<String>) -> Self {
        let (status, kind) = (StatusCode::TOO_MANY_REQUESTS, ErrorKind::RateLimit);
        Self { retry: Retry::AfterSecs(2), ..Self::new(status, kind, "queue_full", message) }
    }

    /// 5xx: the request is well, the cluster is not.
    pub fn server(status: StatusCode, code: &'static str, message: impl Into<String>) -> Self {
        Self::new(status, ErrorKind::Server, code, message)
    }

    pub fn with_param(mut self, param: &str) -> Self {
        self.param = Some(param.to_owned());
        self
    }

    pub fn with_retry(mut self, retry: Retry) -> Self {
        self.retry = retry;
        self
    }

    /// What a request's metrics know already.
    pub fn counted(mut self) -> Self {
        self.is_counted = true;
        self
    }

    /// The error as JSON, for a body or for an event inside a stream.
    pub fn body(&self) -> serde_json::Value {
        serde_json::json!({ "error": {
            "message": self.message,
            "type": self.kind,
            "code": self.code,
            "param": self.param,
        }})
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let mut response = (self.status, Json(self.body())).into_response();
        let headers = response.headers_mut();
        match self.retry {
            Retry::Default => {}
            Retry::AfterSecs(secs) => {
                headers.insert(header::RETRY_AFTER, HeaderValue::from(secs));
            }
            Retry::Never => {
                // Read by the OpenAI and Anthropic SDKs.
                headers.insert("x-should-retry", HeaderValue::from_static("false"));
            }
        }
        if self.status == StatusCode::UNAUTHORIZED {
            headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        response.extensions_mut().insert(self);
        response
    }
}

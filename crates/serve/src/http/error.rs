use axum::Json;
use axum::extract::rejection::QueryRejection;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::Serialize;

/// The longest message, and the longest path of a field.
const MESSAGE_CHARS_MAX: usize = 4096;
const PARAM_CHARS_MAX: usize = 256;

/// OpenAI's limit on the length of a tool name.
const TOOL_NAME_SHOWN: usize = 64;

/// An error, serialised in OpenAI's format: `{"error": {message, type, code, param}}`. Other
/// dialects convert it to their own format ([`crate::dialect`]).
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ApiError {
    pub status: StatusCode,
    pub kind: ErrorKind,
    /// A code by which programs tell errors apart.
    pub code: &'static str,
    /// The cause, the reason and the next step.
    pub message: String,
    /// The invalid field of the request.
    pub param: Option<String>,
    pub retry: Retry,
    /// Tokens of a prompt that does not fit, and of the context.
    pub size: Option<(usize, usize)>,
    /// Whether the error is already counted in the metrics; others are counted on the way to the
    /// client.
    pub is_counted: bool,
}

/// The error's `type` in OpenAI's API.
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

/// How clients should retry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Retry {
    /// The status is sufficient.
    Default,
    AfterSecs(u32),
    /// Clients should not retry, although the status suggests it: some would send thirty requests
    /// in half a minute.
    Never,
}

/// A text with at most `most` characters: what a request has can be megabytes long.
fn shown(mut text: String, most: usize) -> String {
    if let Some((end, _)) = text.char_indices().nth(most) {
        text.truncate(end);
        text.push('\u{2026}');
        text.shrink_to_fit();
    }
    text
}

impl ApiError {
    fn new(
        status: StatusCode,
        kind: ErrorKind,
        code: &'static str,
        message: impl Into<String>,
    ) -> Self {
        let message = shown(message.into(), MESSAGE_CHARS_MAX);
        Self {
            status,
            kind,
            code,
            message,
            param: None,
            retry: Retry::Default,
            size: None,
            is_counted: false,
        }
    }

    /// 400: the request is invalid.
    pub fn invalid(code: &'static str, message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, ErrorKind::InvalidRequest, code, message)
    }

    /// 400: two different tools of a request have the same name.
    pub fn other_tool(list: &str, at: usize, name: &str) -> Self {
        let param = format!("{list}[{at}]");
        let name: String = name.chars().take(TOOL_NAME_SHOWN).collect();
        let message = format!(
            "{param} is another definition of {name:?}, which a tool before it has as its name. \
             Rename or leave out one of them"
        );
        Self::invalid_value(&param, message)
    }

    /// 400: an invalid value.
    pub fn invalid_value(param: &str, message: impl Into<String>) -> Self {
        Self::invalid("invalid_value", message).with_param(param)
    }

    /// 400: the query string cannot be parsed.
    pub fn query(rejection: QueryRejection) -> Self {
        Self::invalid("invalid_query", rejection.body_text())
    }

    /// 400: an unsupported feature of the dialect.
    pub fn unsupported(param: &str, message: impl Into<String>) -> Self {
        Self::invalid("unsupported", message).with_param(param)
    }

    /// Any other 4xx about the request.
    pub fn request(status: StatusCode, code: &'static str, message: impl Into<String>) -> Self {
        Self::new(status, ErrorKind::InvalidRequest, code, message)
    }

    /// 401: a missing or wrong key.
    pub fn unauthenticated(message: impl Into<String>) -> Self {
        let (status, kind) = (StatusCode::UNAUTHORIZED, ErrorKind::Authentication);
        Self::new(status, kind, "invalid_api_key", message)
    }

    /// 403: not allowed from this client.
    pub fn forbidden(code: &'static str, message: impl Into<String>) -> Self {
        Self::new(StatusCode::FORBIDDEN, ErrorKind::Permission, code, message)
    }

    /// 429: too many requests at once.
    pub fn busy(message: impl Into<String>) -> Self {
        let (status, kind) = (StatusCode::TOO_MANY_REQUESTS, ErrorKind::RateLimit);
        Self { retry: Retry::AfterSecs(2), ..Self::new(status, kind, "queue_full", message) }
    }

    /// 5xx: the request is valid but the cluster cannot serve it.
    pub fn server(status: StatusCode, code: &'static str, message: impl Into<String>) -> Self {
        Self::new(status, ErrorKind::Server, code, message)
    }

    pub fn with_param(mut self, param: &str) -> Self {
        self.param = Some(shown(param.to_owned(), PARAM_CHARS_MAX));
        self
    }

    pub fn with_size(mut self, size: Option<(usize, usize)>) -> Self {
        self.size = size;
        self
    }

    pub fn with_retry(mut self, retry: Retry) -> Self {
        self.retry = retry;
        self
    }

    /// Marks the error as counted in the request metrics.
    pub fn counted(mut self) -> Self {
        self.is_counted = true;
        self
    }

    /// The error as JSON, for a body or for an event in a stream.
    pub fn body(&self) -> serde_json::Value {
        let mut body = serde_json::json!({
            "message": self.message,
            "type": self.kind,
            "code": self.code,
            "param": self.param,
        });
        self.write_size(&mut body);
        serde_json::json!({ "error": body })
    }

    /// Adds the sizes of a prompt that does not fit and of the context, as in llama-server.
    pub fn write_size(&self, body: &mut serde_json::Value) {
        if let Some((prompt_tokens, context_tokens)) = self.size {
            body["n_prompt_tokens"] = prompt_tokens.into();
            body["n_ctx"] = context_tokens.into();
        }
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
                // The OpenAI and Anthropic SDKs read this header.
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

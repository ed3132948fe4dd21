use axum::http::{HeaderValue, StatusCode};
use serde_json::{Value, json};

use crate::completion::random_seed;
use crate::http::error::ApiError;
use crate::known::THREAD_UNSUPPORTED;

/// The id of a request, for its answer and for bug reports.
#[derive(Debug, Clone)]
pub(crate) struct RequestId(String);

impl RequestId {
    pub fn new() -> Self {
        Self(format!("req_{:016x}{:08x}", random_seed(), random_seed() >> 32))
    }

    /// The value of the header `request-id`.
    pub fn header(&self) -> HeaderValue {
        HeaderValue::from_str(&self.0).expect("hexadecimal digits make a header")
    }
}

/// An error in Anthropic's format: `{"type": "error", "error": {type, message}, "request_id"}`, as
/// a body or as the data of an `error` event.
pub(crate) fn error_body(error: &ApiError, id: &RequestId) -> Value {
    // Agents search for these words to decide when to shorten a conversation.
    let message = match error.code {
        "context_length_exceeded" => format!("prompt is too long: {}", error.message),
        _ => error.message.clone(),
    };
    let mut body = json!({ "type": kind(error.status), "message": message });
    // At this code the clients send the whole conversation without a thread by themselves.
    if error.code == THREAD_UNSUPPORTED {
        body["details"] = json!({ "error_code": error.code, "unsupported": [error.param] });
    }
    json!({ "type": "error", "error": body, "request_id": id.0 })
}

/// The error's `type` in Anthropic's API.
fn kind(status: StatusCode) -> &'static str {
    match status {
        StatusCode::UNAUTHORIZED => "authentication_error",
        StatusCode::FORBIDDEN => "permission_error",
        StatusCode::NOT_FOUND => "not_found_error",
        StatusCode::PAYLOAD_TOO_LARGE => "request_too_large",
        StatusCode::TOO_MANY_REQUESTS => "rate_limit_error",
        StatusCode::SERVICE_UNAVAILABLE => "overloaded_error",
        StatusCode::GATEWAY_TIMEOUT => "timeout_error",
        status if status.is_server_error() => "api_error",
        _ => "invalid_request_error",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_in_anthropics_words() {
        let id = RequestId::new();
        let body = |error| error_body(&error, &id);
        let long = body(ApiError::invalid("context_length_exceeded", "9 tokens of 8"));
        let error = json!({
            "type": "invalid_request_error", "message": "prompt is too long: 9 tokens of 8",
        });
        assert_eq!(long["error"], error);
        assert_eq!((&long["type"], long["request_id"].as_str()), (&json!("error"), Some(&*id.0)));
        let kinds = [(401, "authentication_error"), (429, "rate_limit_error"), (502, "api_error")];
        for (status, want) in kinds {
            let status = StatusCode::from_u16(status).unwrap();
            assert_eq!(body(ApiError::server(status, "x", "y"))["error"]["type"], want);
        }
    }
}

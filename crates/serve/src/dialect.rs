//! Determines the dialect of a request, so that errors from the guard, body limits or unknown paths
//! use the format of that dialect's clients.

use axum::body::Body;
use axum::extract::Request;
use axum::http::{HeaderMap, header};
use axum::middleware::Next;
use axum::response::Response;
use serde_json::Value;

use crate::http::error::ApiError;
use crate::{anthropic, llama, ollama};

/// The dialect of a client's errors.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Dialect {
    OpenAi,
    Anthropic,
    Ollama,
    Llama,
}

/// Rewrites errors from OpenAI's format to the requested dialect's. This is the outermost layer.
pub(crate) async fn speak(mut request: Request, next: Next) -> Response {
    match Dialect::of(request.uri().path(), request.headers()) {
        Dialect::OpenAi => next.run(request).await,
        Dialect::Ollama => {
            let response = next.run(request).await;
            rewrite(response, ollama::error_body)
        }
        Dialect::Llama => {
            let response = next.run(request).await;
            rewrite(response, llama::error_body)
        }
        Dialect::Anthropic => {
            let id = anthropic::RequestId::new();
            request.extensions_mut().insert(id.clone());
            let response = next.run(request).await;
            let mut response = rewrite(response, |error| anthropic::error_body(error, &id));
            response.headers_mut().insert("request-id", id.header());
            response
        }
    }
}

impl Dialect {
    fn of(path: &str, headers: &HeaderMap) -> Self {
        let is_below = |root: &str| {
            path.strip_prefix(root).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
        };
        if is_below("/api") {
            Self::Ollama
        } else if is_below("/v1/messages") || headers.contains_key("anthropic-version") {
            Self::Anthropic
        } else if llama::PATHS.contains(&path) {
            Self::Llama
        } else {
            Self::OpenAi
        }
    }
}

fn rewrite(mut response: Response, body: impl FnOnce(&ApiError) -> Value) -> Response {
    let Some(error) = response.extensions_mut().remove::<ApiError>() else { return response };
    let (mut parts, _) = response.into_parts();
    parts.headers.remove(header::CONTENT_LENGTH);
    Response::from_parts(parts, Body::from(body(&error).to_string()))
}

#[cfg(test)]
mod tests {
    use axum::http::HeaderValue;

    use super::*;

    #[test]
    fn paths_and_headers_tell_dialects_apart() {
        let plain = HeaderMap::new();
        let mut versioned = HeaderMap::new();
        versioned.insert("anthropic-version", HeaderValue::from_static("2023-06-01"));
        let cases = [
            ("/v1/chat/completions", &plain, Dialect::OpenAi),
            ("/v1/messages", &plain, Dialect::Anthropic),
            ("/v1/messages/count_tokens", &plain, Dialect::Anthropic),
            ("/v1/messagesx", &plain, Dialect::OpenAi),
            ("/v1/models", &plain, Dialect::OpenAi),
            ("/v1/models", &versioned, Dialect::Anthropic),
            ("/api/chat", &plain, Dialect::Ollama),
            ("/api", &plain, Dialect::Ollama),
            ("/apis", &plain, Dialect::OpenAi),
            ("/completion", &plain, Dialect::Llama),
            ("/completions", &plain, Dialect::OpenAi),
            ("/", &plain, Dialect::OpenAi),
        ];
        for (path, headers, want) in cases {
            assert_eq!(Dialect::of(path, headers), want, "{path}");
        }
    }
}

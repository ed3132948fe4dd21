use axum::http::StatusCode;
use protocol::InvalidRequest;

use crate::completion::CompletionError;
use crate::http::error::{ApiError, Retry};
use crate::node::{Refusal, RefusalKind};

/// 404, with the served models.
pub(super) fn unknown_model(asked: String, served: Vec<String>) -> ApiError {
    CompletionError::UnknownModel { asked, served }.into()
}

/// Renames the error's field for a request with its prompt in a field other than `messages`.
pub(crate) fn at(field: &'static str) -> impl Fn(CompletionError) -> ApiError {
    move |error| {
        let error = ApiError::from(error);
        if error.param.as_deref() == Some("messages") { error.with_param(field) } else { error }
    }
}

impl From<CompletionError> for ApiError {
    fn from(error: CompletionError) -> Self {
        Self::of(error).counted()
    }
}

impl ApiError {
    /// Errors that a retry cannot fix are 4xx, because agents repeat anything else for minutes.
    fn of(error: CompletionError) -> Self {
        let message = error.to_string();
        let size = size_of(&error);
        match error {
            CompletionError::UnknownModel { .. }
            | CompletionError::UnservedPreset { .. }
            | CompletionError::NothingServed
            | CompletionError::Unfetched { .. } => {
                Self::request(StatusCode::NOT_FOUND, "model_not_found", message).with_param("model")
            }
            CompletionError::Invalid(
                InvalidRequest::TooLong { .. } | InvalidRequest::TooManyBytes { .. },
            ) => Self::invalid("context_length_exceeded", message)
                .with_param("messages")
                .with_size(size),
            CompletionError::LargePicture { at, .. } => {
                Self::invalid("context_length_exceeded", message).with_param(&at).with_size(size)
            }
            CompletionError::LongText { .. } => Self::invalid("context_length_exceeded", message)
                .with_param("input")
                .with_size(size),
            CompletionError::LongPair { .. } => Self::invalid("context_length_exceeded", message)
                .with_param("documents")
                .with_size(size),
            CompletionError::Invalid(
                InvalidRequest::NoTokens | InvalidRequest::Answered { .. },
            ) => Self::invalid_value("max_tokens", message),
            CompletionError::Invalid(
                InvalidRequest::Empty
                | InvalidRequest::NoPicture { .. }
                | InvalidRequest::PicturePlace { .. },
            ) => Self::invalid_value("messages", message),
            // Tokens made from text are always known; only tokens that the client names may be
            // unknown.
            CompletionError::Invalid(InvalidRequest::UnknownToken { .. }) => {
                Self::invalid_value("logit_bias", message)
            }
            CompletionError::Invalid(InvalidRequest::Sampling { field, .. }) => {
                Self::invalid_value(field, message)
            }
            CompletionError::Invalid(
                InvalidRequest::TooMany { .. } | InvalidRequest::UnknownParameters { .. },
            ) => Self::invalid("invalid_request", message),
            CompletionError::TooMany { .. } | CompletionError::Fetching { .. } => {
                Self::busy(message)
            }
            CompletionError::Stops(_) => Self::invalid_value("stop", message),
            CompletionError::Unusable { field, .. } => Self::invalid_value(field, message),
            CompletionError::Blind { .. } => Self::unsupported("messages", message),
            CompletionError::Picture { at, .. } => Self::invalid_value(&at, message),
            CompletionError::Unrenderable(_) => Self::invalid_value("messages", message),
            // The model does not recover by itself: a person must decide whether to retry.
            CompletionError::ModelFailed { .. } | CompletionError::Unreadable(_) => {
                Self::server(StatusCode::SERVICE_UNAVAILABLE, "model_failed", message)
                    .with_retry(Retry::Never)
            }
            CompletionError::Unsettled { .. } | CompletionError::HeaderTimeout { .. } => {
                Self::server(StatusCode::SERVICE_UNAVAILABLE, "unavailable", message)
                    .with_retry(Retry::AfterSecs(2))
            }
            CompletionError::Crashed => {
                Self::server(StatusCode::INTERNAL_SERVER_ERROR, "internal_error", message)
            }
            CompletionError::Refused(refusal) => refusal.into(),
            CompletionError::Lost { .. } => {
                Self::server(StatusCode::BAD_GATEWAY, "generation_failed", message)
            }
        }
    }
}

/// The tokens of a prompt that does not fit, and of the context.
fn size_of(error: &CompletionError) -> Option<(usize, usize)> {
    match error {
        CompletionError::Invalid(InvalidRequest::TooLong { prompt_tokens, context_tokens }) => {
            Some((*prompt_tokens, *context_tokens))
        }
        CompletionError::Invalid(InvalidRequest::TooManyBytes {
            tokens_min,
            context_tokens,
            ..
        }) => Some((*tokens_min, *context_tokens)),
        CompletionError::LongText { tokens, context_tokens, .. }
        | CompletionError::LongPair { tokens, context_tokens, .. }
        | CompletionError::LargePicture { tokens, context_tokens, .. } => {
            Some((*tokens, *context_tokens))
        }
        _ => None,
    }
}

impl From<Refusal> for ApiError {
    fn from(refusal: Refusal) -> Self {
        let message = refusal.message;
        match refusal.kind {
            RefusalKind::Invalid => Self::invalid("invalid_request", message),
            RefusalKind::NotFound => Self::request(StatusCode::NOT_FOUND, "not_found", message),
            RefusalKind::Conflict => {
                Self::request(StatusCode::CONFLICT, "conflict", message).with_retry(Retry::Never)
            }
            RefusalKind::Failed => {
                Self::server(StatusCode::SERVICE_UNAVAILABLE, "model_failed", message)
                    .with_retry(Retry::Never)
            }
            RefusalKind::Busy => Self::busy(message),
            RefusalKind::Unavailable => {
                Self::server(StatusCode::SERVICE_UNAVAILABLE, "unavailable", message)
                    .with_retry(Retry::AfterSecs(2))
            }
        }
    }
}

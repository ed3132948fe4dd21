use protocol::InvalidRequest;

use crate::node::Refusal;

/// Why an answer failed or was lost. The texts are for the client's user.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CompletionError {
    #[error("the model \"{asked}\" is not served here. {}", served_hint(.asked, .served))]
    UnknownModel { asked: String, served: Vec<String> },
    #[error("no model is served here. Start one with \"sinew serve MODEL\"")]
    NothingServed,
    #[error("the model \"{asked}\" is not served here, and could not be fetched: {reason}")]
    Unfetched { asked: String, reason: String },
    /// The model may exist: this node does not yet know all served models.
    #[error("the model \"{asked}\" is not known here yet: {reason}. Try again in a moment")]
    Unsettled { asked: String, reason: String },
    #[error("{model} cannot be used: {reason}")]
    ModelFailed { model: String, reason: String },
    #[error(transparent)]
    Invalid(#[from] InvalidRequest),
    #[error("{limit} completions are in work on this node already. Try again in a moment")]
    TooMany { limit: usize },
    /// The messages cannot be rendered to a prompt.
    #[error("{0}")]
    Unrenderable(text::TextError),
    /// The stop strings are invalid.
    #[error("{0}")]
    Stops(text::TextError),
    /// A field that this model does not support.
    #[error("{message}")]
    Unusable { field: &'static str, message: String },
    /// The model's file has no usable vocabulary or template.
    #[error("the model's vocabulary or chat template cannot be used: {0}")]
    Unreadable(text::TextError),
    #[error("the vocabulary of {model} did not arrive within 10 s. Try again in a moment")]
    HeaderTimeout { model: String },
    #[error("the node stopped while it prepared the prompt. Try again")]
    Crashed,
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// The work started and was lost.
    #[error("the answer was lost: {reason}")]
    Lost { reason: String },
}

/// Most names that a message lists; the model list has the rest.
const LISTED_MAX: usize = 20;

fn served_hint(asked: &str, served: &[String]) -> String {
    if served.is_empty() {
        return "No model is: start one with \"sinew serve MODEL\"".to_owned();
    }
    let near = match super::near::near(asked, served).as_slice() {
        [] => String::new(),
        near => format!("Did you mean {}? ", near.join(" or ")),
    };
    let listed = served.iter().take(LISTED_MAX).map(String::as_str).collect::<Vec<_>>().join(", ");
    let more = match served.len().saturating_sub(LISTED_MAX) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    format!("{near}Served are: {listed}{more}")
}

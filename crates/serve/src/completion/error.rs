use protocol::InvalidRequest;

use crate::node::Refusal;

/// Why there is no answer, or no more of it. Texts are for the person behind the client.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CompletionError {
    #[error("the model \"{asked}\" is not served here. {}", served_hint(.served))]
    UnknownModel { asked: String, served: Vec<String> },
    #[error("{model} cannot be used: {reason}")]
    ModelFailed { model: String, reason: String },
    #[error(transparent)]
    Invalid(#[from] InvalidRequest),
    #[error("{limit} completions are in work on this node already. Try again in a moment")]
    TooMany { limit: usize },
    /// What the client sent cannot be made into a prompt.
    #[error("{0}")]
    Unrenderable(text::TextError),
    /// The model's file has no usable vocabulary or template.
    #[error("the model's vocabulary or chat template cannot be used: {0}")]
    Unreadable(text::TextError),
    #[error("the model's vocabulary did not arrive within 10 s. Try again")]
    HeaderTimeout,
    #[error("the node stopped while it prepared the prompt. Try again")]
    Crashed,
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// The work began and was lost.
    #[error("the answer was lost: {reason}")]
    Lost { reason: String },
}

fn served_hint(served: &[String]) -> String {
    match served {
        [] => "No model is: start one with \"sinew serve MODEL\"".to_owned(),
        some => format!("Served are: {}", some.join(", ")),
    }
}

use protocol::InvalidRequest;

use crate::node::Refusal;

/// Why an answer failed or was lost. The texts are for the client's user.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CompletionError {
    #[error("the model \"{asked}\" is not served here. {}", served_hint(.asked, .served))]
    UnknownModel { asked: String, served: Vec<String> },
    #[error(
        "the preset \"{asked}\" is of the model {model}, which is not served. Start it with \
         \"sinew serve {model}\""
    )]
    UnservedPreset { asked: String, model: String },
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
    /// The model reads text only.
    #[error(
        "{model} reads text only, and the request has a picture. {}",
        seeing_hint(.seeing)
    )]
    Blind { model: String, seeing: Vec<String> },
    /// A picture that the model cannot see; `at` is its path in the request.
    #[error("{message}")]
    Picture { at: String, message: String },
    /// A picture that does not fit the model's context; `at` is its path in the request.
    #[error(
        "{at} is a picture of {tokens} tokens, and the model's context has {context_tokens}. Send a \
         smaller one, or serve the model with a larger context"
    )]
    LargePicture { at: String, tokens: usize, context_tokens: usize },
    /// A text to embed that does not fit the model's context.
    #[error(
        "text {number} of input has {tokens} tokens, and the model takes at most {context_tokens}. \
         Send a shorter one, or serve the model with a larger context"
    )]
    LongText { number: usize, tokens: usize, context_tokens: usize },
    /// A query and a document that do not fit the model's context together.
    #[error(
        "the query and document {number} have {tokens} tokens together, and at most \
         {context_tokens} fit. Send shorter ones, leave truncate out, or serve the model with a \
         larger context"
    )]
    LongPair { number: usize, tokens: usize, context_tokens: usize },
    #[error(
        "the pictures that other requests have fetched, or still fetch, fill the {} MiB meant for \
         them. Try again in a moment",
        bytes >> 20
    )]
    Fetching { bytes: usize },
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

impl CompletionError {
    /// [`Self::Blind`], without names yet.
    pub(super) fn blind() -> Self {
        Self::Blind { model: "the model".to_owned(), seeing: Vec::new() }
    }
}

/// Most names that a message lists; the model list has the rest.
const LISTED_MAX: usize = 20;

fn seeing_hint(seeing: &[String]) -> String {
    let serve = "serve the model with its mmproj file";
    match seeing {
        [] => format!("Leave pictures out, or {serve}"),
        [one] => format!("Ask {one}, which sees pictures, or {serve}"),
        more => {
            let named = more.iter().take(LISTED_MAX).map(String::as_str).collect::<Vec<_>>();
            format!("Ask one that sees pictures, or {serve}. These see: {}", named.join(", "))
        }
    }
}

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_does_not_see_names_who_does() {
        let cases: [(&[&str], &str); 3] = [
            (&[], "a reads text only, and the request has a picture. Leave pictures out, or serve"),
            (&["b"], "Ask b, which sees pictures, or serve the model with its mmproj file"),
            (&["b", "c"], "These see: b, c"),
        ];
        for (seeing, wanted) in cases {
            let seeing = seeing.iter().map(|name| (*name).to_owned()).collect();
            let error = CompletionError::Blind { model: "a".to_owned(), seeing }.to_string();
            assert!(error.contains(wanted), "{error}");
        }
    }
}

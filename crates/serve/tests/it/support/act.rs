//! The script of an answer.

use std::time::Duration;

use protocol::FinishReason;

/// One step of a scripted answer.
#[derive(Debug, Clone)]
pub enum Act {
    /// Waits for this long.
    Pause(Duration),
    /// The tokens of a text, one per event.
    Say(&'static str),
    /// The same without the last token.
    Begin(&'static str),
    /// Reports this many prompt tokens as cached.
    Cached(usize),
    /// Like [`Act::Say`] with log-probabilities: -0.5 for each token, and -0.5 and -1.5 for the two
    /// likeliest.
    Likely(&'static str),
    /// The model is not ready.
    Waiting(&'static str),
    Done(FinishReason),
    Failed(&'static str),
    /// Refuses the request as invalid.
    Refused(&'static str),
    /// Ends the stream without a final event.
    Vanish,
    /// Sends nothing more.
    Hang,
}

/// Makes the answer from the prompt.
pub type Writer = Box<dyn Fn(&str) -> Vec<Act> + Send + Sync>;

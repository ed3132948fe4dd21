//! Answers constrained by a JSON schema, a regex or a grammar: computes the allowed next tokens.
//!
//! [`Vocabulary`] is read once a model, [`Vocabulary::compile`] turns a request's grammar into a
//! [`Constraint`], which computes the allowed tokens at each step of the answer. That takes
//! milliseconds, and seconds for a hostile grammar, so [`Followers`] do it on threads of their own.

mod constraint;
mod follower;
mod turns;
mod vocabulary;

pub use constraint::Constraint;
pub use follower::{Follower, Followers, Report, Told, Work};
pub use vocabulary::{GRAMMAR_BYTES_MAX, Vocabulary};

/// Why a grammar cannot constrain an answer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ConstrainError {
    #[error("the grammar has {bytes} bytes, and {GRAMMAR_BYTES_MAX} are the most")]
    TooLong { bytes: usize },
    #[error("the grammar is nested {depth} deep, and {most} is the most")]
    TooDeep { depth: usize, most: usize },
    #[error("the grammar cannot be used: {0}")]
    Grammar(String),
    #[error("the grammar became too costly to follow in the middle of the answer: {0}")]
    Costly(String),
    #[error("the grammar allows no token of this model's vocabulary to come next")]
    DeadEnd,
    #[error("{waiting} grammars are waiting to be compiled already")]
    Busy { waiting: usize },
    #[error("the model's vocabulary cannot be read: {0}")]
    Vocabulary(String),
}

//! What is computed of a text in place of an answer.

use serde::{Deserialize, Serialize};

use crate::Token;

/// The hidden states that make the embedding of a text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Pooling {
    /// The mean of all positions.
    Mean,
    /// The last position's.
    Last,
    /// The first position's, of an encoder.
    First,
}

/// The most labels of a request.
pub const LABELS_MAX: usize = 16;

/// What becomes of the pooled hidden states.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct EmbeddingOptions {
    /// The vector keeps its length, in place of length one.
    pub raw: bool,
    /// The scores of the model's classifier, in place of an embedding.
    pub scores: bool,
    /// For a model without a classifier: its labels are these tokens, and their scores the softmax
    /// of their logits.
    pub labels: Vec<Token>,
    /// The number of tokens of a pair's first text. The rest are of the second.
    pub first_tokens: Option<usize>,
}

impl EmbeddingOptions {
    pub(crate) fn is_plain(&self) -> bool {
        *self == Self::default()
    }
}

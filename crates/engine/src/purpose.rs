//! What a model is for: answers, embeddings or scores.

/// Why a model cannot do what a request asks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum WrongPurpose {
    #[error(
        "the model is an encoder, which makes embeddings or scores of texts and no answers. Ask \
         another model"
    )]
    Encoder,
    #[error(
        "the model has no classifier, and the request names no tokens as labels. Serve a model \
         that reranks"
    )]
    NoClassifier,
}

//! Rank 0 finishes pooled states: embeddings and scores.

use backend::Backend;
use protocol::{EmbeddingOptions, GenerateRequest};

use super::Rank;
use crate::EngineError;
use crate::embeddings::normalise;
use crate::purpose::WrongPurpose;

impl<B: Backend> Rank<B> {
    /// Rank 0: checks that the model can do what a request asks.
    ///
    /// # Errors
    /// It cannot.
    pub(crate) fn check_purpose(&self, request: &GenerateRequest) -> Result<(), WrongPurpose> {
        let options = &request.embedding_options;
        let has_scores =
            self.pooled.as_ref().is_some_and(|pooled| pooled.has_scores(&options.labels));
        match request.embedding {
            None if self.config().encoder.is_some() => Err(WrongPurpose::Encoder),
            Some(_) if options.scores && !has_scores => Err(WrongPurpose::NoClassifier),
            _ => Ok(()),
        }
    }

    /// Rank 0: the embedding or the scores of a pooled state, `[width]`.
    ///
    /// # Errors
    /// The model's file cannot be read.
    pub(crate) fn finish_pooled(
        &mut self,
        state: Vec<f32>,
        options: &EmbeddingOptions,
    ) -> Result<Vec<f32>, EngineError> {
        let Self { pooled: Some(pooled), backend, .. } = self else {
            return Err(EngineError::Protocol("only rank 0 pools".to_owned()));
        };
        if options.scores {
            return Ok(pooled.scores(backend, &state, &options.labels)?);
        }
        let mut values = pooled.embedding(state);
        if !options.raw {
            normalise(&mut values);
        }
        Ok(values)
    }
}

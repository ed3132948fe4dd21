//! The account of a request.

use std::time::Instant;

use protocol::{FinishReason, Generation};

use super::Sequence;

impl Sequence {
    /// `waited_us`: the time that rank 0 has waited for each rank so far.
    pub fn account(&self, reason: FinishReason, now: Instant, waited_us: &[u64]) -> Generation {
        let before = self.waited_before_us.iter().chain(std::iter::repeat(&0));
        let waits = waited_us.iter().zip(before).map(|(now, before)| now - before);
        let started = self.started.unwrap_or(now);
        let first_token = self.first_token.unwrap_or(now);
        Generation {
            request: self.id,
            reason,
            prompt_tokens: self.request.prompt.len(),
            generated_tokens: self.answer().len(),
            answered_tokens: self.request.answered.len(),
            cached_tokens: self.cached_tokens,
            guesses: self.guessed,
            queue_us: (started - self.added).as_micros() as u64,
            prefill_us: (first_token - started).as_micros() as u64,
            decode_us: (now - first_token).as_micros() as u64,
            waits_us: if self.started.is_some() { waits.collect() } else { Vec::new() },
            embedding: None,
        }
    }
}

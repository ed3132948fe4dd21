//! What one more request would cost an instance, for those who choose among a model's replicas.

use placement::Prediction;

use super::{Instance, Phase};
use crate::wire::{Offer, Question};

/// Assumed before anything was measured or predicted, in tokens a second.
const PROMPT_RATE: f64 = 100.0;
const ANSWER_RATE: f64 = 10.0;
/// By how much of its time alone a step takes longer for each further answer, without a prediction.
const SLOWER_EACH: f64 = 0.2;
/// Most tokens of an answer that are counted: most answers end before their limit.
const ANSWER_TOKENS: usize = 256;

impl Instance {
    /// The offer for a request; `None` if the instance takes none now.
    pub(crate) fn offer(
        &self,
        question: &Question,
        prediction: Option<&Prediction>,
    ) -> Option<Offer> {
        if self.phase != Phase::Ready {
            return None;
        }
        let predicted = prediction.filter(|found| found.decode_tokens_per_sec > 0.0);
        let prompt_rate = self.readiness.prompt_rate;
        let prompt_rate = prompt_rate.or(predicted.map(|found| found.prefill_tokens_per_sec));
        let prompt_rate = prompt_rate.filter(|rate| *rate > 0.0).unwrap_or(PROMPT_RATE);
        let answer_rate = predicted.map(|found| found.decode_tokens_per_sec);
        let token_secs = 1.0 / answer_rate.unwrap_or(ANSWER_RATE);
        let slower = predicted.and_then(slower_each).unwrap_or(SLOWER_EACH);
        let unread_tokens = self.readiness.unread(question);
        let load = self.requests.load();
        let answer = question.answer_tokens.min(ANSWER_TOKENS) as f64 * token_secs;
        let reading = (unread_tokens + load.unread_tokens) as f64 / prompt_rate;
        // Each answer beside it is slowed by it, and it by each.
        let beside = 2.0 * load.running as f64 * slower * answer;
        let waiting = load.waiting as f64 * (1.0 + slower) * answer;
        let cost_us = ((reading + beside + waiting) * 1e6) as u64;
        Some(Offer { unread_tokens, cost_us })
    }
}

/// By how much of its time alone a step takes longer for each further answer.
fn slower_each(predicted: &Prediction) -> Option<f64> {
    let users = predicted.load.users as f64;
    let one = predicted.decode_tokens_per_sec / predicted.total_tokens_per_sec;
    let each = (users * one - 1.0) / (users - 1.0);
    (users > 1.0 && each.is_finite()).then(|| each.clamp(0.02, 1.0))
}

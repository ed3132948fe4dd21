//! What rank 0 has in its cache, and how fast it reads prompts, as far as its node knows.

use std::collections::HashSet;

use layout::PAGE_POSITIONS;
use protocol::Generation;

use crate::GenerateRequest;
use crate::wire::Question;

/// Prompts with fewer computed tokens tell no rate.
const MEASURED_MIN: usize = 256;
/// Weight of a measurement relative to the one after it.
const OLDER: f64 = 0.7;
/// Most texts that are remembered: pages of the largest cache.
const KEYS_MAX: usize = 1 << 22;

/// The texts in the cache of rank 0, and the rate at which it computes prompts.
#[derive(Debug, Default)]
pub(super) struct Readiness {
    cached: HashSet<u64>,
    /// Tokens a second.
    pub(super) prompt_rate: Option<f64>,
}

impl Question {
    /// The question about a request.
    pub(crate) fn of(request: &GenerateRequest) -> Self {
        let keys = protocol::page_keys(request.cache_salt, &request.prompt, PAGE_POSITIONS);
        Self {
            keys: keys.collect(),
            prompt_tokens: request.prompt.len(),
            answer_tokens: request.max_tokens,
        }
    }
}

impl Readiness {
    pub(super) fn note(&mut self, came: Vec<u64>, gone: &[u64]) {
        gone.iter().for_each(|key| {
            self.cached.remove(key);
        });
        self.cached.extend(came);
        if self.cached.len() > KEYS_MAX {
            self.cached.clear();
        }
    }

    /// Rank 0 begins anew with an empty cache.
    pub(super) fn forget(&mut self) {
        self.cached.clear();
    }

    /// The tokens of a prompt that are not in the cache; the last one is always computed.
    pub(super) fn unread(&self, question: &Question) -> usize {
        let pages = question.keys.iter().rposition(|key| self.cached.contains(key));
        let known = pages.map_or(0, |last| (last + 1) * PAGE_POSITIONS);
        question.prompt_tokens.saturating_sub(known).max(1)
    }

    /// Takes note of how long a prompt took.
    pub(super) fn measured(&mut self, generation: &Generation) {
        let tokens = generation.prompt_tokens.saturating_sub(generation.cached_tokens);
        if tokens < MEASURED_MIN || generation.prefill_us == 0 {
            return;
        }
        let rate = tokens as f64 * 1e6 / generation.prefill_us as f64;
        let mean = |before: f64| OLDER * before + (1.0 - OLDER) * rate;
        self.prompt_rate = Some(self.prompt_rate.map_or(rate, mean));
    }
}

#[cfg(test)]
mod tests {
    use protocol::FinishReason;

    use super::*;

    fn question(text: &[u32]) -> Question {
        let request = GenerateRequest { prompt: text.to_vec(), ..GenerateRequest::default() };
        Question::of(&request)
    }

    #[test]
    fn what_the_cache_has_need_not_be_read() {
        let mut readiness = Readiness::default();
        let text: Vec<u32> = (0..200).collect();
        let asked = question(&text);
        assert_eq!(readiness.unread(&asked), 200);
        readiness.note(question(&text[..128]).keys, &[]);
        assert_eq!(readiness.unread(&asked), 72);
        assert_eq!(readiness.unread(&question(&text[..128])), 1, "the last one is computed");
        let other: Vec<u32> = std::iter::once(7).chain(1..200).collect();
        assert_eq!(readiness.unread(&question(&other)), 200);
        readiness.note(Vec::new(), &asked.keys[1..2]);
        assert_eq!(readiness.unread(&asked), 136);
        readiness.forget();
        assert_eq!(readiness.unread(&asked), 200);
    }

    #[test]
    fn the_rate_of_prompts_is_measured() {
        let mut readiness = Readiness::default();
        let generation = |prompt_tokens, cached_tokens, prefill_us| Generation {
            prompt_tokens,
            cached_tokens,
            prefill_us,
            ..Generation::nothing(1, FinishReason::Stop)
        };
        readiness.measured(&generation(200, 0, 1_000_000));
        readiness.measured(&generation(1000, 900, 1_000_000));
        assert_eq!(readiness.prompt_rate, None, "too few to tell");
        readiness.measured(&generation(1000, 0, 2_000_000));
        assert_eq!(readiness.prompt_rate, Some(500.0));
        readiness.measured(&generation(1000, 0, 1_000_000));
        let rate = readiness.prompt_rate.unwrap();
        assert!((rate - 650.0).abs() < 1e-6, "{rate}");
    }
}

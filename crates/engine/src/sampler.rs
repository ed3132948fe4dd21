//! Draws the next token from logits.
//!
//! The random number of a step depends only on the request's seed and the token's position. So the
//! same seed gives the same answer, and a request that is replayed elsewhere continues exactly as
//! it would have.

pub(crate) mod adjust;
mod chain;
pub(crate) mod draw;
mod dry;
mod logprobs;

use protocol::{AnswerToken, Sampling, Token};

use crate::logits::{Candidate, Logits};

use adjust::is_adjusted;
use chain::Chain;
pub(crate) use draw::{Draw, NotFinite, check_finite};
use draw::{pick_by, uniform};

/// Keeps its buffers between calls, so that sampling allocates nothing after the first.
#[derive(Debug, Default)]
pub struct Sampler {
    /// `[vocab]`, if a request changes its logits.
    adjusted: Vec<f32>,
    counts: Vec<u32>,
    candidates: Vec<Candidate>,
    /// The probability of each candidate.
    probabilities: Vec<f32>,
    /// For sampling that is not [plain](Sampling::is_plain).
    chain: Chain,
}

impl Sampler {
    /// The next token of an answer. Ties go to the lower token id. `logits` must be the result that
    /// [`by`](crate::logits::Extent::by) wants for this request, or all.
    ///
    /// # Errors
    /// A logit is infinite or not a number.
    pub fn sample(
        &mut self,
        logits: Logits<'_>,
        draw: &Draw<'_>,
    ) -> Result<AnswerToken, NotFinite> {
        let Logits::All(raw) = logits else {
            let (token, mirostat_mu) = self.choose(logits, draw)?;
            return Ok(AnswerToken { mirostat_mu, ..token.into() });
        };
        check_finite(raw)?;
        let (token, mirostat_mu) = match is_adjusted(draw.request, draw.answer.len()) {
            false => self.choose(logits, draw)?,
            true => {
                let mut adjusted = std::mem::take(&mut self.adjusted);
                adjusted.clear();
                adjusted.extend_from_slice(raw);
                self.counts.resize(raw.len(), 0);
                adjust::adjust(&mut adjusted, draw, &mut self.counts);
                let token = self.choose(Logits::All(&adjusted), draw);
                self.adjusted = adjusted;
                token?
            }
        };
        let count = draw.request.logprobs;
        let logprobs =
            count.map(|count| logprobs::logprobs(raw, token, count, &mut self.candidates));
        Ok(AnswerToken { token, logprobs, mirostat_mu })
    }

    /// Draws from logits that are already adjusted to the request. The second result is
    /// [`AnswerToken::mirostat_mu`].
    fn choose(
        &mut self,
        logits: Logits<'_>,
        draw: &Draw<'_>,
    ) -> Result<(Token, Option<f32>), NotFinite> {
        if draw.request.sampling.is_plain() {
            return Ok((self.choose_plainly(logits, draw)?, None));
        }
        self.chain.draw(logits, draw)
    }

    fn choose_plainly(&mut self, logits: Logits<'_>, draw: &Draw<'_>) -> Result<Token, NotFinite> {
        let sampling = &draw.request.sampling;
        let best = match logits {
            Logits::All(logits) => argmax(logits)?,
            Logits::Top(top) => match top.first() {
                Some(best) if top.iter().all(|one| one.logit.is_finite()) => best.token,
                _ => return Err(NotFinite),
            },
            Logits::Hidden(_) => return Err(NotFinite),
        };
        if sampling.temperature <= 0.0 {
            return Ok(best);
        }
        self.gather(logits, sampling.top_k as usize);
        self.keep_likely(sampling);
        let draw = uniform(sampling.seed, draw.position as u64);
        Ok(self.draw(draw, sampling.temperature))
    }

    /// Collects the `top_k` likeliest tokens (all, if 0), likeliest first, with their
    /// probabilities.
    fn gather(&mut self, logits: Logits<'_>, top_k: usize) {
        self.candidates.clear();
        match logits {
            Logits::Top(top) => self.candidates.extend_from_slice(top),
            Logits::Hidden(_) => {}
            Logits::All(logits) => {
                let all = (0..).zip(logits);
                self.candidates.extend(all.map(|(token, &logit)| Candidate { token, logit }));
            }
        }
        if top_k > 0 && top_k < self.candidates.len() {
            self.candidates.select_nth_unstable_by(top_k - 1, Candidate::order);
            self.candidates.truncate(top_k);
        }
        self.candidates.sort_unstable_by(Candidate::order);
        self.set_probabilities(1.0);
    }

    /// Applies `top_p`, then `min_p`; the likeliest token always stays.
    fn keep_likely(&mut self, sampling: &Sampling) {
        let mut kept = self.candidates.len();
        if sampling.top_p < 1.0 {
            let mut sum = 0.0;
            let enough = self.probabilities.iter().position(|probability| {
                sum += probability;
                sum >= sampling.top_p
            });
            kept = enough.map_or(kept, |at| at + 1);
        }
        let least = self.probabilities[0] * sampling.min_p.min(1.0);
        let likely = self.probabilities[..kept].partition_point(|p| *p >= least);
        self.candidates.truncate(likely.max(1));
    }

    /// The candidate where the running sum of probabilities passes `draw`, from 0 to 1.
    fn draw(&mut self, draw: f32, temperature: f32) -> Token {
        self.set_probabilities(temperature);
        self.candidates[pick_by(&self.probabilities, draw)].token
    }

    /// Softmax of `logit / temperature` over the sorted candidates. An answer may go on on another
    /// kind of machine, so it is not made of the system's exponential.
    fn set_probabilities(&mut self, temperature: f32) {
        let max = self.candidates[0].logit;
        let scaled = |candidate: &Candidate| (candidate.logit - max) / temperature;
        self.probabilities.clear();
        self.probabilities.extend(self.candidates.iter().map(scaled));
        backend::softmax(&mut self.probabilities);
    }
}

/// The token with the largest logit; masked ones are minus infinity.
fn argmax(logits: &[f32]) -> Result<Token, NotFinite> {
    let mut best = (0, f32::NEG_INFINITY);
    for (token, logit) in (0..).zip(logits) {
        if logit.is_nan() {
            return Err(NotFinite);
        }
        if *logit > best.1 {
            best = (token, *logit);
        }
    }
    if best.1.is_finite() { Ok(best.0) } else { Err(NotFinite) }
}

#[cfg(test)]
mod tests {
    use protocol::GenerateRequest;

    use super::*;
    use crate::logits::Extent;

    fn sampling() -> Sampling {
        Sampling { temperature: 1.0, ..Sampling::default() }
    }

    /// Draws from logits for a request with only these options.
    fn sample(
        sampler: &mut Sampler,
        logits: &[f32],
        sampling: &Sampling,
        position: usize,
    ) -> Result<Token, NotFinite> {
        let request = GenerateRequest { sampling: sampling.clone(), ..Default::default() };
        let draw = Draw { request: &request, answer: &[], position, allowed: None };
        sampler.sample(Logits::All(logits), &draw).map(|answer| answer.token)
    }

    /// The frequency of each of four tokens over many positions.
    fn frequencies(logits: &[f32], sampling: &Sampling) -> Vec<f32> {
        const DRAWS: usize = 20_000;
        let mut sampler = Sampler::default();
        let mut counts = vec![0; logits.len()];
        for position in 0..DRAWS {
            counts[sample(&mut sampler, logits, sampling, position).unwrap() as usize] += 1;
        }
        counts.iter().map(|count| *count as f32 / DRAWS as f32).collect()
    }

    #[test]
    fn greedy_takes_the_first_of_the_largest() {
        let mut sampler = Sampler::default();
        let greedy = Sampling::default();
        assert_eq!(sample(&mut sampler, &[1.0, 3.0, 3.0], &greedy, 0), Ok(1));
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            let broken = [bad, 1.0];
            assert_eq!(sample(&mut sampler, &broken, &greedy, 0), Err(NotFinite), "{broken:?}");
        }
    }

    #[test]
    fn frequencies_follow_the_probabilities() {
        let probabilities = [0.5f32, 0.25, 0.15, 0.1];
        let logits = probabilities.map(f32::ln);
        for (found, expected) in frequencies(&logits, &sampling()).iter().zip(probabilities) {
            assert!((found - expected).abs() < 0.015, "{found} instead of {expected}");
        }
    }

    #[test]
    fn each_limit_keeps_what_it_should() {
        let logits = [0.5f32, 0.25, 0.15, 0.1].map(f32::ln);
        let alive = |sampling: Sampling| {
            let found = frequencies(&logits, &sampling);
            found.iter().filter(|frequency| **frequency > 0.0).count()
        };
        assert_eq!(alive(Sampling { top_k: 2, ..sampling() }), 2);
        assert_eq!(alive(Sampling { top_k: 9, ..sampling() }), 4);
        assert_eq!(alive(Sampling { top_p: 0.7, ..sampling() }), 2);
        assert_eq!(alive(Sampling { top_p: 0.0, ..sampling() }), 1);
        assert_eq!(alive(Sampling { min_p: 0.25, ..sampling() }), 3);
        assert_eq!(alive(Sampling { min_p: 2.0, ..sampling() }), 1);
        assert_eq!(alive(Sampling { temperature: 0.01, ..sampling() }), 1);
    }

    #[test]
    fn the_seed_and_the_position_decide() {
        let logits = [0.0; 64];
        let run = |seed: u64| -> Vec<Token> {
            let sampling = Sampling { seed, ..sampling() };
            let mut sampler = Sampler::default();
            (0..16).map(|at| sample(&mut sampler, &logits, &sampling, at).unwrap()).collect()
        };
        assert_eq!(run(7), run(7));
        assert_ne!(run(7), run(8));
        let mut sampler = Sampler::default();
        let resumed =
            sample(&mut sampler, &logits, &Sampling { seed: 7, ..sampling() }, 9).unwrap();
        assert_eq!(resumed, run(7)[9]);
    }

    #[test]
    fn logprobs_are_of_the_model_whatever_a_request_changes() {
        let logits = [0.5f32, 0.3, 0.2].map(f32::ln);
        let logit_bias = vec![(0, -100.0)];
        let request = GenerateRequest {
            sampling: Sampling { logit_bias, ..Sampling::default() },
            logprobs: Some(1),
            ..Default::default()
        };
        assert_eq!(Extent::by(&request, 0), Extent::All);
        let draw = Draw { request: &request, answer: &[], position: 0, allowed: None };
        let found = Sampler::default().sample(Logits::All(&logits), &draw).unwrap();
        let logprobs = found.logprobs.unwrap();
        assert_eq!((found.token, logprobs.top[0].0), (1, 0));
        assert!((logprobs.drawn - 0.3f32.ln()).abs() < 1e-6);
        assert!((logprobs.top[0].1 - 0.5f32.ln()).abs() < 1e-6);
    }

    #[test]
    fn a_broken_logit_is_told_where_a_mask_hides_it() {
        let request = GenerateRequest {
            grammar: Some(protocol::Grammar::Regex("a".into())),
            ..Default::default()
        };
        let draw = Draw { request: &request, answer: &[], position: 0, allowed: Some(&[1]) };
        let found = Sampler::default().sample(Logits::All(&[1.0, f32::NAN]), &draw);
        assert_eq!(found, Err(NotFinite));
    }
}

//! Samplers in any order, as llama.cpp has them: each changes or drops candidates.
//!
//! A draw depends on the logits, the text so far, the seed and the token's position alone, and for
//! Mirostat on the bound that the token before left, which travels with that token. Sums and
//! logarithms are made of basic operations in a fixed order: an answer may go on on another kind of
//! machine.

use std::f64::consts::LN_2;

use backend::portable::{exp, ln};
use protocol::{Sampler as Kind, Sampling, Token, split_mix};

use super::draw::{Draw, NotFinite, newest, pick_by, uniform, window};
use super::dry::Dry;
use crate::logits::{Candidate, Logits};

/// Larger than any logit. What is divided by a tiny temperature ends here.
const LOGIT_MAX: f32 = 1e30;

/// The place of XTC's seed after a request's own: its numbers are others than those of draws.
const XTC_SEED: u64 = u64::from_be_bytes(*b"xtc draw");

/// The samplers of a request whose sampling is not [plain](Sampling::is_plain), and their buffers.
#[derive(Debug, Default)]
pub(super) struct Chain {
    candidates: Vec<Candidate>,
    /// Whether the candidates are in the order of [`Candidate::order`].
    is_sorted: bool,
    /// The probability of each candidate.
    probabilities: Vec<f32>,
    /// `[vocab]`, zero between calls.
    counts: Vec<u32>,
    dry: Dry,
}

impl Chain {
    /// Draws a token. `logits` are adjusted but for penalties: forbidden ones are minus infinity.
    /// Returns Mirostat's bound for the next token as well, if it is on.
    ///
    /// # Errors
    /// A logit is not a number, or no token is allowed.
    pub fn draw(
        &mut self,
        logits: Logits<'_>,
        draw: &Draw<'_>,
    ) -> Result<(Token, Option<f32>), NotFinite> {
        self.select(logits, draw)?;
        let sampling = &draw.request.sampling;
        let at = pick_by(&self.probabilities, uniform(sampling.seed, draw.position as u64));
        let has_bound = sampling.mirostat == 2;
        let mu = has_bound.then(|| next_bound(sampling, self.probabilities[at]));
        Ok((self.candidates[at].token, mu))
    }

    /// Applies the samplers, and weighs the candidates that are left.
    fn select(&mut self, logits: Logits<'_>, draw: &Draw<'_>) -> Result<(), NotFinite> {
        self.begin(logits)?;
        let sampling = &draw.request.sampling;
        for step in sampling.steps() {
            self.apply(step, draw);
        }
        if sampling.mirostat == 2 {
            self.keep_surprises(bound(sampling));
        }
        self.weigh();
        Ok(())
    }

    /// Takes the tokens that are not forbidden as candidates.
    fn begin(&mut self, logits: Logits<'_>) -> Result<(), NotFinite> {
        self.candidates.clear();
        self.is_sorted = false;
        match logits {
            Logits::All(logits) => {
                let all = (0..).zip(logits).map(|(token, &logit)| Candidate { token, logit });
                self.candidates.extend(all.filter(|one| one.logit != f32::NEG_INFINITY));
            }
            Logits::Top(top) => {
                self.candidates.extend_from_slice(top);
                self.is_sorted = true;
            }
            Logits::Hidden(_) => {}
        }
        let is_usable = self.candidates.iter().all(|one| one.logit.is_finite());
        (is_usable && !self.candidates.is_empty()).then_some(()).ok_or(NotFinite)
    }

    fn apply(&mut self, step: Kind, draw: &Draw<'_>) {
        let sampling = &draw.request.sampling;
        let keep_min = sampling.min_keep as usize;
        match step {
            Kind::Penalties => self.penalise(draw),
            Kind::Dry => {
                self.dry.penalise(&mut self.candidates, draw);
                self.is_sorted = false;
            }
            Kind::TopNSigma => self.keep_high(sampling.top_n_sigma),
            Kind::TopK => self.keep_first(sampling.top_k as usize),
            Kind::TypicalP => self.keep_typical(sampling.typical_p, keep_min),
            Kind::TopP => self.keep_together(sampling.top_p, keep_min),
            Kind::MinP => self.keep_likely(sampling.min_p, keep_min),
            Kind::Xtc => {
                let seed = split_mix(sampling.seed, XTC_SEED);
                if uniform(seed, draw.position as u64) < sampling.xtc_probability {
                    self.drop_choices(sampling.xtc_threshold, keep_min);
                }
            }
            Kind::Temperature => self.heat(sampling),
        }
    }

    /// Sorts the candidates, and computes their probabilities.
    fn weigh(&mut self) {
        if !self.is_sorted {
            self.candidates.sort_unstable_by(Candidate::order);
            self.is_sorted = true;
        }
        let max = self.candidates[0].logit;
        self.probabilities.clear();
        self.probabilities.extend(self.candidates.iter().map(|one| one.logit - max));
        backend::softmax(&mut self.probabilities);
    }

    /// The entropy of the weighed candidates in nats, and the negative logarithm of the first one's
    /// probability: a candidate's is larger by the distance of their logits.
    fn entropy(&self) -> (f64, f64) {
        let first = -ln(f64::from(self.probabilities[0]));
        let pairs = self.candidates.iter().zip(&self.probabilities);
        let parts = pairs.map(|(one, p)| f64::from(*p) * (first + self.distance(one)));
        (parts.sum(), first)
    }

    /// The distance from the first candidate's logit.
    fn distance(&self, one: &Candidate) -> f64 {
        f64::from(self.candidates[0].logit) - f64::from(one.logit)
    }

    /// Frequency and presence count in the whole window, if there is one; otherwise in the answer.
    fn penalise(&mut self, draw: &Draw<'_>) {
        let sampling = &draw.request.sampling;
        let last = sampling.repeat_last_n;
        self.count(newest(draw).take(window(last)), |one, _| {
            let factor = sampling.repetition_penalty;
            one.logit *= if one.logit > 0.0 { 1.0 / factor } else { factor };
        });
        let counted = if last < 0 { draw.answer.len() } else { window(last) };
        self.count(newest(draw).take(counted), |one, count| {
            one.logit -= count as f32 * sampling.frequency_penalty + sampling.presence_penalty;
        });
    }

    /// Changes the candidates that are among the tokens, by how often they are.
    fn count(
        &mut self,
        tokens: impl Iterator<Item = Token> + Clone,
        change: impl Fn(&mut Candidate, u32),
    ) {
        let Self { candidates, counts, .. } = self;
        let last = candidates.iter().map(|one| one.token).chain(tokens.clone()).max();
        counts.resize(counts.len().max(last.map_or(0, |token| token as usize + 1)), 0);
        tokens.clone().for_each(|token| counts[token as usize] += 1);
        for one in &mut *candidates {
            let count = counts[one.token as usize];
            if count > 0 {
                change(one, count);
                one.logit = one.logit.clamp(-LOGIT_MAX, LOGIT_MAX);
            }
        }
        tokens.for_each(|token| counts[token as usize] = 0);
        self.is_sorted = false;
    }

    /// Keeps the logits within some standard deviations of the highest (Tang et al., "Top-nσ",
    /// arXiv 2411.07641).
    fn keep_high(&mut self, deviations: f32) {
        let count = self.candidates.len() as f64;
        let logits = || self.candidates.iter().map(|one| f64::from(one.logit));
        let mean = logits().sum::<f64>() / count;
        let variance = logits().map(|logit| (logit - mean) * (logit - mean)).sum::<f64>() / count;
        let max = logits().fold(f64::NEG_INFINITY, f64::max);
        let least = max - f64::from(deviations) * variance.sqrt();
        self.candidates.retain(|one| f64::from(one.logit) >= least);
    }

    fn keep_first(&mut self, count: usize) {
        if count < self.candidates.len() && !self.is_sorted {
            self.candidates.select_nth_unstable_by(count - 1, Candidate::order);
        }
        self.candidates.truncate(count);
        self.weigh();
    }

    /// Keeps those whose surprise is nearest to the entropy (Meister et al., "Locally Typical
    /// Sampling", arXiv 2202.00666).
    fn keep_typical(&mut self, together: f32, keep_min: usize) {
        self.weigh();
        let (entropy, first) = self.entropy();
        let oddness = |one: &Candidate| (first + self.distance(one) - entropy).abs();
        let mut order: Vec<(f64, usize)> = self.candidates.iter().map(oddness).zip(0..).collect();
        order.sort_unstable_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)));
        let mut sum = 0.0;
        let enough = order.iter().enumerate().position(|(kept, (_, at))| {
            sum += self.probabilities[*at];
            sum > together && kept + 1 >= keep_min
        });
        order.truncate(enough.map_or(order.len(), |at| at + 1));
        order.sort_unstable_by_key(|(_, at)| *at);
        for (to, (_, from)) in order.iter().enumerate() {
            self.candidates[to] = self.candidates[*from];
        }
        self.candidates.truncate(order.len());
    }

    fn keep_together(&mut self, together: f32, keep_min: usize) {
        self.weigh();
        let mut sum = 0.0;
        let enough = self.probabilities.iter().enumerate().position(|(at, probability)| {
            sum += probability;
            sum >= together && at + 1 >= keep_min
        });
        self.candidates.truncate(enough.map_or(self.candidates.len(), |at| at + 1));
    }

    fn keep_likely(&mut self, part: f32, keep_min: usize) {
        self.weigh();
        let least = self.probabilities[0] * part.min(1.0);
        let likely = self.probabilities.partition_point(|probability| *probability >= least);
        self.candidates.truncate(likely.max(keep_min).max(1));
    }

    /// Drops all but the last of the candidates with at least this probability.
    fn drop_choices(&mut self, threshold: f32, keep_min: usize) {
        self.weigh();
        let choices = self.probabilities.partition_point(|p| *p >= threshold);
        let dropped = choices.saturating_sub(1);
        if self.candidates.len() - dropped >= keep_min {
            self.candidates.drain(..dropped);
        }
    }

    /// Divides the logits by the temperature, which moves with the entropy if it has a range.
    fn heat(&mut self, sampling: &Sampling) {
        let Sampling { temperature, dynatemp_range: range, dynatemp_exponent, .. } = *sampling;
        if range <= 0.0 || sampling.mirostat == 2 {
            return self.divide(temperature);
        }
        if self.candidates.len() < 2 {
            return;
        }
        self.weigh();
        let part = self.entropy().0 / ln(self.candidates.len() as f64);
        let power = exp(f64::from(dynatemp_exponent) * ln(part)) as f32;
        let (least, most) = ((temperature - range).max(0.0), temperature + range);
        self.divide(least + (most - least) * power);
    }

    /// At 0, only the likeliest candidate stays.
    fn divide(&mut self, temperature: f32) {
        if temperature <= 0.0 {
            let best = self.candidates.iter().copied().min_by(Candidate::order);
            self.candidates.truncate(1);
            self.candidates.fill(best.expect("there is a candidate"));
        }
        for one in self.candidates.iter_mut().filter(|_| temperature > 0.0) {
            one.logit = (one.logit / temperature).clamp(-LOGIT_MAX, LOGIT_MAX);
        }
    }

    /// Keeps the candidates with at most `mu` bits of surprise, and the likeliest (Basu et al.,
    /// "Mirostat", arXiv 2007.14966).
    fn keep_surprises(&mut self, mu: f32) {
        self.weigh();
        let (_, first) = self.entropy();
        let surprise = |one: &Candidate| (first + self.distance(one)) / LN_2;
        let kept = self.candidates.partition_point(|one| surprise(one) <= f64::from(mu));
        self.candidates.truncate(kept.max(1));
    }
}

/// Mirostat's bound for the next token.
fn bound(sampling: &Sampling) -> f32 {
    sampling.mirostat_mu.unwrap_or(2.0 * sampling.mirostat_tau)
}

/// The bound after a token that was drawn with this probability.
fn next_bound(sampling: &Sampling, probability: f32) -> f32 {
    let surprise = -ln(f64::from(probability)) / LN_2;
    let error = surprise - f64::from(sampling.mirostat_tau);
    (f64::from(bound(sampling)) - f64::from(sampling.mirostat_eta) * error) as f32
}

#[cfg(test)]
mod tests {
    use protocol::{DryBreakers, GenerateRequest};
    use serde::Deserialize;

    use super::super::Sampler;
    use super::*;

    /// What llama.cpp's samplers keep of given logits. They are those of `llama-sampler.cpp` in the
    /// source archive 0.3.36 of `llama-cpp-python`, compiled alone and applied one after the other
    /// to the logits of [`logits`] after the tokens of [`text`].
    const REFERENCES: &str = include_str!("../../tests/it/references/samplers.json");
    const VOCAB: u64 = 48;

    #[derive(Deserialize)]
    struct Reference {
        name: String,
        seed: u64,
        /// Different tokens of the text.
        words: u64,
        sampling: Sampling,
        #[serde(default)]
        breakers: Vec<Vec<Token>>,
        /// Mirostat's draw and the bound after it.
        drawn: Option<Token>,
        next_mu: Option<f32>,
        /// Tokens and probabilities, likeliest first, of at least a millionth.
        kept: Vec<(Token, f32)>,
    }

    fn logits(seed: u64) -> Vec<f32> {
        let number = |at| (split_mix(seed, at) >> 40) as f32 / 16_777_216.0 * 12.0 - 6.0;
        (0..VOCAB).map(number).collect()
    }

    /// A prompt of 40 tokens and an answer of 20.
    fn text(seed: u64, words: u64) -> (Vec<Token>, Vec<Token>) {
        let token = |at| (split_mix(seed + 1000, at) % words) as Token;
        ((0..40).map(token).collect(), (40..60).map(token).collect())
    }

    fn breakers(sequences: &[Vec<Token>]) -> DryBreakers {
        let mut breakers = DryBreakers { mask: vec![0; 2], tails: Vec::new() };
        for sequence in sequences {
            match sequence[..] {
                [alone] => breakers.mask[alone as usize / 32] |= 1 << (alone % 32),
                [head, ref tail @ ..] => breakers.tails.push((tail.to_vec(), vec![head])),
                [] => {}
            }
        }
        breakers
    }

    #[test]
    fn each_sampler_keeps_what_llama_cpps_keeps() {
        let references: Vec<Reference> = serde_json::from_str(REFERENCES).unwrap();
        assert_eq!(references.len(), 26);
        for Reference { name, seed, words, mut sampling, kept, drawn, next_mu, .. } in
            references.into_iter().map(|mut one| {
                one.sampling.dry_breakers = breakers(&one.breakers);
                one
            })
        {
            let (prompt, answer) = text(seed, words);
            sampling.seed = seed;
            let request = GenerateRequest { prompt, sampling, ..GenerateRequest::default() };
            let draw = Draw { request: &request, answer: &answer, position: 60, allowed: None };
            let mut chain = Chain::default();
            chain.select(Logits::All(&logits(seed)), &draw).unwrap();
            let found: Vec<_> = chain.candidates.iter().zip(&chain.probabilities).collect();
            let shown = found.iter().filter(|(_, p)| **p > 1e-6).count();
            assert_eq!(
                shown,
                kept.len(),
                "{name}: {found:?}
{kept:?}"
            );
            for ((one, probability), (token, expected)) in found.iter().zip(&kept) {
                let is_near = (*probability - expected).abs() <= 2e-3 * expected;
                assert!(one.token == *token && is_near, "{name}: {one:?} {probability} {expected}");
            }
            if let Some(drawn) = drawn {
                let at = found.iter().position(|(one, _)| one.token == drawn).unwrap();
                let mu = next_bound(&request.sampling, chain.probabilities[at]);
                assert!((mu - next_mu.unwrap()).abs() < 1e-4, "{name}: {mu} {next_mu:?}");
            }
        }
    }

    fn request(sampling: Sampling) -> GenerateRequest {
        let (prompt, _) = text(1, 6);
        GenerateRequest { prompt, sampling, ..GenerateRequest::default() }
    }

    /// The tokens of an answer of which the first `answered` are given with their last bound.
    fn answer(
        request: &GenerateRequest,
        answered: &[(Token, Option<f32>)],
    ) -> Vec<(Token, Option<f32>)> {
        let mut found = answered.to_vec();
        let mut request = request.clone();
        let mut sampler = Sampler::default();
        while found.len() < 30 {
            request.sampling.mirostat_mu = found.last().and_then(|(_, mu)| *mu);
            let tokens: Vec<Token> = found.iter().map(|(token, _)| *token).collect();
            let position = request.prompt.len() + found.len();
            let draw = Draw { request: &request, answer: &tokens, position, allowed: None };
            let logits = logits(position as u64);
            let drawn = sampler.sample(Logits::All(&logits), &draw).unwrap();
            found.push((drawn.token, drawn.mirostat_mu));
        }
        found
    }

    #[test]
    fn an_answer_goes_on_elsewhere_as_it_would_have() {
        let warm = || Sampling { temperature: 1.2, seed: 3, ..Sampling::default() };
        let all = [
            Sampling { mirostat: 2, mirostat_tau: 2.0, ..warm() },
            Sampling { xtc_probability: 0.5, xtc_threshold: 0.05, ..warm() },
            Sampling { dry_multiplier: 2.0, dry_allowed_length: 1, repeat_last_n: 9, ..warm() },
            Sampling { typical_p: 0.5, top_n_sigma: 1.5, dynatemp_range: 0.5, ..warm() },
        ];
        for sampling in all {
            let request = request(sampling);
            let whole = answer(&request, &[]);
            for cut in [1, 7, 29] {
                assert_eq!(answer(&request, &whole[..cut]), whole, "{:?}", request.sampling);
            }
        }
    }

    #[test]
    fn xtc_comes_as_often_as_it_should_and_apart_from_the_draw() {
        let xtc = Sampling { xtc_probability: 0.3, xtc_threshold: 0.1, ..Sampling::default() };
        // The likeliest token is drawn unless it is dropped.
        let request = request(xtc);
        let logits = [2.0, 1.9, 0.0];
        let mut sampler = Sampler::default();
        let mut dropped = 0;
        let mut low_draws = 0;
        for position in 0..4000 {
            let draw = Draw { request: &request, answer: &[], position, allowed: None };
            let token = sampler.sample(Logits::All(&logits), &draw).unwrap().token;
            assert!(token < 2);
            dropped += token;
            low_draws += u32::from(token == 1 && uniform(0, position as u64) < 0.3);
        }
        assert!((1100..1300).contains(&dropped), "{dropped}");
        assert!((280..440).contains(&low_draws), "{low_draws} of {dropped}");
    }

    #[test]
    fn what_is_forbidden_is_no_candidate() {
        let odd = Sampling { typical_p: 0.9, xtc_probability: 1.0, ..Sampling::default() };
        let odd = Sampling { temperature: 1.0, top_n_sigma: 0.1, dynatemp_range: 0.5, ..odd };
        let mut request = request(odd);
        request.grammar = Some(protocol::Grammar::Regex("a".into()));
        let mut sampler = Sampler::default();
        let logits = logits(1);
        for position in 0..200 {
            let allowed = Some(&[0b1010_0000_u32][..]);
            let draw = Draw { request: &request, answer: &[], position, allowed };
            let token = sampler.sample(Logits::All(&logits), &draw).unwrap().token;
            assert!([5, 7].contains(&token), "{token}");
        }
        let draw = Draw { request: &request, answer: &[], position: 0, allowed: Some(&[]) };
        assert!(sampler.sample(Logits::All(&logits), &draw).is_err());
    }
}

//! The probabilities of a text's tokens, and their distance from another run's: pure numbers.

use protocol::Token;
use serde::Serialize;

use crate::statistics::statistics;

/// The probabilities of one position, in f64. Reuses its buffer for all positions.
#[derive(Debug, Default)]
pub struct Softmax {
    /// `exp(logit - max)`, `[vocab]`.
    weights: Vec<f64>,
    ln_sum: f64,
}

/// Sampled tokens of each position, which represent all those outside its `top`.
pub const SAMPLED: usize = 64;

/// Another run's probabilities at a position: its likeliest tokens, the sum of all others, and a
/// sample of these others.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Position {
    /// Log-probability of the text's next token.
    pub next: f32,
    /// Logarithm of the total probability outside `top`; `-inf` if there is none.
    pub rest: f32,
    /// Tokens and their log-probabilities, likeliest first.
    pub top: Vec<(Token, f32)>,
    /// Tokens outside `top`, drawn by their probabilities, with their log-probabilities; a token
    /// may occur several times.
    pub sampled: Vec<(Token, f32)>,
}

/// One scored position compared with the base.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Compared {
    pub base_surprise: f64,
    pub divergence: f64,
    pub is_same_top: bool,
}

/// All scored positions of a text.
#[derive(Debug, Default)]
pub struct Scores {
    /// Negative log-probability of each scored token.
    surprises: Vec<f64>,
    compared: Vec<Compared>,
}

/// A figure and its standard error.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Estimate {
    pub value: f64,
    pub error: f64,
}

/// A run compared with its base. Divergences are those of Kullback and Leibler, from the base to
/// the run, in nats.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Comparison {
    pub base_perplexity: Estimate,
    /// The run's perplexity as a multiple of the base's.
    pub ratio: Estimate,
    pub kl_mean: Estimate,
    pub kl_median: f64,
    pub kl_99: f64,
    pub kl_max: f64,
    /// The part of positions at which both have the same likeliest token.
    pub same_top: Estimate,
}

impl Softmax {
    /// `logits`: `[vocab]`, none of them NaN.
    pub fn set(&mut self, logits: &[f32]) {
        let max = f64::from(logits.iter().copied().fold(f32::NEG_INFINITY, f32::max));
        self.weights.clear();
        self.weights.extend(logits.iter().map(|logit| (f64::from(*logit) - max).exp()));
        self.ln_sum = self.weights.iter().sum::<f64>().ln();
    }

    /// The log-probability of a token.
    pub fn ln(&self, token: Token) -> f64 {
        self.weights[token as usize].ln() - self.ln_sum
    }

    /// The likeliest token; of equal ones the lower.
    pub fn best(&self) -> Token {
        let all = (0..).zip(&self.weights);
        all.fold(
            (0, 0.0),
            |best, (token, &weight)| if weight > best.1 { (token, weight) } else { best },
        )
        .0
    }

    /// The position as stored in a base, with its `count` likeliest tokens. Removes those.
    pub fn position(&mut self, next: Token, count: usize) -> Position {
        let order = |one: &Token, other: &Token| {
            let weight = |token: &Token| self.weights[*token as usize];
            weight(other).total_cmp(&weight(one)).then(one.cmp(other))
        };
        let mut tokens: Vec<Token> = (0..self.weights.len() as Token).collect();
        if count < tokens.len() {
            tokens.select_nth_unstable_by(count, order);
            tokens.truncate(count);
        }
        tokens.sort_unstable_by(order);
        let next = self.ln(next) as f32;
        let top: Vec<_> = tokens.iter().map(|token| (*token, self.ln(*token) as f32)).collect();
        let rest = self.take_out(&top) as f32;
        Position { next, rest, top, sampled: self.sample() }
    }

    /// The divergence of these probabilities from the base's: that of the likeliest tokens, that of
    /// the sum of all others, and an estimate of the divergence among these others. Removes the
    /// base's likeliest tokens.
    pub fn divergence(&mut self, base: &Position) -> f64 {
        let term = |ln_base: f64, ln_run: f64| match ln_base.exp() {
            // Its logarithm may not be finite.
            0.0 => 0.0,
            probability => probability * (ln_base - ln_run),
        };
        let terms = base.top.iter().map(|(token, ln)| term(f64::from(*ln), self.ln(*token)));
        let top: f64 = terms.sum();
        let (ln_base, ln_run) = (f64::from(base.rest), self.take_out(&base.top));
        // No term of this mean is negative, and its expectation is the divergence among the others:
        // the mean of `x - 1` is 0, because both runs' others sum to 1.
        let terms = base.sampled.iter().map(|(token, ln)| {
            let ln_ratio = (self.ln(*token) - ln_run) - (f64::from(*ln) - ln_base);
            ln_ratio.exp_m1() - ln_ratio
        });
        let among = match ln_base.exp() {
            0.0 => 0.0,
            probability => probability * terms.sum::<f64>() / base.sampled.len().max(1) as f64,
        };
        // Rounding of the base to f32 may leave a slightly negative value.
        (top + term(ln_base, ln_run) + among).max(0.0)
    }

    /// Tokens at even distances along the running sum of the remaining probabilities.
    fn sample(&self) -> Vec<(Token, f32)> {
        let step = self.weights.iter().sum::<f64>() / SAMPLED as f64;
        let mut sampled = Vec::with_capacity(SAMPLED);
        let mut sum = 0.0;
        for (token, weight) in (0..).zip(&self.weights).filter(|(_, weight)| **weight > 0.0) {
            sum += weight;
            while sampled.len() < SAMPLED && (sampled.len() as f64 + 0.5) * step < sum {
                sampled.push((token, self.ln(token) as f32));
            }
        }
        sampled
    }

    /// Removes these tokens; returns the logarithm of the others' total probability.
    fn take_out(&mut self, top: &[(Token, f32)]) -> f64 {
        for (token, _) in top {
            self.weights[*token as usize] = 0.0;
        }
        self.weights.iter().sum::<f64>().ln() - self.ln_sum
    }
}

impl Scores {
    pub fn add(&mut self, surprise: f64, compared: Option<Compared>) {
        self.surprises.push(surprise);
        self.compared.extend(compared);
    }

    pub fn len(&self) -> usize {
        self.surprises.len()
    }

    pub fn perplexity(&self) -> Estimate {
        perplexity(&self.surprises)
    }

    /// `None` without a base.
    pub fn comparison(&self) -> Option<Comparison> {
        let of = |what: fn(&Compared) -> f64| self.compared.iter().map(what).collect::<Vec<_>>();
        let base = of(|position| position.base_surprise);
        let mut divergences = of(|position| position.divergence);
        divergences.sort_by(f64::total_cmp);
        let pairs = self.surprises.iter().zip(&base);
        let differences: Vec<f64> = pairs.map(|(own, base)| own - base).collect();
        Some(Comparison {
            base_perplexity: perplexity(&base),
            ratio: perplexity(&differences),
            kl_mean: mean(&divergences),
            kl_median: percentile(&divergences, 0.5)?,
            kl_99: percentile(&divergences, 0.99)?,
            kl_max: *divergences.last()?,
            same_top: mean(&of(|position| f64::from(u8::from(position.is_same_top)))),
        })
    }
}

/// The mean and its standard error.
fn mean(values: &[f64]) -> Estimate {
    let (value, deviation, _) = statistics(values);
    Estimate { value, error: deviation / (values.len() as f64).sqrt() }
}

/// The exponential of the mean.
fn perplexity(surprises: &[f64]) -> Estimate {
    let Estimate { value, error } = mean(surprises);
    Estimate { value: value.exp(), error: value.exp() * error }
}

/// As in llama-perplexity: linear interpolation between two values.
fn percentile(sorted: &[f64], fraction: f64) -> Option<f64> {
    let place = fraction * sorted.len().checked_sub(1)? as f64;
    let (below, part) = (place as usize, place.fract());
    let above = (below + 1).min(sorted.len() - 1);
    Some((1.0 - part) * sorted[below] + part * sorted[above])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn softmax(probabilities: &[f32]) -> Softmax {
        let logits: Vec<f32> = probabilities.iter().map(|p| p.ln() + 30.0).collect();
        let mut softmax = Softmax::default();
        softmax.set(&logits);
        softmax
    }

    fn assert_near(found: f64, expected: f64) {
        assert!((found - expected).abs() < 1e-6, "{found} instead of {expected}");
    }

    #[test]
    fn a_position_keeps_the_likeliest_and_the_sum_of_the_rest() {
        let mut run = softmax(&[0.1, 0.4, 0.2, 0.2, 0.1]);
        assert_eq!(run.best(), 1);
        assert_near(run.ln(4), 0.1f64.ln());
        let position = run.position(4, 2);
        let tokens: Vec<Token> = position.top.iter().map(|(token, _)| *token).collect();
        assert_eq!(tokens, [1, 2], "of equals the lower token");
        assert_near(f64::from(position.next), 0.1f64.ln());
        assert_near(f64::from(position.rest), 0.4f64.ln());
        let count = |token| position.sampled.iter().filter(|(other, _)| *other == token).count();
        assert_eq!([0, 1, 2, 3, 4].map(count), [16, 0, 0, 32, 16]);
        let whole = softmax(&[0.5, 0.5]).position(0, 9);
        assert_eq!((whole.top.len(), whole.rest, whole.sampled.len()), (2, f32::NEG_INFINITY, 0));
    }

    #[test]
    fn divergences_are_those_of_the_formula() {
        let (base, run) = ([0.5f32, 0.3, 0.15, 0.05], [0.25f32, 0.25, 0.4, 0.1]);
        let terms = |pairs: &[(f64, f64)]| pairs.iter().map(|(p, q)| p * (p / q).ln()).sum::<f64>();
        let exact = terms(&[(0.5, 0.25), (0.3, 0.25), (0.15, 0.4), (0.05, 0.1)]);
        for count in [4, 3] {
            let base = softmax(&base).position(0, count);
            assert_near(softmax(&run).divergence(&base), exact);
        }
        let mut lumped = softmax(&base).position(0, 1);
        let estimate = softmax(&run).divergence(&lumped);
        assert!((estimate - exact).abs() < 0.01, "{estimate} instead of about {exact}");
        lumped.sampled.clear();
        let least = terms(&[(0.5, 0.25), (0.5, 0.75)]);
        assert_near(softmax(&run).divergence(&lumped), least);
        assert!(least < exact - 0.07);
        let itself = softmax(&base).position(0, 2);
        assert!(softmax(&base).divergence(&itself) < 1e-7);
    }

    #[test]
    fn what_cannot_come_costs_nothing() {
        let mut run = Softmax::default();
        run.set(&[0.0, f32::NEG_INFINITY, 0.0]);
        let base = run.position(0, 3);
        assert_eq!(base.top[2], (1, f32::NEG_INFINITY));
        run.set(&[0.0, f32::NEG_INFINITY, 0.0]);
        assert_near(run.divergence(&base), 0.0);
    }

    #[test]
    fn figures_are_those_of_known_numbers() {
        let mut scores = Scores::default();
        for (surprise, divergence, is_same_top) in
            [(1.0, 0.0, true), (2.0, 0.1, true), (3.0, 0.5, false)]
        {
            let base_surprise = surprise - 0.5;
            let compared = Compared { base_surprise, divergence, is_same_top };
            scores.add(surprise, Some(compared));
        }
        let perplexity = scores.perplexity();
        assert_near(perplexity.value, 2f64.exp());
        assert_near(perplexity.error, 2f64.exp() / 3f64.sqrt());
        let found = scores.comparison().unwrap();
        assert_near(found.base_perplexity.value, 1.5f64.exp());
        assert_near(found.ratio.value, 0.5f64.exp());
        assert_near(found.ratio.error, 0.0);
        assert_near(found.kl_mean.value, 0.2);
        assert_near(found.kl_median, 0.1);
        assert_near(found.kl_99, 0.1 + 0.98 * 0.4);
        assert_near(found.kl_max, 0.5);
        assert_near(found.same_top.value, 2.0 / 3.0);
        assert_eq!(Scores::default().comparison(), None);
    }
}

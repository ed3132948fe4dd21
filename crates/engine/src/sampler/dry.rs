//! DRY ("don't repeat yourself"): a penalty for the tokens that would extend a repetition.
//!
//! Source: github.com/oobabooga/text-generation-webui/pull/5677, in the form of llama.cpp's
//! sampler.

use std::collections::HashMap;

use backend::portable::ln;
use protocol::{DryBreakers, Sampling, Token};

use super::draw::{Draw, newest, window};
use crate::logits::Candidate;

/// The largest penalty: a logit stays a number.
const PENALTY_MAX: f64 = 1e30;

/// Buffers between calls.
#[derive(Debug, Default)]
pub(super) struct Dry {
    /// The text, newest token first.
    text: Vec<Token>,
    /// For each place of the text, how many tokens from there on are the newest ones again.
    repeats: Vec<usize>,
    /// The longest repetition that each token would extend.
    longest: HashMap<Token, usize>,
}

impl Dry {
    /// Subtracts `dry_multiplier * dry_base ^ (length - dry_allowed_length)` from the logits of
    /// tokens that would extend a repetition of at least the allowed length.
    pub fn penalise(&mut self, candidates: &mut [Candidate], draw: &Draw<'_>) {
        let sampling = &draw.request.sampling;
        let allowed = sampling.dry_allowed_length as usize;
        self.text.clear();
        self.text.extend(newest(draw).take(window(sampling.dry_penalty_last_n)));
        let limit = limit(&self.text, &sampling.dry_breakers);
        if self.text.len() <= allowed || limit < allowed {
            return;
        }
        self.compare();
        self.longest.clear();
        for (pair, repeats) in self.text.windows(2).zip(&self.repeats[1..]) {
            let length = limit.min(*repeats);
            if length >= allowed {
                let longest = self.longest.entry(pair[0]).or_default();
                *longest = length.max(*longest);
            }
        }
        for one in candidates {
            let length = self.longest.get(&one.token);
            if let Some(length) = length.filter(|_| !sampling.dry_breakers.is_breaker(one.token)) {
                one.logit -= penalty(sampling, length - allowed);
            }
        }
    }

    /// Fills `repeats` by the Z-algorithm (Gusfield, "Algorithms on Strings, Trees, and
    /// Sequences"), in linear time.
    fn compare(&mut self) {
        let Self { text, repeats, .. } = self;
        repeats.clear();
        repeats.resize(text.len(), 0);
        // The repetition found that reaches furthest.
        let (mut begin, mut end) = (0, 0);
        for at in 1..text.len() {
            let known = if at < end { repeats[at - begin].min(end - at) } else { 0 };
            let rest = text[at + known..].iter().zip(&text[known..]);
            let length = known + rest.take_while(|(a, b)| a == b).count();
            repeats[at] = length;
            if at + length > end {
                (begin, end) = (at, at + length);
            }
        }
    }
}

/// The newest tokens that may count as repeated: those after the last breaker.
fn limit(text: &[Token], breakers: &DryBreakers) -> usize {
    let breaks = |at: usize| {
        let (token, after) = (text[at], &text[..at]);
        let of_tail = |(tail, heads): &(Vec<Token>, Vec<Token>)| {
            let follows = tail.len() <= at && tail.iter().eq(after.iter().rev().take(tail.len()));
            (follows && heads.binary_search(&token).is_ok()).then_some(tail.len())
        };
        let alone = breakers.is_breaker(token).then_some(0);
        let longest = breakers.tails.iter().filter_map(of_tail).chain(alone).max();
        longest.map(|tail| at - tail)
    };
    let found = (0..text.len()).find_map(breaks);
    found.unwrap_or(text.len())
}

/// The penalty of `more` tokens than are allowed.
fn penalty(sampling: &Sampling, more: usize) -> f32 {
    /// The logarithm of the largest number of single precision, to which the power is limited.
    const POWER_MAX: f64 = 88.722_839_1;
    let base = f64::from(sampling.dry_base);
    let most = if base > 1.000_001 { (POWER_MAX / ln(base)) as usize } else { usize::MAX };
    let (mut power, mut factor, mut left) = (1.0_f64, base, more.min(most));
    while left > 0 {
        if left & 1 == 1 {
            power = (power * factor).min(PENALTY_MAX);
        }
        factor = (factor * factor).min(PENALTY_MAX);
        left >>= 1;
    }
    (f64::from(sampling.dry_multiplier) * power).min(PENALTY_MAX) as f32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn repetitions_of_the_newest_tokens_are_found() {
        let mut random = 1_u64;
        for round in 0..200 {
            let mut next = || {
                random = protocol::split_mix(random, 1);
                (random >> 40) as u32
            };
            let text: Vec<Token> = (0..next() % 40).map(|_| next() % (2 + round % 3)).collect();
            let mut dry = Dry { text: text.clone(), ..Dry::default() };
            dry.compare();
            for at in 1..text.len() {
                let pairs = text[at..].iter().zip(&text);
                assert_eq!(dry.repeats[at], pairs.take_while(|(a, b)| a == b).count(), "{text:?}");
            }
        }
    }

    #[test]
    fn what_stands_before_a_breaker_does_not_count() {
        let breakers = DryBreakers { mask: vec![1 << 5], tails: vec![(vec![6, 7], vec![8])] };
        assert_eq!(limit(&[1, 2, 3], &breakers), 3);
        assert_eq!(limit(&[1, 2, 5, 3], &breakers), 2);
        assert_eq!(limit(&[1, 7, 6, 8, 3], &breakers), 1);
        assert_eq!(limit(&[1, 6, 7, 8, 3], &breakers), 5);
        assert_eq!(limit(&[], &breakers), 0);
    }

    #[test]
    fn no_penalty_is_infinite() {
        let penalty = |base, more| {
            let sampling =
                Sampling { dry_multiplier: 100.0, dry_base: base, ..Sampling::default() };
            penalty(&sampling, more)
        };
        assert_eq!((penalty(2.0, 0), penalty(2.0, 3), penalty(1.0, 1000)), (100.0, 800.0, 100.0));
        assert_eq!(penalty(100.0, usize::MAX), 1e30);
        assert!(penalty(1.000_000_1, usize::MAX).is_finite());
    }
}

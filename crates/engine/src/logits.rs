//! The wanted results of a position, and their selection from a rank's slice of the vocabulary.
//!
//! All logits of a large vocabulary are half a megabyte a token. A greedy or top-k sampler needs
//! only the likeliest few, so each rank with a part of the output head selects those of its own
//! part.

use std::cmp::Ordering;

use protocol::{GenerateRequest, Pooling, Sampler, Token};

use crate::results::OutputPart;
use crate::sampler::adjust::is_adjusted;
use crate::sampler::draw::check_finite;

/// The longest list of likeliest tokens; a request for more gets all logits.
pub const TOP_MAX: u32 = 256;

/// The wanted result of one of a step's positions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Extent {
    Nothing,
    /// This many of the likeliest tokens, 1 to [`TOP_MAX`].
    Top(u32),
    All,
    /// The hidden state before the output head.
    Hidden,
    /// The same of the segment's first row, whatever its outputs (encoders).
    First,
}

/// A token and its logit.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Candidate {
    pub token: Token,
    pub logit: f32,
}

/// The result of one position.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Logits<'a> {
    /// `[vocab]`.
    All(&'a [f32]),
    /// The likeliest tokens, likeliest first. If any logit is infinite or NaN, the first is NaN.
    Top(&'a [Candidate]),
    /// No logits: `[width]`.
    Hidden(&'a [f32]),
}

impl Extent {
    /// The result that a sampler needs for the token after `answered` tokens of a request's answer.
    pub fn by(request: &GenerateRequest, answered: usize) -> Self {
        let sampling = &request.sampling;
        let is_plain = sampling.is_plain();
        match sampling.top_k {
            _ if request.embedding == Some(Pooling::First) => Self::First,
            _ if request.embedding.is_some() => Self::Hidden,
            _ if request.logprobs.is_some() || is_adjusted(request, answered) => Self::All,
            _ if sampling.temperature <= 0.0 && is_plain => Self::Top(1),
            top_k @ 1..=TOP_MAX if is_plain || sampling.steps().next() == Some(Sampler::TopK) => {
                Self::Top(top_k)
            }
            _ => Self::All,
        }
    }

    /// Whether a hidden state is wanted, and no logits.
    pub(crate) fn is_hidden(self) -> bool {
        matches!(self, Self::Hidden | Self::First)
    }

    pub(crate) fn encode(self) -> u32 {
        match self {
            Self::Nothing => 0,
            Self::Top(count) => count,
            Self::All => u32::MAX,
            Self::Hidden => u32::MAX - 1,
            Self::First => u32::MAX - 2,
        }
    }

    pub(crate) fn decode(word: u32) -> Option<Self> {
        match word {
            0 => Some(Self::Nothing),
            1..=TOP_MAX => Some(Self::Top(word)),
            u32::MAX => Some(Self::All),
            0xffff_fffe => Some(Self::Hidden),
            0xffff_fffd => Some(Self::First),
            _ => None,
        }
    }

    /// The numbers sent by the rank with this part of the output head: a logit for each of its
    /// tokens, or a token and a logit for each of the likeliest.
    pub(crate) fn numbers(self, part: &OutputPart) -> usize {
        match self {
            Self::Nothing => 0,
            Self::Top(count) => 2 * part.vocab.len().min(count as usize),
            Self::All => part.vocab.len(),
            Self::Hidden | Self::First => part.hidden,
        }
    }
}

impl Candidate {
    /// The likelier first; of equal ones the lower token.
    pub fn order(&self, other: &Self) -> Ordering {
        // Adding zero makes both zeros positive.
        let (own, others) = (self.logit + 0.0, other.logit + 0.0);
        others.total_cmp(&own).then(self.token.cmp(&other.token))
    }
}

/// Tokens scanned together.
const BLOCK: usize = 64;

/// Appends the wanted result from a slice of the vocabulary that starts with token `first`.
/// `candidates` is scratch.
pub(crate) fn pick(
    wanted: Extent,
    slice: &[f32],
    first: usize,
    candidates: &mut Vec<Candidate>,
    out: &mut Vec<f32>,
) {
    let count = match wanted {
        Extent::Nothing | Extent::Hidden | Extent::First => return,
        Extent::All => return out.extend_from_slice(slice),
        Extent::Top(count) => (count as usize).min(slice.len()),
    };
    candidates.clear();
    if check_finite(slice).is_err() {
        candidates.resize(count, Candidate { token: first as Token, logit: f32::NAN });
    } else {
        likeliest(slice, first, count, candidates);
    }
    let numbers = candidates.iter().flat_map(|c| [f32::from_bits(c.token), c.logit]);
    out.extend(numbers);
}

/// Puts the `count` likeliest tokens into `candidates`, which is empty, in any order.
///
/// They are all in the `count` blocks with the likeliest top tokens: the top tokens of those blocks
/// precede any token of another block.
pub(crate) fn likeliest(
    slice: &[f32],
    first: usize,
    count: usize,
    candidates: &mut Vec<Candidate>,
) {
    if count == 0 {
        return;
    }
    let blocks = slice.chunks(BLOCK);
    candidates
        .extend((0..).zip(blocks).map(|(token, block)| Candidate { token, logit: top(block) }));
    keep(count, candidates);
    let chosen = candidates.len();
    for at in 0..chosen {
        let start = candidates[at].token as usize * BLOCK;
        let block = &slice[start..slice.len().min(start + BLOCK)];
        let tokens = ((first + start) as Token..).zip(block);
        candidates.extend(tokens.map(|(token, &logit)| Candidate { token, logit }));
    }
    candidates.drain(..chosen);
    keep(count, candidates);
}

/// Keeps the first `count` by [`Candidate::order`].
fn keep(count: usize, candidates: &mut Vec<Candidate>) {
    if candidates.len() > count {
        candidates.select_nth_unstable_by(count - 1, Candidate::order);
        candidates.truncate(count);
    }
}

/// The largest number.
fn top(numbers: &[f32]) -> f32 {
    let larger = |a: f32, b: f32| if b > a { b } else { a };
    let mut tops = [f32::NEG_INFINITY; 16];
    let (vectors, rest) = numbers.as_chunks::<16>();
    for vector in vectors {
        for (top, number) in tops.iter_mut().zip(vector) {
            *top = larger(*top, *number);
        }
    }
    rest.iter().chain(&tops).copied().fold(f32::NEG_INFINITY, larger)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn picked(wanted: Extent, slice: &[f32], first: usize) -> Vec<(Token, f32)> {
        let mut out = Vec::new();
        pick(wanted, slice, first, &mut Vec::new(), &mut out);
        let part = OutputPart { rank: 0, vocab: 0..slice.len(), hidden: 0 };
        assert_eq!(out.len(), wanted.numbers(&part));
        let pairs = out.chunks_exact(2);
        let mut found: Vec<_> = pairs.map(|pair| (pair[0].to_bits(), pair[1])).collect();
        found.sort_by_key(|(token, _)| *token);
        found
    }

    #[test]
    fn the_likeliest_are_picked_and_the_lower_of_equals() {
        let slice = [1.0, 5.0, -2.0, 5.0, 3.0];
        assert_eq!(picked(Extent::Top(1), &slice, 10), [(11, 5.0)]);
        assert_eq!(picked(Extent::Top(3), &slice, 10), [(11, 5.0), (13, 5.0), (14, 3.0)]);
        assert_eq!(picked(Extent::Top(9), &slice, 0).len(), 5);
        assert_eq!(picked(Extent::Top(9), &[], 0), []);
        assert_eq!(picked(Extent::Nothing, &slice, 0), []);
        let mut all = Vec::new();
        pick(Extent::All, &slice, 0, &mut Vec::new(), &mut all);
        assert_eq!(all, slice);
    }

    #[test]
    fn the_likeliest_of_many_are_those_of_a_sorted_list() {
        // Few distinct values, so that many are equal, and zeros of both signs.
        let number = |at: usize| match (at * 7919) % 13 {
            0 => -0.0,
            1 => 0.0,
            rest => (rest as f32 - 9.0) * 0.5,
        };
        for len in [1, 63, 64, 65, 1000] {
            let slice: Vec<f32> = (0..len).map(number).collect();
            for slice in [slice.clone(), slice.iter().map(|x| -x.abs()).collect()] {
                let logits = slice.iter().enumerate();
                let mut sorted: Vec<_> = logits
                    .map(|(at, &logit)| Candidate { token: 5 + at as Token, logit })
                    .collect();
                sorted.sort_by(Candidate::order);
                for count in [1, 2, 40, 256] {
                    let expected = &mut sorted.clone()[..len.min(count)];
                    expected.sort_by_key(|candidate| candidate.token);
                    let expected: Vec<_> = expected.iter().map(|c| (c.token, c.logit)).collect();
                    assert_eq!(picked(Extent::Top(count as u32), &slice, 5), expected);
                }
            }
        }
        assert_eq!(top(&[-f32::INFINITY]), -f32::INFINITY);
        assert_eq!(top(&[-1.0, f32::INFINITY, 3.0]), f32::INFINITY);
    }

    #[test]
    fn a_sampler_gets_all_logits_if_another_comes_before_top_k() {
        use protocol::Sampling;
        let by = |sampling| Extent::by(&GenerateRequest { sampling, ..Default::default() }, 0);
        let warm = || Sampling { temperature: 0.8, top_k: 40, ..Sampling::default() };
        assert_eq!(by(warm()), Extent::Top(40));
        assert_eq!(by(Sampling { top_k: 0, ..Sampling::default() }), Extent::Top(1));
        for after in [
            Sampling { typical_p: 0.5, ..warm() },
            Sampling { xtc_probability: 0.5, ..warm() },
            Sampling { dynatemp_range: 0.5, min_keep: 3, top_p: 0.9, ..warm() },
        ] {
            assert_eq!(by(after), Extent::Top(40));
        }
        for before in [
            Sampling { top_n_sigma: 1.0, ..warm() },
            Sampling { dry_multiplier: 1.0, ..warm() },
            Sampling { presence_penalty: 1.0, repeat_last_n: 9, ..warm() },
            Sampling { mirostat: 2, ..warm() },
            Sampling { samplers: Some(vec![Sampler::Temperature, Sampler::TopK]), ..warm() },
            Sampling { xtc_probability: 0.5, ..Sampling::default() },
        ] {
            assert_eq!(by(before.clone()), Extent::All, "{before:?}");
        }
    }

    #[test]
    fn what_is_no_number_is_told() {
        for count in [1, 2] {
            for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
                let found = picked(Extent::Top(count), &[1.0, bad, 9.0], 4);
                assert!(found.iter().all(|(_, logit)| logit.is_nan()), "{found:?}");
            }
        }
    }

    #[test]
    fn a_want_comes_back_as_it_went() {
        let tops = [Extent::Top(1), Extent::Top(TOP_MAX)];
        for wanted in
            [Extent::Nothing, Extent::All, Extent::Hidden, Extent::First].into_iter().chain(tops)
        {
            assert_eq!(Extent::decode(wanted.encode()), Some(wanted));
        }
        assert_eq!(Extent::decode(TOP_MAX + 1), None);
    }
}

//! The samplers that select tokens, and their order.

use serde::{Deserialize, Serialize};

use crate::token::Token;

/// The most samplers in a request's list.
pub const SAMPLERS_MAX: usize = 32;

/// The most tokens after the first of a sequence that ends a repetition, as in llama.cpp.
pub const BREAKER_TAIL_MAX: usize = 20;

/// The most tails of sequences that end repetitions.
pub const BREAKER_TAILS_MAX: usize = 512;

/// The most first tokens of all those sequences together.
pub const BREAKER_HEADS_MAX: usize = 1 << 16;

/// A sampler.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Sampler {
    /// `repetition_penalty`, `frequency_penalty` and `presence_penalty`.
    Penalties,
    /// Penalties for what extends a repetition ("don't repeat yourself").
    Dry,
    TopNSigma,
    TopK,
    TypicalP,
    TopP,
    MinP,
    /// Now and then drops the likeliest tokens ("exclude top choices").
    Xtc,
    Temperature,
}

/// Tokens that end a repetition.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct DryBreakers {
    /// A bit for each token that ends one by itself.
    pub mask: Vec<u32>,
    /// Sequences of several tokens that end one, grouped by their tails: the tokens after the
    /// first, and the first ones in ascending order.
    pub tails: Vec<(Vec<Token>, Vec<Token>)>,
}

impl DryBreakers {
    pub fn is_empty(&self) -> bool {
        self.mask.is_empty() && self.tails.is_empty()
    }

    /// Whether the token ends a repetition by itself.
    pub fn is_breaker(&self, token: Token) -> bool {
        self.mask.get(token as usize / 32).is_some_and(|word| word >> (token % 32) & 1 == 1)
    }

    /// What there are of each kind, and may be for a vocabulary of `vocab` tokens.
    pub(crate) fn counts(&self, vocab: usize) -> [(&'static str, usize, usize); 4] {
        let longest = self.tails.iter().map(|(tail, _)| tail.len()).max().unwrap_or(0);
        let heads = self.tails.iter().map(|(_, heads)| heads.len()).sum();
        [
            ("words of sequence breakers", self.mask.len(), vocab.div_ceil(32)),
            ("tails of sequence breakers", self.tails.len(), BREAKER_TAILS_MAX),
            ("tokens of a sequence breaker", longest, BREAKER_TAIL_MAX),
            ("first tokens of sequence breakers", heads, BREAKER_HEADS_MAX),
        ]
    }
}

impl Sampler {
    /// The order without a list, which is llama.cpp's.
    pub const ORDER: [Self; 9] = [
        Self::Penalties,
        Self::Dry,
        Self::TopNSigma,
        Self::TopK,
        Self::TypicalP,
        Self::TopP,
        Self::MinP,
        Self::Xtc,
        Self::Temperature,
    ];

    /// Its name in llama.cpp, and its letter in llama.cpp's `--sampling-seq`.
    pub fn name(self) -> (&'static str, char) {
        match self {
            Self::Penalties => ("penalties", 'e'),
            Self::Dry => ("dry", 'd'),
            Self::TopNSigma => ("top_n_sigma", 's'),
            Self::TopK => ("top_k", 'k'),
            Self::TypicalP => ("typ_p", 'y'),
            Self::TopP => ("top_p", 'p'),
            Self::MinP => ("min_p", 'm'),
            Self::Xtc => ("xtc", 'x'),
            Self::Temperature => ("temperature", 't'),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn breakers_are_bounded() {
        let check = |mask: usize, tails: Vec<(Vec<Token>, Vec<Token>)>| {
            let counts = DryBreakers { mask: vec![0; mask], tails }.counts(100);
            counts.iter().all(|(_, count, most)| count <= most)
        };
        assert!(check(4, vec![(vec![1; BREAKER_TAIL_MAX], vec![2])]));
        assert!(!check(5, Vec::new()));
        assert!(!check(0, vec![(vec![1; BREAKER_TAIL_MAX + 1], vec![2])]));
        assert!(!check(0, vec![(vec![1], vec![2]); BREAKER_TAILS_MAX + 1]));
        assert!(!check(0, vec![(vec![1], vec![2; BREAKER_HEADS_MAX + 1])]));
    }
}

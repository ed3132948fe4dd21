//! The tokens of texts that end a repetition, for DRY.
//!
//! A token that contains a text ends a repetition by itself. One that ends with the beginning of a
//! text does so if the tokens of its rest follow. That takes a look at the whole vocabulary, so the
//! tokens of the last few lists are kept.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, PoisonError};

use protocol::{BREAKER_TAIL_MAX, DryBreakers, Token};
use text::{Special, Tokenizer};

/// What ends a repetition if a request says nothing: llama.cpp's texts.
pub(crate) const DEFAULT_BREAKERS: [&str; 4] = ["\n", ":", "\"", "*"];

/// Lists that are kept.
const KEPT_MAX: usize = 8;

/// The tokens of the last few lists, the newest last.
#[derive(Default)]
pub(super) struct Breakers(Mutex<Vec<(Vec<String>, DryBreakers)>>);

impl Breakers {
    /// The tokens of these texts, or of [`DEFAULT_BREAKERS`].
    pub fn of(&self, texts: Option<&[String]>, tokenizer: &Tokenizer) -> DryBreakers {
        let texts = match texts {
            Some(texts) => texts.to_vec(),
            None => DEFAULT_BREAKERS.map(str::to_owned).to_vec(),
        };
        let kept = || self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, found)) = kept().iter().find(|(known, _)| *known == texts) {
            return found.clone();
        }
        let found = breakers(&texts, tokenizer);
        let mut kept = kept();
        if kept.len() == KEPT_MAX {
            kept.remove(0);
        }
        kept.push((texts, found.clone()));
        found
    }
}

fn breakers(texts: &[String], tokenizer: &Tokenizer) -> DryBreakers {
    let mut mask = vec![0; tokenizer.len().div_ceil(32)];
    let mut tails: BTreeMap<Vec<Token>, BTreeSet<Token>> = BTreeMap::new();
    for text in texts.iter().filter(|text| !text.is_empty()) {
        // A beginning of the text, and the tokens of the rest.
        let splits: Vec<(&[u8], Vec<Token>)> = (1..text.len())
            .filter_map(|at| {
                let mut rest = tokenizer.encode(text.get(at..)?, Special::Plain, false);
                rest.truncate(BREAKER_TAIL_MAX);
                Some((&text.as_bytes()[..at], rest))
            })
            .collect();
        for token in 0..tokenizer.len() as Token {
            let bytes = tokenizer.token_bytes(token);
            if bytes.windows(text.len()).any(|part| part == text.as_bytes()) {
                mask[token as usize / 32] |= 1 << (token % 32);
                continue;
            }
            for (_, rest) in splits.iter().filter(|(begin, _)| bytes.ends_with(begin)) {
                tails.entry(rest.clone()).or_default().insert(token);
            }
        }
    }
    let tails = tails.into_iter().map(|(tail, heads)| (tail, heads.into_iter().collect()));
    DryBreakers { mask, tails: tails.collect() }
}

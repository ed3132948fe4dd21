//! SentencePiece's byte-pair encoding, as in Llama 2, Mistral and Gemma: characters are merged
//! while the result is a token, the best score first; the rest becomes bytes.
//!
//! Source: Kudo and Richardson 2018 (arXiv:1808.06226).

use gguf::Directory;

use super::index::Index;
use super::merge::{Merger, NO_TOKEN, Symbol};
use super::tokens::{Tokens, missing, parts};
use super::vocab::{Kind, META_SPACE, Vocab};
use super::word_cache::WordCache;
use crate::TextError;

pub(super) struct Spm {
    index: Index,
    /// The token of each single byte; `NO_TOKEN` where the vocabulary lacks it.
    bytes: [u32; 256],
    add_space_prefix: bool,
    remove_extra_whitespaces: bool,
    /// No token contains a space after another character, so no merge crosses such a position and
    /// each word can be encoded separately: the same tokens, an order of magnitude faster.
    words_are_apart: bool,
}

impl Spm {
    pub(super) fn from_gguf(
        gguf: &Directory,
        vocab: &Vocab,
        warnings: &mut Vec<String>,
    ) -> Result<Self, TextError> {
        let (index, duplicates) =
            Index::new(&vocab.pieces, vocab.ids_of(&[Kind::Normal, Kind::Unused]));
        if duplicates > 0 {
            warnings.push(format!("{duplicates} tokens repeat the bytes of an earlier one"));
        }
        let mergeable = vocab.ids_of(&[Kind::Normal, Kind::Unused]);
        let words_are_apart = mergeable.map(|id| vocab.pieces.get(id)).all(is_one_word);
        let flag = |name: &str| gguf.find_bool(&format!("tokenizer.ggml.{name}"));
        let bytes = vocab.byte_tokens();
        let missing = bytes.iter().filter(|id| **id == NO_TOKEN).count();
        if missing > 0 {
            let what = "the unknown token, or nothing if there is none, takes their place";
            warnings.push(format!("{missing} bytes have no token; {what}"));
        }
        Ok(Self {
            index,
            bytes,
            add_space_prefix: flag("add_space_prefix")?.unwrap_or(true),
            remove_extra_whitespaces: flag("remove_extra_whitespaces")?.unwrap_or(false),
            words_are_apart,
        })
    }

    pub(super) fn add_space_prefix(&self) -> bool {
        self.add_space_prefix
    }

    /// Appends the ids of `text`, which contains no special tokens. `first`: whether it starts the
    /// prompt or follows a special token.
    pub(super) fn encode(&self, vocab: &Vocab, text: &str, first: bool, out: &mut Tokens) {
        let text = self.normalise(text, first);
        let mut merger = Merger::default();
        let mut cache = WordCache::default();
        let mut rest = text.as_str();
        while !rest.is_empty() && !out.is_full() {
            let len = if self.words_are_apart { word_len(rest) } else { rest.len() };
            let (word, after) = rest.split_at(len);
            for part in parts(word) {
                if !out.is_full() {
                    let encode = |out: &mut _| self.encode_word(vocab, part, &mut merger, out);
                    cache.encode(part, out.ids, encode);
                }
            }
            rest = after;
        }
    }

    /// Whether some text has no tokens.
    pub(super) fn loses_text(&self, vocab: &Vocab) -> bool {
        let is_lost = missing(&self.bytes) > 0 && vocab.unknown.is_none();
        is_lost || self.remove_extra_whitespaces
    }

    fn encode_word(&self, vocab: &Vocab, word: &str, merger: &mut Merger, out: &mut Vec<u32>) {
        merger.clear();
        let mut utf8 = [0; 4];
        for ch in word.chars() {
            let piece = ch.encode_utf8(&mut utf8);
            let id = self.index.find(&vocab.pieces, piece.as_bytes());
            merger.push(piece.len() as u32, id.unwrap_or(NO_TOKEN));
        }
        merger.run(|left, right| self.merge(vocab, word, left, right));
        for symbol in merger.symbols() {
            if symbol.id != NO_TOKEN {
                out.push(symbol.id);
                continue;
            }
            let ids = word.as_bytes()[symbol.range()].iter().map(|byte| self.bytes[*byte as usize]);
            if ids.clone().all(|id| id != NO_TOKEN) {
                out.extend(ids);
            } else {
                out.extend(vocab.unknown);
            }
        }
    }

    fn normalise(&self, text: &str, first: bool) -> String {
        let mut text = text.replace(META_SPACE, " ");
        if self.remove_extra_whitespaces {
            text = text.split(' ').filter(|word| !word.is_empty()).collect::<Vec<_>>().join(" ");
        }
        if self.add_space_prefix && first && !text.is_empty() {
            text.insert(0, ' ');
        }
        text
    }

    fn merge(
        &self,
        vocab: &Vocab,
        text: &str,
        left: &Symbol,
        right: &Symbol,
    ) -> Option<(u32, u32)> {
        let both = &text.as_bytes()[left.range().start..right.range().end];
        let id = self.index.find(&vocab.pieces, both)?;
        let score = vocab.scores.get(id as usize).copied().unwrap_or(0.0);
        Some((descending(score), id))
    }
}

/// The length of leading spaces and the following non-space characters.
pub(super) fn word_len(text: &str) -> usize {
    let spaces = text.find(|ch| ch != ' ').unwrap_or(text.len());
    text[spaces..].find(' ').map_or(text.len(), |end| spaces + end)
}

pub(super) fn is_one_word(bytes: &[u8]) -> bool {
    !bytes.windows(2).any(|pair| pair[0] != b' ' && pair[1] == b' ')
}

/// A number that grows as the score falls, for every float.
fn descending(score: f32) -> u32 {
    // Adding zero turns -0 into 0.
    let bits = (score + 0.0).to_bits();
    let ascending = if bits >> 31 == 0 { bits | 1 << 31 } else { !bits };
    !ascending
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_best_score_goes_first() {
        let scores = [f32::INFINITY, 1e9, 1.0, 0.5, 0.0, -1e-9, -1.0, -31740.0, f32::NEG_INFINITY];
        let keys: Vec<u32> = scores.iter().map(|score| descending(*score)).collect();
        assert!(keys.is_sorted(), "{keys:?}");
        assert_eq!(descending(-0.0), descending(0.0));
    }
}

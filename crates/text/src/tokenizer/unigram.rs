//! SentencePiece's unigram model, as in XLM-RoBERTa: of all ways to cut a text into tokens, the one
//! with the highest sum of scores.
//!
//! Source: Kudo 2018 (arXiv:1804.10959).

use gguf::Directory;

use super::charsmap::Charsmap;
use super::index::Index;
use super::spm::{is_one_word, word_len};
use super::tokens::{Tokens, parts};
use super::vocab::{Kind, META_SPACE, Vocab};
use super::word_cache::WordCache;
use crate::TextError;

/// The most bytes of a token that texts are cut into. Those of published vocabularies have up to
/// about 50, and each is looked for at each character.
const PIECE_BYTES_MAX: usize = 256;

/// How much lower than the lowest score of a token the score of an unknown character is.
const UNKNOWN_PENALTY: f64 = 10.0;

pub(super) struct Unigram {
    index: Index,
    charsmap: Charsmap,
    /// Bytes of the longest token.
    longest: usize,
    unknown_score: f64,
    add_space_prefix: bool,
    remove_extra_whitespaces: bool,
    /// No token has a space after another character, so each word can be cut separately.
    words_are_apart: bool,
}

/// The best way to cut a text up to some character.
#[derive(Clone, Copy)]
struct Best {
    score: f64,
    /// Where its last token begins.
    start: usize,
    /// `None` for an unknown character.
    id: Option<u32>,
}

impl Unigram {
    pub(super) fn from_gguf(
        gguf: &Directory,
        vocab: &Vocab,
        warnings: &mut Vec<String>,
    ) -> Result<Self, TextError> {
        let usable = |id: &u32| vocab.pieces.get(*id).len() <= PIECE_BYTES_MAX;
        let mergeable = || vocab.ids_of(&[Kind::Normal]).filter(usable);
        let (index, duplicates) = Index::new(&vocab.pieces, mergeable());
        if duplicates > 0 {
            warnings.push(format!("{duplicates} tokens repeat the bytes of an earlier one"));
        }
        let flag = |name: &str| gguf.find_bool(&format!("tokenizer.ggml.{name}"));
        let score = |id: u32| f64::from(vocab.scores.get(id as usize).copied().unwrap_or(0.0));
        let lowest = mergeable().map(score).fold(0.0, f64::min);
        const MAP: &str = "tokenizer.ggml.precompiled_charsmap";
        let map: Vec<u8> = match gguf.find_array(MAP)? {
            None => Vec::new(),
            Some(array) => array
                .integers()
                .ok_or(TextError::ArrayType { key: MAP, wanted: "bytes" })?
                .map(|byte| byte as u8)
                .collect(),
        };
        Ok(Self {
            index,
            charsmap: Charsmap::read(&map)?,
            longest: mergeable().map(|id| vocab.pieces.get(id).len()).max().unwrap_or(0),
            unknown_score: lowest - UNKNOWN_PENALTY,
            add_space_prefix: flag("add_space_prefix")?.unwrap_or(true),
            remove_extra_whitespaces: flag("remove_extra_whitespaces")?.unwrap_or(true),
            words_are_apart: mergeable().map(|id| vocab.pieces.get(id)).all(is_one_word),
        })
    }

    pub(super) fn add_space_prefix(&self) -> bool {
        self.add_space_prefix
    }

    /// Appends the ids of `text`, which contains no special tokens. `first`: whether it starts the
    /// prompt or follows a special token.
    pub(super) fn encode(&self, vocab: &Vocab, text: &str, first: bool, out: &mut Tokens) {
        let text = self.normalise(text, first);
        let mut cache = WordCache::default();
        let mut rest = text.as_str();
        while !rest.is_empty() && !out.is_full() {
            let len = if self.words_are_apart { word_len(rest) } else { rest.len() };
            let (word, after) = rest.split_at(len);
            for part in parts(word) {
                if !out.is_full() {
                    cache.encode(part, out.ids, |ids| self.encode_word(vocab, part, ids));
                }
            }
            rest = after;
        }
    }

    fn encode_word(&self, vocab: &Vocab, word: &str, out: &mut Vec<u32>) {
        let nothing = Best { score: f64::NEG_INFINITY, start: 0, id: None };
        let mut best = vec![nothing; word.len() + 1];
        best[0].score = 0.0;
        for (start, ch) in word.char_indices() {
            let score = best[start].score;
            let mut try_end = |end: usize, id: Option<u32>, own: f64| {
                if score + own > best[end].score {
                    best[end] = Best { score: score + own, start, id };
                }
            };
            let (mut end, mut is_known) = (start, false);
            for next in word[start..].chars() {
                end += next.len_utf8();
                if end - start > self.longest {
                    break;
                }
                if let Some(id) = self.index.find(&vocab.pieces, &word.as_bytes()[start..end]) {
                    let own = vocab.scores.get(id as usize).copied().unwrap_or(0.0);
                    is_known |= end == start + ch.len_utf8();
                    try_end(end, Some(id), f64::from(own));
                }
            }
            if !is_known {
                try_end(start + ch.len_utf8(), None, self.unknown_score);
            }
        }
        let first = out.len();
        let (mut end, mut was_unknown) = (word.len(), false);
        while end > 0 {
            let Best { start, id, .. } = best[end];
            // A run of unknown characters is one unknown token.
            match id {
                Some(id) => out.push(id),
                None if was_unknown => {}
                None => out.extend(vocab.unknown),
            }
            (end, was_unknown) = (start, id.is_none());
        }
        out[first..].reverse();
    }

    /// The text as the model's tokens write it, with spaces for U+2581.
    fn normalise(&self, text: &str, first: bool) -> String {
        let mut out = String::with_capacity(text.len() + 1);
        let mut rest = text;
        let mut after_space = self.remove_extra_whitespaces;
        if self.add_space_prefix && first {
            out.push(' ');
        }
        let begun = out.len();
        while let Some(ch) = rest.chars().next() {
            let (len, written) = match self.charsmap.find(rest.as_bytes()) {
                Some((len, written)) if rest.is_char_boundary(len) => (len, written),
                _ => (ch.len_utf8(), &rest[..ch.len_utf8()]),
            };
            let kept = match after_space {
                true => written.trim_start_matches(' '),
                false => written,
            };
            out.push_str(kept);
            if self.remove_extra_whitespaces && !kept.is_empty() {
                after_space = kept.ends_with(' ');
            }
            rest = &rest[len..];
        }
        if self.remove_extra_whitespaces {
            let end = out[begun..].trim_end_matches(' ').len();
            out.truncate(begun + end);
        }
        if out.len() == begun {
            return String::new();
        }
        out.replace(META_SPACE, " ")
    }
}

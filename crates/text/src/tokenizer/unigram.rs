//! The unigram language model of SentencePiece, as in T5 and XLM-RoBERTa: of all ways to cut a text
//! into tokens, the one whose log-probabilities add up to the most.
//!
//! Source: Kudo 2018 (arXiv:1804.10959). The best path is found from left to right (Viterbi), in
//! time linear in the text: at each character only tokens that begin there are tried.

use gguf::Directory;

use super::charsmap::Charsmap;
use super::spm::{is_one_word, word_len};
use super::vocab::{Kind, META_SPACE, Vocab};
use crate::TextError;

/// Bytes that are cut at once, so that the places reached fit in memory. Texts without a space for
/// so long do not occur; if one does, tokens end there.
const WORD_BYTES_MAX: usize = 1 << 22;
/// A character that no token covers costs this much more than the least likely token.
const UNKNOWN_PENALTY: f64 = 10.0;

pub(super) struct Unigram {
    /// The tokens that text is cut into, by their bytes.
    sorted: Vec<u32>,
    unknown_score: f64,
    charsmap: Option<Charsmap>,
    add_space_prefix: bool,
    /// The space of `add_space_prefix` stands at the end instead.
    space_behind: bool,
    remove_extra_whitespaces: bool,
    /// No token holds a space behind another character: each word can be cut for itself.
    words_are_apart: bool,
}

/// The best way to reach a place in the text.
#[derive(Clone, Copy)]
struct Reached {
    score: f64,
    start: u32,
    id: Option<u32>,
}

impl Unigram {
    pub(super) fn from_gguf(gguf: &Directory, vocab: &Vocab) -> Result<Self, TextError> {
        let mut sorted: Vec<u32> = vocab.ids_of(&[Kind::Normal, Kind::Unused]).collect();
        sorted.retain(|id| !vocab.pieces.get(*id).is_empty());
        // The sort keeps the order of ids with equal bytes, of which the first counts.
        sorted.sort_by(|a, b| vocab.pieces.get(*a).cmp(vocab.pieces.get(*b)));
        sorted.dedup_by(|later, first| vocab.pieces.get(*later) == vocab.pieces.get(*first));
        let least = vocab.ids_of(&[Kind::Normal]).map(|id| score(vocab, id)).fold(0.0, f64::min);
        let flag = |name: &str| gguf.find_bool(&format!("tokenizer.ggml.{name}"));
        Ok(Self {
            words_are_apart: sorted.iter().all(|id| is_one_word(vocab.pieces.get(*id))),
            sorted,
            unknown_score: least - UNKNOWN_PENALTY,
            charsmap: Charsmap::from_gguf(gguf)?,
            add_space_prefix: flag("add_space_prefix")?.unwrap_or(false),
            space_behind: flag("treat_whitespace_as_suffix")?.unwrap_or(false),
            remove_extra_whitespaces: flag("remove_extra_whitespaces")?.unwrap_or(false),
        })
    }

    pub(super) fn add_space_prefix(&self) -> bool {
        self.add_space_prefix && !self.space_behind
    }

    /// Appends the ids of `text`, which holds no special tokens.
    pub(super) fn encode(&self, vocab: &Vocab, text: &str, out: &mut Vec<u32>) {
        let text = self.normalise(text);
        let start = out.len();
        let mut reached = Vec::new();
        let mut rest = text.as_str();
        while !rest.is_empty() {
            let len = if self.words_are_apart { word_len(rest) } else { rest.len() };
            let mut ends = (0..=len.min(WORD_BYTES_MAX)).rev();
            let end = ends.find(|end| rest.is_char_boundary(*end));
            let (word, behind) = rest.split_at(end.expect("zero is a boundary"));
            self.encode_word(vocab, word, start, &mut reached, out);
            rest = behind;
        }
    }

    /// `start`: where the ids of the whole text begin in `out`.
    fn encode_word(
        &self,
        vocab: &Vocab,
        word: &str,
        start: usize,
        reached: &mut Vec<Reached>,
        out: &mut Vec<u32>,
    ) {
        let unreached = Reached { score: f64::NEG_INFINITY, start: 0, id: None };
        reached.clear();
        reached.resize(word.len() + 1, unreached);
        reached[0].score = 0.0;
        for (at, ch) in word.char_indices() {
            let before = reached[at].score;
            let mut offer = |len: usize, id: Option<u32>, score: f64| {
                let place = &mut reached[at + len];
                if before + score > place.score {
                    *place = Reached { score: before + score, start: at as u32, id };
                }
            };
            let mut covered = false;
            self.for_each_prefix(vocab, &word.as_bytes()[at..], |len, id| {
                covered |= len == ch.len_utf8();
                offer(len, Some(id), score(vocab, id));
            });
            if !covered {
                offer(ch.len_utf8(), None, self.unknown_score);
            }
        }
        let first = out.len();
        let mut end = word.len();
        while end > 0 {
            out.push(reached[end].id.or(vocab.unknown).unwrap_or(u32::MAX));
            end = reached[end].start as usize;
        }
        out[first..].reverse();
        merge_unknown(vocab.unknown, start, first, out);
    }

    /// Calls `found` with the length and id of every token that `text` begins with, the shortest
    /// first: the range of tokens with the first bytes in common narrows byte by byte.
    fn for_each_prefix(&self, vocab: &Vocab, text: &[u8], mut found: impl FnMut(usize, u32)) {
        let mut range = self.sorted.as_slice();
        for (at, byte) in text.iter().enumerate() {
            let next = |id: &u32| vocab.pieces.get(*id).get(at).copied();
            let from = range.partition_point(|id| next(id) < Some(*byte));
            range = &range[from..];
            range = &range[..range.partition_point(|id| next(id) <= Some(*byte))];
            let Some(&first) = range.first() else { return };
            if vocab.pieces.get(first).len() == at + 1 {
                found(at + 1, first);
            }
        }
    }

    /// Characters as the model knows them, and spaces where it was taught to expect them.
    fn normalise(&self, text: &str) -> String {
        let mapped = match &self.charsmap {
            Some(charsmap) => charsmap.apply(text),
            None => text.to_owned(),
        };
        let mut out = String::with_capacity(mapped.len() + 1);
        let (mut inside_word, mut any_word) = (false, false);
        for ch in mapped.chars() {
            if ch == ' ' {
                inside_word = false;
                if !self.remove_extra_whitespaces {
                    out.push(' ');
                }
                continue;
            }
            let prefix = self.add_space_prefix() && !any_word;
            if !inside_word && (prefix || self.remove_extra_whitespaces) {
                out.push(' ');
            }
            (inside_word, any_word) = (true, true);
            out.push(ch);
        }
        if self.add_space_prefix && self.space_behind {
            out.push(' ');
        }
        out.replace(META_SPACE, " ")
    }
}

/// Runs of the unknown token become one; without such a token, nothing.
fn merge_unknown(unknown: Option<u32>, start: usize, first: usize, out: &mut Vec<u32>) {
    let mut kept = first;
    for at in first..out.len() {
        let id = out[at];
        let repeats = Some(id) == unknown && kept > start && out[kept - 1] == id;
        if id != u32::MAX && !repeats {
            out[kept] = id;
            kept += 1;
        }
    }
    out.truncate(kept);
}

fn score(vocab: &Vocab, id: u32) -> f64 {
    vocab.scores.get(id as usize).map_or(0.0, |score| f64::from(*score))
}

//! Byte-pair encoding: words are cut into bytes (or characters), then the pair with the earliest
//! learnt merge is merged until none is left.
//!
//! Source: Sennrich et al. 2016 (arXiv:1508.07909), with GPT-2's bytes as the alphabet.

use std::collections::HashMap;

use gguf::Directory;

use super::byte_level::Alphabet;
use super::index::Index;
use super::merge::{Merger, NO_TOKEN};
use super::pair_hash::PairHasher;
use super::pretokenizer::Pretokenizer;
use super::tokens::{Tokens, missing, parts};
use super::vocab::{Kind, META_SPACE, Vocab, Writing};
use super::word_cache::WordCache;
use crate::TextError;

/// The most merges of a file; the largest published list has about 515,000.
const MERGES_MAX: usize = 1 << 22;
/// (left id, right id) to (rank, merged id).
type Pairs = HashMap<(u32, u32), (u32, u32), PairHasher>;

pub(super) struct Bpe {
    pretokenizer: Pretokenizer,
    writing: Writing,
    index: Index,
    merges: Pairs,
    /// The token of each single byte; `NO_TOKEN` where the vocabulary lacks it.
    bytes: [u32; 256],
}

impl Bpe {
    pub(super) fn from_gguf(
        gguf: &Directory,
        vocab: &Vocab,
        pretokenizer: Pretokenizer,
        warnings: &mut Vec<String>,
    ) -> Result<Self, TextError> {
        let writing = pretokenizer.writing();
        let (index, duplicates) =
            Index::new(&vocab.pieces, vocab.ids_of(&[Kind::Normal, Kind::Unused]));
        if duplicates > 0 {
            warnings.push(format!("{duplicates} tokens repeat the bytes of an earlier one"));
        }
        let merges = read_merges(gguf, vocab, &index, writing, warnings)?;
        let bytes = byte_ids(vocab, &index, writing);
        let missing = missing(&bytes);
        if missing > 0 {
            let what = "the unknown token, or nothing if there is none, takes their place";
            warnings.push(format!("{missing} bytes have no token; {what}"));
        }
        Ok(Self { pretokenizer, writing, index, merges, bytes })
    }

    /// Appends the ids of `text`, which contains no special tokens.
    pub(super) fn encode(&self, vocab: &Vocab, text: &str, out: &mut Tokens) {
        let plain;
        let text = match self.writing {
            Writing::SentencePiece if text.contains(META_SPACE) => {
                plain = text.replace(META_SPACE, " ");
                &plain
            }
            _ => text,
        };
        let mut merger = Merger::default();
        let mut cache = WordCache::default();
        self.pretokenizer.split(text, &mut |word| {
            for part in parts(word) {
                if !out.is_full() {
                    let encode = |out: &mut _| self.encode_word(vocab, part, &mut merger, out);
                    cache.encode(part, out.ids, encode);
                }
            }
        });
    }

    /// Whether some text has no tokens.
    pub(super) fn loses_text(&self, vocab: &Vocab) -> bool {
        missing(&self.bytes) > 0 && vocab.unknown.is_none()
    }

    fn encode_word(&self, vocab: &Vocab, word: &str, merger: &mut Merger, out: &mut Vec<u32>) {
        if self.pretokenizer.prefers_whole(word)
            && let Some(id) = self.index.find(&vocab.pieces, word.as_bytes())
        {
            out.push(id);
            return;
        }
        merger.clear();
        match self.writing {
            Writing::ByteLevel => {
                word.bytes().for_each(|byte| merger.push(1, self.bytes[byte as usize]));
            }
            Writing::SentencePiece => {
                let mut utf8 = [0; 4];
                for ch in word.chars() {
                    let text = ch.encode_utf8(&mut utf8);
                    let id = self.index.find(&vocab.pieces, text.as_bytes());
                    merger.push(text.len() as u32, id.unwrap_or(NO_TOKEN));
                }
            }
        }
        merger.run(|left, right| self.merges.get(&(left.id, right.id)).copied());
        for symbol in merger.symbols() {
            if symbol.id != NO_TOKEN {
                out.push(symbol.id);
                continue;
            }
            let bytes = &word.as_bytes()[symbol.range()];
            let ids = bytes.iter().map(|byte| self.bytes[*byte as usize]);
            let known = ids.map(|id| if id == NO_TOKEN { vocab.unknown } else { Some(id) });
            out.extend(known.flatten());
        }
    }
}

/// The token of each single byte.
fn byte_ids(vocab: &Vocab, index: &Index, writing: Writing) -> [u32; 256] {
    match writing {
        Writing::ByteLevel => {
            std::array::from_fn(|byte| index.find(&vocab.pieces, &[byte as u8]).unwrap_or(NO_TOKEN))
        }
        Writing::SentencePiece => vocab.byte_tokens(),
    }
}

/// Reads the merges. Merges of missing tokens can never apply; they are left out with a warning.
fn read_merges(
    gguf: &Directory,
    vocab: &Vocab,
    index: &Index,
    writing: Writing,
    warnings: &mut Vec<String>,
) -> Result<Pairs, TextError> {
    const KEY: &str = "tokenizer.ggml.merges";
    let wrong = TextError::ArrayType { key: KEY, wanted: "strings" };
    let Some(array) = gguf.find_array(KEY)? else { return Err(wrong) };
    if array.len() > MERGES_MAX {
        return Err(TextError::TooMany { what: "merges", found: array.len(), limit: MERGES_MAX });
    }
    let alphabet = Alphabet::new();
    let mut bytes = Vec::new();
    let mut merges = Pairs::default();
    let mut broken = 0;
    for (merge, rank) in array.strings().ok_or(wrong)?.zip(0u32..) {
        let mut find = |bytes: &[u8]| index.find(&vocab.pieces, bytes);
        let merge = std::str::from_utf8(merge).ok();
        let mut parse = |merge| parse_merge(merge, writing, &alphabet, &mut bytes, &mut find);
        match merge.and_then(&mut parse) {
            Some((left, right, id)) => {
                merges.entry((left, right)).or_insert((rank, id));
            }
            None => broken += 1,
        }
    }
    if broken > 0 {
        let of = array.len();
        warnings.push(format!("{broken} of {of} merges name tokens that are not there"));
    }
    Ok(merges)
}

/// The ids of both parts of a merge and of their result. The parts are separated by the first space
/// that is not the first byte.
fn parse_merge(
    merge: &str,
    writing: Writing,
    alphabet: &Alphabet,
    bytes: &mut Vec<u8>,
    find: &mut impl FnMut(&[u8]) -> Option<u32>,
) -> Option<(u32, u32, u32)> {
    let space = merge.bytes().skip(1).position(|byte| byte == b' ')? + 1;
    let (left, right) = (&merge[..space], &merge[space + 1..]);
    bytes.clear();
    let mut push = |text: &str| match writing {
        Writing::ByteLevel => alphabet.decode(text, bytes).then_some(bytes.len()),
        Writing::SentencePiece => {
            bytes.extend(text.replace(META_SPACE, " ").as_bytes());
            Some(bytes.len())
        }
    };
    let middle = push(left)?;
    push(right)?;
    Some((find(&bytes[..middle])?, find(&bytes[middle..])?, find(bytes)?))
}

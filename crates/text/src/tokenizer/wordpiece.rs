//! WordPiece: words are cut greedily into the longest tokens, as in BERT and the embedding models
//! made from it.
//!
//! A file writes a token that begins a word with U+2581 in front, which becomes a space here; all
//! others continue a word.
//!
//! Source: Devlin et al. 2018 (arXiv:1810.04805), and the normaliser of its published tokenizers:
//! control characters go, accents go and letters become small if the file says so (or nothing),
//! and punctuation and Chinese characters are words of their own.

use std::borrow::Cow;

use gguf::Directory;
use icu_normalizer::DecomposingNormalizerBorrowed;
use regex_automata::meta::Regex;

use super::index::Index;
use super::vocab::{Kind, Vocab};
use super::word_cache::WordCache;
use crate::TextError;

/// Longer words are the unknown token, as in the published tokenizers.
const WORD_CHARS_MAX: usize = 100;

/// Characters that leave no trace. Line breaks and tabs are white space.
const REMOVED: &str = r"[\p{Cc}\p{Cf}\p{Co}\x{FFFD}&&[^\t\n\r]]+";
const ACCENTS: &str = r"\p{Mn}+";
const SPACES: &str = r"\s+";
/// Punctuation, symbols of ASCII and Chinese characters.
const SINGLE: &str = concat!(
    r"[\p{P}$+<=>^`|~\x{4E00}-\x{9FFF}\x{3400}-\x{4DBF}\x{20000}-\x{2A6DF}\x{2A700}-\x{2B73F}",
    r"\x{2B740}-\x{2B81F}\x{2B920}-\x{2CEAF}\x{F900}-\x{FAFF}\x{2F800}-\x{2FA1F}]"
);

pub(super) struct WordPiece {
    index: Index,
    piece_bytes_max: usize,
    strip_accents: bool,
    lowercase: bool,
    removed: Regex,
    accents: Regex,
    /// Pattern 0 is white space, pattern 1 a character that is a word.
    borders: Regex,
}

impl WordPiece {
    pub(super) fn from_gguf(
        gguf: &Directory,
        vocab: &Vocab,
        warnings: &mut Vec<String>,
    ) -> Result<Self, TextError> {
        let kinds = [Kind::Normal, Kind::Unused];
        let (index, duplicates) = Index::new(&vocab.pieces, vocab.ids_of(&kinds));
        if duplicates > 0 {
            warnings.push(format!("{duplicates} tokens repeat the bytes of an earlier one"));
        }
        let flag = |name: &str| gguf.find_bool(&format!("tokenizer.ggml.normalizer.{name}"));
        let lowercase = flag("lowercase")?.unwrap_or(true);
        let compile = |pattern| Regex::new(pattern).expect("the patterns are constants");
        Ok(Self {
            index,
            piece_bytes_max: vocab.pieces.longest(),
            strip_accents: flag("strip_accents")?.unwrap_or(lowercase),
            lowercase,
            removed: compile(REMOVED),
            accents: compile(ACCENTS),
            borders: Regex::new_many(&[SPACES, SINGLE]).expect("the patterns are constants"),
        })
    }

    /// Appends the ids of `text`, which holds no special tokens.
    pub(super) fn encode(&self, vocab: &Vocab, text: &str, out: &mut Vec<u32>) {
        let text = self.normalise(text);
        let mut cache = WordCache::default();
        let mut encode = |word| cache.encode(word, out, |out| self.encode_word(vocab, word, out));
        let mut at = 0;
        for border in self.borders.find_iter(text.as_ref()) {
            if at < border.start() {
                encode(&text[at..border.start()]);
            }
            if border.pattern().as_usize() == 1 {
                encode(&text[border.range()]);
            }
            at = border.end();
        }
        if at < text.len() {
            encode(&text[at..]);
        }
    }

    fn normalise<'t>(&self, text: &'t str) -> Cow<'t, str> {
        let mut text = without(&self.removed, text);
        if self.strip_accents {
            let apart = DecomposingNormalizerBorrowed::new_nfd().normalize(&text);
            text = Cow::Owned(without(&self.accents, &apart).into_owned());
        }
        if self.lowercase {
            text = Cow::Owned(text.chars().flat_map(char::to_lowercase).collect());
        }
        text
    }

    /// Nothing of a word that does not end with a token is kept: it is the unknown token.
    fn encode_word(&self, vocab: &Vocab, word: &str, out: &mut Vec<u32>) {
        let before = out.len();
        if word.chars().count() > WORD_CHARS_MAX {
            return out.extend(vocab.unknown);
        }
        let marked = format!(" {word}");
        let mut rest = marked.as_str();
        while !rest.is_empty() {
            let Some((id, len)) = self.longest(vocab, rest) else {
                out.truncate(before);
                return out.extend(vocab.unknown);
            };
            out.push(id);
            rest = &rest[len..];
        }
    }

    /// The longest token that `text` begins with, and its bytes.
    fn longest(&self, vocab: &Vocab, text: &str) -> Option<(u32, usize)> {
        let ends = (1..=text.len().min(self.piece_bytes_max)).rev();
        ends.filter(|end| text.is_char_boundary(*end)).find_map(|end| {
            let id = self.index.find(&vocab.pieces, &text.as_bytes()[..end])?;
            Some((id, end))
        })
    }
}

/// `text` without what `pattern` matches.
fn without<'t>(pattern: &Regex, text: &'t str) -> Cow<'t, str> {
    if !pattern.is_match(text) {
        return Cow::Borrowed(text);
    }
    let mut kept = String::with_capacity(text.len());
    let mut at = 0;
    for found in pattern.find_iter(text) {
        kept.push_str(&text[at..found.start()]);
        at = found.end();
    }
    kept.push_str(&text[at..]);
    Cow::Owned(kept)
}

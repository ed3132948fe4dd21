//! WordPiece, as in BERT: a text is cleaned and cut into words, and of each word the longest known
//! beginning is taken, again and again.
//!
//! Source: the tokenizer of BERT (Devlin et al. 2018, arXiv:1810.04805). Files have beginnings of
//! words with U+2581 in front, and other tokens bare.

use regex_syntax::hir::{Class, HirKind};
use unicode_normalization::UnicodeNormalization;

use super::index::Index;
use super::tokens::Tokens;
use super::vocab::{Kind, Vocab};
use super::word_cache::WordCache;

/// A longer word is unknown as a whole.
const WORD_CHARS_MAX: usize = 100;

pub(super) struct WordPiece {
    index: Index,
    /// Bytes of the longest token.
    longest: usize,
    /// Texts are in lower case and without accents.
    uncased: bool,
    classes: Classes,
}

/// Sets of characters.
struct Classes {
    punctuation: Ranges,
    /// Marks without a width of their own.
    marks: Ranges,
    /// Control characters, formats and those for private use.
    other: Ranges,
}

type Ranges = Vec<(char, char)>;

impl WordPiece {
    pub(super) fn new(vocab: &Vocab) -> Self {
        let (index, _) = Index::new(&vocab.pieces, vocab.ids_of(&[Kind::Normal]));
        let normal = || vocab.ids_of(&[Kind::Normal]).map(|id| vocab.pieces.get(id));
        // No key tells it. A vocabulary with capital letters is of a model that tells them apart;
        // names in brackets are no words.
        let is_cased =
            |bytes: &[u8]| bytes.iter().any(u8::is_ascii_uppercase) && !bytes.contains(&b'[');
        Self {
            index,
            longest: normal().map(<[u8]>::len).max().unwrap_or(0),
            uncased: !normal().any(is_cased),
            classes: Classes {
                punctuation: ranges(r"[\p{P}\x21-\x2f\x3a-\x40\x5b-\x60\x7b-\x7e]"),
                marks: ranges(r"\p{Mn}"),
                other: ranges(r"[\p{Cc}\p{Cf}\p{Co}]"),
            },
        }
    }

    /// Appends the ids of `text`, which contains no special tokens.
    pub(super) fn encode(&self, vocab: &Vocab, text: &str, out: &mut Tokens) {
        let text = self.normalise(text);
        let mut cache = WordCache::default();
        for word in text.split_whitespace().flat_map(|run| self.words(run)) {
            if out.is_full() {
                return;
            }
            cache.encode(word, out.ids, |ids| self.encode_word(vocab, word, ids));
        }
    }

    fn encode_word(&self, vocab: &Vocab, word: &str, out: &mut Vec<u32>) {
        let (before, mut at) = (out.len(), 0);
        let is_long = word.chars().count() > WORD_CHARS_MAX;
        let mut piece = String::with_capacity(1 + word.len());
        while at < word.len() && !is_long {
            piece.clear();
            piece.extend((at == 0).then_some(' '));
            let space = piece.len();
            piece.push_str(&word[at..]);
            let mut ends = (0..=piece.len().min(self.longest)).rev();
            piece.truncate(ends.find(|end| piece.is_char_boundary(*end)).unwrap_or(0));
            let found = loop {
                if piece.len() <= space {
                    break None;
                }
                if let Some(id) = self.index.find(&vocab.pieces, piece.as_bytes()) {
                    break Some(id);
                }
                piece.pop();
            };
            let Some(id) = found else { break };
            out.push(id);
            at += piece.len() - space;
        }
        if at < word.len() {
            out.truncate(before);
            out.extend(vocab.unknown);
        }
    }

    /// Words and single punctuation marks, of a text without white space.
    fn words<'t>(&'t self, text: &'t str) -> impl Iterator<Item = &'t str> {
        let mut rest = text;
        let is_mark = |ch: char| contains(&self.classes.punctuation, ch);
        std::iter::from_fn(move || {
            let first = rest.chars().next()?;
            let end = match is_mark(first) {
                true => first.len_utf8(),
                false => rest.find(is_mark).unwrap_or(rest.len()),
            };
            let (word, after) = rest.split_at(end);
            rest = after;
            Some(word)
        })
    }

    /// Without control characters, with spaces around ideographs, and without accents and capital
    /// letters if the model has none.
    fn normalise(&self, text: &str) -> String {
        let mut clean = String::with_capacity(text.len());
        for ch in text.chars() {
            match ch {
                '\t' | '\n' | '\r' => clean.push(' '),
                '\0' | '\u{fffd}' => {}
                _ if contains(&self.classes.other, ch) => {}
                _ if is_ideograph(ch) => clean.extend([' ', ch, ' ']),
                _ => clean.push(ch),
            }
        }
        if !self.uncased {
            return clean;
        }
        let is_accent = |ch: &char| contains(&self.classes.marks, *ch);
        clean.nfd().filter(|ch| !is_accent(ch)).flat_map(char::to_lowercase).collect()
    }
}

/// The characters of a regular expression of one class.
fn ranges(class: &str) -> Ranges {
    let parsed = regex_syntax::parse(class).expect("a class of this file");
    match parsed.kind() {
        HirKind::Class(Class::Unicode(class)) => {
            class.ranges().iter().map(|range| (range.start(), range.end())).collect()
        }
        _ => Vec::new(),
    }
}

fn contains(ranges: &Ranges, ch: char) -> bool {
    let after = ranges.partition_point(|(start, _)| *start <= ch);
    after > 0 && ch <= ranges[after - 1].1
}

/// What BERT takes for a word of its own, of the blocks of CJK ideographs.
fn is_ideograph(ch: char) -> bool {
    matches!(ch,
        '\u{4e00}'..='\u{9fff}' | '\u{3400}'..='\u{4dbf}' | '\u{20000}'..='\u{2a6df}'
        | '\u{2a700}'..='\u{2b73f}' | '\u{2b740}'..='\u{2b81f}' | '\u{2b920}'..='\u{2ceaf}'
        | '\u{f900}'..='\u{faff}' | '\u{2f800}'..='\u{2fa1f}')
}

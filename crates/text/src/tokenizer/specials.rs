//! Finds special tokens in text, and hides those in a client's text.

use aho_corasick::{AhoCorasick, Input, MatchKind};

use super::vocab::{Kind, Vocab};
use crate::TextError;

/// The most special tokens of a vocabulary, and their most bytes; published ones have up to about
/// 6,500.
const COUNT_MAX: usize = 1 << 16;
const BYTES_MAX: usize = 1 << 22;

/// The most bytes of a control token's name in the search; the longest published ones have about
/// 40.
const NAME_BYTES_MAX: usize = 256;

/// Inserted after the first character of every control token's name in a client's text, so that the
/// name is not found. A noncharacter of Unicode, which no text contains.
pub(crate) const GUARD: char = '\u{FDD0}';

/// Phi-3's special tokens that do not swallow the white space after them.
const KEEP_AFTER: &[&str] = &["<unk>", "<s>", "<|endoftext|>"];

/// A piece of a prompt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fragment<'t> {
    Text(&'t str),
    Token(u32),
}

/// Splits text at special tokens: of those that start at the same position, the longest.
pub(super) struct Specials {
    /// Tokens found in any text: those that the model's users added to its vocabulary.
    plain: Finder,
    /// All tokens, including control tokens.
    parse: Finder,
    /// Control tokens, valid only in templates.
    control: Finder,
    /// White space after most special tokens is dropped (Phi-3).
    strip_after: bool,
    /// The tokens after which it is kept.
    keep_after: Vec<u32>,
}

struct Finder {
    ids: Vec<u32>,
    automaton: Option<AhoCorasick>,
}

impl Specials {
    pub(super) fn new(vocab: &Vocab, strip_after: bool) -> Result<Self, TextError> {
        let plain = Finder::new(vocab, &[Kind::UserDefined])?;
        let parse = Finder::new(vocab, &[Kind::UserDefined, Kind::Control, Kind::Unknown])?;
        let control = Finder::new(vocab, &[Kind::Control, Kind::Unknown])?;
        let kept =
            |id: &u32| KEEP_AFTER.iter().any(|text| text.as_bytes() == vocab.pieces.get(*id));
        let keep_after = parse.ids.iter().copied().filter(kept).collect();
        Ok(Self { plain, parse, control, strip_after, keep_after })
    }

    /// Calls `emit` for each fragment, in order. Finds control tokens only if `parse`.
    pub(super) fn split<'t>(&self, text: &'t str, parse: bool, emit: &mut dyn FnMut(Fragment<'t>)) {
        let finder = if parse { &self.parse } else { &self.plain };
        let mut at = 0;
        for found in finder.automaton.iter().flat_map(|automaton| automaton.find_iter(text)) {
            // Stripped white space may have moved past the start of a token made of white space.
            if found.start() < at {
                continue;
            }
            // In a name of one character the guard comes after it.
            let name = &text[found.range()];
            if name.chars().nth(1).is_none() && text[found.end()..].starts_with(GUARD) {
                continue;
            }
            if at < found.start() {
                emit(Fragment::Text(&text[at..found.start()]));
            }
            let id = finder.ids[found.pattern().as_usize()];
            emit(Fragment::Token(id));
            at = found.end();
            if self.strip_after && !self.keep_after.contains(&id) {
                at = text.len() - text[at..].trim_start().len();
            }
        }
        if at < text.len() {
            emit(Fragment::Text(&text[at..]));
        }
    }

    /// `text` with a [`GUARD`] in every name of a control token, also where names overlap.
    pub(super) fn guard(&self, text: &str) -> String {
        let text = text.replace(GUARD, "");
        let Some(automaton) = &self.control.automaton else { return text };
        let mut guarded = String::new();
        let mut at = 0;
        while let Some(found) = automaton.find(Input::new(&text).range(at..)) {
            let first = text[found.start()..].chars().next().map_or(1, char::len_utf8);
            let end = found.start() + first;
            guarded.push_str(&text[at..end]);
            guarded.push(GUARD);
            at = end;
        }
        if at == 0 {
            return text;
        }
        guarded.push_str(&text[at..]);
        guarded
    }
}

impl Finder {
    fn new(vocab: &Vocab, kinds: &[Kind]) -> Result<Self, TextError> {
        let is_name = |id: &u32| {
            let bytes = vocab.pieces.get(*id).len();
            bytes > 0 && (bytes <= NAME_BYTES_MAX || vocab.kinds[*id as usize] == Kind::UserDefined)
        };
        let ids: Vec<u32> = vocab.ids_of(kinds).filter(is_name).collect();
        if ids.is_empty() {
            return Ok(Self { ids, automaton: None });
        }
        if ids.len() > COUNT_MAX {
            let (found, limit) = (ids.len(), COUNT_MAX);
            return Err(TextError::TooMany { what: "special tokens", found, limit });
        }
        let found = ids.iter().map(|id| vocab.pieces.get(*id).len()).sum();
        let too_many = |limit| TextError::TooMany { what: "bytes of special tokens", found, limit };
        if found > BYTES_MAX {
            return Err(too_many(BYTES_MAX));
        }
        let automaton = AhoCorasick::builder()
            .match_kind(MatchKind::LeftmostLongest)
            .build(ids.iter().map(|id| vocab.pieces.get(*id)))
            .map_err(|_| too_many(BYTES_MAX))?;
        Ok(Self { ids, automaton: Some(automaton) })
    }
}

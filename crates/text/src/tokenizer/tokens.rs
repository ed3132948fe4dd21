//! The tokens of a text while it is encoded, and the parts that are encoded at once.

use super::merge::NO_TOKEN;

/// The most bytes to merge at once; each takes about 50 bytes of memory meanwhile. Longer words,
/// and texts without word boundaries, are cut, which may change the tokens at the cut.
const WORD_BYTES_MAX: usize = 1 << 20;

/// The tokens of a text during encoding.
pub(super) struct Tokens<'o> {
    pub(super) ids: &'o mut Vec<u32>,
    /// Encoding stops after more than this many.
    pub(super) max: usize,
}

impl Tokens<'_> {
    pub(super) fn is_full(&self) -> bool {
        self.ids.len() > self.max
    }
}

/// The number of bytes without a token. UTF-8 never contains C0, C1 and F5 to FF, and some
/// vocabularies omit them.
pub(super) fn missing(tokens: &[u32; 256]) -> usize {
    let used = (0..=255u8).filter(|byte| !matches!(byte, 0xC0 | 0xC1 | 0xF5..));
    used.filter(|byte| tokens[*byte as usize] == NO_TOKEN).count()
}

/// A word in parts that can be merged at once.
pub(super) fn parts(word: &str) -> impl Iterator<Item = &str> {
    let mut rest = word;
    std::iter::from_fn(move || {
        let mut ends = (0..=rest.len().min(WORD_BYTES_MAX)).rev();
        let end = ends.find(|end| rest.is_char_boundary(*end)).unwrap_or(0);
        let (part, after) = rest.split_at(end);
        rest = after;
        (!part.is_empty()).then_some(part)
    })
}

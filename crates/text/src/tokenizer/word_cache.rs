//! Caches the words encoded earlier in the same text: most of a long text repeats.

use std::collections::HashMap;

/// The most cached words, and the most bytes of one: together they bound the memory of the cache.
const WORDS_MAX: usize = 1 << 16;
const WORD_BYTES_MAX: usize = 64;

/// The ids of a word as a range of the output.
#[derive(Default)]
pub(super) struct WordCache<'t> {
    places: HashMap<&'t str, (u32, u32)>,
}

impl<'t> WordCache<'t> {
    /// Appends the ids of `word` to `out`, from the cache or else by `encode`. `out` must be the
    /// same each time, and only grow.
    pub(super) fn encode(
        &mut self,
        word: &'t str,
        out: &mut Vec<u32>,
        encode: impl FnOnce(&mut Vec<u32>),
    ) {
        if let Some(&(start, end)) = self.places.get(word) {
            out.extend_from_within(start as usize..end as usize);
            return;
        }
        let start = out.len();
        encode(out);
        if word.len() <= WORD_BYTES_MAX
            && self.places.len() < WORDS_MAX
            && let (Ok(start), Ok(end)) = (start.try_into(), out.len().try_into())
        {
            self.places.insert(word, (start, end));
        }
    }
}

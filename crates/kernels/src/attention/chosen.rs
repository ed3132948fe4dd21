//! The visible positions of rows, in layers with a choice.

use std::ops::Range;

/// Positions of a page, as bits of a word.
pub(super) const ALL: u64 = u64::MAX;

/// The visible positions of each row of a step, for each group of heads with a common choice.
#[derive(Default)]
pub struct Chosen {
    /// One bit for each position: `[rows, groups, pages]`.
    words: Vec<u64>,
    /// Whether a row attends to all positions up to its own: then its words are unused.
    full: Vec<bool>,
    /// Whether a row's choice had an infinite or NaN score: then it is meaningless.
    lost: Vec<bool>,
    groups: usize,
    pages: usize,
    /// Whether positions were chosen individually, and not in blocks.
    scattered: bool,
}

impl Chosen {
    /// Room for these numbers of rows, groups and pages of a sequence.
    pub fn with_room(rows: usize, groups: usize, pages: usize) -> Self {
        let words = Vec::with_capacity(rows * groups * pages);
        let (full, lost) = (Vec::with_capacity(rows), Vec::with_capacity(rows));
        Self { words, full, lost, groups, pages: 0, scattered: false }
    }

    /// Bytes of such a buffer.
    pub fn bytes(rows: usize, groups: usize, pages: usize) -> usize {
        rows * (groups * pages * size_of::<u64>() + 2 * size_of::<bool>())
    }

    pub fn rows(&self) -> usize {
        self.full.len()
    }

    /// Resets to full attention, for rows that see at most `pages` pages.
    pub(super) fn reset(&mut self, rows: usize, pages: usize, scattered: bool) {
        (self.pages, self.scattered) = (pages, scattered);
        self.words.clear();
        self.words.resize(rows * self.groups * pages, 0);
        self.full.clear();
        self.full.resize(rows, true);
        self.lost.clear();
        self.lost.resize(rows, false);
    }

    /// Makes the outputs of rows with a lost choice NaN. `out`: `[rows, width]`.
    pub(super) fn taint(&self, out: &mut [f32]) {
        let width = out.len() / self.rows().max(1);
        let rows = self.lost.iter().zip(out.chunks_exact_mut(width.max(1)));
        rows.filter(|(lost, _)| **lost).for_each(|(_, out)| out.fill(f32::NAN));
    }

    pub(super) fn groups(&self) -> usize {
        self.groups
    }

    pub(super) fn is_scattered(&self) -> bool {
        self.scattered
    }

    /// The number of these rows with full attention, from the first on: of consecutive positions,
    /// the earlier ones.
    pub(super) fn full_rows(&self, rows: Range<usize>) -> usize {
        self.full[rows].partition_point(|full| *full)
    }

    /// The words of a row's group; `None` for full attention.
    pub(super) fn of(&self, row: usize, group: usize) -> Option<&[u64]> {
        let at = (row * self.groups + group) * self.pages;
        (!self.full[row]).then(|| &self.words[at..at + self.pages])
    }

    /// All words, `[rows, groups, pages]`, and the flags of full attention and of lost choices,
    /// `[rows]` each, for writing.
    pub(super) fn parts(&mut self) -> (&mut [u64], [&mut [bool]; 2]) {
        (&mut self.words, [&mut self.full, &mut self.lost])
    }

    /// Keeps only the rows `kept`, ascending. A rank without heads has none.
    pub fn keep(&mut self, kept: &[usize]) {
        if self.full.is_empty() {
            return;
        }
        let width = self.groups * self.pages;
        for (to, from) in kept.iter().enumerate() {
            self.full[to] = self.full[*from];
            self.lost[to] = self.lost[*from];
            self.words.copy_within(from * width..(from + 1) * width, to * width);
        }
        self.full.truncate(kept.len());
        self.lost.truncate(kept.len());
        self.words.truncate(kept.len() * width);
    }
}

/// The positions with set bits, ascending.
pub(super) fn positions(words: &[u64]) -> impl Iterator<Item = u32> {
    words.iter().enumerate().flat_map(|(page, word)| {
        let mut left = *word;
        std::iter::from_fn(move || {
            let bit = left.trailing_zeros();
            left &= left.wrapping_sub(1);
            (bit < u64::BITS).then_some(page as u32 * u64::BITS + bit)
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn positions_come_in_order() {
        assert!(positions(&[0b1010, 0, 1 << 63]).eq([1, 3, 191]));
        assert_eq!(positions(&[ALL]).count(), 64);
    }

    #[test]
    fn rows_that_are_kept_keep_their_positions() {
        let mut chosen = Chosen::with_room(3, 2, 1);
        chosen.reset(3, 1, false);
        let (words, [full, lost]) = chosen.parts();
        words.copy_from_slice(&[1, 2, 3, 4, 5, 6]);
        (full[2], lost[2]) = (false, true);
        chosen.keep(&[0, 2]);
        assert_eq!((chosen.rows(), chosen.of(0, 0), chosen.of(1, 1)), (2, None, Some(&[6][..])));
        let mut out = [1.0; 4];
        chosen.taint(&mut out);
        assert!(out[..2] == [1.0; 2] && out[2..].iter().all(|out| out.is_nan()), "{out:?}");
    }
}

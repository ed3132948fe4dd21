//! The tokens before a step's rows, for models that embed the last few of them together.
//!
//! They are stored in pages, like keys and values. So a text that shares another's pages has the
//! tokens in them too. Tokens of rejected guesses are overwritten before they are read.

use layout::{Ngrams, PAGE_POSITIONS};
use protocol::Token;

use crate::step::{Step, StepSegment};
use crate::tables::Tables;

pub(crate) struct History {
    /// The number of tokens needed before a row.
    before: usize,
    /// The tokens of all pages, if any are needed.
    pages: Vec<Token>,
    /// The tokens before a step's rows, the nearest first, `[rows, before]`.
    found: Vec<Token>,
}

impl History {
    pub fn new(before: usize, pages: usize) -> Self {
        let tokens = if before > 0 { pages * PAGE_POSITIONS } else { 0 };
        Self { before, pages: vec![Ngrams::NONE; tokens], found: Vec::new() }
    }

    /// Stores the tokens of a page that is not computed.
    pub fn set(&mut self, page: u32, tokens: &[Token; PAGE_POSITIONS]) {
        if self.before > 0 {
            self.pages[page as usize * PAGE_POSITIONS..][..PAGE_POSITIONS].copy_from_slice(tokens);
        }
    }

    /// Stores a step's tokens, and returns the tokens before each, as [`tokens_before`] does. The
    /// tables must already include the step.
    pub fn take_in(&mut self, step: &Step, tables: &Tables) -> &[Token] {
        self.found.clear();
        if self.before == 0 {
            return &self.found;
        }
        for (from, to) in &step.copies {
            let from = *from as usize * PAGE_POSITIONS;
            self.pages.copy_within(from..from + PAGE_POSITIONS, *to as usize * PAGE_POSITIONS);
        }
        let mut tokens = step.tokens.iter();
        for StepSegment { slot, first_position, rows, .. } in &step.segments {
            let table = tables.get(*slot);
            let place = |position: usize| {
                let page = table[position / PAGE_POSITIONS] as usize;
                page * PAGE_POSITIONS + position % PAGE_POSITIONS
            };
            for (position, token) in (*first_position..first_position + rows).zip(&mut tokens) {
                self.pages[place(position)] = *token;
                let token = |position| self.pages[place(position)];
                self.found.extend(tokens_before(self.before, position, token));
            }
        }
        &self.found
    }
}

/// The `count` tokens before `position`, the nearest first, or [`Ngrams::NONE`] before the first of
/// a text.
pub(crate) fn tokens_before(
    count: usize,
    position: usize,
    token: impl Fn(usize) -> Token,
) -> impl Iterator<Item = Token> {
    (1..=count).map(move |back| position.checked_sub(back).map_or(Ngrams::NONE, &token))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::step::Limits;

    const NONE: Token = Ngrams::NONE;

    #[test]
    fn tokens_are_found_over_borders_in_shared_pages_and_behind_wrong_guesses() {
        let limits = Limits {
            slots: 2,
            context_tokens: 128,
            pages: 4,
            rows_max: 128,
            outputs_max: 2,
            width: 1,
            window: None,
            keeps_all: true,
            has_states: false,
            checkpoints: 0,
            picture_room: 0,
            additions: 0,
            is_encoder: false,
        };
        let (mut tables, mut history) = (Tables::new(&limits), History::new(2, limits.pages));
        let mut found = |slot, first, pages: &[u32], tokens: Vec<Token>| -> Vec<Token> {
            let segment = StepSegment::new(slot, first, tokens.len());
            let segment = StepSegment { pages: pages.len(), ..segment };
            let segment =
                StepSegment { first_page: if pages.is_empty() { 2 } else { 0 }, ..segment };
            let pages = pages.to_vec();
            let step = Step { segments: vec![segment], tokens, pages, ..Step::default() };
            tables.update(&step).unwrap();
            history.take_in(&step, &tables).to_vec()
        };
        let before = found(0, 0, &[3, 1], (0..70).collect());
        assert_eq!(before[..6], [NONE, NONE, 0, NONE, 1, 0]);
        assert_eq!(before[2 * 64..2 * 66], [63, 62, 64, 63]);
        // Another sequence continues after the first page.
        assert_eq!(found(1, 64, &[3, 0], vec![90, 91]), [63, 62, 90, 63]);
        // Guesses after position 70, the first of them wrong.
        assert_eq!(found(0, 70, &[], vec![7, 8, 9]), [69, 68, 7, 69, 8, 7]);
        assert_eq!(found(0, 71, &[], vec![5, 6]), [7, 69, 5, 7]);
        // A third one continues in a copy of the first page.
        let segment = StepSegment { pages: 1, ..StepSegment::new(1, 10, 1) };
        let (segments, pages, tokens) = (vec![segment], vec![2], vec![80]);
        let step = Step { segments, pages, tokens, copies: vec![(3, 2)], ..Step::default() };
        tables.update(&step).unwrap();
        assert_eq!(history.take_in(&step, &tables), [9, 8]);
    }
}

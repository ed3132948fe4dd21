//! The page tables of all sequences, as every rank keeps them.
//!
//! Rank 0 assigns pages; each step carries the new entries of its sequences' tables to all ranks.
//! They are checked before any computation.

use std::sync::Arc;

use layout::PAGE_POSITIONS;

use crate::step::{BadStep, Limits, Step, StepSegment};

/// The pages of the sequence in each slot.
#[derive(Debug)]
pub(crate) struct Tables(Vec<Table>);

#[derive(Debug)]
struct Table {
    /// The most pages of a sequence; the first `len` are valid.
    pages: Arc<[u32]>,
    /// The same in layers that keep only their window, if there are any.
    window: Option<Arc<[u32]>>,
    len: usize,
    /// Speculated rows of the last step.
    guesses: usize,
}

impl Tables {
    pub fn new(limits: &Limits) -> Self {
        let pages = || Arc::from(vec![0; limits.pages_per_sequence()]);
        let window = || limits.window.map(|_| pages());
        let table = || Table { pages: pages(), window: window(), len: 0, guesses: 0 };
        Self((0..limits.slots).map(|_| table()).collect())
    }

    /// The pages of the sequence in `slot`, in order.
    pub fn get(&self, slot: usize) -> Arc<[u32]> {
        self.0[slot].pages.clone()
    }

    /// The same in layers with a window.
    pub fn window(&self, slot: usize) -> Arc<[u32]> {
        let Table { pages, window, .. } = &self.0[slot];
        window.as_ref().unwrap_or(pages).clone()
    }

    /// Adds the new entries of a step, which must be within the limits of these tables. Allocates
    /// nothing unless a table of these sequences is shared.
    ///
    /// # Errors
    /// A segment has positions without pages, or would write to one page twice.
    pub fn update(&mut self, step: &Step) -> Result<(), BadStep> {
        let bad = |what| Err(BadStep { what });
        let (mut new, mut new_in_window) = (&step.pages[..], &step.window_pages[..]);
        for segment in &step.segments {
            let StepSegment { slot, first_position, rows, first_page, pages, .. } = *segment;
            let table = &mut self.0[slot];
            let (own, own_in_window);
            (own, new) = new.split_at(pages);
            (own_in_window, new_in_window) = new_in_window.split_at(pages.min(new_in_window.len()));
            let end = first_position + rows;
            if first_page > table.len || end > (first_page + pages) * PAGE_POSITIONS {
                return bad("a segment has positions without pages");
            }
            if pages > 0 {
                Arc::make_mut(&mut table.pages)[first_page..][..pages].copy_from_slice(own);
            }
            if let Some(window) = table.window.as_mut().filter(|_| pages > 0) {
                Arc::make_mut(window)[first_page..][..pages].copy_from_slice(own_in_window);
            }
            table.len = first_page + pages;
            if segment.state.accepted() > table.guesses {
                return bad("more guesses are accepted than were made");
            }
            table.guesses = segment.state.guesses;
            let written = first_position / PAGE_POSITIONS..end.div_ceil(PAGE_POSITIONS);
            for pages in [Some(&table.pages), table.window.as_ref()].into_iter().flatten() {
                let written = &pages[written.clone()];
                let once = |(at, page)| !written[..at].contains(page);
                if !written.iter().enumerate().all(once) {
                    return bad("a segment would write to a page twice");
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use backend::Begin;

    use super::*;
    use crate::step::StateStep;

    const LIMITS: Limits = Limits {
        slots: 2,
        context_tokens: 300,
        pages: 9,
        rows_max: 200,
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

    /// Slot, first position, rows; index of the new pages, and the pages.
    type Given<'a> = (usize, usize, usize, usize, &'a [u32]);

    fn step(given: Given<'_>) -> Step {
        let (slot, first_position, rows, first_page, pages) = given;
        let new = StepSegment::new(slot, first_position, rows);
        let segment = StepSegment { first_page, pages: pages.len(), ..new };
        Step { segments: vec![segment], pages: pages.to_vec(), ..Step::default() }
    }

    #[test]
    fn a_table_grows_and_starts_over() {
        let mut tables = Tables::new(&LIMITS);
        let mut given = |given: Given<'_>| {
            tables.update(&step(given)).unwrap();
            tables.get(given.0)[..given.3 + given.4.len()].to_vec()
        };
        assert_eq!(given((1, 0, 70, 0, &[4, 2])), [4, 2]);
        assert_eq!(given((1, 70, 58, 2, &[])), [4, 2]);
        assert_eq!(given((1, 128, 1, 2, &[7])), [4, 2, 7]);
        // A page that was already published.
        assert_eq!(given((1, 129, 1, 1, &[3, 7])), [4, 3, 7]);
        assert_eq!(given((0, 0, 1, 0, &[2])), [2]);
        assert_eq!(given((1, 0, 1, 0, &[8])), [8]);
    }

    #[test]
    fn no_more_guesses_are_accepted_than_were_made() {
        let with = |first, accepted, guesses| {
            let mut step = step((0, first, 3, 0, if first == 0 { &[1] } else { &[] }));
            step.segments[0].first_page = usize::from(first > 0);
            step.segments[0].state =
                StateStep { begin: Begin::GoOn { accepted }, guesses, save: None };
            step
        };
        let mut tables = Tables::new(&LIMITS);
        tables.update(&with(0, 0, 2)).unwrap();
        assert!(tables.update(&with(3, 3, 0)).is_err());
        tables.update(&with(3, 2, 0)).unwrap();
        assert!(tables.update(&with(6, 1, 0)).is_err());
    }

    #[test]
    fn what_has_no_page_of_its_own_is_refused() {
        for bad in [
            (0, 0, 1, 0, &[][..]),
            (0, 0, 65, 0, &[1]),
            (0, 0, 1, 1, &[1]),
            (0, 0, 65, 0, &[1, 1]),
            (1, 140, 1, 2, &[]),
        ] {
            let mut tables = Tables::new(&LIMITS);
            tables.update(&step((1, 0, 70, 0, &[4, 2]))).unwrap();
            assert!(tables.update(&step(bad)).is_err(), "{bad:?}");
        }
    }
}

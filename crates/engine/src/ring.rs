//! A ring of window pages for a single sequence, which its positions use in turn.

use layout::{PAGE_POSITIONS, Window};

#[derive(Debug, Clone, Copy)]
pub(crate) struct Ring {
    window: Window,
    first: usize,
    pages: usize,
}

impl Ring {
    /// Part `at` of `parts` of the window cache's pages.
    pub fn new(window: Window, at: usize, parts: usize) -> Self {
        let pages = window.pages / parts;
        Self { window, first: at * pages, pages }
    }

    /// The window cache's page for page number `at` of a sequence.
    pub fn page(&self, at: usize) -> u32 {
        (self.first + at % self.pages) as u32
    }

    /// The most rows of a step, so that none overwrites a page that another row sees.
    pub fn rows_max(&self) -> usize {
        (self.pages - self.window.pages_behind() - 1) * PAGE_POSITIONS
    }

    /// Whether a sequence of `filled` positions still has everything visible from position `next`.
    pub fn reaches_back(&self, filled: usize, next: usize) -> bool {
        let first_seen = (next + 1).saturating_sub(self.window.positions) / PAGE_POSITIONS;
        first_seen + self.pages >= filled.div_ceil(PAGE_POSITIONS)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_step_writes_over_what_it_sees() {
        for positions in [1, 2, 64, 65, 66, 128, 200] {
            let window = Window { positions, pages: 20 };
            let ring = Ring::new(window, 1, 2);
            for first in 0..700 {
                let seen = (first + 1_usize).saturating_sub(positions);
                let last = first + ring.rows_max() - 1;
                let pages = seen / PAGE_POSITIONS..=last / PAGE_POSITIONS;
                let mut own: Vec<u32> = pages.map(|at| ring.page(at)).collect();
                let count = own.len();
                own.sort_unstable();
                own.dedup();
                assert!(own.len() == count && own.iter().all(|page| (10..20).contains(page)));
                assert!(ring.reaches_back(last + 1, first), "{positions} {first}");
            }
            assert!(!ring.reaches_back(10_000, 8000));
        }
    }
}

//! Pages between the cache and the disk, for all sequences.

use std::time::Instant;

use layout::PAGE_POSITIONS;

use super::Scheduler;
use super::sequence::Sequence;
use crate::page_orders::{Loaded, ORDERS_MAX, PageOrder};
use crate::step::Step;

impl Scheduler {
    /// Tokens of prompts that were read from disk.
    pub fn loaded_tokens(&self) -> u64 {
        self.loaded_tokens
    }

    /// Plans the pages to write in the next step: few beside answers, which wait for them.
    pub(super) fn plan_keeps(&mut self, step: &mut Step) {
        let Some(shelf) = self.pages.shelf() else { return };
        let is_busy = self.running.iter().any(Sequence::is_answering);
        let most = shelf.keeps_max() * if is_busy { 1 } else { 4 };
        self.pages.plan_keeps(&mut step.keeps, most.min(ORDERS_MAX));
    }

    /// Looks for the beginnings of new prompts on disk, and orders what is to be read. Of texts
    /// that begin alike, the first one reads.
    pub(super) fn plan_fetches(&mut self, step: &mut Step, now: Instant) {
        let Some(most) = self.pages.shelf().map(|shelf| shelf.loads_max().min(ORDERS_MAX)) else {
            return;
        };
        // Every rank that keeps prompts has fulfilled it.
        let nothing = PageOrder::new([0; 32], [0; PAGE_POSITIONS]);
        if self.pages.is_kept().is_none() {
            return step.loads.push(nothing);
        }
        for at in 0..self.running.len() {
            if self.running[at].wants_fetch()
                && !self.follows_fetch(at)
                && !self.running[at].begin_fetch(&mut self.pages, now)
                && step.loads.is_empty()
            {
                // Steps go on while members look.
                step.loads.push(nothing.clone());
            }
            let row = self.pace.prompt_row();
            let Some(fetch) = &mut self.running[at].fetch else { continue };
            if !fetch.is_done(&mut self.pages, now, row) {
                let room = most - step.loads.len();
                step.loads.extend(fetch.orders(room));
            }
        }
    }

    /// Whether another sequence reads the beginning of the one at `at`.
    fn follows_fetch(&self, at: usize) -> bool {
        let Sequence { request, tokens, .. } = &self.running[at];
        let fetches = self.running.iter().filter_map(|other| other.fetch.as_ref());
        fetches.into_iter().any(|fetch| fetch.begins(request.cache_salt, tokens))
    }

    /// Takes note of how far all ranks have come with a step's loads.
    pub(super) fn note_loads(&mut self, loads: &[PageOrder], now: Instant) {
        for order in loads {
            match order.loaded {
                Loaded::Pending => continue,
                loaded if order.fetch == 0 => self.pages.agree(loaded == Loaded::Placed),
                _ => {}
            }
            for sequence in &mut self.running {
                if let Some(fetch) = &mut sequence.fetch {
                    fetch.note(order, &mut self.pages, now);
                }
            }
        }
    }

    /// Whether the prompt of the sequence at `at` can go on, now that its beginning was looked for.
    pub(super) fn end_fetch(&mut self, at: usize, now: Instant) -> bool {
        match self.pages.is_kept() {
            Some(true) => {}
            Some(false) => return true,
            None => return false,
        }
        if self.running[at].wants_fetch() {
            return false; // Another one reads the same, or members look for it.
        }
        let row = self.pace.prompt_row();
        let fetch = &mut self.running[at].fetch;
        if fetch.as_mut().is_some_and(|fetch| !fetch.is_done(&mut self.pages, now, row)) {
            return false;
        }
        if let Some(fetch) = fetch.take() {
            self.loaded_tokens += fetch.loaded_tokens;
            fetch.end(&mut self.pages);
        }
        true
    }
}

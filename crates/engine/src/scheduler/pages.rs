//! The pages of the cache: their owners, and their content.
//!
//! A page is free, held by sequences, or *cached*: published, and not held. Full pages are
//! found by their tokens and the page before them. That page represents all earlier tokens, since a
//! page is never evicted before its successors: so two texts can share a page only if they agree in
//! every token up to its end. The last page of an ended sequence is cached as a *tail*, although it
//! is not full. When pages run out, cached ones are evicted, those without successors first, of
//! these the one released longest ago.
//!
//! A text that leaves a cached page in its middle continues there all the same: in the page itself
//! if that is a tail and most of it is of use, else in a copy, which all ranks make.

mod disk;

use std::collections::BTreeSet;
use std::sync::Arc;

use layout::PAGE_POSITIONS;
use protocol::Token;

use super::cached_keys::{CacheNews, CachedKeys};
use super::checkpoints::{CheckpointId, Checkpoints};
use super::keeping::Keeping;
use super::page_id::PageId;
pub(super) use super::prefixes::Before;
use super::prefixes::{Begun, Prefixes};
use super::windows::Windows;
use crate::prompt_store::Shelf;
use crate::step::Limits;

/// Fewer positions than these are computed again: a copy moves a page of every layer. Not measured.
const COPIED_MIN: usize = 8;

#[derive(Debug, Clone, Copy, Default)]
struct Page {
    /// Sequences with the page in their tables.
    holders: usize,
    /// The time of the last release.
    released: u64,
}

#[derive(Debug)]
pub(super) struct Pages {
    pages: Vec<Page>,
    free: Vec<PageId>,
    /// Published pages and tails.
    known: Prefixes,
    /// Whether a text can continue in the middle of a page.
    keeps_all: bool,
    /// Copies of pages, `(from, to)`, for the next step to make first.
    copies: Vec<(PageId, PageId)>,
    copies_max: usize,
    /// Cached pages without children, by their time of release.
    leaves: BTreeSet<(u64, PageId)>,
    /// The number of cached pages: leaves and their ancestors.
    cached: usize,
    /// Counts releases of whole tables.
    clock: u64,
    /// Copies of states at the ends of published pages; `None` for models without states.
    checkpoints: Option<Checkpoints>,
    /// The pages of layers that keep only their window; `None` for models without them.
    windows: Option<Windows>,
    /// What is written to disk; `None` if nothing is.
    keeping: Option<Keeping>,
    cached_keys: CachedKeys,
}

impl Pages {
    pub fn new(limits: &Limits, shelf: Option<Arc<dyn Shelf>>) -> Self {
        let count = limits.pages;
        Self {
            keeping: shelf.map(|shelf| Keeping::new(shelf, count)),
            checkpoints: limits.has_states.then(|| Checkpoints::new(limits.checkpoints)),
            windows: limits.window.map(|window| Windows::new(window, count)),
            pages: vec![Page::default(); count],
            free: (0..count as PageId).rev().collect(),
            known: Prefixes::new(count),
            keeps_all: limits.keeps_all,
            copies: Vec::with_capacity(limits.copies_max()),
            copies_max: limits.copies_max(),
            leaves: BTreeSet::new(),
            cached: 0,
            clock: 0,
            cached_keys: CachedKeys::new(count),
        }
    }

    pub fn total(&self) -> usize {
        self.pages.len()
    }

    pub fn cached(&self) -> usize {
        self.cached
    }

    /// The number of available pages. A sequence that holds a page holds the pages before it, so no
    /// cached page has a held child, and all of them can be evicted.
    pub fn available(&self) -> usize {
        self.free.len() + self.cached
    }

    /// The number of pages held by sequences.
    pub fn held(&self) -> usize {
        self.total() - self.available()
    }

    pub fn is_held(&self, page: PageId) -> bool {
        self.pages[page as usize].holders > 0
    }

    /// A writable page, held once; `None` if sequences hold all.
    pub fn take(&mut self) -> Option<PageId> {
        let page = self.free.pop().or_else(|| self.evict())?;
        if self.windows.as_mut().is_some_and(|windows| !windows.take(page)) {
            self.free.push(page);
            return None;
        }
        self.pages[page as usize].holders = 1;
        Some(page)
    }

    /// The published page with exactly these `tokens` after `before`.
    pub fn find(&self, before: Before, tokens: &[Token]) -> Option<PageId> {
        self.known.find(before, tokens)
    }

    /// Copies of states; `None` for models without states.
    pub fn checkpoints(&mut self) -> Option<&mut Checkpoints> {
        self.checkpoints.as_mut()
    }

    /// The number of `known` pages, which follow `own` ones of a sequence, that it can skip:
    /// everything it needs of the text before is in memory.
    pub fn skippable(&self, own: usize, known: impl Iterator<Item = PageId>) -> usize {
        let behind = self.windows.as_ref().map_or(0, Windows::pages_behind);
        // Its own visible pages are present.
        let (mut in_window, mut most) = (own, 0);
        for (at, page) in known.enumerate() {
            in_window = if self.window_page(page).is_some() { in_window + 1 } else { 0 };
            let sees_all = self.windows.is_none() || in_window >= behind.min(own + at + 1);
            if sees_all && self.checkpoints.as_ref().is_none_or(|all| all.at(page).is_some()) {
                most = at + 1;
            }
        }
        most
    }

    /// The first page of a sequence visible from position `next` in every layer.
    pub fn first_seen(&self, next: usize) -> usize {
        self.windows.as_ref().map_or(0, |windows| windows.first_seen(next))
    }

    /// The number of pages before a position that layers with a window see.
    pub fn pages_behind(&self) -> usize {
        self.windows.as_ref().map_or(0, Windows::pages_behind)
    }

    /// The window page of `page`, if it has one.
    pub fn window_page(&self, page: PageId) -> Option<u32> {
        self.windows.as_ref()?.get(page)
    }

    /// Whether layers with a window keep separate pages.
    pub fn has_windows(&self) -> bool {
        self.windows.is_some()
    }

    /// Adds a running sequence that sees a published page in layers with a window.
    pub fn see(&mut self, page: PageId) {
        self.windows.iter_mut().for_each(|windows| windows.see(page));
    }

    /// Removes a sequence that sees `page` in layers with a window. `keep`: if the page is
    /// published, other texts may continue after it.
    pub fn leave(&mut self, page: PageId, keep: bool) {
        let is_known = self.known.contains(page);
        self.windows.iter_mut().for_each(|windows| windows.leave(page, keep && is_known));
    }

    /// The checkpoint at the end of `page`, for the step being planned to continue from.
    pub fn read_checkpoint(&mut self, page: PageId) -> Option<CheckpointId> {
        let checkpoints = self.checkpoints.as_mut()?;
        let id = checkpoints.at(page)?;
        checkpoints.read(id);
        Some(id)
    }

    /// A checkpoint for the state at the end of `page`, for the step being planned to write, if the
    /// page is published and has none yet. `last`: see [`Checkpoints::write`].
    pub fn write_checkpoint(
        &mut self,
        page: PageId,
        last: Option<(CheckpointId, PageId)>,
    ) -> Option<CheckpointId> {
        let checkpoints = self.checkpoints.as_mut()?;
        let is_known = self.known.contains(page);
        if !is_known || checkpoints.at(page).is_some() {
            return None;
        }
        checkpoints.write(page, last)
    }

    /// Adds a sequence that holds the page.
    pub fn hold(&mut self, page: PageId) {
        let Page { holders, released, .. } = &mut self.pages[page as usize];
        if *holders == 0 {
            self.cached -= 1;
            self.leaves.remove(&(*released, page));
        }
        *holders += 1;
    }

    /// Publishes a full page, if the one before is published. Returns the page to hold from now on:
    /// this one, or a published one with the same content, in which case this one is released.
    pub fn publish(&mut self, page: PageId, before: Before, tokens: &[Token]) -> PageId {
        self.publish_as(page, before, tokens, true)
    }

    /// The same, of a page that was read from disk.
    pub fn publish_loaded(&mut self, page: PageId, before: Before, tokens: &[Token]) -> PageId {
        self.publish_as(page, before, tokens, false)
    }

    fn publish_as(
        &mut self,
        page: PageId,
        before: Before,
        tokens: &[Token],
        is_new: bool,
    ) -> PageId {
        if let Some(known) = self.find(before, tokens) {
            self.hold(known);
            self.windows.iter_mut().for_each(|windows| windows.replace(page, known));
            self.release(page);
            return known;
        }
        self.known.insert(page, before, tokens);
        self.cached_keys.publish(page, before, tokens);
        if let Some(keeping) = &mut self.keeping {
            keeping.publish(page, before, tokens, is_new);
        }
        page
    }

    /// Caches a page, held by one sequence only, that is not full, unless another begins with its
    /// tokens or the model cannot use it. The sequence must release it next.
    pub fn leave_tail(&mut self, page: PageId, before: Before, tokens: &[Token]) {
        let found = self.known.find_begun(before, tokens);
        if self.keeps_all && found.is_none_or(|found| found.common < tokens.len()) {
            self.known.insert(page, before, tokens);
        }
    }

    /// Whether a text may go on in the middle of a page of another one.
    pub fn begins_inside(&self) -> bool {
        self.keeps_all
    }

    /// The cached page after `before` that begins with the most of `tokens`, for [`Self::begin`].
    pub fn find_begun(&self, before: Before, tokens: &[Token]) -> Option<Begun> {
        self.known.find_begun(before, tokens).filter(|_| self.keeps_all)
    }

    /// A writable page, held once, with the start of a cached one, by a sequence that holds the
    /// page before it; `None` if computing it again is the better way.
    pub fn begin(&mut self, begun: Begun) -> Option<PageId> {
        let Begun { page, common, count } = begun;
        if count < PAGE_POSITIONS && 2 * common >= count {
            self.hold(page);
            self.known.remove(page);
            return Some(page);
        }
        if common < COPIED_MIN || self.copies.len() == self.copies_max {
            return None;
        }
        // It must not be evicted for its own copy.
        self.hold(page);
        let copy = self.take();
        self.release(page);
        self.copies.extend(copy.map(|copy| (page, copy)));
        copy
    }

    /// Moves the copies to be made into the step being planned. Pages are copied and written in the
    /// order of planning, so both may have passed to other sequences since.
    pub fn plan_copies(&mut self, copies: &mut Vec<(PageId, PageId)>) {
        copies.append(&mut self.copies);
    }

    /// Which texts the cache has gained and lost since the last call.
    pub fn cache_news(&mut self) -> CacheNews {
        self.cached_keys.news(self.checkpoints.as_ref().map(Checkpoints::pages))
    }

    /// Releases a whole table.
    pub fn release_all(&mut self, table: &mut Vec<PageId>) {
        self.clock += 1;
        table.drain(..).for_each(|page| self.release(page));
    }

    fn release(&mut self, page: PageId) {
        let clock = self.clock;
        let one = &mut self.pages[page as usize];
        one.holders -= 1;
        if one.holders > 0 {
            return;
        }
        if !self.known.contains(page) {
            return self.free.push(page);
        }
        one.released = clock;
        self.cached += 1;
        if !self.known.has_children(page) {
            self.leaves.insert((clock, page));
        }
    }

    /// Evicts the least useful cached page.
    fn evict(&mut self) -> Option<PageId> {
        let (_, page) = self.leaves.pop_first()?;
        self.cached -= 1;
        let before = self.known.remove(page);
        self.cached_keys.forget(page);
        self.checkpoints.iter_mut().for_each(|all| all.forget(page));
        self.keeping.iter_mut().for_each(|keeping| keeping.forget(page));
        self.windows.iter_mut().for_each(|windows| windows.forget(page));
        if let Some(Before::Page(parent)) = before {
            let one = self.pages[parent as usize];
            if one.holders == 0 && !self.known.has_children(parent) {
                self.leaves.insert((one.released, parent));
            }
        }
        Some(page)
    }

    /// Checks the invariants of windows, given the visible pages of sequences.
    #[cfg(test)]
    pub fn check_windows(&self, seen: impl Iterator<Item = PageId>) {
        if let Some(windows) = &self.windows {
            windows.check(seen);
        }
    }

    /// Checks the invariants of pages, given the tables of all sequences.
    #[cfg(test)]
    pub fn check<'a>(&self, tables: impl Iterator<Item = &'a [PageId]>) {
        let mut holders = vec![0; self.total()];
        tables.flatten().for_each(|page| holders[*page as usize] += 1);
        self.known.check();
        let mut free = vec![false; self.total()];
        self.free.iter().for_each(|page| free[*page as usize] = true);
        let mut cached = 0;
        for (at, page) in self.pages.iter().enumerate() {
            let id = at as PageId;
            let (is_known, has_children) = (self.known.contains(id), self.known.has_children(id));
            let is_tail = is_known && !self.known.has_full(id);
            assert!(!is_tail || page.holders == 0, "page {at}");
            let is_cached = page.holders == 0 && is_known;
            let is_leaf = self.leaves.contains(&(page.released, id));
            assert_eq!(page.holders, holders[at], "page {at}");
            assert_eq!(is_leaf, is_cached && !has_children, "page {at}");
            assert_eq!(free[at], page.holders == 0 && !is_cached, "page {at}");
            cached += usize::from(is_cached);
        }
        for page in self.checkpoints.iter().flat_map(Checkpoints::pages) {
            assert!(self.known.contains(page), "page {page} has a checkpoint");
        }
        assert_eq!(self.cached, cached);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tokens(of: Token) -> [Token; PAGE_POSITIONS] {
        [of; PAGE_POSITIONS]
    }

    fn new(pages: usize) -> Pages {
        Pages::new(
            &Limits {
                slots: 2,
                context_tokens: pages * PAGE_POSITIONS,
                pages,
                rows_max: 64,
                outputs_max: 2,
                width: 1,
                window: None,
                keeps_all: true,
                has_states: false,
                checkpoints: 0,
                picture_room: 0,
                additions: 0,
                is_encoder: false,
            },
            None,
        )
    }

    /// Takes and fills pages with these tokens one after the other, like a sequence.
    fn fill(pages: &mut Pages, of: &[Token]) -> Vec<PageId> {
        fill_under(0, pages, of)
    }

    fn fill_under(salt: u64, pages: &mut Pages, of: &[Token]) -> Vec<PageId> {
        let mut table: Vec<PageId> = Vec::new();
        for one in of {
            let before = table.last().map_or(Before::Start(salt), |page| Before::Page(*page));
            match pages.find(before, &tokens(*one)) {
                Some(page) => {
                    pages.hold(page);
                    table.push(page);
                }
                None => {
                    let page = pages.take().expect("there are enough");
                    table.push(pages.publish(page, before, &tokens(*one)));
                }
            }
        }
        table
    }

    #[test]
    fn a_page_is_found_by_all_tokens_up_to_its_end() {
        let mut pages = new(8);
        let one = fill(&mut pages, &[1, 2, 3]);
        let other = fill(&mut pages, &[1, 2, 4]);
        assert_eq!(one[..2], other[..2]);
        assert_ne!(one[2], other[2]);
        assert_eq!(fill(&mut pages, &[2, 2, 3]).iter().filter(|p| one.contains(p)).count(), 0);
        assert_eq!(pages.held(), 7);
        assert_eq!(pages.find(Before::Start(0), &tokens(1)[1..]), None);
    }

    #[test]
    fn who_caches_under_another_number_finds_nothing_of_it() {
        let mut pages = new(6);
        let one = fill_under(1, &mut pages, &[1, 2]);
        let other = fill_under(2, &mut pages, &[1, 2]);
        assert!(one.iter().all(|page| !other.contains(page)), "{one:?} {other:?}");
        assert_eq!(fill_under(1, &mut pages, &[1, 2]), one);
        pages.check([&one[..], &one, &other].into_iter());
    }

    #[test]
    fn two_that_computed_the_same_share_it_afterwards() {
        let mut pages = new(4);
        let (a, b) = (pages.take().unwrap(), pages.take().unwrap());
        assert_eq!(pages.publish(a, Before::Start(0), &tokens(7)), a);
        assert_eq!(pages.publish(b, Before::Start(0), &tokens(7)), a);
        assert_eq!((pages.held(), pages.available()), (1, 3));
        pages.check([&[a][..], &[a]].into_iter());
    }

    #[test]
    fn what_follows_goes_first_and_then_what_was_let_go_of_longest_ago() {
        let mut pages = new(6);
        let mut old = fill(&mut pages, &[1, 2, 3]);
        let mut new = fill(&mut pages, &[1, 5, 6]);
        let (first, second) = (old.clone(), new.clone());
        pages.release_all(&mut old);
        pages.release_all(&mut new);
        assert_eq!((pages.cached(), pages.held()), (5, 0));
        let unused = pages.take().unwrap();
        assert!(!first.contains(&unused) && !second.contains(&unused));
        let order: Vec<_> = std::iter::from_fn(|| pages.take()).collect();
        assert_eq!(order, [first[2], first[1], second[2], second[1], first[0]]);
        assert_eq!(pages.known.len(), 0);
    }
}

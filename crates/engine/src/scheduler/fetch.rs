//! A prompt's beginning on its way from disk into the cache.
//!
//! A sequence that begins waits here while its pages are read; others go on beside it. Its pages
//! are then published as if they had been computed, and shared as usual. What is missing or too
//! late is computed.

use std::time::{Duration, Instant};

use layout::PAGE_POSITIONS;
use model::Holder;
use protocol::Token;

use super::checkpoints::CheckpointId;
use super::keeping::PAGES_MIN;
use super::page_id::PageId;
use super::pages::{Before, Pages};
use crate::page_orders::{Loaded, PageKey, PageOrder};
use crate::prompt_store::{Elsewhere, Shelf, key_after};

/// How long a disk may give nothing before the rest is computed.
const PATIENCE: Duration = Duration::from_secs(3);
/// How long a disk may be slower than computing.
const SLOW_MAX: Duration = Duration::from_secs(1);

#[derive(Debug)]
pub(super) struct Fetch {
    /// Tells its orders from those of others, which may be in flight still.
    id: u64,
    /// The salt of the text's cache.
    salt: u64,
    pages: Vec<Fetched>,
    /// The state at their end: wanted, or on its way to a checkpoint.
    state: Option<Wanted>,
    begun: Instant,
    /// Pages that have come.
    placed: usize,
    /// When something came last.
    progressed: Instant,
    pub loaded_tokens: u64,
}

#[derive(Debug)]
struct Fetched {
    page: PageId,
    order: PageOrder,
    /// Whether layers with a window need it.
    is_seen: bool,
    is_done: bool,
}

#[derive(Debug)]
enum Wanted {
    Later,
    Now { page: PageId, checkpoint: CheckpointId, order: Box<PageOrder> },
}

/// The beginning of a text that can be had without computing it.
struct Known {
    key: PageKey,
    tokens: [Token; PAGE_POSITIONS],
    /// The page in the cache.
    page: Option<PageId>,
}

impl Fetch {
    /// Takes pages for the beginning of a text, if the disk has more of it than the cache.
    ///
    /// `whole`: the tokens that may come from there. `in_cache`: the pages that the cache has.
    /// `elsewhere`: what members have.
    pub fn begin(
        salt: u64,
        (whole, in_cache): (&[Token], usize),
        elsewhere: &Elsewhere,
        pages: &mut Pages,
        now: Instant,
    ) -> Option<Self> {
        let disks = Disks { own: pages.shelf()?, elsewhere };
        let known = find(salt, whole, &disks, pages);
        let least = in_cache + PAGES_MIN;
        let usable = |count: &usize| is_usable(&known[..*count], &disks, pages);
        let count = (least..=known.len()).rev().find(usable)?;
        let has_state = pages.has_states();
        let behind = pages.pages_behind();
        let id = pages.next_fetch();
        let mut fetch = Self {
            id,
            salt,
            pages: Vec::new(),
            state: None,
            begun: now,
            placed: 0,
            progressed: now,
            loaded_tokens: 0,
        };
        // None of them is evicted for another.
        let mut held: Vec<PageId> = known[..count].iter().filter_map(|known| known.page).collect();
        held.iter().for_each(|page| pages.hold(*page));
        let mut take = |(at, known)| {
            let is_seen = pages.has_windows() && at + behind >= count;
            fetch.take(known, is_seen, pages)
        };
        let has_all = known.into_iter().take(count).enumerate().all(&mut take);
        pages.release_all(&mut held);
        if !has_all {
            fetch.end(pages);
            return None;
        }
        let last = fetch.pages.last()?;
        let has_checkpoint = pages.has_checkpoint(last.page);
        fetch.state = (has_state && !has_checkpoint).then_some(Wanted::Later);
        Some(fetch)
    }

    /// Takes or holds a page; `false` if there is none. What is read goes to pages that nobody
    /// finds until it is there.
    fn take(&mut self, known: Known, is_seen: bool, pages: &mut Pages) -> bool {
        let Known { key, tokens, page } = known;
        let mut order = self.order(key, tokens);
        let whole = page.filter(|page| !is_seen || pages.window_page(*page).is_some());
        let page = match whole {
            Some(page) => {
                pages.hold(page);
                if is_seen {
                    pages.see(page);
                }
                page
            }
            None => {
                let Some(page) = pages.take() else { return false };
                order.page = Some(page);
                match is_seen {
                    true => order.window = pages.window_page(page),
                    false => pages.leave(page, false),
                }
                page
            }
        };
        self.pages.push(Fetched { page, order, is_seen, is_done: whole.is_some() });
        true
    }

    fn order(&self, key: PageKey, tokens: [Token; PAGE_POSITIONS]) -> PageOrder {
        let mut order = PageOrder::new(key, tokens);
        order.fetch = self.id;
        order
    }

    /// Whether another text begins with the same page.
    pub fn begins(&self, salt: u64, tokens: &[Token]) -> bool {
        let first = self.pages.first().filter(|_| self.salt == salt);
        first.is_some_and(|first| tokens.starts_with(&first.order.tokens))
    }

    /// Orders for the next step, at most `most`.
    pub fn orders(&self, most: usize) -> impl Iterator<Item = PageOrder> {
        let state = match &self.state {
            Some(Wanted::Now { order, .. }) => Some((**order).clone()),
            _ => None,
        };
        let left = self.pages.iter().filter(|page| !page.is_done);
        left.map(|page| page.order.clone()).chain(state).take(most)
    }

    /// Takes note of an order's progress.
    pub fn note(&mut self, order: &PageOrder, pages: &mut Pages, now: Instant) {
        if order.loaded == Loaded::Pending || order.fetch != self.id {
            return;
        }
        if order.checkpoint.is_some() {
            self.note_state(order, pages, now);
            return;
        }
        let is_it = |one: &Fetched| one.order.key == order.key && one.order.page == order.page;
        let Some(at) = self.pages.iter().position(|one| is_it(one) && !one.is_done) else { return };
        self.progressed = now;
        match order.loaded {
            Loaded::Missing => self.cut(at, pages),
            _ => {
                self.pages[at].is_done = true;
                self.placed += 1;
            }
        }
    }

    fn note_state(&mut self, order: &PageOrder, pages: &mut Pages, now: Instant) {
        let Some(Wanted::Now { page, checkpoint, .. }) = self.state.take() else { return };
        let is_there = order.loaded == Loaded::Placed;
        pages.fill_checkpoint(checkpoint, is_there.then_some(page));
        self.progressed = now;
    }

    /// Drops the pages from `at` on, which are to be computed.
    fn cut(&mut self, at: usize, pages: &mut Pages) {
        self.drop_state(pages);
        release(self.pages.drain(at..), pages);
    }

    fn drop_state(&mut self, pages: &mut Pages) {
        if let Some(Wanted::Now { checkpoint, .. }) = self.state.take() {
            pages.fill_checkpoint(checkpoint, None);
        }
    }

    /// Whether nothing is on its way any more. `row`: about how many seconds a row of a prompt
    /// takes, if that is known.
    pub fn is_done(&mut self, pages: &mut Pages, now: Instant, row: Option<f64>) -> bool {
        let first = self.pages.iter().position(|page| !page.is_done);
        let passed = now.saturating_duration_since(self.begun);
        let is_silent = now.saturating_duration_since(self.progressed) > PATIENCE;
        if is_silent || (first.is_some() && is_slower(passed, self.placed, row)) {
            self.cut(first.unwrap_or(self.pages.len()), pages);
        }
        if self.pages.iter().any(|page| !page.is_done) {
            return false;
        }
        self.publish(pages);
        if let (Some(Wanted::Later), Some(last)) = (&self.state, self.pages.last()) {
            let (page, mut order) = (last.page, self.order(last.order.key, last.order.tokens));
            let checkpoint = pages.reserve_checkpoint();
            order.checkpoint = checkpoint.map(|checkpoint| checkpoint as u32);
            let order = Box::new(order);
            let now = |checkpoint| Wanted::Now { page, checkpoint, order };
            self.state = checkpoint.map(now);
        }
        self.state.is_none()
    }

    /// Publishes the pages; each is held as before.
    fn publish(&mut self, pages: &mut Pages) {
        let mut before = Before::Start(self.salt);
        for fetched in &mut self.pages {
            if fetched.order.page.take().is_some() {
                self.loaded_tokens += PAGE_POSITIONS as u64;
                let tokens = &fetched.order.tokens;
                fetched.page = pages.publish_loaded(fetched.page, before, tokens);
            }
            before = Before::Page(fetched.page);
        }
    }

    /// Releases its pages: those that are published can be shared from now on.
    pub fn end(mut self, pages: &mut Pages) {
        self.drop_state(pages);
        release(self.pages.drain(..), pages);
    }

    #[cfg(test)]
    pub fn pages(&self) -> impl Iterator<Item = PageId> {
        self.pages.iter().map(|page| page.page)
    }

    #[cfg(test)]
    pub fn seen(&self) -> impl Iterator<Item = PageId> {
        self.pages.iter().filter(|page| page.is_seen).map(|page| page.page)
    }
}

/// Whether reading the other pages takes longer than computing them, by what has been placed.
fn is_slower(passed: Duration, placed: usize, row: Option<f64>) -> bool {
    let pages = placed.max(1) * PAGE_POSITIONS;
    passed > SLOW_MAX && row.is_some_and(|row| passed.as_secs_f64() > pages as f64 * row)
}

/// Releases pages, which others may find from now on if they are published.
fn release(dropped: impl Iterator<Item = Fetched>, pages: &mut Pages) {
    let mut held = Vec::new();
    for Fetched { page, is_seen, .. } in dropped {
        if is_seen {
            pages.leave(page, true);
        }
        held.push(page);
    }
    pages.release_all(&mut held);
}

/// This rank's disk and those of members.
struct Disks<'a> {
    own: &'a dyn Shelf,
    elsewhere: &'a Elsewhere,
}

impl Disks<'_> {
    fn have(&self, key: &PageKey, holder: Holder) -> bool {
        self.elsewhere.contains(&(*key, holder)) || self.own.has(key, holder)
    }
}

/// The pages from a text's beginning on that are in the cache or on disk.
fn find(salt: u64, whole: &[Token], disks: &Disks<'_>, pages: &Pages) -> Vec<Known> {
    let (mut key, mut before) = (disks.own.root(salt), Some(Before::Start(salt)));
    let mut known = Vec::new();
    for tokens in whole.as_chunks::<PAGE_POSITIONS>().0 {
        let next = key_after(&key, tokens);
        let page = before.and_then(|before| pages.find(before, tokens));
        if page.is_none() && !disks.have(&next, Holder::Page) {
            break;
        }
        (key, before) = (next, page.map(Before::Page));
        known.push(Known { key, tokens: *tokens, page });
    }
    known
}

/// The pages of a text after those that are in the cache or on this rank's disk.
pub(super) fn unknown(salt: u64, whole: &[Token], pages: &Pages) -> Vec<PageKey> {
    let Some(own) = pages.shelf() else { return Vec::new() };
    let known = find(salt, whole, &Disks { own, elsewhere: &Elsewhere::new() }, pages);
    let last = known.last().map_or_else(|| own.root(salt), |last| last.key);
    let rest = whole.as_chunks::<PAGE_POSITIONS>().0.iter().skip(known.len());
    let next = |key: &mut PageKey, tokens: &[Token; PAGE_POSITIONS]| {
        *key = key_after(key, tokens);
        Some(*key)
    };
    rest.scan(last, next).collect()
}

/// Whether a text can go on after these pages: states and windows at their end can be had.
fn is_usable(known: &[Known], disks: &Disks<'_>, pages: &Pages) -> bool {
    let Some(last) = known.last() else { return false };
    let has_state = !pages.has_states()
        || last.page.is_some_and(|page| pages.has_checkpoint(page))
        || disks.have(&last.key, Holder::Checkpoint);
    let seen = &known[known.len().saturating_sub(pages.pages_behind())..];
    let in_window = |known: &Known| {
        let in_cache = known.page.is_some_and(|page| pages.window_page(page).is_some());
        let have = |holder| disks.have(&known.key, holder);
        in_cache || have(Holder::Window) && have(Holder::Page)
    };
    has_state && (!pages.has_windows() || seen.iter().all(in_window))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_disk_slower_than_the_processors_is_not_waited_for() {
        let after = |ms, placed, row| is_slower(Duration::from_millis(ms), placed, row);
        // A page of 64 rows is computed in 0.64 s.
        let row = Some(0.01);
        assert!(!after(900, 0, row), "a second is little");
        assert!(after(1100, 0, row) && after(1100, 1, row));
        assert!(!after(1100, 2, row), "1.28 s of computing");
        assert!(after(1300, 2, row));
        assert!(!after(60_000, 0, None), "nothing is known of the processors");
    }
}

//! The pages of a text in the cache of layers that keep only their window.
//!
//! A page stays while a running sequence sees it. If other texts may continue after it, it stays
//! longer and is *idle*. A new page replaces the page that has been idle longest. There is always
//! room for what running sequences see.

use std::collections::BTreeSet;

use layout::{PAGE_POSITIONS, Window};

use super::page_id::PageId;

#[derive(Debug, Clone, Copy)]
struct InWindow {
    /// Its number in the window's cache.
    page: u32,
    /// The number of running sequences that may still see it.
    seers: usize,
    /// The time when the last one left it.
    left: u64,
}

#[derive(Debug)]
pub(super) struct Windows {
    window: Window,
    /// By the page's number in the main cache.
    all: Vec<Option<InWindow>>,
    free: Vec<u32>,
    /// The pages that no sequence sees, by the time when the last one left.
    idle: BTreeSet<(u64, PageId)>,
    /// Counts leaves.
    clock: u64,
}

impl Windows {
    /// `count`: the pages of the main cache.
    pub fn new(window: Window, count: usize) -> Self {
        Self {
            window,
            all: vec![None; count],
            free: (0..window.pages as u32).rev().collect(),
            idle: BTreeSet::new(),
            clock: 0,
        }
    }

    /// The first page that a sequence must keep before position `next`: visible from that position,
    /// or from a text that continues after the last full page before `next`.
    pub fn first_seen(&self, next: usize) -> usize {
        (next / PAGE_POSITIONS).saturating_sub(self.pages_behind())
    }

    /// The number of pages visible from a position directly after them.
    pub fn pages_behind(&self) -> usize {
        self.window.pages_behind()
    }

    /// The window page of `page`.
    pub fn get(&self, page: PageId) -> Option<u32> {
        self.all[page as usize].map(|own| own.page)
    }

    /// Makes room for a new `page`, seen by one sequence. Returns whether there was any.
    pub fn take(&mut self, page: PageId) -> bool {
        if self.free.is_empty()
            && let Some((_, oldest)) = self.idle.pop_first()
        {
            self.drop(oldest);
        }
        let Some(own) = self.free.pop() else { return false };
        self.all[page as usize] = Some(InWindow { page: own, seers: 1, left: 0 });
        true
    }

    /// Adds a sequence that sees it.
    pub fn see(&mut self, page: PageId) {
        if let Some(own) = &mut self.all[page as usize] {
            self.idle.remove(&(own.left, page));
            own.seers += 1;
        }
    }

    /// Removes a sequence that sees it; `keep`: other texts may continue after it.
    pub fn leave(&mut self, page: PageId, keep: bool) {
        let Some(own) = &mut self.all[page as usize] else { return };
        own.seers -= 1;
        if own.seers > 0 {
            return;
        }
        match keep {
            true => {
                self.clock += 1;
                own.left = self.clock;
                self.idle.insert((own.left, page));
            }
            false => self.drop(page),
        }
    }

    /// Replaces `page` of a sequence by `same`, which has the same tokens. One that is seen no more
    /// has nothing to replace.
    pub fn replace(&mut self, page: PageId, same: PageId) {
        if self.all[page as usize].is_none() {
            return;
        }
        if self.all[same as usize].is_some() {
            self.see(same);
            self.leave(page, false);
        } else {
            self.all[same as usize] = self.all[page as usize].take();
        }
    }

    /// Drops the content of `page`.
    pub fn forget(&mut self, page: PageId) {
        if let Some(own) = self.all[page as usize] {
            debug_assert_eq!(own.seers, 0, "page {page} is seen");
            self.idle.remove(&(own.left, page));
            self.drop(page);
        }
    }

    fn drop(&mut self, page: PageId) {
        self.free.extend(self.all[page as usize].take().map(|own| own.page));
    }

    /// Checks the invariants, given the visible pages of sequences.
    #[cfg(test)]
    pub fn check(&self, seen: impl Iterator<Item = PageId>) {
        let mut seers = vec![0; self.all.len()];
        seen.for_each(|page| seers[page as usize] += 1);
        let mut places = self.free.clone();
        for (at, (own, seers)) in self.all.iter().zip(seers).enumerate() {
            assert_eq!(own.map_or(0, |own| own.seers), seers, "page {at}");
            let is_idle = own.is_some_and(|own| self.idle.contains(&(own.left, at as PageId)));
            assert_eq!(is_idle, own.is_some() && seers == 0, "page {at}");
            places.extend(own.map(|own| own.page));
        }
        places.sort_unstable();
        assert!(places.into_iter().eq(0..self.window.pages as u32), "a place is lost");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_nobody_has_seen_for_longest_gives_way() {
        let mut windows = Windows::new(Window { positions: 65, pages: 3 }, 9);
        assert!((4..7).all(|page| windows.take(page)));
        assert!(!windows.take(7), "all are seen");
        windows.leave(5, true);
        windows.leave(4, true);
        windows.see(5);
        assert!(windows.take(7));
        assert_eq!((windows.get(4), windows.get(7)), (None, Some(0)));
        windows.leave(6, false);
        windows.check([5, 7].into_iter());
        windows.leave(5, true);
        assert!(windows.take(8) && windows.get(5).is_some(), "a free one comes first");
        windows.forget(5);
        windows.check([7, 8].into_iter());
    }

    #[test]
    fn the_same_tokens_need_one_place() {
        let mut windows = Windows::new(Window { positions: 65, pages: 3 }, 9);
        assert!(windows.take(1) && windows.take(2));
        windows.replace(2, 1);
        windows.check([1, 1].into_iter());
        assert!(windows.take(3));
        windows.replace(3, 4);
        assert!(windows.get(3).is_none() && windows.get(4).is_some());
        windows.check([1, 1, 4].into_iter());
    }

    #[test]
    fn a_position_sees_its_window() {
        for (positions, behind) in [(1, 0), (2, 1), (65, 1), (66, 2), (129, 2), (130, 3)] {
            let windows = Windows::new(Window { positions, pages: 3 }, 9);
            assert_eq!(windows.pages_behind(), behind);
            for next in 0..400 {
                let first = (next + 1_usize).saturating_sub(positions) / PAGE_POSITIONS;
                assert!(windows.first_seen(next) <= first, "{next}");
            }
            assert_eq!(windows.first_seen(5 * 64 + 63), 5 - behind);
        }
    }
}

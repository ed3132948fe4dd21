//! Which texts the cache has, for those who choose among replicas of a model: the changes since
//! they were last reported.

use std::collections::BTreeSet;

use protocol::{Token, first_key, key_after};

use super::page_id::PageId;
use super::prefixes::Before;

#[derive(Debug)]
pub(super) struct CachedKeys {
    /// By page; `None` for those that are not published or not full.
    keys: Vec<Option<u64>>,
    /// Those that were reported, if not all pages are usable.
    reported: BTreeSet<u64>,
    /// Pages of which a report is due.
    changed: Vec<Change>,
}

#[derive(Debug, Clone, Copy)]
enum Change {
    Came(u64),
    Went(u64),
}

/// The keys of texts that the cache has gained and lost.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct CacheNews {
    pub came: BTreeSet<u64>,
    pub gone: BTreeSet<u64>,
}

impl CachedKeys {
    pub fn new(pages: usize) -> Self {
        Self { keys: vec![None; pages], reported: BTreeSet::new(), changed: Vec::new() }
    }

    /// A full page was published.
    pub fn publish(&mut self, page: PageId, before: Before, tokens: &[Token]) {
        let before = match before {
            Before::Start(salt) => Some(first_key(salt)),
            Before::Page(page) => self.keys[page as usize],
        };
        let key = before.map(|before| key_after(before, tokens));
        self.keys[page as usize] = key;
        self.changed.extend(key.map(Change::Came));
    }

    /// A page was evicted.
    pub fn forget(&mut self, page: PageId) {
        let key = self.keys[page as usize].take();
        self.changed.extend(key.map(Change::Went));
    }

    /// The changes since the last call. `usable`: the pages at whose ends a text can go on, if not
    /// all are.
    pub fn news(&mut self, usable: Option<impl Iterator<Item = PageId>>) -> CacheNews {
        let mut news = CacheNews::default();
        match usable {
            None => {
                // A page may have come and gone, or gone and come back.
                for change in self.changed.drain(..) {
                    let (key, to, from) = match change {
                        Change::Came(key) => (key, &mut news.came, &mut news.gone),
                        Change::Went(key) => (key, &mut news.gone, &mut news.came),
                    };
                    if !from.remove(&key) {
                        to.insert(key);
                    }
                }
            }
            Some(usable) => {
                self.changed.clear();
                let now: BTreeSet<u64> =
                    usable.filter_map(|page| self.keys[page as usize]).collect();
                news.came.extend(now.difference(&self.reported));
                news.gone.extend(self.reported.difference(&now));
                self.reported = now;
            }
        }
        news
    }
}

impl CacheNews {
    pub fn is_empty(&self) -> bool {
        self.came.is_empty() && self.gone.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: Option<std::iter::Empty<PageId>> = None;

    #[test]
    fn each_change_is_reported_once_and_what_came_and_went_is_not() {
        let mut keys = CachedKeys::new(4);
        keys.publish(0, Before::Start(7), &[1; 64]);
        keys.publish(1, Before::Page(0), &[2; 64]);
        let text: Vec<Token> = [[1; 64], [2; 64]].concat();
        let expected: Vec<u64> = protocol::page_keys(7, &text, 64).collect();
        let set = |keys: &[u64]| keys.iter().copied().collect::<BTreeSet<u64>>();
        assert_eq!(keys.news(ALL), CacheNews { came: set(&expected), gone: set(&[]) });
        assert!(keys.news(ALL).is_empty());
        keys.publish(2, Before::Page(1), &[3; 64]);
        keys.forget(2);
        keys.forget(1);
        assert_eq!(keys.news(ALL), CacheNews { came: set(&[]), gone: set(&expected[1..]) });
        keys.publish(3, Before::Page(0), &[2; 64]);
        assert_eq!(keys.news(ALL).came, set(&expected[1..]));
    }

    #[test]
    fn of_a_model_with_states_only_ends_with_a_checkpoint_are_reported() {
        let mut keys = CachedKeys::new(4);
        keys.publish(0, Before::Start(0), &[1; 64]);
        keys.publish(1, Before::Page(0), &[2; 64]);
        let both = [keys.keys[0].unwrap(), keys.keys[1].unwrap()];
        assert_eq!(keys.news(Some([1].into_iter())).came, [both[1]].into());
        assert!(keys.news(Some([1].into_iter())).is_empty());
        let moved = keys.news(Some([0].into_iter()));
        assert_eq!((moved.came, moved.gone), ([both[0]].into(), [both[1]].into()));
    }
}

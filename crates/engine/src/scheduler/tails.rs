//! The last pages of ended sequences, which are not full.
//!
//! A full page is shared; a tail is taken over. The next request with the same text before it
//! continues where its own text leaves that of the tail, and overwrites the rest.

use std::collections::HashMap;

use protocol::Token;

use super::pages::{Before, PageId};

#[derive(Debug, Default)]
pub(super) struct Tails {
    all: HashMap<PageId, Tail>,
    after: HashMap<Before, Vec<PageId>>,
}

#[derive(Debug)]
struct Tail {
    before: Before,
    tokens: Vec<Token>,
}

impl Tails {
    pub fn insert(&mut self, page: PageId, before: Before, tokens: &[Token]) {
        self.after.entry(before).or_default().push(page);
        self.all.insert(page, Tail { before, tokens: tokens.to_vec() });
    }

    /// Removes a tail; returns its predecessor, or `None` if the page is no tail.
    pub fn remove(&mut self, page: PageId) -> Option<Before> {
        let Tail { before, .. } = self.all.remove(&page)?;
        if let Some(pages) = self.after.get_mut(&before) {
            pages.retain(|other| *other != page);
            if pages.is_empty() {
                self.after.remove(&before);
            }
        }
        Some(before)
    }

    pub fn contains(&self, page: PageId) -> bool {
        self.all.contains_key(&page)
    }

    /// The tail after `before` that begins with the most of `tokens`, and their number; of equal
    /// ones the last.
    pub fn find(&self, before: Before, tokens: &[Token]) -> Option<(PageId, usize)> {
        let common = |page: &PageId| {
            let pairs = self.all[page].tokens.iter().zip(tokens);
            pairs.take_while(|(one, other)| one == other).count()
        };
        let pages = self.after.get(&before)?.iter();
        let found = pages.map(|page| (*page, common(page))).max_by_key(|(_, common)| *common);
        found.filter(|(_, common)| *common > 0)
    }

    /// The tails with their predecessors.
    #[cfg(test)]
    pub fn iter(&self) -> impl Iterator<Item = (PageId, Before)> {
        self.all.iter().map(|(page, tail)| (*page, tail.before))
    }
}

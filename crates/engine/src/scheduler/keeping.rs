//! Which published pages are written to disk, and when.
//!
//! A page is written once its text is long enough to be worth a read, a few pages in each step,
//! so that a step stays short. States are written where a sequence says so: at marks in its prompt,
//! and at the ends of its prompt and its answer.

use std::collections::VecDeque;
use std::sync::Arc;

use protocol::Token;

use super::page_id::PageId;
use super::prefixes::Before;
use crate::page_orders::PageKey;
use crate::prompt_store::{Shelf, key_after};

/// A text of fewer pages is computed again in about the time of a read.
pub(super) const PAGES_MIN: usize = 4;

/// The text up to the end of a published page.
#[derive(Debug, Clone, Copy)]
struct Text {
    key: PageKey,
    before: Option<PageId>,
    pages: usize,
    /// What waits to be written: the page, and the state at its end.
    waits: [bool; 2],
}

#[derive(Debug)]
pub(super) struct Keeping {
    shelf: Arc<dyn Shelf>,
    /// By page; `None` for pages that are not published.
    texts: Vec<Option<Text>>,
    /// Pages with something to write, and some whose text has gone since.
    queue: VecDeque<PageId>,
    fetches: u64,
    /// Whether all ranks keep prompts. Until they have said so, nothing is written or read.
    is_agreed: bool,
}

/// What to write of a page.
pub(super) struct Due {
    pub page: PageId,
    pub key: PageKey,
    pub content: bool,
    pub state: bool,
}

impl Keeping {
    pub fn new(shelf: Arc<dyn Shelf>, pages: usize) -> Self {
        Self {
            shelf,
            texts: vec![None; pages],
            queue: VecDeque::new(),
            fetches: 0,
            is_agreed: false,
        }
    }

    pub fn shelf(&self) -> &dyn Shelf {
        &*self.shelf
    }

    pub fn is_agreed(&self) -> bool {
        self.is_agreed
    }

    pub fn agree(&mut self) {
        self.is_agreed = true;
    }

    /// A number for the next text to read, above 0.
    pub fn next_fetch(&mut self) -> u64 {
        self.fetches += 1;
        self.fetches
    }

    /// The key of the text that ends with these tokens of a page.
    pub fn key(&self, before: Before, tokens: &[Token]) -> Option<PageKey> {
        let before = match before {
            Before::Start(salt) => self.shelf.root(salt),
            Before::Page(page) => self.texts[page as usize]?.key,
        };
        Some(key_after(&before, tokens))
    }

    /// Takes note of a page that was published. `is_new`: it does not come from disk.
    pub fn publish(&mut self, page: PageId, before: Before, tokens: &[Token], is_new: bool) {
        let Some(key) = self.key(before, tokens) else { return };
        let before = match before {
            Before::Start(_) => None,
            Before::Page(before) => Some(before),
        };
        let pages = 1 + before.and_then(|at| self.texts[at as usize]).map_or(0, |text| text.pages);
        self.texts[page as usize] = Some(Text { key, before, pages, waits: [is_new, false] });
        if pages == PAGES_MIN {
            let texts = &self.texts;
            let before = |at: &PageId| texts[*at as usize].and_then(|text| text.before);
            let all: Vec<PageId> = std::iter::successors(Some(page), before).collect();
            self.queue.extend(all.into_iter().rev());
        } else if pages > PAGES_MIN && is_new {
            self.queue.push_back(page);
        }
    }

    /// The state at the end of a page is worth keeping. It is written next: another one soon takes
    /// its place.
    pub fn want_state(&mut self, page: PageId) {
        if let Some(text) = self.texts[page as usize].as_mut().filter(|of| of.pages >= PAGES_MIN) {
            text.waits[1] = true;
            self.queue.push_front(page);
        }
    }

    /// The page was evicted.
    pub fn forget(&mut self, page: PageId) {
        self.texts[page as usize] = None;
    }

    /// The next page with something to write.
    pub fn next(&mut self) -> Option<Due> {
        while let Some(page) = self.queue.pop_front() {
            let Some(text) = &mut self.texts[page as usize] else { continue };
            let [content, state] = std::mem::take(&mut text.waits);
            if content || state {
                return Some(Due { page, key: text.key, content, state });
            }
        }
        None
    }

    /// Whether something can be written now, after this many pages.
    pub fn is_due(&self, pages: usize) -> bool {
        self.is_agreed && !self.queue.is_empty() && self.shelf.has_room(pages + 1)
    }
}

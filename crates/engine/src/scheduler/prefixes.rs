//! The texts in the cache: a tree of pages, each with its tokens after those of the page before.

use std::collections::HashMap;
use std::sync::Arc;

use layout::PAGE_POSITIONS;
use protocol::Token;

use super::page_id::PageId;

/// The predecessor of a page.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Before {
    /// None: the page starts a text, in the cache shared under this salt.
    Start(u64),
    Page(PageId),
}

/// The tokens of a full page, or of a tail, which has fewer.
#[derive(Debug, PartialEq, Eq, Hash)]
struct Content {
    before: Before,
    /// The first `count` are valid, the others zero.
    tokens: [Token; PAGE_POSITIONS],
    count: usize,
}

/// The start of a cached page that a text has in common with it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Begun {
    pub page: PageId,
    /// The number of common tokens, at least 1.
    pub common: usize,
    /// The number of the page's tokens.
    pub count: usize,
}

#[derive(Debug)]
pub(super) struct Prefixes {
    /// By page.
    contents: Vec<Option<Arc<Content>>>,
    pages: HashMap<Arc<Content>, PageId>,
    children: HashMap<Before, Vec<PageId>>,
}

impl Content {
    /// # Panics
    /// If there are more tokens than positions.
    fn new(before: Before, of_page: &[Token]) -> Self {
        let mut tokens = [0; PAGE_POSITIONS];
        tokens[..of_page.len()].copy_from_slice(of_page);
        Self { before, tokens, count: of_page.len() }
    }
}

impl Prefixes {
    /// None of `count` pages is known.
    pub fn new(count: usize) -> Self {
        Self { contents: vec![None; count], pages: HashMap::new(), children: HashMap::new() }
    }

    pub fn insert(&mut self, page: PageId, before: Before, tokens: &[Token]) {
        let content = Arc::new(Content::new(before, tokens));
        self.contents[page as usize] = Some(content.clone());
        self.pages.insert(content, page);
        self.children.entry(before).or_default().push(page);
    }

    /// Removes a page without children. Returns its predecessor, or `None` if it is not known.
    pub fn remove(&mut self, page: PageId) -> Option<Before> {
        let content = self.contents[page as usize].take()?;
        self.pages.remove(&content);
        if let Some(pages) = self.children.get_mut(&content.before) {
            pages.retain(|other| *other != page);
            if pages.is_empty() {
                self.children.remove(&content.before);
            }
        }
        Some(content.before)
    }

    pub fn contains(&self, page: PageId) -> bool {
        self.contents[page as usize].is_some()
    }

    /// The tokens of a full page.
    pub fn full(&self, page: PageId) -> Option<&[Token; PAGE_POSITIONS]> {
        let content = self.contents[page as usize].as_ref();
        content.filter(|of| of.count == PAGE_POSITIONS).map(|of| &of.tokens)
    }

    /// Whether it is a full page.
    #[cfg(test)]
    pub fn has_full(&self, page: PageId) -> bool {
        self.full(page).is_some()
    }

    pub fn has_children(&self, page: PageId) -> bool {
        self.children.contains_key(&Before::Page(page))
    }

    /// The full page with exactly these tokens.
    pub fn find(&self, before: Before, tokens: &[Token]) -> Option<PageId> {
        let content = (tokens.len() == PAGE_POSITIONS).then(|| Content::new(before, tokens))?;
        self.pages.get(&content).copied()
    }

    /// The page after `before` that begins with the most of `tokens`; of equal ones a tail rather
    /// than a full page, and of these the last.
    pub fn find_begun(&self, before: Before, tokens: &[Token]) -> Option<Begun> {
        let begun = |page: &PageId| {
            let Content { tokens: own, count, .. } = &**self.contents[*page as usize].as_ref()?;
            let pairs = own[..*count].iter().zip(tokens);
            let common = pairs.take_while(|(one, other)| one == other).count();
            Some(Begun { page: *page, common, count: *count })
        };
        let all = self.children.get(&before)?.iter().filter_map(begun);
        let found = all.max_by_key(|begun| (begun.common, begun.count < PAGE_POSITIONS))?;
        (found.common > 0).then_some(found)
    }

    /// The number of known pages.
    #[cfg(test)]
    pub fn len(&self) -> usize {
        self.pages.len()
    }

    /// Checks that the three collections agree.
    #[cfg(test)]
    pub fn check(&self) {
        let known =
            || self.contents.iter().enumerate().filter_map(|(at, of)| Some((at, of.as_ref()?)));
        for (page, content) in known() {
            assert_eq!(self.pages.get(content), Some(&(page as PageId)));
            let among = &self.children[&content.before];
            assert_eq!(among.iter().filter(|other| **other as usize == page).count(), 1);
            if let Before::Page(parent) = content.before {
                assert!(self.has_full(parent), "page {parent} is before page {page}");
            }
        }
        let children: usize = self.children.values().map(Vec::len).sum();
        assert_eq!((known().count(), children), (self.pages.len(), self.pages.len()));
    }
}

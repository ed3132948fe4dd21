mod account;
mod checkpoint;

use std::time::Instant;

use layout::{GUESSES_MAX, PAGE_POSITIONS};
use protocol::{GenerateRequest, Pooling, RequestId, Token, is_of_picture};

use super::costs::Price;
use super::fetch::Fetch;
use super::guess::{Drafts, Guesser};
use super::looking::Looking;
use super::page_id::PageId;
use super::pages::{Before, Pages};
use super::pictures::Pictures;
use super::prefixes::Begun;
use super::state::State;
use crate::draft::DraftJob;
use crate::logits::Extent;
use crate::sight::Placed;
use crate::step::{Limits, Output, Step, StepSegment};

/// A request, waiting or running.
#[derive(Debug)]
pub(super) struct Sequence {
    pub id: RequestId,
    pub request: GenerateRequest,
    /// The prompt, and the known part of the answer.
    pub tokens: Vec<Token>,
    /// The pictures of its prompt, in order.
    pub pictures: Pictures,
    /// The number of requests before it.
    pub order: u64,
    /// See [`protocol::Turns`].
    pub due: u64,
    pub slot: usize,
    /// The pages of its positions, in order. Full ones are published.
    pub pages: Vec<PageId>,
    /// The number of pages already sent to all ranks.
    told: usize,
    /// The first page that its next rows see in layers with a window.
    pub first_seen: usize,
    /// Positions with keys and values in the cache, now or after the steps in flight. Their tokens
    /// are certain.
    pub cached: usize,
    pub state: State,
    /// Its beginning on its way from disk, and whether it was looked for there.
    pub fetch: Option<Fetch>,
    looking: Looking,
    /// Whether a step in flight computes its next token.
    pub awaits_token: bool,
    /// Guesses after the last token, in the step in flight or the one being planned.
    pub guesses: Vec<Token>,
    guesser: Guesser,
    pub drafts: Drafts,
    /// The number of guesses wanted from a draft model before the next step.
    pub drafts_wanted: usize,
    /// Its compared guesses so far, and those of the step in flight.
    pub guessed: protocol::Guesses,
    pub guess_at: usize,
    /// The most tokens of prompt and answer.
    tokens_max: usize,
    /// Tokens of the prompt that have ever been in the cache. It may have given up their pages
    /// since, and computes them again.
    reached: usize,
    /// Tokens of the prompt found in the cache.
    pub cached_tokens: usize,
    added: Instant,
    pub started: Option<Instant>,
    /// The time that rank 0 had waited for each rank at its start.
    pub waited_before_us: Vec<u64>,
    pub first_token: Option<Instant>,
    /// Whether all of its rows must be in one step, for they see each other (encoders).
    is_whole: bool,
}

impl Sequence {
    pub fn new(
        id: RequestId,
        request: GenerateRequest,
        pictures: Vec<Placed>,
        limits: &Limits,
        added: Instant,
    ) -> Self {
        let room = limits.context_tokens.saturating_sub(request.prompt.len());
        // The capacity is reserved, so that no token causes an allocation.
        let tokens_max = request.prompt.len() + request.max_tokens.min(room);
        let mut tokens = Vec::with_capacity(tokens_max);
        tokens.extend_from_slice(&request.prompt);
        tokens.extend_from_slice(&request.answered);
        Self {
            id,
            request,
            tokens,
            pictures: Pictures::new(pictures),
            order: 0,
            due: 0,
            slot: 0,
            pages: Vec::with_capacity(pages_of(tokens_max)),
            told: 0,
            first_seen: 0,
            cached: 0,
            state: State::default(),
            fetch: None,
            looking: Looking::Not,
            awaits_token: false,
            guesses: Vec::with_capacity(GUESSES_MAX),
            guesser: Guesser::new(tokens_max),
            drafts: Drafts::default(),
            drafts_wanted: 0,
            guessed: protocol::Guesses::default(),
            guess_at: 0,
            tokens_max,
            reached: 0,
            cached_tokens: 0,
            added,
            started: None,
            waited_before_us: Vec::new(),
            first_token: None,
            is_whole: limits.is_encoder,
        }
    }

    pub fn answer(&self) -> &[Token] {
        &self.tokens[self.request.prompt.len()..]
    }

    /// Known tokens that are not in the cache.
    pub fn left(&self) -> usize {
        self.tokens.len() - self.cached
    }

    /// Whether its next row computes a token of its answer, or one in flight does.
    pub fn is_answering(&self) -> bool {
        match self.left() {
            0 => true,
            1 => !self.answer().is_empty(),
            _ => false,
        }
    }

    /// Missing pages for all known tokens and one more, if one follows.
    pub fn pages_missing(&self) -> usize {
        let next = usize::from(self.request.embedding.is_none());
        pages_of(self.tokens.len() + next).saturating_sub(self.pages.len())
    }

    /// The published pages with the start of its tokens, without the last token: its logits must be
    /// computed. Other state of the text before may be missing for some.
    pub fn known_pages<'a>(&'a self, pages: &'a Pages) -> impl Iterator<Item = PageId> + 'a {
        let mut before = self.before(self.pages.len());
        let start = self.cached.min(self.tokens.len() - 1);
        let whole = self.tokens[start..self.tokens.len() - 1].chunks_exact(PAGE_POSITIONS);
        let is_at_border = self.cached == self.pages.len() * PAGE_POSITIONS && !self.is_alone();
        whole.take_while(move |_| is_at_border).map_while(move |tokens| {
            let page = pages.find(before, tokens)?;
            before = Before::Page(page);
            Some(page)
        })
    }

    /// The number of its [known pages](Self::known_pages) that it can skip.
    pub fn skippable(&self, pages: &Pages) -> usize {
        let mut known = usize::MAX;
        loop {
            let found = pages.skippable(self.pages.len(), self.known_pages(pages).take(known));
            let end = (self.pages.len() + found) * PAGE_POSITIONS;
            if found == 0 || !self.pictures.is_cut(end) {
                return found;
            }
            known = found - 1;
        }
    }

    /// The predecessor of its page at `at`.
    fn before(&self, at: usize) -> Before {
        let start = Before::Start(self.request.cache_salt);
        at.checked_sub(1).map_or(start, |before| Before::Page(self.pages[before]))
    }

    /// Skips cached rows; returns the number of the prompt's rows that are new to it.
    pub fn share(&mut self, pages: &mut Pages) -> usize {
        let (skipped, known) = (self.skippable(pages), self.known_pages(pages).count());
        // Other texts may follow to the point where its text diverges from another: it saves a
        // checkpoint there.
        if known > skipped {
            self.state.branch.get_or_insert((self.pages.len() + known) * PAGE_POSITIONS);
        }
        let own = self.pages.len();
        for _ in 0..skipped {
            let Some(page) = self.known_pages(pages).next() else { break };
            pages.hold(page);
            self.pages.push(page);
            self.cached += PAGE_POSITIONS;
        }
        let first_seen = pages.first_seen(self.cached);
        self.pages.iter().skip(own.max(first_seen)).for_each(|page| pages.see(*page));
        self.leave_pages(own.min(first_seen), pages);
        self.first_seen = first_seen;
        if let Some(page) = self.pages.last().filter(|_| skipped > 0) {
            self.state.jump(self.cached, pages.read_checkpoint(*page));
        }
        self.begin_page(pages);
        let rows = self.reach();
        self.cached_tokens += rows;
        rows
    }

    /// Whether its beginning should be looked for on disk.
    pub fn wants_fetch(&self) -> bool {
        let is_new = self.pages.is_empty() && self.cached == 0 && !self.looking.is_over();
        is_new && !self.is_answering() && !self.is_alone()
    }

    /// Looks for its beginning on disk, and begins to read what the cache lacks of it; `false`:
    /// members have not said yet what they have.
    pub fn begin_fetch(&mut self, pages: &mut Pages, now: Instant) -> bool {
        // The last row is computed, at the end of a copy of the last page if that can be.
        let end = self.tokens.len() - usize::from(!pages.begins_inside());
        let (salt, whole) = (self.request.cache_salt, &self.tokens[..end]);
        let Some(found) = self.looking.find(salt, whole, pages, now) else { return false };
        self.fetch = Fetch::begin(salt, (whole, self.skippable(pages)), &found, pages, now);
        true
    }

    /// At the end of its pages, continues in the middle of a cached one.
    fn begin_page(&mut self, pages: &mut Pages) {
        let end = self.pages.len() * PAGE_POSITIONS;
        if self.cached != end || self.is_alone() {
            return;
        }
        let next = &self.tokens[end..self.tokens.len() - 1];
        let Some(begun) = pages.find_begun(self.before(self.pages.len()), next) else { return };
        let uncut = |rows: &usize| !self.pictures.is_cut(end + rows);
        let Some(common) = (1..=begun.common).rev().find(uncut) else { return };
        if let Some(page) = pages.begin(Begun { common, ..begun }) {
            self.pages.push(page);
            self.cached += common;
        }
    }

    /// The number of the prompt's tokens in the cache for the first time.
    fn reach(&mut self) -> usize {
        let before = self.reached;
        self.reached = before.max(self.cached.min(self.request.prompt.len()));
        self.reached - before
    }

    /// Whether all rows have an output, not only the last.
    fn wants_all_rows(&self) -> bool {
        self.request.embedding == Some(Pooling::Mean)
    }

    /// Whether it reads no rows that another text has left in the cache: all of its rows have an
    /// output, or an encoder's depend on what follows them.
    fn is_alone(&self) -> bool {
        self.wants_all_rows() || self.is_whole
    }

    /// The rows of its next chunk, within these limits of rows and outputs. `most`: the limit for a
    /// picture or a text that must be whole.
    pub fn chunk(&mut self, room: usize, outputs_room: usize, most: usize) -> usize {
        if self.is_whole {
            let most = if self.wants_all_rows() { most.min(outputs_room) } else { most };
            return if self.left() <= most { self.left() } else { 0 };
        }
        let rows = self.left().min(room);
        let rows = rows.min(self.state.chunk_max(self.cached, self.prompt_border()));
        let rows = if self.wants_all_rows() { rows.min(outputs_room) } else { rows };
        self.pictures.chunk(self.cached, rows, most)
    }

    /// The last page end in its prompt after which another sequence with this prompt could
    /// continue.
    fn prompt_border(&self) -> usize {
        (self.request.prompt.len() - 1) / PAGE_POSITIONS * PAGE_POSITIONS
    }

    /// Drops the pages before `end` in layers with a window. Pages before its prompt's end, and
    /// before the point where its text diverged from another, are kept for a while.
    fn leave_pages(&mut self, end: usize, pages: &mut Pages) {
        let borders = [self.state.branch, Some(self.prompt_border())];
        for at in self.first_seen..end {
            let ends = borders.iter().flatten().map(|border| border / PAGE_POSITIONS);
            let keep = ends.into_iter().any(|end| at < end && at + pages.pages_behind() >= end);
            pages.leave(self.pages[at], keep);
        }
        self.first_seen = self.first_seen.max(end);
    }

    /// Drops the pages that later steps do not see.
    pub fn move_window(&mut self, pages: &mut Pages) {
        self.leave_pages(pages.first_seen(self.cached), pages);
    }

    /// Takes pages for `rows` more rows; returns the number of rows with pages.
    pub fn take_pages(&mut self, rows: usize, pages: &mut Pages) -> usize {
        while self.pages.len() < pages_of(self.cached + rows) {
            let Some(page) = pages.take() else { break };
            self.pages.push(page);
        }
        let held = self.pages.len() * PAGE_POSITIONS - self.cached;
        match self.is_whole {
            true => {
                if held < rows {
                    0
                } else {
                    rows
                }
            }
            false => self.pictures.uncut(self.cached, rows.min(held)),
        }
    }

    /// Speculates its next tokens, as many as pay and at most `most`.
    pub fn guess(&mut self, price: Price, most: usize) {
        let most = most.min(self.guesses_room());
        let count = self.guesser.rate.worth(price).min(most);
        self.guesses.clear();
        if count > 0 {
            self.guesser.guess(&self.tokens, count, &mut self.guesses);
            let text = self.guesses.iter().position(|token| is_of_picture(*token));
            text.into_iter().for_each(|end| self.guesses.truncate(end));
        }
        self.drafts.are_tried = self.guesses.is_empty();
        if self.guesses.is_empty() && self.drafts.after == self.tokens.len() {
            self.guesses.extend(self.drafts.offered.iter().take(most));
        }
        self.drafts.offered.clear();
    }

    /// The most tokens after the next one.
    fn guesses_room(&self) -> usize {
        self.tokens_max.saturating_sub(self.tokens.len() + 1)
    }

    /// Sets the number of guesses wanted from a draft model at this price, with `left` answers
    /// still to choose: none if its own text has a guess.
    pub fn want_draft(&mut self, price: Price, left: usize) {
        let is_ready = left > 0 && self.is_answering() && !self.awaits_token;
        let own = is_ready && self.guesser.rate.worth(price) > 0;
        self.drafts_wanted = match is_ready {
            true if own && self.guesser.first_guess(&self.tokens).is_some() => 0,
            true => self.drafts.rate.worth(price).min(self.guesses_room()),
            false => 0,
        };
        // The fading rate makes it try again from time to time, in case the guesses have improved.
        self.drafts.rate.forget(self.drafts_wanted == 0 && is_ready);
    }

    pub fn draft_job(&self) -> Option<DraftJob<'_>> {
        let Self { id, slot, request, tokens: text, drafts_wanted: count, .. } = self;
        (*count > 0).then_some(DraftJob { id: *id, slot: *slot, request, text, count: *count })
    }

    /// Stores a draft model's guesses.
    pub fn offer(&mut self, guesses: &[Token]) {
        self.drafts.after = self.tokens.len();
        self.drafts.offered.clear();
        self.drafts.offered.extend_from_slice(guesses);
    }

    /// Whether a token for `output` is its next.
    pub fn awaits(&self, output: Output) -> bool {
        self.id == output.request && self.awaits_token && output.position == self.tokens.len()
    }

    /// Compares its next token with the guess before it is added: returns whether a guess was
    /// tried, and whether it was right. The next output continues from there.
    pub fn check_guess(&mut self, output: Output, token: Token) -> (bool, bool) {
        let Some(guess) = self.guesses.first().copied() else {
            self.awaits_token = false;
            // The guess that would have been made updates the rate.
            let guess = self.guesser.first_guess(&self.tokens);
            guess.into_iter().for_each(|guess| self.guesser.rate.note(guess == token));
            return (false, false);
        };
        let is_right = guess == token;
        match self.drafts.are_tried {
            true => self.drafts.note(is_right),
            false => self.guesser.rate.note(is_right),
        }
        match is_right {
            true => drop(self.guesses.remove(0)),
            false => self.guesses.clear(),
        }
        self.guessed.tried += 1;
        self.guessed.right += u64::from(is_right);
        self.guess_at += 1;
        self.awaits_token = is_right;
        // If it still has its pages, the token is in the cache.
        if is_right && self.cached == output.position {
            self.cached += 1;
        }
        (true, is_right)
    }

    /// Adds the next `rows` rows to the step, with pages for all; the last ones are its guesses.
    /// Returns the number of the prompt's rows that are new to it.
    pub fn plan(&mut self, rows: usize, step: &mut Step, pages: &Pages) -> usize {
        let (first_position, end) = (self.cached, self.cached + rows - self.guesses.len());
        self.pictures.plan(first_position..end, step);
        step.tokens.extend(&self.tokens[first_position..end]);
        step.tokens.extend(&self.guesses);
        if self.is_whole {
            let second = self.request.embedding_options.first_tokens.unwrap_or(usize::MAX);
            step.types.extend((first_position..end).map(|at| u32::from(at >= second)));
        }
        self.awaits_token = end == self.tokens.len();
        let wanted = Extent::by(&self.request, self.answer().len());
        let (outputs, wanted) = match self.awaits_token {
            _ if self.wants_all_rows() => (rows, wanted),
            true => (1 + self.guesses.len(), wanted),
            false => (0, Extent::Nothing),
        };
        let last = first_position + rows;
        let positions = last + 1 - outputs..last + 1;
        step.outputs.extend(positions.map(|position| Output { request: self.id, position }));
        let (slot, first_page) = (self.slot, self.told);
        let untold = &self.pages[first_page..];
        step.pages.extend(untold);
        if pages.has_windows() {
            let in_window = |page: &PageId| pages.window_page(*page).unwrap_or(0);
            step.window_pages.extend(untold.iter().map(in_window));
        }
        let first_rotation = self.pictures.rotation(first_position);
        let new = StepSegment { first_rotation, ..StepSegment::new(slot, first_position, rows) };
        let pages = untold.len();
        step.segments.push(StepSegment { outputs, wanted, first_page, pages, ..new });
        self.told = self.pages.len();
        self.cached = end;
        self.pictures.forget(end);
        self.reach()
    }

    /// Publishes the pages filled by the rows since `first_position`. If another sequence has
    /// published one with the same tokens, that one is used from the next step on: its keys and
    /// values are the same, bit for bit.
    pub fn publish(&mut self, first_position: usize, pages: &mut Pages) {
        if self.is_whole {
            return;
        }
        for at in first_position / PAGE_POSITIONS..self.cached / PAGE_POSITIONS {
            let before = self.before(at);
            let tokens = &self.tokens[at * PAGE_POSITIONS..][..PAGE_POSITIONS];
            let page = pages.publish(self.pages[at], before, tokens);
            if page != self.pages[at] {
                self.pages[at] = page;
                self.told = self.told.min(at);
            }
        }
    }

    /// Gives up its pages. Its tokens stay, to be computed again.
    pub fn give_back(&mut self, pages: &mut Pages) {
        if let Some(fetch) = self.fetch.take() {
            fetch.end(pages);
        }
        if let Some((_, page)) = self.state.passing {
            pages.want_state(page);
        }
        self.looking = Looking::Not;
        // A guessed end of the answer is in the cache, and no token of it.
        let end = self.cached.min(self.tokens.len());
        let whole = end / PAGE_POSITIONS;
        let rest = &self.tokens[whole * PAGE_POSITIONS..end];
        let is_left = !rest.is_empty() && !self.is_whole;
        if let Some(page) = self.pages.get(whole).filter(|_| is_left) {
            pages.leave_tail(*page, self.before(whole), rest);
        }
        self.pages.iter().skip(self.first_seen).for_each(|page| pages.leave(*page, true));
        pages.release_all(&mut self.pages);
        (self.told, self.first_seen, self.cached) = (0, 0, 0);
        self.pictures.forget(usize::MAX);
        self.state = State::default();
    }
}

/// The number of pages for these positions.
fn pages_of(positions: usize) -> usize {
    positions.div_ceil(PAGE_POSITIONS)
}

//! The next computation of all ranks, and the message with it from rank 0.
//!
//! ```text
//! n_segments u32 | n_pages u32 | n_grids u32 | n_additions u32 | n_copies u32
//! | { slot, first_position, rows, outputs, wanted, first_page, pages: u32,
//!     first_rotation: u32, begin, begin_at, guesses, save_after, save_to: u32 } ...
//! | { row, rows, first, columns, lines, time: u32 } ...
//! | { from, to: u32 } ...
//! | page u32 ... | window_page u32 ... | token u32 ... | input f32 ... | addition f32 ...
//! ```
//!
//! Little-endian. A segment carries only the new pages of its sequence's table; the same number of
//! window pages follows if layers with a window keep fewer. The input is that of the receiver's
//! first layer, `[rows, width]`: in the first stage the embeddings of the segments' tokens, so that
//! the other ranks need no embedding matrix; in later stages the residual stream. Additions are
//! those to rows of pictures, see [`model::BatchPictures`].

use std::time::Instant;

use backend::Begin;
use layout::{Capacity, Config, PAGE_POSITIONS, Window};
use protocol::{RequestId, Token};

use crate::grid::{self, SeenRows, StepGrid};
use crate::logits::Extent;
use crate::page_orders::{self, ORDERS_MAX, PageOrder};
use crate::results::OutputPart;
use crate::state_step::STATE_WORDS;
pub use crate::state_step::{Save, StateStep};

/// One run of consecutive positions of one sequence.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StepSegment {
    /// The sequence's index among the running ones.
    pub slot: usize,
    pub first_position: usize,
    pub rows: usize,
    /// The number of its last rows that need logits; of its first if [`Extent::First`] is wanted.
    pub outputs: usize,
    /// The wanted result of these rows; `Nothing` if there are none.
    pub wanted: Extent,
    /// The sequence's table is the old one up to here, followed by `pages` new ones from
    /// [`Step::pages`], where each segment takes its own in turn.
    pub first_page: usize,
    pub pages: usize,
    /// The rotary position of the first row; the others follow.
    pub first_rotation: usize,
    /// The state step of the rows, in models with states.
    pub state: StateStep,
}

impl StepSegment {
    /// Rows without outputs, on known pages, at the start of a state.
    pub fn new(slot: usize, first_position: usize, rows: usize) -> Self {
        Self {
            slot,
            first_position,
            rows,
            outputs: 0,
            wanted: Extent::Nothing,
            first_page: 0,
            pages: 0,
            first_rotation: first_position,
            state: StateStep::default(),
        }
    }

    /// The index of its first row with an output.
    pub fn first_output(&self) -> usize {
        if self.wanted == Extent::First { 0 } else { self.rows - self.outputs }
    }
}

/// One step of the model: the next rows of some sequences.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Step {
    pub segments: Vec<StepSegment>,
    /// New pages in the sequences' tables, segment by segment.
    pub pages: Vec<u32>,
    /// The same in the cache of layers that keep only their window, if there are any; arbitrary
    /// beyond the window.
    pub window_pages: Vec<u32>,
    /// Copies of pages, `(from, to)`, made one after the other before the rows.
    pub copies: Vec<(u32, u32)>,
    /// Pages to write down and pages to read, before the copies.
    pub keeps: Vec<PageOrder>,
    pub loads: Vec<PageOrder>,
    /// The token of each row.
    pub tokens: Vec<Token>,
    /// The rows of pictures among them.
    pub grids: Vec<StepGrid>,
    /// What is added to the residual stream of these rows, `[rows, additions]`.
    pub additions: Vec<f32>,
    /// The token type of each row, for encoders that have some; only on rank 0.
    pub types: Vec<u32>,
    /// What was seen of each grid's picture; only on rank 0.
    pub seen: Vec<SeenRows>,
    /// The receiver of each result, one for each row with an output; only on rank 0.
    pub outputs: Vec<Output>,
    /// Rank 0's notes on the step.
    pub note: StepNote,
}

/// The measured properties of a step; only on rank 0.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct StepNote {
    pub begun: Option<Instant>,
    pub prompt_rows: usize,
    /// A row for each answer, and the rows of guesses.
    pub answer_rows: usize,
    pub guess_rows: usize,
    /// Rows of prompts ahead of it: its own, and those of earlier steps in flight.
    pub prompt_rows_ahead: usize,
}

/// A token computed by a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Output {
    pub request: RequestId,
    /// The position that the token will have.
    pub position: usize,
}

/// The largest step; a message beyond these limits is an error, not an index out of bounds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    pub slots: usize,
    pub context_tokens: usize,
    /// Pages of the cache.
    pub pages: usize,
    pub rows_max: usize,
    pub outputs_max: usize,
    pub width: usize,
    /// The window of layers that have one, if it is smaller.
    pub window: Option<Window>,
    /// See [`layout::Config::keeps_all`].
    pub keeps_all: bool,
    /// Whether layers carry a state, and the number of its copies.
    pub has_states: bool,
    pub checkpoints: usize,
    /// Rows of `rows_max` that are for pictures which must be whole.
    pub picture_room: usize,
    /// Numbers added to each row of a picture.
    pub additions: usize,
    /// Whether each text must be whole in one step, for its rows see each other.
    pub is_encoder: bool,
}

/// Why a step message is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("rank 0 sent an impossible step: {what}")]
pub struct BadStep {
    pub(crate) what: &'static str,
}

const HEADER_WORDS: usize = 7;
const SEGMENT_WORDS: usize = 8 + STATE_WORDS;

impl Limits {
    /// Those of a stage that begins with `first_layer`. `deepstack`: layers after which something
    /// is added to rows of pictures.
    pub fn new(
        config: &Config,
        capacity: &Capacity,
        (stages, first_layer): (usize, usize),
        deepstack: usize,
    ) -> Self {
        let rows_max = capacity.rows_max(stages);
        let has_states = config.recurrence.is_some();
        let is_added = first_layer < deepstack;
        Self {
            slots: capacity.sequences_max,
            context_tokens: capacity.context_tokens,
            pages: capacity.pages(),
            rows_max,
            outputs_max: capacity.outputs_max(),
            width: config.input_width(first_layer),
            window: capacity.window(config.window(), stages),
            keeps_all: config.keeps_all(),
            has_states,
            checkpoints: if has_states { capacity.checkpoints } else { 0 },
            picture_room: rows_max.saturating_sub(capacity.chunk_rows(stages)),
            additions: if is_added { deepstack * config.width } else { 0 },
            is_encoder: capacity.is_encoder,
        }
    }

    /// Pages of one sequence's table.
    pub fn pages_per_sequence(&self) -> usize {
        self.context_tokens.div_ceil(PAGE_POSITIONS)
    }

    /// Copies of pages in one step: only a model whose cache has nothing but pages makes any.
    pub fn copies_max(&self) -> usize {
        if self.keeps_all { self.slots } else { 0 }
    }

    /// New pages of one step.
    fn new_pages_max(&self) -> usize {
        self.slots * self.pages_per_sequence()
    }

    /// The next orders of a message.
    fn orders(
        &self,
        count: usize,
        mut words: impl Iterator<Item = u32>,
    ) -> Result<Vec<PageOrder>, BadStep> {
        let counts = [self.pages, self.window.map_or(0, |of| of.pages), self.checkpoints];
        let mut next = || PageOrder::decode(words.by_ref().take(page_orders::WORDS), counts);
        let orders: Option<_> = (0..count).map(|_| next()).collect();
        orders.ok_or(BadStep { what: "a page to keep or to load does not exist" })
    }

    /// Bytes of the largest step message.
    pub fn message_bytes_max(&self) -> usize {
        let pages = self.new_pages_max() * (1 + usize::from(self.window.is_some()));
        let tables = self.slots * SEGMENT_WORDS + pages + 2 * self.copies_max();
        let row = 1 + self.width + self.additions + grid::WORDS;
        let orders = 2 * ORDERS_MAX * page_orders::WORDS;
        let words = HEADER_WORDS + tables + orders + self.rows_max * row;
        words * size_of::<u32>()
    }
}

impl Step {
    pub fn clear(&mut self) {
        self.segments.clear();
        self.pages.clear();
        self.window_pages.clear();
        self.copies.clear();
        self.keeps.clear();
        self.loads.clear();
        self.tokens.clear();
        self.types.clear();
        self.grids.clear();
        self.additions.clear();
        self.seen.clear();
        self.outputs.clear();
        self.note = StepNote::default();
    }

    pub fn rows(&self) -> usize {
        self.segments.iter().map(|segment| segment.rows).sum()
    }

    /// The position of each row.
    pub fn positions(&self) -> impl Iterator<Item = u32> {
        let rows =
            |one: &StepSegment| one.first_position as u32..(one.first_position + one.rows) as u32;
        self.segments.iter().flat_map(rows)
    }

    /// Replaces the tokens of pictures by one of the vocabulary: padding, which is 0 in every
    /// model that looks up more than the embedding.
    pub fn hide_pictures(&mut self) {
        for grid in &self.grids {
            self.tokens[grid.row..grid.row + grid.rows].fill(0);
        }
    }

    /// Writes what was seen of pictures over the embeddings in `input`, of `width` numbers a row.
    pub fn show_pictures(&mut self, input: &mut [f32], width: usize) {
        self.additions.clear();
        for (grid, seen) in self.grids.iter().zip(&self.seen) {
            let lines = input.chunks_exact_mut(width).skip(grid.row);
            for (line, (embedding, additions)) in lines.zip(seen.iter()) {
                line[..embedding.len()].copy_from_slice(embedding);
                self.additions.extend_from_slice(additions);
            }
        }
        self.seen.clear();
    }

    /// The wanted results, output by output.
    pub fn wanted(&self) -> impl Iterator<Item = Extent> {
        self.segments.iter().flat_map(|s| std::iter::repeat_n(s.wanted, s.outputs))
    }

    /// The values that a rank with this part of the output head sends to rank 0.
    pub fn numbers(&self, part: &OutputPart) -> usize {
        self.wanted().map(|wanted| wanted.numbers(part)).sum()
    }

    /// Writes the message into `out`, replacing its content. `adds`: whether the receiver has
    /// layers after which something is added.
    pub fn encode(&self, input: &[f32], adds: bool, out: &mut Vec<u8>) {
        let additions = if adds { &self.additions[..] } else { &[] };
        out.clear();
        let mut put = |word: u32| out.extend(word.to_le_bytes());
        put(self.segments.len() as u32);
        put(self.pages.len() as u32);
        put(self.grids.len() as u32);
        put(additions.len() as u32);
        put(self.copies.len() as u32);
        put(self.keeps.len() as u32);
        put(self.loads.len() as u32);
        for segment in &self.segments {
            let StepSegment { slot, first_position, rows, outputs, wanted, first_page, .. } =
                *segment;
            [slot, first_position, rows, outputs].iter().for_each(|word| put(*word as u32));
            put(wanted.encode());
            let rest = [first_page, segment.pages, segment.first_rotation];
            rest.iter().chain(&segment.state.encode()).for_each(|word| put(*word as u32));
        }
        self.grids.iter().flat_map(StepGrid::encode).for_each(&mut put);
        self.copies.iter().flat_map(|(from, to)| [*from, *to]).for_each(&mut put);
        let orders = self.keeps.iter().chain(&self.loads);
        orders.flat_map(PageOrder::encode).for_each(&mut put);
        let pages = self.pages.iter().chain(&self.window_pages);
        pages.chain(&self.tokens).for_each(|word| put(*word));
        input.iter().chain(additions).for_each(|value| put(value.to_bits()));
    }

    /// Decodes a message into this step and `input`, replacing their content.
    ///
    /// # Errors
    /// The message is not a step within `limits`.
    pub fn decode(
        &mut self,
        message: &[u8],
        limits: &Limits,
        input: &mut Vec<f32>,
    ) -> Result<(), BadStep> {
        let bad = |what| Err(BadStep { what });
        let (words, []) = message.as_chunks::<4>() else {
            return bad("its length is not a multiple of 4");
        };
        let mut words = words.iter().map(|word| u32::from_le_bytes(*word));
        let header: [_; HEADER_WORDS] = std::array::from_fn(|_| words.next());
        if header.contains(&None) {
            return bad("it has no header");
        }
        let [segments, pages, grids, additions, copies, keeps, loads] =
            header.map(|count| count.unwrap_or(0) as usize);
        if segments > limits.slots || pages > limits.new_pages_max() {
            return bad("it has more segments than slots, or more pages than tables");
        }
        let window_pages = if limits.window.is_some() { pages } else { 0 };
        if grids > limits.rows_max || additions > limits.rows_max * limits.additions {
            return bad("it has more rows of pictures than rows");
        }
        if copies > limits.copies_max() || keeps.max(loads) > ORDERS_MAX {
            return bad("it copies, keeps or loads more pages than it may");
        }
        let orders = (keeps + loads) * page_orders::WORDS;
        let tables = segments * SEGMENT_WORDS + 2 * copies + orders + pages + window_pages;
        let counted = tables + grids * grid::WORDS;
        if words.len() < counted + additions {
            return bad("it ends early");
        }
        self.segments.clear();
        for _ in 0..segments {
            let segment = self.segment(std::array::from_fn(|_| words.next()), limits)?;
            self.segments.push(segment);
        }
        self.grids.clear();
        for _ in 0..grids {
            let words = std::array::from_fn(|_| words.next().unwrap_or(0) as usize);
            self.grids.push(StepGrid::decode(words));
        }
        self.copies.clear();
        for _ in 0..copies {
            let words = [words.next(), words.next()].map(|word| word.unwrap_or(0));
            self.copies.push((words[0], words[1]));
        }
        self.keeps = limits.orders(keeps, words.by_ref())?;
        self.loads = limits.orders(loads, words.by_ref())?;
        self.pages.clear();
        self.pages.extend(words.by_ref().take(pages));
        self.window_pages.clear();
        self.window_pages.extend(words.by_ref().take(window_pages));
        let sum = |of: fn(&StepSegment) -> usize| self.segments.iter().map(of).sum::<usize>();
        if sum(|s| s.rows) > limits.rows_max || sum(|s| s.outputs) > limits.outputs_max {
            return bad("it has too many rows or outputs");
        }
        if self.shares_checkpoints() {
            return bad("a checkpoint is written while another segment reads or writes it");
        }
        if sum(|s| s.pages) != pages || !self.has_pages_of(limits) {
            return bad("a page does not exist, or is nobody's");
        }
        self.tokens.clear();
        self.tokens.extend(words.by_ref().take(self.rows()));
        grid::check(&self.grids, &self.segments, limits)?;
        let rows_of_pictures: usize = self.grids.iter().map(|grid| grid.rows).sum();
        if additions != rows_of_pictures * limits.additions {
            return bad("its additions do not match its rows of pictures");
        }
        input.clear();
        self.additions.clear();
        let inputs = words.len() - additions;
        input.extend(words.by_ref().take(inputs).map(f32::from_bits));
        self.additions.extend(words.map(f32::from_bits));
        if input.len() != self.rows() * limits.width {
            return bad("its input does not match its rows");
        }
        Ok(())
    }

    /// Whether all its pages exist.
    fn has_pages_of(&self, limits: &Limits) -> bool {
        let exist = |all: &[u32], count| all.iter().all(|page| (*page as usize) < count);
        let in_window = limits.window.is_none_or(|of| exist(&self.window_pages, of.pages));
        let copied = self.copies.iter().all(|(from, to)| exist(&[*from, *to], limits.pages));
        exist(&self.pages, limits.pages) && in_window && copied
    }

    /// Whether two segments use the same checkpoint and one saves it: they would race.
    fn shares_checkpoints(&self) -> bool {
        let saved = |s: &StepSegment| s.state.save.map(|save| save.checkpoint);
        let read = |s: &StepSegment| match s.state.begin {
            Begin::Restore { checkpoint } => Some(checkpoint),
            _ => None,
        };
        self.segments.iter().enumerate().any(|(at, one)| {
            let others = self.segments.iter().enumerate().filter(|(other, _)| *other != at);
            let mut others = others.map(|(_, other)| other);
            saved(one).is_some() && others.any(|o| saved(o) == saved(one) || read(o) == saved(one))
        })
    }

    /// The next segment of a message, with each number within `limits`.
    fn segment(
        &self,
        words: [Option<u32>; SEGMENT_WORDS],
        limits: &Limits,
    ) -> Result<StepSegment, BadStep> {
        let bad = |what| Err(BadStep { what });
        let found = words.map(|word| word.unwrap_or(0) as usize);
        let [slot, first_position, rows, outputs, _, first_page, pages, rest @ ..] = found;
        let [first_rotation, state @ ..] = rest;
        let Some(wanted) = Extent::decode(words[4].unwrap_or(0)) else {
            return bad("it needs logits that no sampler asks for");
        };
        if slot >= limits.slots || self.segments.iter().any(|other| other.slot == slot) {
            return bad("a slot does not exist or is used twice");
        }
        if rows == 0 || rows > limits.rows_max || outputs > rows {
            return bad("a segment is empty or too long");
        }
        if (outputs == 0) != (wanted == Extent::Nothing) {
            return bad("what is needed of no row, or no logits of some");
        }
        for first in [first_position, first_rotation] {
            if first > limits.context_tokens || first + rows > limits.context_tokens {
                return bad("a segment ends after the context");
            }
        }
        let state = StateStep::decode(state, rows, limits)?;
        let pages_max = limits.pages_per_sequence();
        if first_page > pages_max || pages > pages_max - first_page {
            return bad("a table is longer than the context");
        }
        Ok(StepSegment {
            slot,
            first_position,
            rows,
            outputs,
            wanted,
            first_page,
            pages,
            first_rotation,
            state,
        })
    }
}

#[cfg(test)]
#[path = "step_tests.rs"]
pub(crate) mod tests;

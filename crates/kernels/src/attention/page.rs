//! The inputs of attention's inner loops: query vectors, the page, the running softmax, and the
//! memory to prefetch.

use crate::product::Level;
use crate::simd::{LANES, Simd};

/// Positions of one page of the cache.
pub const PAGE_POSITIONS: usize = 64;

/// Positions of one span: the unit of work that threads may share for one query.
pub(super) const SPAN_POSITIONS: usize = 512;

/// The start of a running maximum: below any score, and finite, so that the difference of two such
/// is zero and not NaN.
pub(super) const LOWEST: f32 = -3.0e38;

/// Bytes of a cache line.
const LINE: usize = 64;

/// Vectors of positions in a page.
pub(super) const POS_VECTORS: usize = PAGE_POSITIONS / LANES;

/// A query vector and its visible positions.
#[derive(Clone, Copy)]
pub(super) struct Query<'a> {
    /// `[k_dim]`.
    pub q: &'a [f32],
    pub first_pos: usize,
    pub end_pos: usize,
    /// One bit for each position, page by page, if some are hidden.
    pub seen: Option<&'a [u64]>,
}

impl Query<'_> {
    /// Sees nothing.
    pub const NONE: Self = Self { q: &[], first_pos: 0, end_pos: 0, seen: None };

    /// Whether it sees no position of page `page`.
    pub fn skips(&self, page: usize) -> bool {
        self.seen.is_some_and(|seen| seen[page] == 0)
    }
}

/// Running softmax of some query vectors: maximum, sum, and `[queries, v_stride]` outputs.
#[derive(Default)]
pub(super) struct States {
    pub max: Vec<f32>,
    pub sum: Vec<f32>,
    pub acc: Vec<f32>,
}

impl States {
    /// Resets to the state before any page.
    pub fn reset(&mut self, queries: usize, v_stride: usize) {
        self.max.clear();
        self.max.resize(queries, LOWEST);
        self.sum.clear();
        self.sum.resize(queries, 0.0);
        self.acc.clear();
        self.acc.resize(queries * v_stride, 0.0);
    }
}

/// The queries of a page, and their parameters.
pub(super) struct Page<'a, 'q> {
    /// Position of the page's first slot.
    pub start: usize,
    pub queries: &'a [Query<'q>],
    pub v_stride: usize,
    pub scale: f32,
    pub soft_cap: Option<f32>,
}

impl Page<'_, '_> {
    /// Slots up to the last one visible to any of the queries.
    #[inline(always)]
    pub fn slots(&self, queries: &[Query]) -> usize {
        let seen = queries.iter().map(|query| query.end_pos).max().unwrap_or(0);
        seen.saturating_sub(self.start).min(PAGE_POSITIONS)
    }
}

/// Memory to prefetch: pages are not adjacent, so the machine's own prefetching starts anew with
/// each, and a single query is bound by memory.
#[derive(Clone, Copy)]
pub(super) struct Fetch {
    start: *const u8,
    lines: usize,
}

impl Fetch {
    /// The parts to prefetch while keys are read, while the softmax is computed and while values
    /// are read.
    pub fn thirds(data: &[u8]) -> [Self; 3] {
        let lines = data.len().div_ceil(LINE);
        [0, 1, 2].map(|third| {
            let (start, end) = (lines * third / 3, lines * (third + 1) / 3);
            Self { start: data.as_ptr().wrapping_add(start * LINE), lines: end - start }
        })
    }

    /// Spreads all of it over `steps` steps, or prefetches nothing.
    #[inline(always)]
    pub fn within(self, steps: usize, wanted: bool) -> Ahead {
        let lines_a_step = if wanted { self.lines.div_ceil(steps.max(1)) } else { 0 };
        Ahead { start: self.start, lines_a_step, level: Level::chosen() }
    }
}

/// Prefetches one part of memory while another is read.
pub(super) struct Ahead {
    start: *const u8,
    lines_a_step: usize,
    level: Level,
}

impl Ahead {
    #[inline(always)]
    pub fn fetch<S: Simd>(&self, s: S, step: usize) {
        for line in 0..self.lines_a_step {
            let at = (step * self.lines_a_step + line) * LINE;
            self.level.fetch(s, self.start.wrapping_add(at));
        }
    }
}

//! Chooses the visible positions of rows, by an indexer's queries and keys.
//!
//! A score of one row and position depends only on that row's queries and that position's key:
//! products are summed as in attention, and heads added one after the other. Of equal scores the
//! lower position, or block, is taken, so all ranks with the same bits make the same choice. For a
//! row with an infinite or NaN score, the attention output is NaN.

use std::cell::RefCell;
use std::ops::Range;

use super::cache::{CacheKind, Head, KvCache};
use super::chosen::Chosen;
use super::entries::EntryCache;
use super::int_tile::{AddInts, IntQueries};
use super::ints::{Limits, Places, Round, pairs};
use super::page::{Fetch, PAGE_POSITIONS, POS_VECTORS, Page, Query, States};
use super::range::Segment;
use super::softmax::Weights;
use super::tile::{AddPage, Dots, Tiles};
use crate::isa::{Isa, Kernel, run};
use crate::pool::Pool;
use crate::shared::SharedMut;
use crate::simd::{LANES, Simd};

/// The most scores in memory: rows are processed in groups below this.
const SCORES_MAX: usize = 1 << 20;

/// Pages of one task: enough that its queries are seldom rounded again.
const PAGES_A_TASK: usize = 32;

/// The rule for choosing a row's positions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Choice {
    /// The `count` positions with the largest scores, over all heads together: each head's score is
    /// the product of its query and the key, if that is above zero, times the head's weight
    /// (DeepSeek V3.2).
    Positions { count: usize },
    /// The `count` entries, each of a pool of `size` positions, with the largest scores, computed
    /// as for `Positions`, and the positions after the last whole pool (GLM-5.3-Flash).
    Pools { size: usize, count: usize },
    /// The `count` blocks of `size` positions with the largest scores, for each head separately: a
    /// block's score is that of its best position. The row's own block and the `local - 1` before
    /// it are always included (MiniMax M3).
    Blocks { size: usize, count: usize, local: usize },
}

/// An indexer: its heads, with one common key a position.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Indexer {
    pub heads: usize,
    pub dim: usize,
    pub choice: Choice,
}

impl Indexer {
    /// The number of choices of each row.
    pub fn groups(&self) -> usize {
        match self.choice {
            Choice::Positions { .. } | Choice::Pools { .. } => 1,
            Choice::Blocks { .. } => self.heads,
        }
    }

    /// Whether all heads choose together, with their weights.
    fn adds_heads(&self) -> bool {
        !matches!(self.choice, Choice::Blocks { .. })
    }

    /// Whether a row with this many earlier positions attends to all of them.
    fn sees_all(&self, positions: usize) -> bool {
        match self.choice {
            Choice::Positions { count } | Choice::Pools { count, .. } => positions <= count,
            Choice::Blocks { size, count, .. } => positions.div_ceil(size) <= count,
        }
    }
}

/// The keys that an indexer chooses from.
#[derive(Clone, Copy)]
pub enum Keys<'a> {
    /// Positions, by one head of keys without values.
    Positions(&'a KvCache),
    /// Entries of blocks of positions.
    Entries(&'a EntryCache),
}

impl Keys<'_> {
    fn dim(&self) -> usize {
        match self {
            Keys::Positions(cache) => cache.k_dim(),
            Keys::Entries(entries) => entries.shape().dim,
        }
    }

    /// The number of positions or entries that a row at `position` can choose from.
    fn seen(&self, position: usize) -> usize {
        match self {
            Keys::Positions(_) => position + 1,
            Keys::Entries(entries) => entries.shape().visible(position),
        }
    }
}

/// Chooses for every row of a batch. The keys must already be cached.
///
/// `segments` have the tables of `keys`. `q`: `[rows, heads, dim]`; `weights`: `[rows, heads]`, if
/// choices are of positions.
///
/// # Panics
/// If the shapes do not match, or a table is too short.
pub fn choose(
    pool: &Pool,
    keys: Keys<'_>,
    indexer: &Indexer,
    segments: &[Segment],
    q: &[f32],
    weights: &[f32],
    chosen: &mut Chosen,
) {
    choose_on(Isa::chosen(), pool, keys, indexer, segments, (q, weights), chosen);
}

pub(super) fn choose_on(
    isa: Isa,
    pool: &Pool,
    keys: Keys<'_>,
    indexer: &Indexer,
    segments: &[Segment],
    (q, weights): (&[f32], &[f32]),
    chosen: &mut Chosen,
) {
    let rows: usize = segments.iter().map(|segment| segment.rows).sum();
    let Indexer { heads, dim, .. } = *indexer;
    assert_eq!(keys.dim(), dim, "a cache of other keys");
    assert_eq!(q.len(), rows * heads * dim, "queries must be [{rows}, heads, dim]");
    assert_eq!(chosen.groups(), indexer.groups(), "room for other choices");
    if indexer.adds_heads() {
        assert_eq!(weights.len(), rows * heads, "weights must be [{rows}, heads]");
    }
    let of_rows = segments.iter().filter(|segment| segment.rows > 0);
    let last = of_rows.map(|segment| segment.first_pos + segment.rows - 1).max().unwrap_or(0);
    let pages = keys.seen(last).div_ceil(PAGE_POSITIONS);
    let chosen_pages = match indexer.choice {
        Choice::Pools { .. } => last / PAGE_POSITIONS + 1,
        _ => pages,
    };
    chosen.reset(rows, chosen_pages, indexer.adds_heads());
    let all = segments.iter().flat_map(|segment| {
        let positions = segment.first_pos..segment.first_pos + segment.rows;
        positions.map(move |position| (&*segment.table, position))
    });
    let rows = all.enumerate().map(|(row, (table, position))| {
        let seen = keys.seen(position);
        Row { row, table, position, seen }
    });
    let due: Vec<Row> = rows.filter(|row| !indexer.sees_all(row.seen)).collect();
    let of_row = indexer.groups() * pages * PAGE_POSITIONS;
    for rows in due.chunks((SCORES_MAX / of_row.max(1)).max(1)) {
        let batch = Batch { isa, keys, indexer, rows, pages, chosen_pages, q, weights };
        batch.run(pool, chosen);
    }
}

/// A row that does not attend to all earlier positions.
struct Row<'a> {
    /// In the batch.
    row: usize,
    table: &'a [u32],
    position: usize,
    /// The number of positions, or entries, to choose from.
    seen: usize,
}

struct Batch<'a> {
    isa: Isa,
    keys: Keys<'a>,
    indexer: &'a Indexer,
    rows: &'a [Row<'a>],
    /// Pages of scores, and of the choice.
    pages: usize,
    chosen_pages: usize,
    q: &'a [f32],
    weights: &'a [f32],
}

/// A thread's buffers.
#[derive(Default)]
struct Buffers {
    ints: Vec<i16>,
    scales: Vec<f32>,
    weights: Vec<f32>,
    found: Vec<f32>,
    /// One entry, and a page of them, `[dim, 64]`.
    key: Vec<f32>,
    keys: Vec<f32>,
    order: Vec<u32>,
    blocks: Vec<f32>,
}

thread_local! {
    static BUFFERS: RefCell<Buffers> = RefCell::default();
    static SCORES: RefCell<Vec<f32>> = const { RefCell::new(Vec::new()) };
}

impl Batch<'_> {
    fn run(&self, pool: &Pool, chosen: &mut Chosen) {
        let groups = self.indexer.groups();
        let of_row = groups * self.pages * PAGE_POSITIONS;
        let tasks = self.pages.div_ceil(PAGES_A_TASK);
        SCORES.with_borrow_mut(|scores| {
            scores.resize(self.rows.len() * of_row, 0.0);
            let shared = SharedMut::new(scores.as_mut_ptr());
            pool.run(self.rows.len() * tasks, |task| {
                let (at, first) = (task / tasks, task % tasks * PAGES_A_TASK);
                let row = &self.rows[at];
                let end = row.seen.div_ceil(PAGE_POSITIONS).min(first + PAGES_A_TASK);
                if first < end {
                    self.score(row, first..end, |group, page, scores| {
                        let at = at * of_row + (group * self.pages + page) * PAGE_POSITIONS;
                        // SAFETY: each task writes its own pages of its own row.
                        let to = unsafe { shared.ptr().add(at) };
                        // SAFETY: this many elements belong to the page.
                        unsafe { to.copy_from_nonoverlapping(scores.as_ptr(), PAGE_POSITIONS) };
                    });
                }
            });
            let scores = &*scores;
            let (words, flags) = chosen.parts();
            let words = SharedMut::new(words.as_mut_ptr());
            let [full, lost] = flags.map(|flags| SharedMut::new(flags.as_mut_ptr()));
            pool.run(self.rows.len() * groups, |task| {
                let (at, group) = (task / groups, task % groups);
                let Row { row, seen, position, .. } = self.rows[at];
                let of_group = &scores[at * of_row + group * self.pages * PAGE_POSITIONS..][..seen];
                let is_lost = of_group.iter().fold(false, |lost, score| lost | !score.is_finite());
                // SAFETY: each task has its own words, and all writes to a row's flag store the
                // same value.
                let words = unsafe {
                    *full.ptr().add(row) = false;
                    if is_lost {
                        *lost.ptr().add(row) = true;
                    }
                    let first = (row * groups + group) * self.chosen_pages;
                    std::slice::from_raw_parts_mut(words.ptr().add(first), self.chosen_pages)
                };
                BUFFERS.with_borrow_mut(|buffers| self.pick(of_group, position, words, buffers));
            });
        });
    }

    /// Computes the scores of some pages of a row; `put` receives a group's scores of a page.
    fn score(&self, row: &Row<'_>, pages: Range<usize>, put: impl Fn(usize, usize, &[f32])) {
        let Indexer { heads, dim, choice } = *self.indexer;
        let q = &self.q[row.row * heads * dim..][..heads * dim];
        let queries: Vec<Query<'_>> =
            q.chunks_exact(dim).map(|q| Query { q, ..Query::NONE }).collect();
        BUFFERS.with_borrow_mut(|buffers| {
            let Buffers { ints, scales, weights, found, key, keys, .. } = buffers;
            let is_int = match self.keys {
                Keys::Positions(cache) => cache.kind() == CacheKind::I16,
                Keys::Entries(_) => false,
            };
            scales.clear();
            if is_int {
                self.round(q, ints, scales);
            } else {
                let is_finite = |q: &[f32]| q.iter().all(|q| q.is_finite());
                let scale = |q| if is_finite(q) { 1.0 } else { f32::NAN };
                scales.extend(q.chunks_exact(dim).map(scale));
            }
            weights.clear();
            match choice {
                Choice::Positions { .. } | Choice::Pools { .. } => {
                    let own = &self.weights[row.row * heads..][..heads];
                    weights.extend(own.iter().zip(&*scales).map(|(weight, scale)| weight * scale));
                }
                Choice::Blocks { .. } => weights.extend_from_slice(scales),
            }
            let sum = self.indexer.adds_heads();
            let mut states = States::default();
            for page in pages {
                let queries = &queries;
                let start = page * PAGE_POSITIONS;
                let of_page = Page { start, queries, v_stride: 0, scale: 1.0, soft_cap: None };
                found.clear();
                found.resize(self.indexer.groups() * PAGE_POSITIONS, 0.0);
                let (isa, fetch) = (self.isa, Fetch::thirds(&[]));
                let (page_of, states, out) = (&of_page, &mut states, &mut found[..]);
                let head = match self.keys {
                    Keys::Positions(cache) => cache.head(row.table[page], 0),
                    Keys::Entries(entries) => {
                        let seen = start..row.seen.min(start + PAGE_POSITIONS);
                        gather(entries, row.table, seen, key, keys);
                        Head::F32(keys, &[])
                    }
                };
                match head {
                    Head::F32(keys, values) => {
                        let (page, scales) = (page_of, &[][..]);
                        let dots = AddPage::<f32, false> {
                            isa,
                            page,
                            scales,
                            keys,
                            values,
                            fetch,
                            states,
                        };
                        run(isa, Score { dots, weights, sum, out });
                    }
                    Head::I16(head) => {
                        let queries = IntQueries { ints, scales };
                        let dots = AddInts { isa, page: page_of, queries, head, fetch, states };
                        run(isa, Score { dots, weights, sum, out });
                    }
                    Head::F16(..) | Head::Q8(_) => unreachable!("an indexer's keys are f32 or i16"),
                }
                for (group, scores) in found.chunks_exact(PAGE_POSITIONS).enumerate() {
                    put(group, page, scores);
                }
            }
        });
    }

    /// The row's queries as integers.
    fn round(&self, q: &[f32], ints: &mut Vec<i16>, scales: &mut Vec<f32>) {
        let Indexer { heads, dim, .. } = *self.indexer;
        let pairs = pairs(dim);
        ints.clear();
        ints.resize(heads * pairs * 2, 0);
        for (q, ints) in q.chunks_exact(dim).zip(ints.chunks_exact_mut(pairs * 2)) {
            let to = Places::run(ints.as_mut_ptr());
            scales.push(run(self.isa, Round { x: q, limits: Limits::KEY, to }));
        }
    }

    /// Sets the bits of the visible positions of a row at `position`, from these scores.
    fn pick(&self, scores: &[f32], position: usize, words: &mut [u64], buffers: &mut Buffers) {
        let Buffers { order, blocks, .. } = buffers;
        match self.indexer.choice {
            Choice::Positions { count } => {
                best(scores, count, order);
                for &position in &order[..count] {
                    words[position as usize / PAGE_POSITIONS] |=
                        1 << (position as usize % PAGE_POSITIONS);
                }
            }
            Choice::Pools { size, count } => {
                best(scores, count, order);
                for &entry in &order[..count] {
                    set(words, entry as usize * size..(entry as usize + 1) * size);
                }
                set(words, scores.len() * size..position + 1);
            }
            Choice::Blocks { size, count, local } => {
                let best_of =
                    |block: &[f32]| block.iter().copied().fold(f32::NEG_INFINITY, f32::max);
                blocks.clear();
                blocks.extend(scores.chunks(size).map(best_of));
                let own = blocks.len() - local.min(count).min(blocks.len());
                blocks[own..].fill(f32::INFINITY);
                best(blocks, count, order);
                for &block in &order[..count] {
                    let first = block as usize * size;
                    set(words, first..(first + size).min(scores.len()));
                }
            }
        }
    }
}

/// Gathers these entries in the layout of a page's keys.
fn gather(
    entries: &EntryCache,
    table: &[u32],
    seen: Range<usize>,
    key: &mut Vec<f32>,
    keys: &mut Vec<f32>,
) {
    key.resize(entries.shape().dim, 0.0);
    keys.resize(entries.shape().dim * PAGE_POSITIONS, 0.0);
    for (slot, entry) in seen.enumerate() {
        entries.read(table, entry, key);
        for (d, number) in key.iter().enumerate() {
            keys[d * PAGE_POSITIONS + slot] = *number;
        }
    }
}

/// Scores of a page's positions.
struct Score<'a, D> {
    dots: D,
    /// The factor of each head's products.
    weights: &'a [f32],
    /// Whether heads are added up, with products above zero only.
    sum: bool,
    /// `[groups, 64]`.
    out: &'a mut [f32],
}

impl<D: Dots> Kernel for Score<'_, D> {
    type Out = ();
    const INT_DOTS: bool = true;

    #[inline(always)]
    fn run<S: Simd>(mut self, s: S) {
        let queries = self.dots.queries();
        assert!(self.weights.len() >= queries);
        assert!(self.out.len() >= if self.sum { PAGE_POSITIONS } else { queries * PAGE_POSITIONS });
        self.add_all(s, queries);
    }
}

impl<D: Dots> Tiles for Score<'_, D> {
    #[inline(always)]
    fn add<S: Simd, const R: usize, const P: usize, const V: usize>(&mut self, s: S, first: usize) {
        let mut dots = Weights([[0.0; PAGE_POSITIONS]; R]);
        for block in (0..POS_VECTORS).step_by(P) {
            self.dots.dots_of::<S, R, P>(s, first, block, &mut dots.0);
        }
        for r in 0..R {
            let weight = s.splat(self.weights[first + r]);
            let own = if self.sum { 0 } else { (first + r) * PAGE_POSITIONS };
            for v in 0..POS_VECTORS {
                // SAFETY: four vectors in an array of 64, and in the same number of `out`, as was
                // checked.
                unsafe {
                    let dot = s.load(dots.0[r].as_ptr().add(v * LANES));
                    let out = self.out.as_mut_ptr().add(own + v * LANES);
                    let score = match self.sum {
                        true => s.fma(s.max(s.splat(0.0), dot), weight, s.load(out)),
                        false => s.mul(dot, weight),
                    };
                    s.store(out, score);
                }
            }
        }
    }
}

/// Moves the indices of the `count` largest elements to the front of `order`; of equal ones, the
/// first. NaN counts as the smallest.
fn best(numbers: &[f32], count: usize, order: &mut Vec<u32>) {
    order.clear();
    order.extend(0..numbers.len() as u32);
    let key = |at: u32| {
        let number = numbers[at as usize];
        if number.is_nan() { f32::NEG_INFINITY } else { number }
    };
    order.select_nth_unstable_by(count - 1, |a, b| {
        key(*b).partial_cmp(&key(*a)).expect("none is not a number").then(a.cmp(b))
    });
}

/// Sets the bits of these positions.
fn set(words: &mut [u64], positions: Range<usize>) {
    for position in positions {
        words[position / PAGE_POSITIONS] |= 1 << (position % PAGE_POSITIONS);
    }
}

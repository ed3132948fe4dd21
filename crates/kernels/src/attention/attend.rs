//! Distributes attention over tasks: batches, causal masks, head groups and spans.

use super::cache::{CacheKind, Head, KvCache};
use super::chosen::Chosen;
use super::gather::Gather;
use super::int_tile::{AddInts, IntQueries};
use super::ints::{Limits, Places, Round, pairs};
use super::page::{Fetch, PAGE_POSITIONS, Page, Query, SPAN_POSITIONS, States};
use super::positions::{ChosenPositions, Positions};
use super::quants::Quants;
use super::range::Segment;
use super::rotation::Rotate;
use super::shape::{AttendShape, Group};
use super::softmax::{Finish, Merge};
use super::tile::{AddPage, Convert, Element};
use crate::isa::{Isa, run};
use crate::pool::Pool;
use crate::shared::SharedMut;
use std::cell::RefCell;
use std::ops::Range;

/// The target number of query vectors of one task: enough that converting a page to f32 once for
/// all of them costs little.
const QUERIES_A_TASK: usize = 96;

/// From this many query vectors on, a page is converted to f32 first.
const QUERIES_CONVERTED: usize = 12;

/// With fewer tasks for each thread, spans become separate tasks.
const TASKS_A_THREAD: usize = 4;

/// Attention of a batch: each row attends to its own sequence, up to its own position or, if its
/// segment sees later ones, to [`Segment::sees_to`]. Keys and values must already be in the cache.
///
/// `segments` follow one another in the batch; `chosen`: the visible positions of each row, if not
/// all; `q`: `[rows, heads, k_dim]` f32; `out`: `[rows, heads, v_dim]` f32.
///
/// # Panics
/// If the shapes do not match, or a table is too short or contains a nonexistent page.
pub fn attend(
    pool: &Pool,
    cache: &KvCache,
    shape: &AttendShape,
    segments: &[Segment],
    chosen: Option<&Chosen>,
    q: &[f32],
    out: &mut [f32],
) {
    attend_on(Isa::chosen(), pool, cache, shape, (segments, chosen), q, out);
}

pub(super) fn attend_on(
    isa: Isa,
    pool: &Pool,
    cache: &KvCache,
    shape: &AttendShape,
    (segments, chosen): (&[Segment], Option<&Chosen>),
    q: &[f32],
    out: &mut [f32],
) {
    attend_seen(isa, pool, cache, shape, (segments, chosen), q, out);
    if let Some(chosen) = chosen {
        chosen.taint(out);
    }
}

fn attend_seen(
    isa: Isa,
    pool: &Pool,
    cache: &KvCache,
    shape: &AttendShape,
    (segments, chosen): (&[Segment], Option<&Chosen>),
    q: &[f32],
    out: &mut [f32],
) {
    let rows: usize = segments.iter().map(|segment| segment.rows).sum();
    assert_eq!((cache.k_dim(), cache.v_dim()), (shape.k_dim, shape.v_dim), "cache of other heads");
    assert!(shape.groups.iter().all(|group| group.kv_head < cache.kv_heads()), "no such KV head");
    assert_eq!(q.len(), rows * shape.heads * shape.k_dim, "queries must be [{rows}, heads, dim]");
    assert_eq!(out.len(), rows * shape.heads * shape.v_dim, "output must be [{rows}, heads, dim]");
    for segment in segments.iter().filter(|segment| segment.rows > 0) {
        let end = segment.first_pos + segment.rows;
        let pages = end.max(segment.sees_to.unwrap_or(0)).div_ceil(PAGE_POSITIONS);
        assert!(pages <= segment.table.len(), "a table of {} pages", segment.table.len());
    }
    assert!(chosen.is_none_or(|chosen| chosen.rows() == rows), "choices of other rows");
    let out = SharedMut::new(out.as_mut_ptr());
    if let Some(chosen) = chosen.filter(|chosen| chosen.is_scattered()) {
        let tables = segments.iter().flat_map(|s| std::iter::repeat_n(&*s.table, s.rows)).collect();
        let mut first_row = 0;
        let gathered = segments.iter().flat_map(|segment| {
            let rows = first_row..first_row + segment.rows;
            first_row = rows.end;
            rows.start + chosen.full_rows(rows.clone())..rows.end
        });
        let rows = gathered.collect();
        let positions = Positions::new(isa, cache, shape);
        let seen = ChosenPositions { positions, chosen, tables };
        Gather { isa, seen, shape, rows, q, out }.run(pool);
    }
    let batch = Batch { isa, cache, shape, segments, chosen, q, out };
    let tiles = batch.tiles();
    if tiles == 0 {
        return;
    }
    if tiles >= TASKS_A_THREAD * pool.threads() {
        pool.run(tiles, |index| batch.whole(&batch.tile(index)));
    } else {
        batch.by_spans(pool, tiles);
    }
}

/// The shared data of one call's tasks.
struct Batch<'a> {
    isa: Isa,
    cache: &'a KvCache,
    shape: &'a AttendShape,
    segments: &'a [Segment],
    chosen: Option<&'a Chosen>,
    q: &'a [f32],
    out: SharedMut<f32>,
}

/// Some rows of one segment, for one group of heads.
struct Tile<'a> {
    segment: &'a Segment,
    first_pos: usize,
    /// The positions visible to any of its rows.
    visible: Range<usize>,
    /// Rows of the batch.
    rows: Range<usize>,
    group: &'a Group,
}

/// A thread's buffers, reused between calls so that a token allocates nothing.
#[derive(Default)]
struct Buffers {
    span: States,
    total: States,
    /// The queries as integers, with room for those of a tile.
    ints: Vec<i16>,
    int_scales: Vec<f32>,
    /// The queries of a tile, rotated like the keys.
    rotated: Vec<f32>,
    scales: Vec<f32>,
    keys: Vec<f32>,
    values: Vec<f32>,
}

thread_local! {
    static BUFFERS: RefCell<Buffers> = RefCell::default();
    static PARTIALS: RefCell<Vec<f32>> = const { RefCell::new(Vec::new()) };
}

impl Tile<'_> {
    fn queries(&self) -> usize {
        self.rows.len() * self.group.heads.len()
    }

    /// The page of the last visible position.
    fn last_page(&self) -> usize {
        (self.visible.end - 1) / PAGE_POSITIONS
    }

    /// The spans visible from any of the tile's rows.
    fn spans(&self) -> Range<usize> {
        self.visible.start / SPAN_POSITIONS..self.visible.end.div_ceil(SPAN_POSITIONS)
    }
}

impl<'a> Batch<'a> {
    fn rows_a_tile(&self) -> usize {
        let widest = self.shape.groups.iter().map(|group| group.heads.len()).max().unwrap_or(1);
        (QUERIES_A_TASK / widest).max(1)
    }

    fn tiles(&self) -> usize {
        let (rows, mut first_row) = (self.rows_a_tile(), 0);
        let of_segment = |segment: &Segment| {
            let due = self.due(segment, first_row);
            first_row += segment.rows;
            due.div_ceil(rows)
        };
        self.segments.iter().map(of_segment).sum::<usize>() * self.shape.groups.len()
    }

    /// The number of a segment's rows, from its first on, that are computed here and not by
    /// gathering.
    fn due(&self, segment: &Segment, first_row: usize) -> usize {
        match self.chosen.filter(|chosen| chosen.is_scattered()) {
            Some(chosen) => chosen.full_rows(first_row..first_row + segment.rows),
            None => segment.rows,
        }
    }

    /// Tile `index`: the groups of one run of rows are consecutive.
    fn tile(&self, index: usize) -> Tile<'a> {
        let rows_a_tile = self.rows_a_tile();
        let groups = &self.shape.groups;
        let (mut run, group) = (index / groups.len(), &groups[index % groups.len()]);
        let mut first_row = 0;
        for segment in self.segments {
            let due = self.due(segment, first_row);
            let runs = due.div_ceil(rows_a_tile);
            if run < runs {
                let start = run * rows_a_tile;
                let end = due.min(start + rows_a_tile);
                let visible = |row| self.shape.range.visible(segment, segment.first_pos + row);
                return Tile {
                    segment,
                    first_pos: segment.first_pos + start,
                    visible: visible(start).start..visible(end - 1).end,
                    rows: first_row + start..first_row + end,
                    group,
                };
            }
            run -= runs;
            first_row += segment.rows;
        }
        unreachable!("tile {index} of {}", self.tiles())
    }

    /// Computes one tile on one thread.
    fn whole(&self, tile: &Tile) {
        BUFFERS.with_borrow_mut(|buffers| {
            let v_stride = self.cache.v_stride();
            let mut total = std::mem::take(&mut buffers.total);
            total.reset(tile.queries(), v_stride);
            self.round_queries(tile, buffers);
            for span in tile.spans() {
                self.add_span(tile, span, buffers);
                let States { max, sum, acc } = &buffers.span;
                run(self.isa, Merge { total: &mut total, max, sum, acc, v_stride });
            }
            self.finish(tile, &total);
            buffers.total = total;
        });
    }

    /// For few tiles: every span is a task, and a second job merges them.
    fn by_spans(&self, pool: &Pool, tiles: usize) {
        let v_stride = self.cache.v_stride();
        let spans = |tile: usize| self.tile(tile).spans();
        let spans_max = (0..tiles).map(|tile| spans(tile).len()).max().unwrap_or(0);
        let queries_max = (0..tiles).map(|tile| self.tile(tile).queries()).max().unwrap_or(0);
        let partial_len = queries_max * (2 + v_stride);
        PARTIALS.with_borrow_mut(|partials| {
            partials.resize(tiles * spans_max * partial_len, 0.0);
            let shared = SharedMut::new(partials.as_mut_ptr());
            pool.run(tiles * spans_max, |task| {
                let (tile, span) = (self.tile(task / spans_max), task % spans_max);
                let spans = tile.spans();
                if span >= spans.len() {
                    return;
                }
                // SAFETY: each task has its own `partial_len` elements of the buffer.
                let partial = unsafe {
                    let start = shared.ptr().add(task * partial_len);
                    std::slice::from_raw_parts_mut(start, partial_len)
                };
                let queries = tile.queries();
                BUFFERS.with_borrow_mut(|buffers| {
                    self.round_queries(&tile, buffers);
                    self.add_span(&tile, spans.start + span, buffers);
                    partial[..queries].copy_from_slice(&buffers.span.max);
                    partial[queries..2 * queries].copy_from_slice(&buffers.span.sum);
                    partial[2 * queries..][..queries * v_stride].copy_from_slice(&buffers.span.acc);
                });
            });
            let partials = &*partials;
            pool.run(tiles, |index| {
                let tile = self.tile(index);
                let queries = tile.queries();
                BUFFERS.with_borrow_mut(|buffers| {
                    buffers.total.reset(queries, v_stride);
                    for span in 0..tile.spans().len() {
                        let partial = &partials[(index * spans_max + span) * partial_len..];
                        let (max, rest) = partial.split_at(queries);
                        let (sum, rest) = rest.split_at(queries);
                        let acc = &rest[..queries * v_stride];
                        let total = &mut buffers.total;
                        run(self.isa, Merge { total, max, sum, acc, v_stride });
                    }
                    self.finish(&tile, &buffers.total);
                });
            });
        });
    }

    /// Computes one span of a tile into `buffers.span`.
    fn add_span(&self, tile: &Tile, span: usize, buffers: &mut Buffers) {
        let v_stride = self.cache.v_stride();
        let (mut rotated, mut queries) =
            (std::mem::take(&mut buffers.rotated), [Query::NONE; QUERIES_A_TASK]);
        let queries = self.rotated_queries(tile, &mut queries, &mut rotated);
        buffers.span.reset(queries.len(), v_stride);
        let start = tile.visible.start.max(span * SPAN_POSITIONS) / PAGE_POSITIONS;
        let end = tile.visible.end.min((span + 1) * SPAN_POSITIONS);
        let last = end.div_ceil(PAGE_POSITIONS) - 1;
        let (scale, soft_cap) = (self.shape.scale, self.shape.soft_cap);
        for page in (start..=last).filter(|page| !queries.iter().all(|query| query.skips(*page))) {
            let head = self.cache.head(tile.segment.table[page], tile.group.kv_head);
            let next = tile.segment.table[(page + 1).min(tile.last_page())];
            let next = self.cache.bytes(next, tile.group.kv_head);
            let start = page * PAGE_POSITIONS;
            self.add_page(&Page { start, queries, v_stride, scale, soft_cap }, head, next, buffers);
        }
        buffers.rotated = rotated;
    }

    /// Adds a page to `buffers.span`, and prefetches the first of the bytes `next`.
    fn add_page(&self, page: &Page, head: Head, next: &[u8], buffers: &mut Buffers) {
        let Buffers {
            span: states,
            ints,
            int_scales,
            scales: for_scales,
            keys: for_keys,
            values: for_values,
            ..
        } = buffers;
        let isa = self.isa;
        let few = page.queries.len() < QUERIES_CONVERTED;
        match head {
            Head::F16(keys, values) if few => {
                let fetch = Fetch::thirds(next);
                run(
                    isa,
                    AddPage::<_, false> { isa, page, scales: &[], keys, values, fetch, states },
                );
            }
            Head::F32(keys, values) => {
                let fetch = Fetch::thirds(next);
                run(
                    isa,
                    AddPage::<_, false> { isa, page, scales: &[], keys, values, fetch, states },
                );
            }
            Head::F16(keys, values) => {
                let keys = self.converted(keys, for_keys);
                let values = self.converted(values, for_values);
                let fetch = Fetch::thirds(&[]);
                run(
                    isa,
                    AddPage::<_, false> { isa, page, scales: &[], keys, values, fetch, states },
                );
            }
            Head::I16(head) => {
                let queries = IntQueries { ints, scales: int_scales };
                let fetch = Fetch::thirds(next);
                run(isa, AddInts { isa, page, queries, head, fetch, states });
            }
            Head::Q8(Quants { scales, keys, values }) if few => {
                let scales = self.converted(scales, for_scales);
                let fetch = Fetch::thirds(next);
                run(isa, AddPage::<_, true> { isa, page, scales, keys, values, fetch, states });
            }
            Head::Q8(Quants { scales, keys, values }) => {
                let scales = self.converted(scales, for_scales);
                let keys = self.converted(keys, for_keys);
                let values = self.converted(values, for_values);
                let fetch = Fetch::thirds(&[]);
                run(isa, AddPage::<_, true> { isa, page, scales, keys, values, fetch, states });
            }
        }
    }

    /// Rounds the tile's queries to integers if the cache has integers.
    fn round_queries(&self, tile: &Tile, buffers: &mut Buffers) {
        if self.cache.kind() != CacheKind::I16 {
            return;
        }
        let mut queries = [Query::NONE; QUERIES_A_TASK];
        let queries = self.queries(tile, &mut queries);
        let pairs = pairs(self.shape.k_dim);
        let Buffers { ints, int_scales: scales, .. } = buffers;
        ints.clear();
        ints.resize(queries.len() * pairs * 2, 0);
        scales.clear();
        for (query, ints) in queries.iter().zip(ints.chunks_exact_mut(pairs * 2)) {
            let to = Places::run(ints.as_mut_ptr());
            let scale = run(self.isa, Round { x: query.q, limits: Limits::KEY, to });
            scales.push(scale * self.shape.scale);
        }
    }

    /// `from` converted to f32, in a buffer.
    fn converted<'b, E: Element>(&self, from: &[E], buffer: &'b mut Vec<f32>) -> &'b [f32] {
        buffer.resize(from.len(), 0.0);
        run(self.isa, Convert { from, to: buffer });
        buffer
    }

    /// The tile's query vectors, row by row, with their visible positions.
    fn queries<'s, 'q>(
        &self,
        tile: &Tile,
        queries: &'s mut [Query<'q>; QUERIES_A_TASK],
    ) -> &'s mut [Query<'q>]
    where
        'a: 'q,
    {
        let shape = self.shape;
        let heads = &tile.group.heads;
        for (index, query) in queries.iter_mut().take(tile.queries()).enumerate() {
            let (row, head) = (index / heads.len(), heads.start + index % heads.len());
            let pos = tile.first_pos + row;
            let at = ((tile.rows.start + row) * shape.heads + head) * shape.k_dim;
            let visible = shape.range.visible(tile.segment, pos);
            *query = Query {
                q: &self.q[at..at + shape.k_dim],
                first_pos: visible.start,
                end_pos: visible.end,
                seen: self.seen(tile.rows.start + row, tile.group),
            };
        }
        &mut queries[..tile.queries()]
    }

    /// The visible positions of a row's group, if not all.
    fn seen(&self, row: usize, group: &Group) -> Option<&'a [u64]> {
        let chosen = self.chosen.filter(|chosen| !chosen.is_scattered())?;
        chosen.of(row, group.kv_head)
    }

    /// The query vectors, rotated in `rotated` if the cache's keys are rotated.
    fn rotated_queries<'s, 'q>(
        &self,
        tile: &Tile,
        queries: &'s mut [Query<'q>; QUERIES_A_TASK],
        rotated: &'q mut Vec<f32>,
    ) -> &'s [Query<'q>]
    where
        'a: 'q,
    {
        let queries = self.queries(tile, queries);
        if self.cache.kind() != CacheKind::Q8_0 {
            return queries;
        }
        rotated.clear();
        queries.iter().for_each(|query| rotated.extend_from_slice(query.q));
        let k_dim = self.shape.k_dim;
        rotated.chunks_exact_mut(k_dim).for_each(|query| run(self.isa, Rotate(query)));
        let rotated = rotated.chunks_exact(k_dim);
        queries.iter_mut().zip(rotated).for_each(|(query, rotated)| query.q = rotated);
        queries
    }

    fn finish(&self, tile: &Tile, total: &States) {
        let v_stride = self.cache.v_stride();
        let heads = &tile.group.heads;
        for index in 0..tile.queries() {
            let (row, head) = (index / heads.len(), heads.start + index % heads.len());
            let at = ((tile.rows.start + row) * self.shape.heads + head) * self.shape.v_dim;
            // SAFETY: `attend_on` checked the output's size, and no two tiles share an output.
            let out =
                unsafe { std::slice::from_raw_parts_mut(self.out.ptr().add(at), self.shape.v_dim) };
            let sink = self.shape.sinks.as_ref().map(|sinks| sinks[head]);
            let acc = &total.acc[index * v_stride..];
            let (max, sum) = (total.max[index], total.sum[index]);
            let from = ((tile.rows.start + row) * self.shape.heads + head) * self.shape.k_dim;
            let q = &self.q[from..from + self.shape.k_dim];
            run(self.isa, Finish { q, max, sum, acc, sink, out: &mut *out });
            if self.cache.kind() == CacheKind::Q8_0 {
                run(self.isa, Rotate(out));
            }
        }
    }
}

//! Attention of rows that see few of many positions: their keys and values are gathered into f32
//! pages first, because a page of the cache would contain sixty invisible positions for each
//! visible one.
//!
//! Rows with full attention use the other path, and so do layers that choose whole blocks. The
//! order of sums is the same, over the visible positions, in their order.

use std::cell::RefCell;

use super::page::{Fetch, PAGE_POSITIONS, Page, Query, SPAN_POSITIONS, States};
use super::shape::{AttendShape, Group};
use super::softmax::{Finish, Merge};
use super::tile::AddPage;
use crate::isa::{Isa, run};
use crate::pool::Pool;
use crate::shared::SharedMut;

/// With fewer rows for each thread, spans become separate tasks.
const ROWS_A_THREAD: usize = 4;

/// The most heads of one task.
const HEADS_A_TASK: usize = 128;

/// A source of keys and values of a row's visible positions.
pub(super) trait Seen: Sync {
    /// The visible positions of a row of the batch, each by an identifier, in the order of
    /// summation.
    fn of(&self, row: usize, found: &mut Vec<u32>);

    /// The key and the value of one of them, for a head of the cache.
    fn read(&self, row: usize, kv_head: usize, seen: u32, key: &mut [f32], value: &mut [f32]);

    /// Elements of a value, in whole vectors.
    fn v_stride(&self) -> usize;
}

/// Rows of a batch that see only some positions.
pub(super) struct Gather<'a, S> {
    pub isa: Isa,
    pub seen: S,
    pub shape: &'a AttendShape,
    /// Indices of rows in the batch.
    pub rows: Vec<usize>,
    pub q: &'a [f32],
    pub out: SharedMut<f32>,
}

/// A thread's buffers.
#[derive(Default)]
struct Buffers {
    /// `[k_dim, 64]` and `[64, v_stride]`.
    keys: Vec<f32>,
    values: Vec<f32>,
    key: Vec<f32>,
    span: States,
    total: States,
}

thread_local! {
    static BUFFERS: RefCell<Buffers> = RefCell::default();
    static PARTIALS: RefCell<Vec<f32>> = const { RefCell::new(Vec::new()) };
    static POSITIONS: RefCell<Vec<u32>> = const { RefCell::new(Vec::new()) };
}

impl<S: Seen> Gather<'_, S> {
    pub fn run(&self, pool: &Pool) {
        let groups: Vec<Group> = self.shape.groups(HEADS_A_TASK);
        let rows = &self.rows;
        if rows.len() * groups.len() >= ROWS_A_THREAD * pool.threads() {
            pool.run(rows.len() * groups.len(), |task| {
                self.whole(rows[task / groups.len()], &groups[task % groups.len()]);
            });
        } else {
            rows.iter().for_each(|row| {
                groups.iter().for_each(|group| self.by_spans(pool, *row, group));
            });
        }
    }

    fn whole(&self, row: usize, group: &Group) {
        POSITIONS.with_borrow_mut(|seen| {
            self.seen.of(row, seen);
            BUFFERS.with_borrow_mut(|buffers| {
                let v_stride = self.seen.v_stride();
                let mut total = std::mem::take(&mut buffers.total);
                total.reset(group.heads.len(), v_stride);
                for span in seen.chunks(SPAN_POSITIONS) {
                    self.add_span(row, group, span, buffers);
                    let States { max, sum, acc } = &buffers.span;
                    run(self.isa, Merge { total: &mut total, max, sum, acc, v_stride });
                }
                self.finish(row, group, &total);
                buffers.total = total;
            });
        });
    }

    /// Computes every span as a task, then merges them.
    fn by_spans(&self, pool: &Pool, row: usize, group: &Group) {
        let (v_stride, queries) = (self.seen.v_stride(), group.heads.len());
        let partial_len = queries * (2 + v_stride);
        POSITIONS.with_borrow_mut(|seen| {
            self.seen.of(row, seen);
            let seen = &*seen;
            let spans = seen.len().div_ceil(SPAN_POSITIONS);
            PARTIALS.with_borrow_mut(|partials| {
                partials.resize(spans * partial_len, 0.0);
                let shared = SharedMut::new(partials.as_mut_ptr());
                pool.run(spans, |span| {
                    let of_span = seen.chunks(SPAN_POSITIONS).nth(span).expect("one of the spans");
                    // SAFETY: each task has its own `partial_len` elements of the buffer.
                    let partial = unsafe {
                        let start = shared.ptr().add(span * partial_len);
                        std::slice::from_raw_parts_mut(start, partial_len)
                    };
                    BUFFERS.with_borrow_mut(|buffers| {
                        self.add_span(row, group, of_span, buffers);
                        let States { max, sum, acc } = &buffers.span;
                        partial[..queries].copy_from_slice(max);
                        partial[queries..2 * queries].copy_from_slice(sum);
                        partial[2 * queries..].copy_from_slice(acc);
                    });
                });
                BUFFERS.with_borrow_mut(|buffers| {
                    let mut total = std::mem::take(&mut buffers.total);
                    total.reset(queries, v_stride);
                    for partial in partials.chunks_exact(partial_len) {
                        let (max, rest) = partial.split_at(queries);
                        let (sum, acc) = rest.split_at(queries);
                        run(self.isa, Merge { total: &mut total, max, sum, acc, v_stride });
                    }
                    self.finish(row, group, &total);
                    buffers.total = total;
                });
            });
        });
    }

    /// Computes one span of positions into `buffers.span`.
    fn add_span(&self, row: usize, group: &Group, span: &[u32], buffers: &mut Buffers) {
        let (shape, v_stride) = (self.shape, self.seen.v_stride());
        let mut queries = [Query::NONE; HEADS_A_TASK];
        for (query, head) in queries.iter_mut().zip(group.heads.clone()) {
            let at = (row * shape.heads() + head) * shape.k_dim;
            let q = &self.q[at..at + shape.k_dim];
            *query = Query { q, end_pos: span.len(), ..Query::NONE };
        }
        let queries = &queries[..group.heads.len()];
        let Buffers { keys, values, key, span: states, .. } = buffers;
        states.reset(queries.len(), v_stride);
        keys.resize(shape.k_dim * PAGE_POSITIONS, 0.0);
        values.resize(PAGE_POSITIONS * v_stride, 0.0);
        key.resize(shape.k_dim, 0.0);
        for (page, seen) in span.chunks(PAGE_POSITIONS).enumerate() {
            for (slot, &position) in seen.iter().enumerate() {
                let value = &mut values[slot * v_stride..][..v_stride];
                self.seen.read(row, group.kv_head, position, key, value);
                for (d, number) in key.iter().enumerate() {
                    keys[d * PAGE_POSITIONS + slot] = *number;
                }
            }
            let (scale, soft_cap) = (shape.scale, shape.soft_cap);
            let start = page * PAGE_POSITIONS;
            let page = &Page { start, queries, v_stride, scale, soft_cap };
            let (isa, fetch) = (self.isa, Fetch::thirds(&[]));
            run(isa, AddPage::<f32, false> { isa, page, scales: &[], keys, values, fetch, states });
        }
    }

    fn finish(&self, row: usize, group: &Group, total: &States) {
        let (shape, v_stride) = (self.shape, self.seen.v_stride());
        for (index, head) in group.heads.clone().enumerate() {
            let at = (row * shape.heads() + head) * shape.v_dim;
            // SAFETY: the caller checked the output's size, and each row's head is written once.
            let out =
                unsafe { std::slice::from_raw_parts_mut(self.out.ptr().add(at), shape.v_dim) };
            let sink = shape.sinks.as_ref().map(|sinks| sinks[head]);
            let acc = &total.acc[index * v_stride..];
            let (max, sum) = (total.max[index], total.sum[index]);
            let from = (row * shape.heads() + head) * shape.k_dim;
            let q = &self.q[from..from + shape.k_dim];
            run(self.isa, Finish { q, max, sum, acc, sink, out });
        }
    }
}

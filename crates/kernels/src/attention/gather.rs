//! Attention of rows that see few positions of many, one by one: their keys and values are gathered
//! into pages of f32 first, as a page of the cache would bring sixty positions that nobody sees for
//! each that somebody does.
//!
//! Rows that see all positions take the other way, and so do layers that choose whole blocks. The
//! order of sums is the same, over the positions that are seen, in their order.

use std::cell::RefCell;

use super::attend::Segment;
use super::cache::{Head, KvCache};
use super::chosen::{Chosen, positions};
use super::ints::Ints;
use super::page::{Fetch, Page, Query, States};
use super::quants::{BLOCK, Quants, blocks};
use super::rotation::Rotate;
use super::shape::{AttendShape, Group};
use super::softmax::{Finish, Merge};
use super::tile::{AddPage, Convert};
use super::{PAGE_POSITIONS, SPAN_POSITIONS};
use crate::isa::{Isa, run};
use crate::pool::Pool;
use crate::shared::SharedMut;

/// If there are fewer rows than this for each thread, spans become tasks of their own.
const ROWS_A_THREAD: usize = 4;

/// Heads that one task covers at most.
const HEADS_A_TASK: usize = 128;

/// A row that sees some positions alone.
struct Row<'a> {
    /// In the batch.
    row: usize,
    table: &'a [u32],
}

/// The rows of one call.
pub(super) struct Gather<'a> {
    pub isa: Isa,
    pub cache: &'a KvCache,
    pub shape: &'a AttendShape,
    pub chosen: &'a Chosen,
    pub segments: &'a [Segment],
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

impl Gather<'_> {
    pub fn run(&self, pool: &Pool) {
        let groups: Vec<Group> = self.shape.groups(HEADS_A_TASK);
        let mut first_row = 0;
        let rows = self.segments.iter().flat_map(|segment| {
            let rows = first_row..first_row + segment.rows;
            first_row = rows.end;
            let gathered = rows.start + self.chosen.full_rows(rows.clone())..rows.end;
            gathered.map(|row| Row { row, table: &segment.table })
        });
        let rows: Vec<Row<'_>> = rows.collect();
        if rows.len() * groups.len() >= ROWS_A_THREAD * pool.threads() {
            pool.run(rows.len() * groups.len(), |task| {
                self.whole(&rows[task / groups.len()], &groups[task % groups.len()]);
            });
        } else {
            rows.iter().for_each(|row| {
                groups.iter().for_each(|group| self.by_spans(pool, row, group));
            });
        }
    }

    /// What a row sees.
    fn seen(&self, row: &Row<'_>, found: &mut Vec<u32>) {
        let words = self.chosen.of(row.row, 0);
        found.clear();
        found.extend(positions(words.expect("only such rows are gathered")));
    }

    fn whole(&self, row: &Row<'_>, group: &Group) {
        POSITIONS.with_borrow_mut(|seen| {
            self.seen(row, seen);
            BUFFERS.with_borrow_mut(|buffers| {
                let v_stride = self.cache.v_stride();
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

    /// Every span is a task; then they are merged.
    fn by_spans(&self, pool: &Pool, row: &Row<'_>, group: &Group) {
        let (v_stride, queries) = (self.cache.v_stride(), group.heads.len());
        let partial_len = queries * (2 + v_stride);
        POSITIONS.with_borrow_mut(|seen| {
            self.seen(row, seen);
            let seen = &*seen;
            let spans = seen.len().div_ceil(SPAN_POSITIONS);
            PARTIALS.with_borrow_mut(|partials| {
                partials.resize(spans * partial_len, 0.0);
                let shared = SharedMut::new(partials.as_mut_ptr());
                pool.run(spans, |span| {
                    let of_span = seen.chunks(SPAN_POSITIONS).nth(span).expect("one of the spans");
                    // SAFETY: each task has its own `partial_len` numbers of the buffer.
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
    fn add_span(&self, row: &Row<'_>, group: &Group, span: &[u32], buffers: &mut Buffers) {
        let (shape, v_stride) = (self.shape, self.cache.v_stride());
        let mut queries = [Query::NONE; HEADS_A_TASK];
        for (query, head) in queries.iter_mut().zip(group.heads.clone()) {
            let at = (row.row * shape.heads() + head) * shape.k_dim;
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
                let position = position as usize;
                let head = self.cache.head(row.table[position / PAGE_POSITIONS], group.kv_head);
                let value = &mut values[slot * v_stride..][..v_stride];
                self.read(&head, position % PAGE_POSITIONS, key, value);
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

    /// The key and the value of one position, not rotated. Where a value is the beginning of its
    /// key, it is read once: keys lie across the page.
    fn read(&self, head: &Head<'_>, slot: usize, key: &mut [f32], value: &mut [f32]) {
        let v_dim = self.shape.v_dim;
        let own = if self.shape.values_in_keys { v_dim } else { 0 };
        match head {
            Head::F32(keys, values) => {
                value.copy_from_slice(&values[slot * value.len()..][..value.len()]);
                across(&mut key[own..], &keys[own * PAGE_POSITIONS..], slot);
            }
            Head::F16(keys, values) => {
                let from = &values[slot * value.len()..][..value.len()];
                run(self.isa, Convert { from, to: value });
                for (d, number) in key.iter_mut().enumerate().skip(own) {
                    *number = half(keys[d * PAGE_POSITIONS + slot]);
                }
            }
            Head::I16(ints) => read_ints(ints, slot, own, key, value),
            Head::Q8(quants) => self.read_quants(quants, slot, own, key, value),
        }
        key[..own].copy_from_slice(&value[..own]);
    }

    fn read_quants(
        &self,
        quants: &Quants<'_>,
        slot: usize,
        own: usize,
        key: &mut [f32],
        value: &mut [f32],
    ) {
        let v_dim = self.shape.v_dim;
        let (key_scales, value_scales) = quants.scales.split_at(blocks(key.len()) * PAGE_POSITIONS);
        let scale = |scales: &[u16], d: usize| half(scales[d / BLOCK * PAGE_POSITIONS + slot]);
        for (d, number) in value.iter_mut().enumerate().take(v_dim) {
            let quant = quants.values[slot * self.cache.v_stride() + d];
            *number = f32::from(quant) * scale(value_scales, d);
        }
        run(self.isa, Rotate(&mut value[..v_dim]));
        // Keys are rotated in blocks; the rest of one is a whole number of them, or all is read.
        let rotated = 1 << key.len().trailing_zeros();
        let first = if own.is_multiple_of(rotated) { own } else { 0 };
        for (d, number) in key.iter_mut().enumerate().skip(first) {
            let quant = quants.keys[d * PAGE_POSITIONS + slot];
            *number = f32::from(quant) * scale(key_scales, d);
        }
        for block in key[first..].chunks_exact_mut(rotated) {
            run(self.isa, Rotate(block));
        }
    }

    fn finish(&self, row: &Row<'_>, group: &Group, total: &States) {
        let (shape, v_stride) = (self.shape, self.cache.v_stride());
        for (index, head) in group.heads.clone().enumerate() {
            let at = (row.row * shape.heads() + head) * shape.v_dim;
            // SAFETY: the caller checked the output's size, and each row's head is written once.
            let out =
                unsafe { std::slice::from_raw_parts_mut(self.out.ptr().add(at), shape.v_dim) };
            let sink = shape.sinks.as_ref().map(|sinks| sinks[head]);
            let acc = &total.acc[index * v_stride..];
            let (max, sum) = (total.max[index], total.sum[index]);
            run(self.isa, Finish { max, sum, acc, sink, out });
        }
    }
}

/// The numbers of one position that lie across a page.
fn across(to: &mut [f32], from: &[f32], slot: usize) {
    for (number, of_dim) in to.iter_mut().zip(from.chunks_exact(PAGE_POSITIONS)) {
        *number = of_dim[slot];
    }
}

fn read_ints(ints: &Ints<'_>, slot: usize, own: usize, key: &mut [f32], value: &mut [f32]) {
    let (key_scale, value_scale) = (ints.scales[slot], ints.scales[PAGE_POSITIONS + slot]);
    let of_pair = &ints.values[slot / 2 * 2 * value.len()..][..2 * value.len()];
    for (number, pair) in value.iter_mut().zip(of_pair.chunks_exact(2)) {
        *number = f32::from(pair[slot % 2]) * value_scale;
    }
    for (d, number) in key.iter_mut().enumerate().skip(own) {
        let int = ints.keys[d / 2 * 2 * PAGE_POSITIONS + 2 * slot + d % 2];
        *number = f32::from(int) * key_scale;
    }
}

/// A half-precision number as f32.
fn half(bits: u16) -> f32 {
    half::f16::from_bits(bits).to_f32()
}

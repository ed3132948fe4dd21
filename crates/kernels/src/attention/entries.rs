//! Blocks of positions that become one entry each (DeepSeek V4).
//!
//! An entry is a weighted sum of the keys of its block's positions, and, where blocks overlap, of
//! the block's before it: each number of it has weights of its own, a softmax over these positions.
//! Positions are added in their order. The sum is normalised, and its last numbers are rotated as
//! those of the block's first position.
//!
//! Entries lie in the page of their block's last position, `[entries, dim]`, so whoever shares a
//! page shares its entries.

use std::cell::RefCell;

use super::PAGE_POSITIONS;
use super::attend::Segment;
use super::cache::{CacheKind, Head, KvCache};
use super::ints::{Limits, Places, Round};
use crate::error::Error;
use crate::isa::{Isa, Kernel, run};
use crate::math::exp;
use crate::memory::Region;
use crate::norm::NormaliseInPlace;
use crate::pool::Pool;
use crate::rope::{RopeStyle, RopeTable};
use crate::shared::SharedMut;
use crate::simd::{LANES, Simd};

/// One layer's entries.
pub struct EntryCache {
    dim: usize,
    /// Positions of a block.
    positions: usize,
    pages: usize,
    /// `F32`, or `I16`: the scale of each entry, then its integers.
    kind: CacheKind,
    data: Region,
}

/// How a layer makes entries.
#[derive(Debug, Clone)]
pub struct Compression {
    /// Positions of a block: a divisor of a page's, or a multiple.
    pub positions: usize,
    /// An entry is made of the first half of the numbers of the block before its own too, and of
    /// the second half of its own.
    pub overlap: bool,
    /// Added to the logarithms of weights, by a position's place in its block: `[positions, dim]`,
    /// twice as wide where blocks overlap.
    pub by_place: Vec<f32>,
    /// The gain of the norm of an entry, `[dim]`.
    pub gain: Vec<f32>,
    pub eps: f32,
    pub rope: RopeTable,
    pub style: RopeStyle,
}

thread_local! {
    static BUFFERS: RefCell<[Vec<f32>; 3]> = RefCell::default();
}

impl EntryCache {
    /// Room for the entries of blocks of `positions` positions in `pages` pages.
    ///
    /// # Errors
    /// Memory is not to be had.
    ///
    /// # Panics
    /// If blocks do not fit pages, or entries are neither f32 nor integers of 16 bits.
    pub fn new(dim: usize, positions: usize, pages: usize, kind: CacheKind) -> Result<Self, Error> {
        let fits = |a: usize, b: usize| a > 0 && b.is_multiple_of(a);
        assert!(fits(positions, PAGE_POSITIONS) || fits(PAGE_POSITIONS, positions));
        assert!([CacheKind::F32, CacheKind::I16].contains(&kind), "entries of another kind");
        let bytes = Self::page_bytes(dim, positions, kind).checked_mul(pages);
        let bytes = bytes.ok_or(Error::Cache { heads: 1, k_dim: dim, v_dim: 0 })?;
        Ok(Self { dim, positions, pages, kind, data: Region::zeroed(bytes)? })
    }

    /// Bytes of one page of one layer.
    pub fn page_bytes(dim: usize, positions: usize, kind: CacheKind) -> usize {
        (PAGE_POSITIONS / positions).max(1) * Self::entry_bytes(dim, kind)
    }

    fn entry_bytes(dim: usize, kind: CacheKind) -> usize {
        let numbers = dim.next_multiple_of(2);
        match kind {
            CacheKind::F32 => size_of::<f32>() * numbers,
            _ => size_of::<f32>() + size_of::<i16>() * numbers,
        }
    }

    /// Numbers of an entry.
    pub fn dim(&self) -> usize {
        self.dim
    }

    /// How many entries a row at `position` can see: those of blocks that end there or before.
    pub fn visible(&self, position: usize) -> usize {
        (position + 1) / self.positions
    }

    /// Where entry `entry` of a sequence with this table begins.
    fn at(&self, table: &[u32], entry: usize) -> usize {
        let last = (entry + 1) * self.positions - 1;
        let (page, place) = (table[last / PAGE_POSITIONS] as usize, last % PAGE_POSITIONS);
        assert!(page < self.pages, "page {page} of {} pages of entries", self.pages);
        let first = page * Self::page_bytes(self.dim, self.positions, self.kind);
        let of_page = place / self.positions.min(PAGE_POSITIONS);
        first + of_page * Self::entry_bytes(self.dim, self.kind)
    }

    /// Entry `entry` of a sequence with this table, as f32.
    pub(super) fn read(&self, table: &[u32], entry: usize, out: &mut [f32]) {
        let at = self.at(table, entry);
        // SAFETY: `at` begins one of the entries that there is room for.
        let from = unsafe { self.data.as_ptr().add(at) };
        assert_eq!(out.len(), self.dim);
        // SAFETY: so many numbers follow, and any bits are one. Entries begin at multiples of four
        // bytes.
        unsafe {
            if self.kind == CacheKind::F32 {
                out.copy_from_slice(std::slice::from_raw_parts(from.cast(), self.dim));
                return;
            }
            let scale = *from.cast::<f32>();
            let ints = std::slice::from_raw_parts(from.add(4).cast::<i16>(), self.dim);
            for (out, int) in out.iter_mut().zip(ints) {
                *out = f32::from(*int) * scale;
            }
        }
    }

    /// Makes the entries of the blocks that a batch's rows end.
    ///
    /// `rows`: one head of keys, and by what they are weighed, as values, both f32 and cached
    /// already in the pages of `windows`. `segments`: the same rows, with the tables of entries.
    ///
    /// # Panics
    /// If the shapes do not fit, or a table is too short.
    pub fn compress(
        &mut self,
        pool: &Pool,
        compression: &Compression,
        rows: &KvCache,
        (windows, segments): (&[Segment], &[Segment]),
    ) {
        let parts = if compression.overlap { 2 } else { 1 };
        assert_eq!((rows.k_dim(), rows.v_dim()), (parts * self.dim, parts * self.dim));
        assert_eq!(compression.by_place.len(), parts * self.dim * self.positions);
        assert_eq!((compression.positions, compression.gain.len()), (self.positions, self.dim));
        let due = windows.iter().zip(segments).flat_map(|(window, segment)| {
            let (first, end) = (segment.first_pos, segment.first_pos + segment.rows);
            let entries = first / self.positions..end / self.positions;
            entries.map(|entry| (&*window.table, &*segment.table, entry))
        });
        let due: Vec<(&[u32], &[u32], usize)> = due.collect();
        let data = SharedMut::new(self.data.as_mut_ptr());
        let (this, isa) = (&*self, Isa::chosen());
        pool.run(due.len(), |task| {
            let (window, table, entry) = due[task];
            BUFFERS.with_borrow_mut(|buffers| {
                compression.entry(isa, rows, window, (entry, this.dim), buffers);
                // SAFETY: `at` begins one of the entries that there is room for. No other task has
                // it: a sequence has one segment, and no other writes to its last pages.
                unsafe { this.put(isa, data.ptr().add(this.at(table, entry)), &buffers[2]) };
            });
        });
    }

    /// # Safety
    /// `to` begins an entry that nobody else uses meanwhile.
    unsafe fn put(&self, isa: Isa, to: *mut u8, entry: &[f32]) {
        // SAFETY: as the caller promises, there is room for the numbers of an entry.
        unsafe {
            if self.kind == CacheKind::F32 {
                to.cast::<f32>().copy_from_nonoverlapping(entry.as_ptr(), self.dim);
                return;
            }
            let places = Places::run(to.add(size_of::<f32>()).cast());
            let x = &entry[..self.dim];
            *to.cast::<f32>() = run(isa, Round { x, limits: Limits::KEY, to: places });
        }
    }
}

impl Compression {
    /// Makes entry `entry`, of `dim` numbers, in the last of `buffers`.
    fn entry(
        &self,
        isa: Isa,
        rows: &KvCache,
        table: &[u32],
        (entry, dim): (usize, usize),
        buffers: &mut [Vec<f32>; 3],
    ) {
        let (stride, own) = (dim.next_multiple_of(LANES), entry * self.positions);
        let width = self.by_place.len() / self.positions;
        let before = if self.overlap && entry > 0 { self.positions } else { 0 };
        let count = before + self.positions;
        let [keys, weights, out] = buffers;
        for buffer in [&mut *keys, &mut *weights] {
            buffer.clear();
            buffer.resize(count * stride, 0.0);
        }
        let lines = keys.chunks_exact_mut(stride).zip(weights.chunks_exact_mut(stride));
        for (position, (key, weight)) in (own - before..).zip(lines) {
            let first = if self.overlap && position >= own { dim } else { 0 };
            let (key, weight) = (&mut key[..dim], &mut weight[..dim]);
            let head = rows.head(table[position / PAGE_POSITIONS], 0);
            let Head::F32(all_keys, all_weights) = head else { unreachable!("these are f32") };
            let slot = position % PAGE_POSITIONS;
            for (d, key) in key.iter_mut().enumerate() {
                *key = all_keys[(first + d) * PAGE_POSITIONS + slot];
            }
            weight.copy_from_slice(&all_weights[slot * rows.v_stride() + first..][..dim]);
            let by_place = &self.by_place[position % self.positions * width + first..];
            weight.iter_mut().zip(by_place).for_each(|(weight, more)| *weight += more);
        }
        out.clear();
        out.resize(stride, 0.0);
        run(isa, WeightedSum { keys, weights, out });
        out.truncate(dim);
        run(isa, NormaliseInPlace { x: out, gain: &self.gain, eps: self.eps });
        let first = dim - 2 * self.rope.inverse_frequencies().len();
        self.rope.rotate(&mut out[first..], own as u32, self.style);
    }
}

/// For each number, the sum of the `keys` of all positions, weighed by the softmax of `weights`:
/// both `[positions, out.len()]`, in whole vectors.
struct WeightedSum<'a> {
    keys: &'a [f32],
    weights: &'a [f32],
    out: &'a mut [f32],
}

impl Kernel for WeightedSum<'_> {
    type Out = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let stride = self.out.len();
        assert!(self.keys.len() == self.weights.len() && self.keys.len().is_multiple_of(stride));
        for (at, out) in self.out.chunks_exact_mut(LANES).enumerate() {
            let positions = (0..self.keys.len() / stride).map(|row| row * stride + at * LANES);
            let mut top = s.splat(f32::NEG_INFINITY);
            for first in positions.clone() {
                // SAFETY: a vector inside `[positions, stride]`, here and below.
                top = s.max(top, unsafe { s.load(self.weights.as_ptr().add(first)) });
            }
            let (mut sum, mut total) = (s.splat(0.0), s.splat(0.0));
            for first in positions {
                // SAFETY: as above.
                let (key, weight) = unsafe {
                    let weight = s.load(self.weights.as_ptr().add(first));
                    (s.load(self.keys.as_ptr().add(first)), exp(s, s.sub(weight, top)))
                };
                sum = s.fma(key, weight, sum);
                total = s.add(total, weight);
            }
            // SAFETY: one vector.
            unsafe { s.store(out.as_mut_ptr(), s.div(sum, total)) };
        }
    }
}

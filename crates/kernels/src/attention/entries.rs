//! Blocks of positions, each compressed to one entry (DeepSeek V4).
//!
//! An entry is a weighted sum of the keys of its block's positions and, if blocks overlap, of the
//! block before. Each element has its own weights, a softmax over these positions. Positions are
//! added in their order. The sum is normalised, and its last elements are rotated by the block's
//! first position.
//!
//! Entries are stored in the page of their block's last position, `[entries, dim]`, so sequences
//! that share a page share its entries.

use std::cell::RefCell;

use super::cache::CacheKind;
use super::ints::{Limits, Places, Round};
use super::page::PAGE_POSITIONS;
use super::range::Segment;
use crate::error::Error;
use crate::isa::{Isa, Kernel, run};
use crate::math::{exp, finite, tainted};
use crate::memory::Region;
use crate::norm::NormaliseInPlace;
use crate::pool::Pool;
use crate::rope::{RopeStyle, RopeTable};
use crate::shared::SharedMut;
use crate::simd::{LANES, Simd};

/// The shape of one layer's entries.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EntryShape {
    /// Elements of an entry.
    pub dim: usize,
    /// Positions of a block: a divisor of the page size, or a multiple of it.
    pub positions: usize,
    /// An entry also uses the first half of the elements of the previous block, and the second half
    /// of its own.
    pub overlap: bool,
    pub pages: usize,
    /// `F32` or `I16`.
    pub kind: CacheKind,
    /// Pages of the inputs of entries, and the number of last positions that such a page keeps: a
    /// divisor of the page size, enough to continue from any of them.
    pub row_pages: usize,
    pub row_slots: usize,
}

/// One layer's entries, and the inputs of the next ones.
pub struct EntryCache {
    shape: EntryShape,
    /// The scale of each entry, if it has integers, then its elements.
    data: Region,
    /// Keys and their weights: `[row_pages, row_slots, 2, width]` f32.
    rows: Region,
}

/// The compression of a layer.
#[derive(Debug, Clone)]
pub struct Compression {
    /// Added to the logarithms of weights, by a position's index in its block: `[positions, dim]`,
    /// twice as wide if blocks overlap.
    pub by_place: Vec<f32>,
    /// The gain of the norm of an entry, `[dim]`, and its epsilon.
    pub norm: Option<(Vec<f32>, f32)>,
    /// The rotation of an entry's last elements, or of its first ones.
    pub rope: Option<(RopeTable, RopeStyle)>,
    pub rotates_first: bool,
}

impl EntryShape {
    /// Elements of the key of one position.
    pub fn width(&self) -> usize {
        if self.overlap { 2 * self.dim } else { self.dim }
    }

    /// Bytes of one layer.
    pub fn bytes(&self) -> usize {
        self.pages * self.page_bytes() + self.row_pages * self.row_page_bytes()
    }

    fn page_bytes(&self) -> usize {
        (PAGE_POSITIONS / self.positions).max(1) * self.entry_bytes()
    }

    fn entry_bytes(&self) -> usize {
        let numbers = self.dim.next_multiple_of(2);
        match self.kind {
            CacheKind::F32 => size_of::<f32>() * numbers,
            _ => size_of::<f32>() + size_of::<i16>() * numbers,
        }
    }

    fn row_page_bytes(&self) -> usize {
        2 * size_of::<f32>() * self.width() * self.row_slots
    }

    /// The number of entries visible from `position`: those of blocks that end there or earlier.
    pub fn visible(&self, position: usize) -> usize {
        (position + 1) / self.positions
    }
}

/// The bytes of a page among others of this size.
fn range_of(page: u32, bytes: usize) -> std::ops::Range<usize> {
    let start = page as usize * bytes;
    start..start + bytes
}

thread_local! {
    static BUFFERS: RefCell<[Vec<f32>; 3]> = RefCell::default();
}

impl EntryCache {
    /// # Errors
    /// The allocation fails.
    ///
    /// # Panics
    /// If blocks do not fit pages, or entries are neither f32 nor integers of 16 bits.
    pub fn new(shape: EntryShape) -> Result<Self, Error> {
        let EntryShape { dim, positions, row_slots, .. } = shape;
        let fits = |a: usize, b: usize| a > 0 && b.is_multiple_of(a);
        assert!(fits(positions, PAGE_POSITIONS) || fits(PAGE_POSITIONS, positions));
        assert!(fits(row_slots, PAGE_POSITIONS), "{row_slots} rows of a page");
        let kinds = [CacheKind::F32, CacheKind::I16];
        assert!(kinds.contains(&shape.kind), "entries of another kind");
        let impossible = Error::Cache { heads: 1, k_dim: dim, v_dim: 0 };
        let bytes = shape.page_bytes().checked_mul(shape.pages);
        let row_bytes = shape.row_page_bytes().checked_mul(shape.row_pages);
        let (Some(bytes), Some(row_bytes)) = (bytes, row_bytes) else { return Err(impossible) };
        Ok(Self { shape, data: Region::zeroed(bytes)?, rows: Region::zeroed(row_bytes)? })
    }

    pub fn shape(&self) -> &EntryShape {
        &self.shape
    }

    /// The entries of page `page`: any bytes are entries.
    ///
    /// # Panics
    /// If it does not exist.
    pub fn page_mut(&mut self, page: u32) -> &mut [u8] {
        self.data.slice_mut(range_of(page, self.shape.page_bytes()))
    }

    /// The rows that page `page` keeps for entries after it: any bytes are rows.
    ///
    /// # Panics
    /// If it does not exist.
    pub fn rows_mut(&mut self, page: u32) -> &mut [u8] {
        self.rows.slice_mut(range_of(page, self.shape.row_page_bytes()))
    }

    /// The offset of entry `entry` of a sequence with this table.
    fn at(&self, table: &[u32], entry: usize) -> usize {
        let EntryShape { positions, pages, .. } = self.shape;
        let last = (entry + 1) * positions - 1;
        let (page, place) = (table[last / PAGE_POSITIONS] as usize, last % PAGE_POSITIONS);
        assert!(page < pages, "page {page} of {pages} pages of entries");
        let of_page = place / positions.min(PAGE_POSITIONS);
        page * self.shape.page_bytes() + of_page * self.shape.entry_bytes()
    }

    /// Entry `entry` of a sequence with this table, as f32.
    pub(super) fn read(&self, table: &[u32], entry: usize, out: &mut [f32]) {
        let at = self.at(table, entry);
        // SAFETY: `at` starts one of the allocated entries.
        let from = unsafe { self.data.as_ptr().add(at) };
        assert_eq!(out.len(), self.shape.dim);
        // SAFETY: this many elements follow, and any bits are valid. Entries start at multiples of
        // four bytes.
        unsafe {
            if self.shape.kind == CacheKind::F32 {
                out.copy_from_slice(std::slice::from_raw_parts(from.cast(), out.len()));
                return;
            }
            let scale = *from.cast::<f32>();
            let ints = std::slice::from_raw_parts(from.add(4).cast::<i16>(), out.len());
            for (out, int) in out.iter_mut().zip(ints) {
                *out = f32::from(*int) * scale;
            }
        }
    }

    /// # Safety
    /// `to` starts an entry that has no other user meanwhile.
    unsafe fn put(&self, isa: Isa, to: *mut u8, entry: &[f32]) {
        // SAFETY: as the caller promises, there is room for the elements of an entry.
        unsafe {
            if self.shape.kind == CacheKind::F32 {
                let to = std::slice::from_raw_parts_mut(to.cast::<f32>(), self.shape.dim);
                to.iter_mut().zip(entry).for_each(|(to, number)| *to = finite(*number));
                return;
            }
            let places = Places::run(to.add(size_of::<f32>()).cast());
            let x = &entry[..self.shape.dim];
            *to.cast::<f32>() = run(isa, Round { x, limits: Limits::KEY, to: places });
        }
    }

    /// The offset of a position's stored row.
    fn row_at(&self, table: &[u32], position: usize) -> usize {
        let EntryShape { row_pages, row_slots, .. } = self.shape;
        let page = table[position / PAGE_POSITIONS] as usize;
        assert!(page < row_pages, "page {page} of {row_pages} pages of rows");
        (page * row_slots + position % row_slots) * 2 * size_of::<f32>() * self.shape.width()
    }

    /// A position's key and its weights.
    fn row(&self, table: &[u32], position: usize) -> [&[f32]; 2] {
        let (width, at) = (self.shape.width(), self.row_at(table, position));
        // SAFETY: `at` starts one of the allocated rows, of two times `width` f32.
        let row = unsafe {
            std::slice::from_raw_parts(self.rows.as_ptr().add(at).cast::<f32>(), 2 * width)
        };
        row.split_at(width).into()
    }

    /// Makes the entries of the blocks that end in a batch's rows, and stores the rows that the
    /// next ones need.
    ///
    /// `keys`, and their weights: `[rows, width]` f32. `windows` and `segments`: the batch's, with
    /// the tables of rows and of entries.
    ///
    /// # Panics
    /// If the shapes do not match, or a table is too short.
    pub fn compress(
        &mut self,
        pool: &Pool,
        compression: &Compression,
        [keys, weights]: [&[f32]; 2],
        (windows, segments): (&[Segment], &[Segment]),
    ) {
        let (positions, width) = (self.shape.positions, self.shape.width());
        assert_eq!(compression.by_place.len(), width * positions, "numbers for each place");
        assert_eq!(keys.len(), weights.len(), "each number has a weight");
        let mut first_row = 0;
        let due = windows.iter().zip(segments).flat_map(|(window, segment)| {
            let (first, end) = (segment.first_pos, segment.first_pos + segment.rows);
            let batch = Batch { keys, weights, first_row, first, window: &window.table };
            first_row += segment.rows;
            let entries = first / positions..end / positions;
            entries.map(move |entry| (batch, &*segment.table, entry))
        });
        let due: Vec<(Batch<'_>, &[u32], usize)> = due.collect();
        let data = SharedMut::new(self.data.as_mut_ptr());
        let (this, isa) = (&*self, Isa::chosen());
        pool.run(due.len(), |task| {
            let (batch, table, entry) = &due[task];
            BUFFERS.with_borrow_mut(|buffers| {
                compression.entry(isa, this, batch, *entry, buffers);
                // SAFETY: `at` starts one of the allocated entries. No other task has it: a
                // sequence has one segment, and no other writes to its last pages.
                unsafe { this.put(isa, data.ptr().add(this.at(table, *entry)), &buffers[2]) };
            });
        });
        assert_eq!(keys.len(), first_row * width, "keys must be [{first_row}, {width}]");
        self.keep([keys, weights], windows);
    }

    /// Keeps the last rows of each page.
    fn keep(&mut self, [keys, weights]: [&[f32]; 2], windows: &[Segment]) {
        let (width, slots) = (self.shape.width(), self.shape.row_slots);
        let mut row = 0;
        for Segment { table, first_pos, rows, .. } in windows {
            let end = first_pos + rows;
            for position in *first_pos..end {
                let page_end = (position / PAGE_POSITIONS + 1) * PAGE_POSITIONS;
                if position + slots >= end.min(page_end) {
                    let at = self.row_at(table, position);
                    let from = row * width..(row + 1) * width;
                    // SAFETY: `at` starts one of the allocated rows.
                    unsafe {
                        let to = self.rows.as_mut_ptr().add(at).cast::<f32>();
                        to.copy_from_nonoverlapping(keys[from.clone()].as_ptr(), width);
                        to.add(width).copy_from_nonoverlapping(weights[from].as_ptr(), width);
                    }
                }
                row += 1;
            }
        }
    }
}

/// A segment's new rows.
#[derive(Clone, Copy)]
struct Batch<'a> {
    keys: &'a [f32],
    weights: &'a [f32],
    /// Index in the batch.
    first_row: usize,
    /// Position of its first row.
    first: usize,
    window: &'a [u32],
}

impl<'a> Batch<'a> {
    /// The key of a position and its weights.
    fn row(&self, cache: &'a EntryCache, position: usize) -> [&'a [f32]; 2] {
        let Some(row) = position.checked_sub(self.first) else {
            return cache.row(self.window, position);
        };
        let width = cache.shape.width();
        let at = (self.first_row + row) * width;
        [self.keys, self.weights].map(|numbers| &numbers[at..at + width])
    }
}

impl Compression {
    /// Computes entry `entry` in the last of `buffers`.
    fn entry(
        &self,
        isa: Isa,
        cache: &EntryCache,
        batch: &Batch<'_>,
        entry: usize,
        buffers: &mut [Vec<f32>; 3],
    ) {
        let EntryShape { dim, positions, overlap, .. } = cache.shape;
        let (stride, own) = (dim.next_multiple_of(LANES), entry * positions);
        let width = cache.shape.width();
        let before = if overlap && entry > 0 { positions } else { 0 };
        let [keys, weights, out] = buffers;
        for buffer in [&mut *keys, &mut *weights] {
            buffer.clear();
            buffer.resize((before + positions) * stride, 0.0);
        }
        let lines = keys.chunks_exact_mut(stride).zip(weights.chunks_exact_mut(stride));
        for (position, (key, weight)) in (own - before..).zip(lines) {
            let first = if overlap && position >= own { dim } else { 0 };
            let [from_key, from_weight] = batch.row(cache, position);
            key[..dim].copy_from_slice(&from_key[first..][..dim]);
            let by_place = &self.by_place[position % positions * width + first..];
            let numbers = weight[..dim].iter_mut().zip(&from_weight[first..]).zip(by_place);
            numbers.for_each(|((weight, from), more)| *weight = from + more);
        }
        out.clear();
        out.resize(stride, 0.0);
        run(isa, WeightedSum { keys, weights, out });
        out.truncate(dim);
        if let Some((gain, eps)) = &self.norm {
            run(isa, NormaliseInPlace { x: out, gain, eps: *eps });
        }
        if let Some((rope, style)) = &self.rope {
            let rotated = 2 * rope.inverse_frequencies().len();
            let first = if self.rotates_first { 0 } else { dim - rotated };
            rope.rotate(&mut out[first..], own as u32, *style);
        }
    }
}

/// For each element, the sum of the `keys` of all positions, weighted by the softmax of `weights`:
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
                    let score = s.load(self.weights.as_ptr().add(first));
                    let weight = tainted(s, exp(s, s.sub(score, top)), score);
                    (s.load(self.keys.as_ptr().add(first)), weight)
                };
                sum = s.fma(key, weight, sum);
                total = s.add(total, weight);
            }
            // SAFETY: one vector.
            unsafe { s.store(out.as_mut_ptr(), s.div(sum, total)) };
        }
    }
}

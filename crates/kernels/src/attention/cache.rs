//! One layer's keys and values, in pages of 64 positions.
//!
//! Within a page, each head has its keys as `[k_dim, 64]` (so that a vector holds one dimension of
//! 16 positions, and scores need no sums across lanes), then its values as `[64, v_dim]`. A
//! quantised cache has the scales of both before them. 16-bit integers are stored in pairs instead,
//! of dimensions and of positions (`ints.rs`). A page that was never written costs no memory.

use std::cell::RefCell;

use super::ints::{Ints, K_DIM_MAX, Limits, Places, Round, pairs};
use super::page::PAGE_POSITIONS;
use super::quants::{Quantize, Quants, blocks};
use super::rotation::Rotate;
use crate::error::Error;
use crate::isa::{Isa, Kernel, run};
use crate::math::{finite, tainted};
use crate::memory::Region;
use crate::pool::Pool;
use crate::shared::SharedMut;
use crate::simd::{LANES, Simd};

/// The storage format of the cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum CacheKind {
    /// IEEE half precision; a finite number that does not fit becomes the largest that does.
    #[default]
    F16,
    /// Unchanged.
    F32,
    /// Integers of 16 bits and an f32 scale for each key and each value.
    I16,
    /// Eight bits each and a half-precision scale for each 32 elements of a head, which is rotated
    /// first.
    Q8_0,
}

impl CacheKind {
    /// Bytes of one key and one value with these lengths.
    fn bytes(self, k_dim: usize, v_dim: usize) -> usize {
        let numbers = k_dim + v_dim;
        match self {
            CacheKind::F16 => size_of::<u16>() * numbers,
            CacheKind::F32 => size_of::<f32>() * numbers,
            CacheKind::I16 => {
                2 * size_of::<i16>() * pairs(k_dim)
                    + size_of::<i16>() * v_dim
                    + 2 * size_of::<f32>()
            }
            CacheKind::Q8_0 => numbers + size_of::<u16>() * (blocks(k_dim) + blocks(v_dim)),
        }
    }
}

impl std::fmt::Display for CacheKind {
    /// llama.cpp's spelling.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            CacheKind::F16 => "f16",
            CacheKind::F32 => "f32",
            CacheKind::I16 => "i16",
            CacheKind::Q8_0 => "q8_0",
        })
    }
}

/// The keys `[k_dim, 64]` and values `[64, v_stride]` of one head in one page, or as integers.
pub(super) enum Head<'a> {
    F16(&'a [u16], &'a [u16]),
    F32(&'a [f32], &'a [f32]),
    I16(Ints<'a>),
    Q8(Quants<'a>),
}

/// Bytes of the scales of the integers of one head in one page.
const INT_SCALES_BYTES: usize = 2 * PAGE_POSITIONS * size_of::<f32>();

/// The largest finite half-precision number.
const F16_MAX: f32 = 65504.0;

thread_local! {
    /// Scratch for quantising a key or value to eight bits.
    static ROTATED: RefCell<Vec<f32>> = const { RefCell::new(Vec::new()) };
}

/// One layer's paged cache of keys and values.
pub struct KvCache {
    heads: usize,
    k_dim: usize,
    v_dim: usize,
    /// `v_dim` rounded up to whole vectors.
    v_stride: usize,
    pages: usize,
    kind: CacheKind,
    data: Region,
}

impl KvCache {
    /// Memory for `pages` pages of `kv_heads` heads. Page numbers in tables are below `pages`.
    ///
    /// Without values, it is a cache of keys only.
    ///
    /// # Errors
    /// There are no heads or keys, or the allocation fails.
    pub fn new(
        kv_heads: usize,
        k_dim: usize,
        v_dim: usize,
        pages: usize,
        kind: CacheKind,
    ) -> Result<Self, Error> {
        let impossible = Error::Cache { heads: kv_heads, k_dim, v_dim };
        let too_long = kind == CacheKind::I16 && k_dim > K_DIM_MAX;
        if kv_heads == 0 || k_dim == 0 || too_long {
            return Err(impossible);
        }
        let Some(bytes) = Self::page_bytes(kv_heads, k_dim, v_dim, kind).checked_mul(pages) else {
            return Err(impossible);
        };
        let v_stride = v_dim.next_multiple_of(LANES);
        let data = Region::zeroed(bytes)?;
        Ok(Self { heads: kv_heads, k_dim, v_dim, v_stride, pages, kind, data })
    }

    /// Bytes of one page of one layer.
    pub fn page_bytes(kv_heads: usize, k_dim: usize, v_dim: usize, kind: CacheKind) -> usize {
        PAGE_POSITIONS * kv_heads * kind.bytes(k_dim, v_dim.next_multiple_of(LANES))
    }

    /// Heads of keys and values.
    pub fn kv_heads(&self) -> usize {
        self.heads
    }

    /// Length of a key.
    pub fn k_dim(&self) -> usize {
        self.k_dim
    }

    /// Length of a value.
    pub fn v_dim(&self) -> usize {
        self.v_dim
    }

    /// The number of pages.
    pub fn pages(&self) -> usize {
        self.pages
    }

    pub(super) fn kind(&self) -> CacheKind {
        self.kind
    }

    pub(super) fn v_stride(&self) -> usize {
        self.v_stride
    }

    /// Bytes of one head in one page.
    fn head_bytes(&self) -> usize {
        PAGE_POSITIONS * self.kind.bytes(self.k_dim, self.v_stride)
    }

    /// Scales of the keys of one head in one page.
    fn key_scales(&self) -> usize {
        PAGE_POSITIONS * blocks(self.k_dim)
    }

    /// Scales of keys and values.
    fn scales(&self) -> usize {
        self.key_scales() + PAGE_POSITIONS * blocks(self.v_stride)
    }

    /// Integers of the keys of one head in one page, in a cache of integers.
    fn key_ints(&self) -> usize {
        2 * pairs(self.k_dim) * PAGE_POSITIONS
    }

    pub(super) fn head(&self, page: u32, head: usize) -> Head<'_> {
        let keys = PAGE_POSITIONS * self.k_dim;
        let bytes = self.bytes(page, head);
        match self.kind {
            CacheKind::F16 => {
                // SAFETY: any bits are a half-precision number.
                let (keys, values) = unsafe { numbers(bytes) }.split_at(keys);
                Head::F16(keys, values)
            }
            CacheKind::F32 => {
                // SAFETY: the same of f32.
                let (keys, values) = unsafe { numbers(bytes) }.split_at(keys);
                Head::F32(keys, values)
            }
            CacheKind::I16 => {
                let (scales, ints) = bytes.split_at(INT_SCALES_BYTES);
                // SAFETY: any bits are an `f32`.
                let scales = unsafe { numbers(scales) };
                // SAFETY: any bits are an `i16`.
                let (keys, values) = unsafe { numbers(ints) }.split_at(self.key_ints());
                Head::I16(Ints { scales, keys, values })
            }
            CacheKind::Q8_0 => {
                let (scales, quants) = bytes.split_at(size_of::<u16>() * self.scales());
                // SAFETY: any bits are a half-precision number.
                let scales = unsafe { numbers(scales) };
                // SAFETY: any bits are an `i8`.
                let (keys, values) = unsafe { numbers(quants) }.split_at(keys);
                Head::Q8(Quants { scales, keys, values })
            }
        }
    }

    /// All of one head in one page.
    pub(super) fn bytes(&self, page: u32, head: usize) -> &[u8] {
        let page = page as usize;
        assert!(page < self.pages, "page {page} of a cache of {} pages", self.pages);
        assert!(head < self.heads);
        let at = (page * self.heads + head) * self.head_bytes();
        // SAFETY: the region holds `pages * heads` runs of `head_bytes`, and both were checked.
        unsafe { std::slice::from_raw_parts(self.data.as_ptr().add(at), self.head_bytes()) }
    }

    /// Page `page` of all heads, head by head: any bytes are keys and values.
    ///
    /// # Panics
    /// If it does not exist.
    pub fn page_mut(&mut self, page: u32) -> &mut [u8] {
        self.data.slice_mut(self.range(page))
    }

    fn range(&self, page: u32) -> std::ops::Range<usize> {
        let (page, bytes) = (page as usize, self.heads * self.head_bytes());
        assert!(page < self.pages, "page {page} of a cache of {} pages", self.pages);
        page * bytes..(page + 1) * bytes
    }

    /// Copies page `from` over page `to`.
    ///
    /// # Panics
    /// If a page does not exist.
    pub fn copy_page(&mut self, from: u32, to: u32) {
        let exist = from.max(to) < self.pages as u32;
        assert!(exist, "pages {from} and {to} of a cache of {} pages", self.pages);
        let bytes = self.heads * self.head_bytes();
        let data = self.data.as_mut_ptr();
        // SAFETY: the region holds `pages` pages of this many bytes, and both were checked.
        unsafe {
            std::ptr::copy(data.add(from as usize * bytes), data.add(to as usize * bytes), bytes)
        };
    }

    /// Stores keys and values of consecutive positions of one sequence. In every kind of cache, a
    /// key or value with an infinite or NaN element becomes NaN, and so does every output that
    /// attends to it.
    ///
    /// `table`: the sequence's pages in order. `first_pos`: position of the first row. `k`: `[n,
    /// kv_heads, k_dim]` f32, `v`: `[n, kv_heads, v_dim]` f32.
    ///
    /// # Panics
    /// If the shapes do not match, the table is too short, or a page does not exist.
    pub fn store(&mut self, pool: &Pool, table: &[u32], first_pos: usize, k: &[f32], v: &[f32]) {
        let rows = k.len() / (self.heads * self.k_dim);
        assert_eq!(k.len(), rows * self.heads * self.k_dim, "keys must be whole rows");
        assert_eq!(v.len(), rows * self.heads * self.v_dim, "values must be [{rows}, heads, dim]");
        if rows == 0 {
            return;
        }
        let last_page = (first_pos + rows - 1) / PAGE_POSITIONS;
        assert!(
            last_page < table.len(),
            "{} pages where {} are needed",
            table.len(),
            last_page + 1
        );
        let first_page = first_pos / PAGE_POSITIONS;
        let used = &table[first_page..=last_page];
        assert!(used.iter().all(|&page| (page as usize) < self.pages), "no such page in {used:?}");
        let once = |(i, page): (usize, &u32)| !used[..i].contains(page);
        assert!(used.iter().enumerate().all(once), "a table names a page once, not as in {used:?}");
        let data = SharedMut::new(self.data.as_mut_ptr());
        let isa = Isa::chosen();
        let heads = self.heads;
        let this = &*self;
        pool.run(used.len() * heads, |task| {
            let (page, head) = (first_page + task / heads, task % heads);
            let start = first_pos.max(page * PAGE_POSITIONS);
            let end = (first_pos + rows).min((page + 1) * PAGE_POSITIONS);
            let at = (table[page] as usize * heads + head) * this.head_bytes();
            for pos in start..end {
                let (row, slot) = (pos - first_pos, pos % PAGE_POSITIONS);
                let k = &k[(row * heads + head) * this.k_dim..][..this.k_dim];
                let v = &v[(row * heads + head) * this.v_dim..][..this.v_dim];
                // SAFETY: `at` starts the run of this head in an existing page, which only this
                // task writes (the table contains it once); `slot` is below 64.
                unsafe { this.store_one(isa, data.ptr().add(at), slot, k, v) };
            }
        });
    }

    /// Stores one head's key and value of one position.
    ///
    /// # Safety
    /// `to` starts the bytes of a head in a page, which has no other user meanwhile; `slot` is
    /// below 64, `k` and `v` are as long as the cache's keys and values.
    unsafe fn store_one(&self, isa: Isa, to: *mut u8, slot: usize, k: &[f32], v: &[f32]) {
        let first_value = PAGE_POSITIONS * self.k_dim + slot * self.v_stride;
        // SAFETY: all of it lies inside the head's bytes, with the layout of the module's doc.
        unsafe {
            match self.kind {
                CacheKind::F16 => {
                    let keys = to.cast::<u16>();
                    let (keys, values) = (keys.add(slot), keys.add(first_value));
                    run(isa, StoreHalf { x: k, out: keys, stride: PAGE_POSITIONS });
                    run(isa, StoreHalf { x: v, out: values, stride: 1 });
                }
                CacheKind::F32 => {
                    let keys = to.cast::<f32>();
                    let (keys, values) = (keys.add(slot), keys.add(first_value));
                    for (d, k) in k.iter().enumerate() {
                        *keys.add(d * PAGE_POSITIONS) = finite(*k);
                    }
                    values.copy_from_nonoverlapping(v.as_ptr(), v.len());
                }
                CacheKind::I16 => {
                    let scales = to.cast::<f32>().add(slot);
                    let keys = to.add(INT_SCALES_BYTES).cast::<i16>();
                    let values = keys.add(self.key_ints());
                    let (key, value) =
                        (Places::key(keys, slot), Places::value(values, slot, self.v_stride));
                    *scales = run(isa, Round { x: k, limits: Limits::KEY, to: key });
                    let scale = run(isa, Round { x: v, limits: Limits::VALUE, to: value });
                    *scales.add(PAGE_POSITIONS) = scale;
                }
                CacheKind::Q8_0 => {
                    let scales = to.cast::<u16>().add(slot);
                    let quants = to.add(size_of::<u16>() * self.scales()).cast::<i8>();
                    let (keys, stride) = (quants.add(slot), PAGE_POSITIONS);
                    let quantize = |x: &[f32], scales, quants, stride| {
                        ROTATED.with_borrow_mut(|rotated| {
                            rotated.clear();
                            rotated.extend_from_slice(x);
                            run(isa, Rotate(rotated));
                            run(isa, Quantize { x: rotated, scales, quants, stride });
                        });
                    };
                    quantize(k, scales, keys, stride);
                    let (scales, values) = (scales.add(self.key_scales()), quants.add(first_value));
                    quantize(v, scales, values, 1);
                }
            }
        }
    }
}

/// Bytes of the cache as numbers.
///
/// # Safety
/// Any bits are a valid `T`. Heads start at multiples of 64 bytes, so their elements are aligned.
unsafe fn numbers<T>(bytes: &[u8]) -> &[T] {
    debug_assert!(bytes.as_ptr().cast::<T>().is_aligned());
    // SAFETY: as the caller promises; the length is that of the bytes.
    unsafe { std::slice::from_raw_parts(bytes.as_ptr().cast(), bytes.len() / size_of::<T>()) }
}

/// Rounds numbers to half precision and writes them `stride` apart.
struct StoreHalf<'a> {
    x: &'a [f32],
    out: *mut u16,
    stride: usize,
}

impl Kernel for StoreHalf<'_> {
    type Out = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        for (index, x) in self.x.chunks(LANES).enumerate() {
            let mut padded = [0.0; LANES];
            padded[..x.len()].copy_from_slice(x);
            let mut halves = [0_u16; LANES];
            // SAFETY: both arrays are one vector; the caller of the kernel promises room for as
            // many elements as `x` has, `stride` apart.
            unsafe {
                let v = s.load(padded.as_ptr());
                let fitting = s.max(s.splat(-F16_MAX), s.min(s.splat(F16_MAX), v));
                s.store_f16(halves.as_mut_ptr(), tainted(s, fitting, v));
                for (i, half) in halves[..x.len()].iter().enumerate() {
                    *self.out.add((index * LANES + i) * self.stride) = *half;
                }
            }
        }
    }
}

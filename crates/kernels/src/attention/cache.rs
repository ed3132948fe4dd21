//! One layer's keys and values, in pages of 64 positions.
//!
//! Within a page, each head has its keys as `[k_dim, 64]` (so that a vector holds one dimension of
//! 16 positions, and scores need no sums across lanes), then its values as `[64, v_dim]`. A page
//! that was never written costs no memory.

use super::PAGE_POSITIONS;
use crate::error::Error;
use crate::isa::{Isa, Kernel, run};
use crate::memory::Region;
use crate::pool::Pool;
use crate::shared::SharedMut;
use crate::simd::{LANES, Simd};

/// How the cache stores its numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum CacheKind {
    /// IEEE half precision; what does not fit becomes the largest number that does.
    #[default]
    F16,
    /// As they are.
    F32,
}

impl CacheKind {
    /// Bytes of one number.
    pub fn number_bytes(self) -> usize {
        match self {
            CacheKind::F16 => size_of::<u16>(),
            CacheKind::F32 => size_of::<f32>(),
        }
    }
}

/// The keys `[k_dim, 64]` and values `[64, v_stride]` of one head in one page.
pub(super) enum Head<'a> {
    F16(&'a [u16], &'a [u16]),
    F32(&'a [f32], &'a [f32]),
}

/// The largest finite half-precision number.
const F16_MAX: f32 = 65504.0;

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
    /// Room for `pages` pages of `kv_heads` heads. Page numbers in tables are below `pages`.
    ///
    /// # Errors
    /// A dimension is zero, or memory is not to be had.
    pub fn new(
        kv_heads: usize,
        k_dim: usize,
        v_dim: usize,
        pages: usize,
        kind: CacheKind,
    ) -> Result<Self, Error> {
        let impossible = Error::Cache { heads: kv_heads, k_dim, v_dim };
        if kv_heads == 0 || k_dim == 0 || v_dim == 0 {
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
        let numbers = PAGE_POSITIONS * kv_heads * (k_dim + v_dim.next_multiple_of(LANES));
        kind.number_bytes() * numbers
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

    /// Pages there is room for.
    pub fn pages(&self) -> usize {
        self.pages
    }

    pub(super) fn v_stride(&self) -> usize {
        self.v_stride
    }

    /// Numbers of one head in one page.
    fn head_len(&self) -> usize {
        PAGE_POSITIONS * (self.k_dim + self.v_stride)
    }

    pub(super) fn head(&self, page: u32, head: usize) -> Head<'_> {
        let page = page as usize;
        assert!(page < self.pages, "page {page} of a cache of {} pages", self.pages);
        assert!(head < self.heads);
        let keys = PAGE_POSITIONS * self.k_dim;
        match self.kind {
            CacheKind::F16 => {
                // SAFETY: any bits are a half-precision number, of which the cache is made.
                let (keys, values) = unsafe { self.run(page, head) }.split_at(keys);
                Head::F16(keys, values)
            }
            CacheKind::F32 => {
                // SAFETY: the same of f32.
                let (keys, values) = unsafe { self.run(page, head) }.split_at(keys);
                Head::F32(keys, values)
            }
        }
    }

    /// All numbers of one head in one page.
    ///
    /// # Safety
    /// The cache is made of such numbers, for which any bits are valid.
    unsafe fn run<T>(&self, page: usize, head: usize) -> &[T] {
        let at = (page * self.heads + head) * self.head_len();
        // SAFETY: the region holds `pages * heads` runs of `head_len` numbers, and `head` checked
        // both.
        unsafe {
            std::slice::from_raw_parts(self.data.as_ptr().cast::<T>().add(at), self.head_len())
        }
    }

    /// Stores keys and values of consecutive positions of one sequence.
    ///
    /// `table`: the sequence's pages in order. `first_pos`: position of the first row.
    /// `k`: `[n, kv_heads, k_dim]` f32, `v`: `[n, kv_heads, v_dim]` f32.
    ///
    /// # Panics
    /// If the shapes do not fit, the table is too short, or a page does not exist.
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
            let at = (table[page] as usize * heads + head) * this.head_len();
            for pos in start..end {
                let (row, slot) = (pos - first_pos, pos % PAGE_POSITIONS);
                let k = &k[(row * heads + head) * this.k_dim..][..this.k_dim];
                let v = &v[(row * heads + head) * this.v_dim..][..this.v_dim];
                let first_value = PAGE_POSITIONS * this.k_dim + slot * this.v_stride;
                // SAFETY: `at` starts the run of this head in an existing page, which this task
                // alone writes (the table names it once); `slot` is below 64; the numbers are of
                // the cache's kind.
                unsafe {
                    match this.kind {
                        CacheKind::F16 => {
                            let keys = data.ptr().cast::<u16>().add(at);
                            let (keys, values) = (keys.add(slot), keys.add(first_value));
                            run(isa, StoreHalf { x: k, out: keys, stride: PAGE_POSITIONS });
                            run(isa, StoreHalf { x: v, out: values, stride: 1 });
                        }
                        CacheKind::F32 => {
                            let keys = data.ptr().cast::<f32>().add(at);
                            let (keys, values) = (keys.add(slot), keys.add(first_value));
                            for (d, k) in k.iter().enumerate() {
                                *keys.add(d * PAGE_POSITIONS) = *k;
                            }
                            values.copy_from_nonoverlapping(v.as_ptr(), v.len());
                        }
                    }
                }
            }
        });
    }
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
            // many numbers as `x` has, `stride` apart.
            unsafe {
                let v = s.load(padded.as_ptr());
                // Infinity would turn a masked weight of zero into "not a number".
                let v = s.max(s.min(v, s.splat(F16_MAX)), s.splat(-F16_MAX));
                s.store_f16(halves.as_mut_ptr(), v);
                for (i, half) in halves[..x.len()].iter().enumerate() {
                    *self.out.add((index * LANES + i) * self.stride) = *half;
                }
            }
        }
    }
}

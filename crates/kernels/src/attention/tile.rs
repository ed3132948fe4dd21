//! Query vectors against one page: the inner loops of attention.

use super::page::{Fetch, PAGE_POSITIONS, POS_VECTORS, Page, Query, States};
use super::quants::{BLOCK, blocks};
use super::softmax::{PageSoftmax, Weights};
use crate::isa::{Isa, Kernel, run};
use crate::simd::{LANES, Simd, array_of};

/// The products of a page's keys and some queries.
pub(super) trait Dots {
    fn queries(&self) -> usize;

    /// The products of `R` queries from `first` on, and the keys of position vectors `block..block
    /// + P`.
    fn dots_of<S: Simd, const R: usize, const P: usize>(
        &self,
        s: S,
        first: usize,
        block: usize,
        out: &mut [[f32; PAGE_POSITIONS]; R],
    );
}

/// An element of the cache: as stored, or f32 after conversion.
pub(super) trait Element: Copy {
    /// # Safety
    /// `from` points to 16 elements.
    unsafe fn load<S: Simd>(s: S, from: *const Self) -> S::F;
}

impl Element for u16 {
    #[inline(always)]
    unsafe fn load<S: Simd>(s: S, from: *const u16) -> S::F {
        // SAFETY: as the trait says.
        unsafe { s.load_f16(from) }
    }
}

impl Element for f32 {
    #[inline(always)]
    unsafe fn load<S: Simd>(s: S, from: *const f32) -> S::F {
        // SAFETY: as the trait says.
        unsafe { s.load(from) }
    }
}

impl Element for i8 {
    #[inline(always)]
    unsafe fn load<S: Simd>(s: S, from: *const i8) -> S::F {
        // SAFETY: as the trait says.
        unsafe { s.to_f(s.load_i8(from.cast())) }
    }
}

/// Converts numbers to f32: whole vectors.
pub(super) struct Convert<'a, E> {
    pub from: &'a [E],
    pub to: &'a mut [f32],
}

impl<E: Element> Kernel for Convert<'_, E> {
    type Out = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let (from, to) = (self.from.chunks_exact(LANES), self.to.chunks_exact_mut(LANES));
        for (from, to) in from.zip(to) {
            // SAFETY: both are one vector.
            unsafe { s.store(to.as_mut_ptr(), E::load(s, from.as_ptr())) };
        }
    }
}

/// Adds one page to the running softmax of all queries. `SCALED`: the elements are quants.
pub(super) struct AddPage<'a, 'q, E, const SCALED: bool> {
    pub isa: Isa,
    pub page: &'a Page<'a, 'q>,
    /// `[key blocks + value blocks, 64]` if there are any.
    pub scales: &'a [f32],
    /// `[k_dim, 64]`.
    pub keys: &'a [E],
    /// `[64, v_stride]`.
    pub values: &'a [E],
    pub fetch: [Fetch; 3],
    pub states: &'a mut States,
}

impl<E: Element, const SCALED: bool> Kernel for AddPage<'_, '_, E, SCALED> {
    type Out = ();

    #[inline(always)]
    fn run<S: Simd>(mut self, s: S) {
        self.add_all(s, self.page.queries.len());
    }
}

/// The cut of a page's queries into register tiles, which does not affect results.
pub(super) trait Tiles {
    /// Adds the page to `R` queries from `first` on, with register tiles of `R` by `P` vectors of
    /// positions and `R` by `V` vectors of values.
    fn add<S: Simd, const R: usize, const P: usize, const V: usize>(&mut self, s: S, first: usize);

    /// Adds it to all `queries`.
    #[inline(always)]
    fn add_all<S: Simd>(&mut self, s: S, queries: usize) {
        let mut first = 0;
        if S::WIDE_TILES {
            // Six would leave no register for the operands.
            while first + 4 <= queries {
                self.add::<S, 4, 4, 4>(s, first);
                first += 4;
            }
        }
        if S::ROW_TILES {
            while first + 2 <= queries {
                self.add::<S, 2, 2, 2>(s, first);
                first += 2;
            }
        }
        while first < queries {
            self.add::<S, 1, 4, 4>(s, first);
            first += 1;
        }
    }
}

impl<E: Element, const SCALED: bool> Tiles for AddPage<'_, '_, E, SCALED> {
    #[inline(always)]
    fn add<S: Simd, const R: usize, const P: usize, const V: usize>(&mut self, s: S, first: usize) {
        let queries = array_of!(R, self.page.queries[first], r => self.page.queries[first + r]);
        let mut weights = Weights([[0.0; PAGE_POSITIONS]; R]);
        for block in (0..POS_VECTORS).step_by(P) {
            self.dots::<S, R, P>(s, &queries, first, block, &mut weights.0);
        }
        let rescale = run(
            self.isa,
            PageSoftmax {
                page: self.page,
                first,
                scales: [self.page.scale; R],
                states: self.states,
                weights: &mut weights,
                ahead: self.fetch[1].within(PageSoftmax::<R>::STEPS, first == 0),
            },
        );
        let slots = self.page.slots(&queries);
        let vectors = self.page.v_stride / LANES;
        let mut vector = 0;
        while vector + V <= vectors {
            self.mix::<S, R, V>(s, first, vector, slots, &weights.0, &rescale);
            vector += V;
        }
        while vector < vectors {
            self.mix::<S, R, 1>(s, first, vector, slots, &weights.0, &rescale);
            vector += 1;
        }
    }
}

impl<E: Element> Dots for AddPage<'_, '_, E, false> {
    fn queries(&self) -> usize {
        self.page.queries.len()
    }

    #[inline(always)]
    fn dots_of<S: Simd, const R: usize, const P: usize>(
        &self,
        s: S,
        first: usize,
        block: usize,
        out: &mut [[f32; PAGE_POSITIONS]; R],
    ) {
        let queries = array_of!(R, self.page.queries[first], r => self.page.queries[first + r]);
        self.dots::<S, R, P>(s, &queries, first, block, out);
    }
}

impl<E: Element, const SCALED: bool> AddPage<'_, '_, E, SCALED> {
    /// Dot products with the keys of position vectors `block..block + P`.
    #[inline(always)]
    fn dots<S: Simd, const R: usize, const P: usize>(
        &self,
        s: S,
        queries: &[Query; R],
        first: usize,
        block: usize,
        weights: &mut [[f32; PAGE_POSITIONS]; R],
    ) {
        let k_dim = queries[0].q.len();
        assert!(self.keys.len() >= k_dim * PAGE_POSITIONS && block + P <= POS_VECTORS);
        assert!(queries.iter().all(|query| query.q.len() == k_dim));
        let ahead = self.fetch[0].within(k_dim, first == 0 && block == 0);
        assert!(!SCALED || self.scales.len() >= blocks(k_dim) * PAGE_POSITIONS);
        let zero = s.splat(0.0);
        // Without scales, all dimensions are one block.
        let step = if SCALED { BLOCK } else { k_dim };
        for first_d in (0..k_dim).step_by(step) {
            let mut acc = [[zero; P]; R];
            // SAFETY: all indices lie inside the slices, as asserted above.
            unsafe {
                for d in first_d..k_dim.min(first_d + step) {
                    ahead.fetch(s, d);
                    let keys = self.keys.as_ptr().add(d * PAGE_POSITIONS + block * LANES);
                    let keys = array_of!(P, zero, p => E::load(s, keys.add(p * LANES)));
                    for r in 0..R {
                        let q = s.splat(*queries[r].q.get_unchecked(d));
                        for p in 0..P {
                            acc[r][p] = s.fma(keys[p], q, acc[r][p]);
                        }
                    }
                }
                for p in 0..P {
                    let at = (block + p) * LANES;
                    for r in 0..R {
                        let weights = weights[r].as_mut_ptr().add(at);
                        let sum = if SCALED {
                            let scales = self.scales.as_ptr().add(first_d / BLOCK * PAGE_POSITIONS);
                            s.fma(acc[r][p], s.load(scales.add(at)), s.load(weights))
                        } else {
                            acc[r][p]
                        };
                        s.store(weights, sum);
                    }
                }
            }
        }
    }

    /// Adds the weighted values of the first `slots` positions to `V` vectors of `R` outputs.
    #[inline(always)]
    fn mix<S: Simd, const R: usize, const V: usize>(
        &mut self,
        s: S,
        first: usize,
        vector: usize,
        slots: usize,
        weights: &[[f32; PAGE_POSITIONS]; R],
        rescale: &[f32; R],
    ) {
        let stride = self.page.v_stride;
        assert!(slots <= PAGE_POSITIONS && self.values.len() >= PAGE_POSITIONS * stride);
        assert!((vector + V) * LANES <= stride);
        assert!((first + R) * stride <= self.states.acc.len());
        let ahead = self.fetch[2].within(slots, first == 0 && vector == 0);
        // The weights times the scales of the blocks, at most two, that contain the vectors.
        let mut scaled = [[[0.0_f32; PAGE_POSITIONS]; R]; 2];
        let first_block = vector * LANES / BLOCK;
        let block_of = |v: usize| (vector + v) * LANES / BLOCK - first_block;
        if SCALED {
            for block in 0..=block_of(V - 1) {
                self.scale(s, first_block + block, weights, &mut scaled[block]);
            }
        }
        // SAFETY: all indices lie inside the slices, as asserted above.
        unsafe {
            let out = self.states.acc.as_mut_ptr().add(first * stride + vector * LANES);
            let zero = s.splat(0.0);
            let mut acc = array_of!(R, [zero; V], r => array_of!(V, zero, v => {
                s.mul(s.load(out.add(r * stride + v * LANES)), s.splat(rescale[r]))
            }));
            for slot in 0..slots {
                ahead.fetch(s, slot);
                let values = self.values.as_ptr().add(slot * stride + vector * LANES);
                let values = array_of!(V, zero, v => E::load(s, values.add(v * LANES)));
                for r in 0..R {
                    let weight = s.splat(*weights[r].get_unchecked(slot));
                    for v in 0..V {
                        let weight = if SCALED {
                            s.splat(*scaled[block_of(v)][r].get_unchecked(slot))
                        } else {
                            weight
                        };
                        acc[r][v] = s.fma(values[v], weight, acc[r][v]);
                    }
                }
            }
            for r in 0..R {
                for v in 0..V {
                    s.store(out.add(r * stride + v * LANES), acc[r][v]);
                }
            }
        }
    }

    /// The weights times the scales of value block `block`.
    #[inline(always)]
    fn scale<S: Simd, const R: usize>(
        &self,
        s: S,
        block: usize,
        weights: &[[f32; PAGE_POSITIONS]; R],
        scaled: &mut [[f32; PAGE_POSITIONS]; R],
    ) {
        let key_blocks = blocks(self.keys.len() / PAGE_POSITIONS);
        let scales = &self.scales[(key_blocks + block) * PAGE_POSITIONS..][..PAGE_POSITIONS];
        for at in (0..PAGE_POSITIONS).step_by(LANES) {
            for r in 0..R {
                // SAFETY: `at` is one of four vectors in arrays of 64.
                unsafe {
                    let weight = s.load(weights[r].as_ptr().add(at));
                    let scale = s.load(scales.as_ptr().add(at));
                    s.store(scaled[r].as_mut_ptr().add(at), s.mul(weight, scale));
                }
            }
        }
    }
}

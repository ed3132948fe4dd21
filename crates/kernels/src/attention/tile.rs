//! Some query vectors against one page: the inner loops of attention.

use super::PAGE_POSITIONS;
use super::quants::{BLOCK, blocks};
use crate::isa::Kernel;
use crate::math::{exp, tanh};
use crate::product::Level;
use crate::simd::{LANES, Simd, array_of};

/// Where a running maximum starts: below any score, and finite, so that a difference of two such
/// is zero and not "not a number".
pub(super) const LOWEST: f32 = -3.0e38;

/// Bytes of a cache line.
const LINE: usize = 64;

/// Vectors of positions in a page.
const POS_VECTORS: usize = PAGE_POSITIONS / LANES;

/// A query vector and the positions it sees.
#[derive(Clone, Copy)]
pub(super) struct Query<'a> {
    /// `[k_dim]`.
    pub q: &'a [f32],
    pub first_pos: usize,
    pub end_pos: usize,
}

/// Running softmax of some query vectors: maximum, sum, and `[queries, v_stride]` outputs.
#[derive(Default)]
pub(super) struct States {
    pub max: Vec<f32>,
    pub sum: Vec<f32>,
    pub acc: Vec<f32>,
}

impl States {
    /// As if nothing had been seen.
    pub fn reset(&mut self, queries: usize, v_stride: usize) {
        self.max.clear();
        self.max.resize(queries, LOWEST);
        self.sum.clear();
        self.sum.resize(queries, 0.0);
        self.acc.clear();
        self.acc.resize(queries * v_stride, 0.0);
    }
}

/// A number of the cache: as stored, or f32 once converted.
pub(super) trait Element: Copy {
    /// # Safety
    /// `from` points to 16 numbers.
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

/// Who looks at a page, and how.
pub(super) struct Page<'a, 'q> {
    /// Position of the page's first slot.
    pub start: usize,
    pub queries: &'a [Query<'q>],
    pub v_stride: usize,
    pub scale: f32,
    pub soft_cap: Option<f32>,
}

/// Adds one page to the running softmax of all queries. `SCALED`: the numbers are quants.
pub(super) struct AddPage<'a, 'q, E, const SCALED: bool> {
    pub page: &'a Page<'a, 'q>,
    /// `[key blocks + value blocks, 64]` if there are any.
    pub scales: &'a [f32],
    /// `[k_dim, 64]`.
    pub keys: &'a [E],
    /// `[64, v_stride]`.
    pub values: &'a [E],
    /// What is to be fetched while the keys are read, and while the values are.
    pub fetch: [Fetch; 2],
    pub states: &'a mut States,
}

impl<E: Element, const SCALED: bool> Kernel for AddPage<'_, '_, E, SCALED> {
    type Out = ();

    #[inline(always)]
    fn run<S: Simd>(mut self, s: S) {
        let queries = self.page.queries.len();
        let mut first = 0;
        if S::WIDE_TILES {
            // Six would leave no register for what is multiplied.
            while first + 4 <= queries {
                self.add::<S, 4, 4, 4>(s, first);
                first += 4;
            }
        }
        while first + 2 <= queries {
            self.add::<S, 2, 2, 2>(s, first);
            first += 2;
        }
        while first < queries {
            self.add::<S, 1, 4, 4>(s, first);
            first += 1;
        }
    }
}

impl<E: Element, const SCALED: bool> AddPage<'_, '_, E, SCALED> {
    /// `R` queries from `first` on, with register tiles of `R` by `P` vectors of positions and
    /// `R` by `V` vectors of values. The tile's shape does not touch any order of additions.
    #[inline(always)]
    fn add<S: Simd, const R: usize, const P: usize, const V: usize>(&mut self, s: S, first: usize) {
        let queries = array_of!(R, self.page.queries[first], r => self.page.queries[first + r]);
        let mut weights = [[0.0_f32; PAGE_POSITIONS]; R];
        for block in (0..POS_VECTORS).step_by(P) {
            self.dots::<S, R, P>(s, &queries, first, block, &mut weights);
        }
        let mut rescale = [0.0; R];
        for r in 0..R {
            rescale[r] = self.soften(s, &queries[r], first + r, &mut weights[r]);
        }
        let seen = queries.iter().map(|query| query.end_pos).max().unwrap_or(0);
        let slots = seen.saturating_sub(self.page.start).min(PAGE_POSITIONS);
        let vectors = self.page.v_stride / LANES;
        let mut vector = 0;
        while vector + V <= vectors {
            self.mix::<S, R, V>(s, first, vector, slots, &weights, &rescale);
            vector += V;
        }
        while vector < vectors {
            self.mix::<S, R, 1>(s, first, vector, slots, &weights, &rescale);
            vector += 1;
        }
    }

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

    /// Turns one query's dot products into weights, moves its running maximum and sum, and returns
    /// what its earlier output is to be multiplied with.
    #[inline(always)]
    fn soften<S: Simd>(
        &mut self,
        s: S,
        query: &Query,
        index: usize,
        weights: &mut [f32; PAGE_POSITIONS],
    ) -> f32 {
        let at = |v: usize| v * LANES;
        // SAFETY (all blocks): four vectors in an array of 64.
        let scale = s.splat(self.page.scale);
        let mut scores = array_of!(POS_VECTORS, scale, v => {
            // SAFETY: see above.
            s.mul(unsafe { s.load(weights.as_ptr().add(at(v))) }, scale)
        });
        if let Some(cap) = self.page.soft_cap {
            let (cap, inverse) = (s.splat(cap), s.splat(1.0 / cap));
            for v in 0..POS_VECTORS {
                scores[v] = s.mul(tanh(s, s.mul(scores[v], inverse)), cap);
            }
        }
        if query.first_pos > self.page.start || query.end_pos < self.page.start + PAGE_POSITIONS {
            for v in 0..POS_VECTORS {
                // SAFETY: see above.
                unsafe { s.store(weights.as_mut_ptr().add(at(v)), scores[v]) };
            }
            for (slot, weight) in weights.iter_mut().enumerate() {
                let pos = self.page.start + slot;
                if pos < query.first_pos || pos >= query.end_pos {
                    *weight = f32::NEG_INFINITY;
                }
            }
            for v in 0..POS_VECTORS {
                // SAFETY: see above.
                scores[v] = unsafe { s.load(weights.as_ptr().add(at(v))) };
            }
        }
        let (max, sum) = (self.states.max[index], self.states.sum[index]);
        let top = s.top(s.max(s.max(scores[0], scores[1]), s.max(scores[2], scores[3])));
        let new_max = if top > max { top } else { max };
        for v in 0..POS_VECTORS {
            scores[v] = exp(s, s.sub(scores[v], s.splat(new_max)));
        }
        for v in 0..POS_VECTORS {
            // SAFETY: see above.
            unsafe { s.store(weights.as_mut_ptr().add(at(v)), scores[v]) };
        }
        let rescale = exp_one(s, max - new_max);
        let page = s.sum(s.add(s.add(scores[0], scores[1]), s.add(scores[2], scores[3])));
        self.states.max[index] = new_max;
        self.states.sum[index] = sum * rescale + page;
        rescale
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
        let ahead = self.fetch[1].within(slots, first == 0 && vector == 0);
        // The weights times the scales of the two blocks, at most, that the vectors lie in.
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

/// Memory that will be wanted next: pages lie apart, so the machine's own prefetching starts anew
/// with each, and one query alone is bound by memory.
#[derive(Clone, Copy)]
pub(super) struct Fetch {
    start: *const u8,
    lines: usize,
}

impl Fetch {
    pub const NOTHING: Self = Self { start: std::ptr::null(), lines: 0 };

    pub fn all<E>(data: &[E]) -> Self {
        Self { start: data.as_ptr().cast(), lines: size_of_val(data).div_ceil(LINE) }
    }

    /// All of it within `steps` steps, or nothing.
    #[inline(always)]
    fn within(self, steps: usize, wanted: bool) -> Ahead {
        let lines_a_step = if wanted { self.lines.div_ceil(steps.max(1)) } else { 0 };
        Ahead { start: self.start, lines_a_step, level: Level::chosen() }
    }
}

/// Fetches something while something else is read.
struct Ahead {
    start: *const u8,
    lines_a_step: usize,
    level: Level,
}

impl Ahead {
    #[inline(always)]
    fn fetch<S: Simd>(&self, s: S, step: usize) {
        for line in 0..self.lines_a_step {
            let at = (step * self.lines_a_step + line) * LINE;
            self.level.fetch(s, self.start.wrapping_add(at));
        }
    }
}

/// Merges the running softmax of a later span (or several queries' at once) into `total`.
pub(super) struct Merge<'a> {
    pub total: &'a mut States,
    pub max: &'a [f32],
    pub sum: &'a [f32],
    pub acc: &'a [f32],
    pub v_stride: usize,
}

impl Kernel for Merge<'_> {
    type Out = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let stride = self.v_stride;
        for (index, (&max, &sum)) in self.max.iter().zip(self.sum).enumerate() {
            let old_max = self.total.max[index];
            let new_max = if max > old_max { max } else { old_max };
            let (old, new) = (exp_one(s, old_max - new_max), exp_one(s, max - new_max));
            self.total.max[index] = new_max;
            self.total.sum[index] = self.total.sum[index] * old + sum * new;
            let total = &mut self.total.acc[index * stride..][..stride];
            for (total, acc) in total.iter_mut().zip(&self.acc[index * stride..][..stride]) {
                *total = *total * old + acc * new;
            }
        }
    }
}

/// Writes one query's output `[v_dim]`: its sum of values over its sum of weights, which the
/// sink logit joins if there is one.
pub(super) struct Finish<'a> {
    pub max: f32,
    pub sum: f32,
    pub acc: &'a [f32],
    pub sink: Option<f32>,
    pub out: &'a mut [f32],
}

impl Kernel for Finish<'_> {
    type Out = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let sink = self.sink.unwrap_or(f32::NEG_INFINITY);
        let max = if sink > self.max { sink } else { self.max };
        let scale = exp_one(s, self.max - max);
        let sum = self.sum * scale + exp_one(s, sink - max);
        for (out, acc) in self.out.iter_mut().zip(self.acc) {
            *out = acc * scale / sum;
        }
    }
}

#[inline(always)]
fn exp_one<S: Simd>(s: S, x: f32) -> f32 {
    s.top(exp(s, s.splat(x)))
}

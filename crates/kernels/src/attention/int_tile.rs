//! Query vectors against one page of integers: products of pairs, summed exactly.

use super::ints::{Ints, WeightInts, round_weights};
use super::page::{Fetch, PAGE_POSITIONS, POS_VECTORS, Page, States};
use super::softmax::{PageSoftmax, Weights};
use super::tile::{Dots, Tiles};
use crate::isa::{Isa, Kernel, run};
use crate::simd::{LANES, Simd, array_of};

/// Pairs of positions in a page.
const PAIRS: usize = PAGE_POSITIONS / 2;

/// Query vectors as integers.
#[derive(Clone, Copy)]
pub(super) struct IntQueries<'a> {
    /// `[queries, k_dim / 2, 2]`, an odd dimension's partner zero.
    pub ints: &'a [i16],
    /// `[queries]`, the scores' own scale included.
    pub scales: &'a [f32],
}

/// Adds one page to the running softmax of all queries.
pub(super) struct AddInts<'a, 'q> {
    pub isa: Isa,
    pub page: &'a Page<'a, 'q>,
    pub queries: IntQueries<'a>,
    pub head: Ints<'a>,
    pub fetch: [Fetch; 3],
    pub states: &'a mut States,
}

impl Kernel for AddInts<'_, '_> {
    type Out = ();
    const INT_DOTS: bool = true;

    #[inline(always)]
    fn run<S: Simd>(mut self, s: S) {
        self.add_all(s, self.page.queries.len());
    }
}

/// The parameters for mixing the values of `R` queries.
struct Mix<const R: usize> {
    /// Weights times a factor are integers.
    ints: WeightInts<R>,
    factors: [f32; R],
    /// The factors of earlier outputs.
    rescale: [f32; R],
    /// Pairs of positions visible to any of the queries.
    pairs: usize,
}

impl Tiles for AddInts<'_, '_> {
    #[inline(always)]
    fn add<S: Simd, const R: usize, const P: usize, const V: usize>(&mut self, s: S, first: usize) {
        let (key_scales, value_scales) = self.head.scales.split_at(PAGE_POSITIONS);
        let mut weights = Weights([[0.0; PAGE_POSITIONS]; R]);
        for block in (0..POS_VECTORS).step_by(P) {
            self.dots::<S, R, P>(s, first, block, key_scales, &mut weights.0);
        }
        let query_scales = array_of!(R, 0.0, r => self.queries.scales[first + r]);
        let rescale = run(
            self.isa,
            PageSoftmax {
                page: self.page,
                first,
                scales: query_scales,
                states: self.states,
                weights: &mut weights,
                ahead: self.fetch[1].within(PageSoftmax::<R>::STEPS, first == 0),
            },
        );
        let value_scales = value_scales.first_chunk().expect("a page of scales");
        let mut ints = WeightInts([[0; PAGE_POSITIONS]; R]);
        let factors = round_weights(s, &weights.0, value_scales, &mut ints);
        let queries = &self.page.queries[first..first + R];
        let pairs = self.page.slots(queries).div_ceil(2);
        let mix = Mix { ints, factors, rescale, pairs };
        let vectors = self.page.v_stride / LANES;
        let mut vector = 0;
        while vector + V <= vectors {
            self.mix::<S, R, V>(s, first, vector, &mix);
            vector += V;
        }
        while vector < vectors {
            self.mix::<S, R, 1>(s, first, vector, &mix);
            vector += 1;
        }
    }
}

impl Dots for AddInts<'_, '_> {
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
        self.dots::<S, R, P>(s, first, block, &self.head.scales[..PAGE_POSITIONS], out);
    }
}

impl AddInts<'_, '_> {
    /// Dot products with the keys of position vectors `block..block + P`, times the keys' scales.
    #[inline(always)]
    fn dots<S: Simd, const R: usize, const P: usize>(
        &self,
        s: S,
        first: usize,
        block: usize,
        key_scales: &[f32],
        weights: &mut [[f32; PAGE_POSITIONS]; R],
    ) {
        let pairs = self.queries.ints.len() / (2 * self.page.queries.len());
        assert!(self.head.keys.len() >= 2 * pairs * PAGE_POSITIONS && block + P <= POS_VECTORS);
        assert!(key_scales.len() >= PAGE_POSITIONS && first + R <= self.page.queries.len());
        let ahead = self.fetch[0].within(pairs, first == 0 && block == 0);
        let zero = s.splat_i(0);
        let mut acc = [[zero; P]; R];
        // SAFETY: all indices lie inside the slices, as asserted above.
        unsafe {
            let queries = self.queries.ints.as_ptr().add(first * pairs * 2);
            for pair in 0..pairs {
                ahead.fetch(s, pair);
                let keys = self.head.keys.as_ptr().add(2 * (pair * PAGE_POSITIONS + block * LANES));
                let keys = array_of!(P, zero, p => s.load_i(keys.add(2 * p * LANES).cast()));
                for r in 0..R {
                    let q = s.splat_x4(queries.add(2 * (r * pairs + pair)).cast());
                    for p in 0..P {
                        acc[r][p] = s.dot2(acc[r][p], keys[p], q);
                    }
                }
            }
            for p in 0..P {
                let at = (block + p) * LANES;
                let scales = s.load(key_scales.as_ptr().add(at));
                for r in 0..R {
                    s.store(weights[r].as_mut_ptr().add(at), s.mul(s.to_f(acc[r][p]), scales));
                }
            }
        }
    }

    /// Adds the weighted values to `V` vectors of `R` outputs.
    #[inline(always)]
    fn mix<S: Simd, const R: usize, const V: usize>(
        &mut self,
        s: S,
        first: usize,
        vector: usize,
        mix: &Mix<R>,
    ) {
        let Mix { ints, factors, rescale, pairs } = mix;
        let pairs = *pairs;
        let stride = self.page.v_stride;
        assert!(pairs <= PAIRS && self.head.values.len() >= PAGE_POSITIONS * stride);
        assert!((vector + V) * LANES <= stride);
        assert!((first + R) * stride <= self.states.acc.len());
        let ahead = self.fetch[2].within(pairs, first == 0 && vector == 0);
        let zero = s.splat_i(0);
        let mut acc = [[zero; V]; R];
        // SAFETY: all indices lie inside the slices, as asserted above.
        unsafe {
            for pair in 0..pairs {
                ahead.fetch(s, pair);
                let values = self.head.values.as_ptr().add(2 * (pair * stride + vector * LANES));
                let values = array_of!(V, zero, v => s.load_i(values.add(2 * v * LANES).cast()));
                for r in 0..R {
                    let weight = s.splat_x4(ints.0[r].as_ptr().add(2 * pair).cast());
                    for v in 0..V {
                        acc[r][v] = s.dot2(acc[r][v], values[v], weight);
                    }
                }
            }
            let out = self.states.acc.as_mut_ptr().add(first * stride + vector * LANES);
            for r in 0..R {
                for v in 0..V {
                    let out = out.add(r * stride + v * LANES);
                    let before = s.mul(s.load(out), s.splat(rescale[r]));
                    s.store(out, s.fma(s.to_f(acc[r][v]), s.splat(factors[r]), before));
                }
            }
        }
    }
}

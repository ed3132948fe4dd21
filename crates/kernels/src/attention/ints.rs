//! Keys, queries and values as 16-bit integers, each vector with one f32 scale, so that products
//! can be summed exactly, in any order, in 32 bits.
//!
//! No sum may exceed 32 bits. For scores, keys and queries are scaled to a Euclidean norm of at
//! most [`NORM`]: rounding adds at most half a unit a dimension, `sqrt(d) / 2` to the norm, and by
//! Cauchy-Schwarz the product of two is below `(46000 + sqrt(d) / 2)^2`, which is below 2^31 for up
//! to 2^18 dimensions. For outputs, values are at most [`VALUE_TOP`], and the weights of a page add
//! up to at most [`WEIGHT_SUM`], rounded 32 more: times 16383 that is below 2^31. The f32 error of
//! either limit (some 2^-16 of it) fits in between.

use super::page::PAGE_POSITIONS;
use crate::isa::Kernel;
use crate::simd::{LANES, Simd, array_of};

/// The largest integer of a key, a query or a weight; its negative is the smallest, since the sum
/// of two products of -2^15 would not fit.
const TOP: f32 = 32767.0;

/// The largest norm of a key or a query.
const NORM: f32 = 46000.0;

/// The largest dimension of a key: a margin below the limit of the norm.
pub(super) const K_DIM_MAX: usize = 1 << 16;

/// The largest integer of a value. One bit less leaves the weights of a page one bit more for their
/// sum; with 64 equal ones they have 2^-11 of their value each, with a single one 2^-15.
const VALUE_TOP: f32 = 16383.0;

/// The largest sum of a page's weights, before rounding.
const WEIGHT_SUM: f32 = 131_000.0;

/// The limit of larger numbers, so that a product of two scales and a sum stays finite.
const LARGEST: f32 = 1e15;

/// Pairs of dimensions of a vector.
pub(super) fn pairs(dim: usize) -> usize {
    dim.div_ceil(2)
}

/// One head of one page.
#[derive(Clone, Copy)]
pub(super) struct Ints<'a> {
    /// `[2, 64]`: of the keys, then of the values.
    pub scales: &'a [f32],
    /// `[k_dim / 2, 64, 2]`: pairs of dimensions, an odd one's partner zero.
    pub keys: &'a [i16],
    /// `[64 / 2, v_stride, 2]`: pairs of positions.
    pub values: &'a [i16],
}

/// The limits of one vector's integers.
pub(super) struct Limits {
    /// The largest of them.
    top: f32,
    /// Their norm.
    norm: f32,
}

impl Limits {
    pub const KEY: Self = Self { top: TOP, norm: NORM };
    pub const VALUE: Self = Self { top: VALUE_TOP, norm: f32::INFINITY };
}

/// The destination of one vector's integers.
#[derive(Clone, Copy)]
pub(super) struct Places {
    pub first: *mut i16,
    /// The distance from a pair of elements to the next.
    pub pair: usize,
    /// The distance from a pair's first element to its second.
    pub odd: usize,
}

impl Places {
    /// Places `[slot]` among a page's keys.
    ///
    /// # Safety
    /// `keys` starts the keys of one head, and `slot` is below 64.
    pub unsafe fn key(keys: *mut i16, slot: usize) -> Self {
        // SAFETY: as the caller promises.
        Self { first: unsafe { keys.add(2 * slot) }, pair: 2 * PAGE_POSITIONS, odd: 1 }
    }

    /// One after the other.
    pub fn run(first: *mut i16) -> Self {
        Self { first, pair: 2, odd: 1 }
    }

    fn is_run(self) -> bool {
        (self.pair, self.odd) == (2, 1)
    }

    /// Places `[slot]` among a page's values.
    ///
    /// # Safety
    /// `values` starts the values of one head, and `slot` is below 64.
    pub unsafe fn value(values: *mut i16, slot: usize, v_stride: usize) -> Self {
        // SAFETY: as the caller promises.
        Self { first: unsafe { values.add(slot / 2 * 2 * v_stride + slot % 2) }, pair: 4, odd: 2 }
    }
}

/// Rounds one vector to integers times a scale, which it returns: NaN if one of the vector's
/// elements is infinite or NaN.
pub(super) struct Round<'a> {
    pub x: &'a [f32],
    pub limits: Limits,
    pub to: Places,
}

impl Kernel for Round<'_> {
    type Out = f32;

    #[inline(always)]
    fn run<S: Simd>(self, s: S) -> f32 {
        let Limits { top: limit, norm } = self.limits;
        let (mut tops, mut taint) = (s.splat(0.0), s.splat(0.0));
        for x in self.x.chunks(LANES) {
            let x = load_all(s, x);
            tops = s.max(s.abs(clamp(s, x)), tops);
            taint = s.add(taint, s.sub(x, x));
        }
        let (top, taint) = (s.top(tops), s.sum(taint));
        if top == 0.0 {
            self.put(s, s.splat(1.0), s.splat(0.0), s.splat(0.0));
            return 0.0;
        }
        // Relative to the largest, squares neither overflow nor vanish.
        let by = s.splat(top);
        let mut squares = s.splat(0.0);
        for x in self.x.chunks(LANES) {
            let x = s.div(load(s, x), by);
            squares = s.fma(x, x, squares);
        }
        let (by_norm, by_top) = (s.sum(squares).sqrt() / norm, 1.0 / limit);
        let step = if by_norm > by_top { by_norm } else { by_top };
        self.put(s, by, s.splat(1.0 / step), s.splat(limit));
        top * step + taint
    }
}

impl Round<'_> {
    /// Writes each element over `by` times `factor`, rounded, within `limit`.
    #[inline(always)]
    fn put<S: Simd>(&self, s: S, by: S::F, factor: S::F, limit: S::F) {
        for (chunk, x) in self.x.chunks(LANES).enumerate() {
            let scaled = s.mul(s.div(load(s, x), by), factor);
            let scaled = s.max(s.min(scaled, limit), s.sub(s.splat(0.0), limit));
            if self.to.is_run() && x.len() == LANES {
                // SAFETY: the caller of the kernel promises room for as many elements as `x` has.
                unsafe { s.store_i16(self.to.first.add(chunk * LANES), s.to_i(scaled)) };
                continue;
            }
            let mut ints = [0; LANES];
            // SAFETY: one vector.
            unsafe { s.store_i16(ints.as_mut_ptr(), s.to_i(scaled)) };
            for (i, int) in ints[..x.len()].iter().enumerate() {
                let i = chunk * LANES + i;
                // SAFETY: the caller of the kernel promises room for as many elements as `x` has.
                unsafe {
                    *self.to.first.add(i / 2 * self.to.pair + i % 2 * self.to.odd) = *int;
                }
            }
        }
    }
}

/// Up to one vector of elements within the range of a scale, zeros after them.
#[inline(always)]
fn load<S: Simd>(s: S, x: &[f32]) -> S::F {
    clamp(s, load_all(s, x))
}

#[inline(always)]
fn clamp<S: Simd>(s: S, x: S::F) -> S::F {
    s.max(s.min(x, s.splat(LARGEST)), s.splat(-LARGEST))
}

/// Up to one vector of unchanged elements, zeros after them.
#[inline(always)]
fn load_all<S: Simd>(s: S, x: &[f32]) -> S::F {
    let mut padded = [0.0; LANES];
    let from = if x.len() == LANES {
        x
    } else {
        padded[..x.len()].copy_from_slice(x);
        &padded
    };
    // SAFETY: one vector.
    unsafe { s.load(from.as_ptr()) }
}

/// Weights of `R` queries as integers.
#[repr(align(64))]
pub(super) struct WeightInts<const R: usize>(pub [[i16; PAGE_POSITIONS]; R]);

/// Rounds the weights of a page, times the scales of its values, to integers times a factor for
/// each query, which it returns.
#[inline(always)]
pub(super) fn round_weights<S: Simd, const R: usize>(
    s: S,
    weights: &[[f32; PAGE_POSITIONS]; R],
    scales: &[f32; PAGE_POSITIONS],
    ints: &mut WeightInts<R>,
) -> [f32; R] {
    const VECTORS: usize = PAGE_POSITIONS / LANES;
    let zero = s.splat(0.0);
    let mut scaled = [[zero; VECTORS]; R];
    let (mut tops, mut sums) = ([zero; R], [zero; R]);
    for r in 0..R {
        for v in 0..VECTORS {
            // SAFETY: four vectors in arrays of 64, here and below.
            unsafe {
                let weights = s.load(weights[r].as_ptr().add(v * LANES));
                let product = s.mul(weights, s.load(scales.as_ptr().add(v * LANES)));
                // A hidden position has no weight, and may contain a NaN scale left by another
                // sequence.
                scaled[r][v] = s.keep_from(product, weights, s.splat(f32::MIN_POSITIVE));
            }
        }
        let [a, b, c, d] = scaled[r];
        tops[r] = s.max(s.max(a, b), s.max(c, d));
        sums[r] = s.add(s.add(a, b), s.add(c, d));
    }
    let (tops, sums) = (s.tops(tops), s.sums(sums));
    array_of!(R, 0.0, r => {
        let (by_top, by_sum) = (tops[r] * (1.0 / TOP), sums[r] * (1.0 / WEIGHT_SUM));
        // The step from the sum, if that is NaN.
        let step = if by_sum <= by_top { by_top } else { by_sum };
        // A smaller step has no inverse, and adds nothing.
        let factor = s.splat(if step >= f32::MIN_POSITIVE { 1.0 / step } else { 0.0 });
        for v in 0..VECTORS {
            let rounded = s.to_i(s.mul(scaled[r][v], factor));
            // SAFETY: see above.
            unsafe { s.store_i16(ints.0[r].as_mut_ptr().add(v * LANES), rounded) };
        }
        step
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::reference::floats;
    use crate::isa::{Isa, run};
    use fastrand::Rng;

    /// A vector's scale and integers, the same on every instruction set.
    fn rounded(x: &[f32], limits: fn() -> Limits) -> (f32, Vec<i16>) {
        let on = |isa| {
            let mut ints = vec![0; x.len()];
            let to = Places::run(ints.as_mut_ptr());
            (run(isa, Round { x, limits: limits(), to }), ints)
        };
        let expected = on(Isa::Scalar);
        for isa in Isa::available() {
            assert_eq!(on(isa), expected, "{}", isa.name());
        }
        expected
    }

    fn vectors() -> Vec<Vec<f32>> {
        let mut rng = Rng::with_seed(1);
        let mut vectors = vec![vec![1.0; 576], vec![0.3; 4096], vec![0.0; 17], vec![-7.0]];
        for (len, size) in [(64, 1.0), (20, 1e-42), (71, 1e11), (576, 1e-3), (128, 300.0)] {
            let mut x: Vec<f32> = floats(&mut rng, len).iter().map(|x| x * size).collect();
            vectors.push(x.clone());
            x[len / 2] *= -1000.0;
            vectors.push(x);
        }
        vectors
    }

    #[test]
    fn every_number_is_within_half_a_step_and_no_sum_leaves_32_bits() {
        for x in vectors() {
            let (scale, ints) = rounded(&x, || Limits::KEY);
            let squares: i64 = ints.iter().map(|x| i64::from(*x) * i64::from(*x)).sum();
            assert!(squares < 1 << 31, "{squares} of {} numbers", x.len());
            let (value_scale, values) = rounded(&x, || Limits::VALUE);
            assert!(values.iter().all(|x| x.abs() <= 16383), "{values:?}");
            for (scale, ints) in [(scale, ints), (value_scale, values)] {
                // The second is the error of a subnormal scale.
                let limit = 0.51 * scale + 32767.0 * f32::from_bits(1);
                for (x, int) in x.iter().zip(ints) {
                    let error = (x - scale * f32::from(int)).abs();
                    assert!(error <= limit, "{x}: {int} times {scale}");
                }
            }
        }
    }

    #[test]
    fn what_no_scale_can_hold_becomes_the_nearest_that_one_can() {
        let (scale, ints) = rounded(&[1e30, -1e30, 1.0], || Limits::VALUE);
        assert_eq!((scale, ints), (LARGEST * (1.0 / VALUE_TOP), vec![16383, -16383, 0]));
    }

    #[test]
    fn a_number_that_is_not_finite_leaves_no_scale() {
        for bad in [f32::NAN, -f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            for (len, at) in (0..70).map(|at| (70, at)).chain([(1, 0), (64, 63)]) {
                let (mut x, mut ints) = (vec![0.0; len], vec![0; len]);
                x[at] = bad;
                for isa in Isa::available() {
                    for limits in [Limits::KEY, Limits::VALUE] {
                        let to = Places::run(ints.as_mut_ptr());
                        let scale = run(isa, Round { x: &x, limits, to });
                        assert!(scale.is_nan(), "{bad} at {at} on {}", isa.name());
                    }
                }
            }
        }
    }

    struct Weigh<'a>([[f32; PAGE_POSITIONS]; 4], &'a [f32; PAGE_POSITIONS]);

    impl Kernel for Weigh<'_> {
        type Out = ([f32; 4], [[i16; PAGE_POSITIONS]; 4]);

        #[inline(always)]
        fn run<S: Simd>(self, s: S) -> Self::Out {
            let mut ints = WeightInts([[0; PAGE_POSITIONS]; 4]);
            (round_weights(s, &self.0, self.1, &mut ints), ints.0)
        }
    }

    #[test]
    fn weights_keep_their_sum_within_32_bits_and_zeros_zero() {
        let mut rng = Rng::with_seed(2);
        let mut random = || floats(&mut rng, PAGE_POSITIONS).try_into().expect("a page");
        let mut weights = [[1.0; PAGE_POSITIONS], [0.0; PAGE_POSITIONS], random(), random()];
        weights[2..].iter_mut().flatten().for_each(|weight| *weight = weight.abs());
        weights[2][5] = 0.0;
        weights[3][1..].fill(1e-30);
        for scales in [[1.0; PAGE_POSITIONS], random().map(f32::abs), [1e-38; PAGE_POSITIONS]] {
            let expected = run(Isa::Scalar, Weigh(weights, &scales));
            for isa in Isa::available() {
                assert_eq!(run(isa, Weigh(weights, &scales)), expected, "{}", isa.name());
            }
            for (r, (step, ints)) in expected.0.iter().zip(expected.1).enumerate() {
                let sum: i64 = ints.iter().map(|int| i64::from(*int)).sum();
                assert!(sum * 16383 < 1 << 31, "{sum}");
                assert!(ints.iter().all(|int| *int >= 0));
                for ((weight, scale), int) in weights[r].iter().zip(&scales).zip(ints) {
                    let exact = weight * scale;
                    let limit = if *step < f32::MIN_POSITIVE { exact } else { 0.51 * step };
                    assert!((exact - step * f32::from(int)).abs() <= limit, "{exact}");
                    assert!(exact != 0.0 || int == 0);
                }
            }
        }
    }
}

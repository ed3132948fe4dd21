//! Normalisation and addition of rows.
//!
//! A row's sum of squares is taken in four vectors of 16 lanes that stride through the row, added
//! pairwise, then across lanes: one order on every machine.

use crate::isa::{Isa, Kernel, run};
use crate::pool::Pool;
use crate::rows::for_each_run;
use crate::shared::SharedMut;
use crate::simd::{LANES, Simd};

/// Root-mean-square normalisation of each row: `out = x / sqrt(mean(x²) + eps) * gain`.
///
/// `x` and `out`: `[rows, gain.len()]` f32. The same function normalises heads: rows of
/// `head_dim`. Source: Zhang and Sennrich, "Root Mean Square Layer Normalization" (2019).
///
/// # Panics
/// If `x` is not whole rows or `out` has another size.
pub fn rms_norm(pool: &Pool, x: &[f32], gain: &[f32], eps: f32, out: &mut [f32]) {
    assert_eq!(x.len(), out.len(), "input and output must have the same size");
    assert!(x.len().is_multiple_of(gain.len()), "rows must be {} long", gain.len());
    let target = SharedMut::new(out.as_mut_ptr());
    let (dim, isa) = (gain.len(), Isa::chosen());
    for_each_run(pool, x.len() / dim, dim, |row| {
        // SAFETY: the row lies inside `out`, and belongs to this task only.
        let out = unsafe { std::slice::from_raw_parts_mut(target.ptr().add(row * dim), dim) };
        run(isa, Normalise { x: &x[row * dim..][..dim], gain, eps, out });
    });
}

/// Like [`rms_norm`], in place.
///
/// # Panics
/// If `x` is not whole rows.
pub fn rms_norm_in_place(pool: &Pool, x: &mut [f32], gain: &[f32], eps: f32) {
    assert!(x.len().is_multiple_of(gain.len()), "rows must be {} long", gain.len());
    let (dim, isa) = (gain.len(), Isa::chosen());
    let rows = x.len() / dim;
    let target = SharedMut::new(x.as_mut_ptr());
    for_each_run(pool, rows, dim, |row| {
        // SAFETY: the row lies inside `x`, and belongs to this task only.
        let x = unsafe { std::slice::from_raw_parts_mut(target.ptr().add(row * dim), dim) };
        run(isa, NormaliseInPlace { x, gain, eps });
    });
}

/// Layer normalisation of each row: subtracts its mean, then acts like [`rms_norm`]. Source: Ba et
/// al., "Layer Normalization", arXiv 1607.06450.
///
/// # Panics
/// If `x` is not whole rows or `out` has another size.
pub fn layer_norm(pool: &Pool, x: &[f32], gain: &[f32], eps: f32, out: &mut [f32]) {
    assert_eq!(x.len(), out.len(), "input and output must have the same size");
    assert!(x.len().is_multiple_of(gain.len()), "rows must be {} long", gain.len());
    let target = SharedMut::new(out.as_mut_ptr());
    let (dim, isa) = (gain.len(), Isa::chosen());
    for_each_run(pool, x.len() / dim, dim, |row| {
        // SAFETY: the row lies inside `out`, and belongs to this task only.
        let out = unsafe { std::slice::from_raw_parts_mut(target.ptr().add(row * dim), dim) };
        run(isa, Centre { x: &x[row * dim..][..dim], out });
        run(isa, NormaliseInPlace { x: out, gain, eps });
    });
}

/// The sum of squares of a run of numbers, in the order of [`rms_norm`].
pub fn sum_of_squares(x: &[f32]) -> f32 {
    run(Isa::chosen(), SumOfSquares { x })
}

struct SumOfSquares<'a> {
    x: &'a [f32],
}

impl Kernel for SumOfSquares<'_> {
    type Out = f32;

    #[inline(always)]
    fn run<S: Simd>(self, s: S) -> f32 {
        squares(s, self.x)
    }
}

/// `x += y`, element by element, on all threads.
///
/// # Panics
/// If the sizes differ.
pub fn add(pool: &Pool, x: &mut [f32], y: &[f32]) {
    const RUN: usize = 4096;
    assert_eq!(x.len(), y.len(), "both must have the same size");
    let target = SharedMut::new(x.as_mut_ptr());
    for_each_run(pool, y.len().div_ceil(RUN), RUN, |run| {
        let y = &y[run * RUN..y.len().min((run + 1) * RUN)];
        // SAFETY: the run lies inside `x`, and belongs to this task only.
        let x = unsafe { std::slice::from_raw_parts_mut(target.ptr().add(run * RUN), y.len()) };
        add_row(x, y);
    });
}

/// `x += y`, element by element.
///
/// # Panics
/// If the sizes differ.
pub fn add_row(x: &mut [f32], y: &[f32]) {
    assert_eq!(x.len(), y.len(), "both must have the same size");
    run(Isa::chosen(), Add { x, y });
}

/// Adds `bias` to each row of `x`: `[rows, bias.len()]` f32.
///
/// # Panics
/// If `x` is not whole rows.
pub fn add_bias(pool: &Pool, x: &mut [f32], bias: &[f32]) {
    let dim = bias.len();
    assert!(x.len().is_multiple_of(dim), "rows must be {dim} long");
    let (rows, isa) = (x.len() / dim, Isa::chosen());
    let target = SharedMut::new(x.as_mut_ptr());
    for_each_run(pool, rows, dim, |row| {
        // SAFETY: the row lies inside `x`, and belongs to this task only.
        let x = unsafe { std::slice::from_raw_parts_mut(target.ptr().add(row * dim), dim) };
        run(isa, Add { x, y: bias });
    });
}

/// `x += factor * y`, each rounded once: adds an expert's output to the others.
///
/// # Panics
/// If the sizes differ.
pub fn add_scaled(x: &mut [f32], y: &[f32], factor: f32) {
    assert_eq!(x.len(), y.len(), "both must have the same size");
    run(Isa::chosen(), AddScaled { x, y, factor });
}

/// `x *= factor`.
pub fn scale(x: &mut [f32], factor: f32) {
    x.iter_mut().for_each(|x| *x *= factor);
}

/// Subtracts a row's mean.
struct Centre<'a> {
    x: &'a [f32],
    out: &'a mut [f32],
}

impl Kernel for Centre<'_> {
    type Out = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let mut sums = [s.splat(0.0); 4];
        for (index, x) in self.x.chunks(LANES).enumerate() {
            sums[index % 4] = s.add(load_padded(s, x), sums[index % 4]);
        }
        let sum = s.sum(s.add(s.add(sums[0], sums[1]), s.add(sums[2], sums[3])));
        let mean = sum / self.x.len() as f32;
        self.out.iter_mut().zip(self.x).for_each(|(out, x)| *out = x - mean);
    }
}

struct Normalise<'a> {
    x: &'a [f32],
    gain: &'a [f32],
    eps: f32,
    out: &'a mut [f32],
}

impl Kernel for Normalise<'_> {
    type Out = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let scale = scale_of(s, self.x, self.eps);
        for ((out, x), gain) in self.out.iter_mut().zip(self.x).zip(self.gain) {
            *out = x * scale * gain;
        }
    }
}

pub(crate) struct NormaliseInPlace<'a> {
    pub x: &'a mut [f32],
    pub gain: &'a [f32],
    pub eps: f32,
}

impl Kernel for NormaliseInPlace<'_> {
    type Out = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let scale = scale_of(s, self.x, self.eps);
        for (x, gain) in self.x.iter_mut().zip(self.gain) {
            *x = *x * scale * gain;
        }
    }
}

/// The factor of a row: `1 / sqrt(mean(x²) + eps)`.
#[inline(always)]
pub(crate) fn scale_of<S: Simd>(s: S, x: &[f32], eps: f32) -> f32 {
    inverse_rms(squares(s, x), x.len(), eps)
}

/// `1 / sqrt(squares / count + eps)`, where `squares` is a sum of `count`. NaN if that sum is
/// infinite: a factor of zero would turn numbers that are too large into zeros.
#[inline(always)]
pub fn inverse_rms(squares: f32, count: usize, eps: f32) -> f32 {
    let mean = squares / count as f32 + eps;
    if mean < f32::INFINITY { 1.0 / mean.sqrt() } else { f32::NAN }
}

/// The sum of a row's squares.
#[inline(always)]
fn squares<S: Simd>(s: S, x: &[f32]) -> f32 {
    product(s, x, x)
}

/// The sum of the products of two rows' elements.
#[inline(always)]
pub(crate) fn product<S: Simd>(s: S, x: &[f32], y: &[f32]) -> f32 {
    let mut sums = [s.splat(0.0); 4];
    for (index, (x, y)) in x.chunks(LANES).zip(y.chunks(LANES)).enumerate() {
        sums[index % 4] = s.fma(load_padded(s, x), load_padded(s, y), sums[index % 4]);
    }
    s.sum(s.add(s.add(sums[0], sums[1]), s.add(sums[2], sums[3])))
}

/// A vector of up to 16 elements, zeros after them.
#[inline(always)]
pub(crate) fn load_padded<S: Simd>(s: S, x: &[f32]) -> S::F {
    if x.len() >= LANES {
        // SAFETY: there are 16 numbers.
        return unsafe { s.load(x.as_ptr()) };
    }
    let mut padded = [0.0; LANES];
    padded[..x.len()].copy_from_slice(x);
    // SAFETY: the array is one vector.
    unsafe { s.load(padded.as_ptr()) }
}

struct Add<'a> {
    x: &'a mut [f32],
    y: &'a [f32],
}

impl Kernel for Add<'_> {
    type Out = ();

    #[inline(always)]
    fn run<S: Simd>(self, _: S) {
        for (x, y) in self.x.iter_mut().zip(self.y) {
            *x += y;
        }
    }
}

struct AddScaled<'a> {
    x: &'a mut [f32],
    y: &'a [f32],
    factor: f32,
}

impl Kernel for AddScaled<'_> {
    type Out = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let factor = s.splat(self.factor);
        for (x, y) in self.x.chunks_mut(LANES).zip(self.y.chunks(LANES)) {
            let sum = s.fma(load_padded(s, y), factor, load_padded(s, x));
            store_part(s, x, sum);
        }
    }
}

/// Stores the first `x.len()` lanes (at most 16).
#[inline(always)]
pub(crate) fn store_part<S: Simd>(s: S, x: &mut [f32], v: S::F) {
    if x.len() >= LANES {
        // SAFETY: there is room for 16 numbers.
        return unsafe { s.store(x.as_mut_ptr(), v) };
    }
    let mut lanes = [0.0; LANES];
    // SAFETY: the array is one vector.
    unsafe { s.store(lanes.as_mut_ptr(), v) };
    x.copy_from_slice(&lanes[..x.len()]);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn norms_are_what_the_papers_say() {
        let pool = Pool::new(2).unwrap();
        for dim in [1, 5, 16, 40, 64, 129] {
            let rows = 300;
            let x: Vec<f32> = (0..rows * dim).map(|i| ((i * 7919) % 97) as f32 - 48.0).collect();
            let gain: Vec<f32> = (0..dim).map(|i| 0.5 + i as f32 * 0.01).collect();
            let mut out = vec![0.0; x.len()];
            rms_norm(&pool, &x, &gain, 1e-5, &mut out);
            for (x, out) in x.chunks(dim).zip(out.chunks(dim)) {
                let mean = x.iter().map(|x| f64::from(*x).powi(2)).sum::<f64>() / dim as f64;
                for i in 0..dim {
                    let exact = f64::from(x[i]) / (mean + 1e-5).sqrt() * f64::from(gain[i]);
                    assert!((f64::from(out[i]) - exact).abs() <= 1e-6 * exact.abs() + 1e-9);
                }
            }
            layer_norm(&pool, &x, &gain, 1e-5, &mut out);
            for (x, out) in x.chunks(dim).zip(out.chunks(dim)) {
                let mean = x.iter().map(|x| f64::from(*x)).sum::<f64>() / dim as f64;
                let squares = x.iter().map(|x| (f64::from(*x) - mean).powi(2)).sum::<f64>();
                for i in 0..dim {
                    let scale = 1.0 / (squares / dim as f64 + 1e-5).sqrt();
                    let exact = (f64::from(x[i]) - mean) * scale * f64::from(gain[i]);
                    assert!((f64::from(out[i]) - exact).abs() <= 1e-6 * exact.abs() + 1e-6);
                }
            }
            rms_norm(&pool, &x, &gain, 1e-5, &mut out);
            let mut in_place = x.clone();
            rms_norm_in_place(&pool, &mut in_place, &gain, 1e-5);
            assert_eq!(in_place, out);
        }
    }

    #[test]
    fn numbers_that_are_too_large_or_not_finite_do_not_become_zeros() {
        let pool = Pool::new(1).unwrap();
        for bad in [1e30, f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            let (mut x, mut out) = ([1.0; 40], [0.0; 40]);
            x[17] = bad;
            rms_norm(&pool, &x, &[1.0; 40], 1e-5, &mut out);
            assert!(out.iter().all(|out| out.is_nan()), "{bad}: {out:?}");
            layer_norm(&pool, &x, &[1.0; 40], 1e-5, &mut out);
            assert!(out.iter().all(|out| out.is_nan()), "{bad}: {out:?}");
        }
    }

    #[test]
    fn every_instruction_set_adds_alike() {
        let x: Vec<f32> = (0..75).map(|i| (i as f32).sin()).collect();
        let y: Vec<f32> = (0..75).map(|i| (i as f32).cos() * 3.0).collect();
        let of = |isa: Isa| {
            let mut out = x.clone();
            run(isa, AddScaled { x: &mut out, y: &y, factor: 0.3 });
            run(isa, Add { x: &mut out, y: &y });
            run(isa, NormaliseInPlace { x: &mut out, gain: &y, eps: 1e-6 });
            run(isa, Centre { x: &out.clone(), out: &mut out });
            out
        };
        for isa in Isa::available() {
            assert_eq!(of(isa), of(Isa::Scalar), "{}", isa.name());
        }
        let mut rows = [1.0, 2.0, 3.0, 4.0];
        add_bias(&Pool::new(2).unwrap(), &mut rows, &[10.0, 20.0]);
        scale(&mut rows, 2.0);
        assert_eq!(rows, [22.0, 44.0, 26.0, 48.0]);
    }

    #[test]
    fn addition_takes_every_number_once() {
        let y: Vec<f32> = (0..10_000).map(|i| i as f32).collect();
        let mut x = vec![1.0; y.len()];
        add(&Pool::new(2).unwrap(), &mut x, &y);
        assert!(x.iter().zip(&y).all(|(x, y)| *x == y + 1.0));
    }
}

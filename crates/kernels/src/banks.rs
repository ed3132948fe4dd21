//! Attention over banked residual streams of earlier layers (Kimi K3).
//!
//! A stream's score is the product of a learned vector and the stream, divided by its root mean
//! square. The softmax of a row's scores weights its streams. Products and squares are added in
//! four vectors of 16 lanes, as in a norm. The weighted streams are added in the order of banking,
//! the row's own last, by plain multiplications and additions.

use crate::isa::{Isa, Kernel, run};
use crate::math::finite;
use crate::norm::{product, scale_of};
use crate::pool::Pool;
use crate::routing::softmax;
use crate::rows::for_each_run;
use crate::shared::SharedMut;
use crate::simd::Simd;

/// The most banked streams.
pub const BANKS_MAX: usize = 64;

/// `out`, `[rows, width]`, becomes the weighted sum of the first `used` streams of `banks`, `[rows,
/// places, width]`, and of `x`, `[rows, width]`. `score` is the learned vector, `[width]`.
///
/// # Panics
/// If the shapes do not match, or `used` is above [`BANKS_MAX`].
pub fn read_banks(
    pool: &Pool,
    (banks, used): (&[f32], usize),
    x: &[f32],
    score: &[f32],
    eps: f32,
    out: &mut [f32],
) {
    let (width, isa) = (score.len(), Isa::chosen());
    let rows = x.len() / width;
    let of_row = banks.len() / rows.max(1);
    assert!(used <= BANKS_MAX && used * width <= of_row, "{used} streams in rows of {of_row}");
    assert!(x.len() == rows * width && out.len() == x.len(), "rows of {width} numbers");
    let target = SharedMut::new(out.as_mut_ptr());
    for_each_run(pool, rows, 3 * (used + 1) * width, |row| {
        let banked = banks[row * of_row..][..used * width].chunks_exact(width);
        let streams = banked.chain([&x[row * width..][..width]]);
        let mut scores = [0.0; BANKS_MAX + 1];
        for (found, x) in scores.iter_mut().zip(streams.clone()) {
            *found = finite(run(isa, Score { x, score, eps }));
        }
        softmax(&mut scores[..=used]);
        // SAFETY: the row lies inside `out`, and belongs to this task only.
        let out = unsafe { std::slice::from_raw_parts_mut(target.ptr().add(row * width), width) };
        out.fill(0.0);
        for (stream, weight) in streams.zip(scores) {
            out.iter_mut().zip(stream).for_each(|(out, x)| *out += x * weight);
        }
    });
}

/// Moves each row of `x`, `[rows, width]`, to place `at` of `banks`, `[rows, places, width]`; `x`
/// becomes zero.
///
/// # Panics
/// If there is no such place.
pub fn bank(width: usize, x: &mut [f32], banks: &mut [f32], at: usize) {
    let of_row = banks.len() / (x.len() / width).max(1);
    assert!((at + 1) * width <= of_row, "place {at} in rows of {of_row}");
    for (x, banks) in x.chunks_exact(width).zip(banks.chunks_exact_mut(of_row)) {
        banks[at * width..][..width].copy_from_slice(x);
    }
    x.fill(0.0);
}

struct Score<'a> {
    x: &'a [f32],
    score: &'a [f32],
    eps: f32,
}

impl Kernel for Score<'_> {
    type Out = f32;

    #[inline(always)]
    fn run<S: Simd>(self, s: S) -> f32 {
        product(s, self.x, self.score) * scale_of(s, self.x, self.eps)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WIDTH: usize = 83;
    const EPS: f32 = 1e-6;

    fn numbers(len: usize, step: f32) -> Vec<f32> {
        (0..len).map(|at| (at as f32 * step).sin() * 2.0).collect()
    }

    fn exact_score(x: &[f32], score: &[f32]) -> f64 {
        let sum = |y: &[f32]| x.iter().zip(y).map(|(x, y)| f64::from(*x) * f64::from(*y)).sum();
        let [product, squares]: [f64; 2] = [sum(score), sum(x)];
        product / (squares / x.len() as f64 + f64::from(EPS)).sqrt()
    }

    #[test]
    fn scores_are_close_to_their_formula_and_alike_everywhere() {
        let (x, score) = (numbers(WIDTH, 0.7), numbers(WIDTH, 0.3));
        let of = |isa| run(isa, Score { x: &x, score: &score, eps: EPS });
        let expected = of(Isa::Scalar);
        assert!((f64::from(expected) - exact_score(&x, &score)).abs() < 1e-4, "{expected}");
        for isa in Isa::available() {
            assert_eq!(of(isa).to_bits(), expected.to_bits(), "{}", isa.name());
        }
    }

    #[test]
    fn a_stream_that_is_not_finite_leaves_nothing_that_is() {
        let pool = Pool::new(1).unwrap();
        let (x, score) = (numbers(WIDTH, 1.9), numbers(WIDTH, 0.01));
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            for part in 0..3 {
                let mut parts = [x.clone(), numbers(WIDTH, 0.7), score.clone()];
                parts[part][40] = bad;
                let [x, banks, score] = &parts;
                let mut out = vec![0.0; WIDTH];
                read_banks(&pool, (banks, 1), x, score, EPS, &mut out);
                assert!(out.iter().all(|out| out.is_nan()), "{bad} in {part}");
            }
        }
    }

    #[test]
    fn what_is_read_is_weighed_by_the_scores() {
        let (rows, places, used) = (3, 4, 2);
        let pool = Pool::new(2).unwrap();
        let (mut banks, score) = (vec![f32::NAN; rows * places * WIDTH], numbers(WIDTH, 0.01));
        for at in 0..used {
            let mut x = numbers(rows * WIDTH, 0.37 + at as f32);
            bank(WIDTH, &mut x, &mut banks, at);
            assert!(x.iter().all(|x| *x == 0.0));
        }
        let x = numbers(rows * WIDTH, 1.9);
        let mut out = vec![f32::NAN; x.len()];
        read_banks(&pool, (&banks, used), &x, &score, EPS, &mut out);
        for row in 0..rows {
            let banked = (0..used).map(|at| &banks[(row * places + at) * WIDTH..][..WIDTH]);
            let streams: Vec<&[f32]> = banked.chain([&x[row * WIDTH..][..WIDTH]]).collect();
            let scores = streams.iter().map(|stream| exact_score(stream, &score).exp());
            let scores: Vec<f64> = scores.collect();
            let all: f64 = scores.iter().sum();
            for (at, got) in out[row * WIDTH..][..WIDTH].iter().enumerate() {
                let of = |(stream, score): (&&[f32], &f64)| f64::from(stream[at]) * score / all;
                let exact: f64 = streams.iter().zip(&scores).map(of).sum();
                assert!((f64::from(*got) - exact).abs() < 1e-4, "{row}, {at}: {got}, {exact}");
            }
        }
        // Without banked streams, a row stays unchanged.
        read_banks(&pool, (&banks, 0), &x, &score, EPS, &mut out);
        assert_eq!(out, x);
    }
}

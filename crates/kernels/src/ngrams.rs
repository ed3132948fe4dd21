//! Gates an n-gram's value for each residual stream (Qwen3.8-Flash-Next).
//!
//! The gate of a stream comes from the product of its query and its key, both already normalised:
//! the sigmoid of the product's root, with the product's sign. Products are added in four vectors
//! of 16 lanes, as in a norm.

use crate::isa::{Isa, Kernel, run};
use crate::norm::product;
use crate::pool::Pool;
use crate::routing::sigmoid_in_place;
use crate::rows::for_each_run;
use crate::shared::SharedMut;
use crate::simd::Simd;

/// The smallest magnitude of a product.
const LEAST: f32 = 1e-6;

/// `out`, `[rows, streams, width]`, becomes the `value` of each row, `[rows, width]`, times the
/// gate of each stream, from its key and its query, `[rows, streams, width]`.
///
/// # Panics
/// If the shapes do not match.
pub fn gate_ngrams(
    pool: &Pool,
    [keys, queries]: [&[f32]; 2],
    (value, width): (&[f32], usize),
    out: &mut [f32],
) {
    let (rows, isa) = (value.len() / width, Isa::chosen());
    let all = out.len() / rows.max(1);
    assert!(value.len() == rows * width && out.len() == rows * all, "rows of {width} numbers");
    assert!(keys.len() == out.len() && queries.len() == out.len(), "a key for each stream");
    assert!(all.is_multiple_of(width), "streams of {width} numbers");
    let target = SharedMut::new(out.as_mut_ptr());
    for_each_run(pool, rows, 3 * all, |row| {
        // SAFETY: the row lies inside `out`, and belongs to this task only.
        let out = unsafe { std::slice::from_raw_parts_mut(target.ptr().add(row * all), all) };
        let value = &value[row * width..][..width];
        for (stream, out) in out.chunks_exact_mut(width).enumerate() {
            let at = row * all + stream * width;
            let [x, y] = [&keys[at..at + width], &queries[at..at + width]];
            let gate = gate(run(isa, Dot { x, y }) / (width as f32).sqrt());
            out.iter_mut().zip(value).for_each(|(out, value)| *out = value * gate);
        }
    });
}

fn gate(product: f32) -> f32 {
    let root = product.abs().max(LEAST).sqrt();
    let mut gate = [if product == 0.0 { 0.0 } else { root.copysign(product) }];
    sigmoid_in_place(&mut gate);
    if product.is_finite() { gate[0] } else { f32::NAN }
}

struct Dot<'a> {
    x: &'a [f32],
    y: &'a [f32],
}

impl Kernel for Dot<'_> {
    type Out = f32;

    #[inline(always)]
    fn run<S: Simd>(self, s: S) -> f32 {
        product(s, self.x, self.y)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_product_that_is_not_finite_has_no_gate() {
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            assert!(gate(bad).is_nan(), "{bad}");
        }
    }

    #[test]
    fn gates_are_close_to_their_formula() {
        const WIDTH: usize = 37;
        let numbers = |len: usize, step: f32| -> Vec<f32> {
            (0..len).map(|at| (at as f32 * step).sin()).collect()
        };
        let (keys, mut queries) = (numbers(4 * WIDTH, 0.7), numbers(4 * WIDTH, 0.3));
        queries[WIDTH..2 * WIDTH].fill(0.0);
        let (value, mut out) = (numbers(2 * WIDTH, 1.1), vec![f32::NAN; 4 * WIDTH]);
        gate_ngrams(&Pool::new(2).unwrap(), [&keys, &queries], (&value, WIDTH), &mut out);
        for (at, found) in out.iter().enumerate() {
            let own = at / WIDTH * WIDTH..(at / WIDTH + 1) * WIDTH;
            let pairs = keys[own.clone()].iter().zip(&queries[own]);
            let sum: f64 = pairs.map(|(x, y)| f64::from(*x) * f64::from(*y)).sum();
            let sum = sum / (WIDTH as f64).sqrt();
            let root = sum.abs().max(1e-6).sqrt() * if sum == 0.0 { 0.0 } else { sum.signum() };
            let value = f64::from(value[at / (2 * WIDTH) * WIDTH + at % WIDTH]);
            let due = value / (1.0 + (-root).exp());
            assert!((f64::from(*found) - due).abs() < 1e-5, "{at}: {found} {due}");
        }
    }
}

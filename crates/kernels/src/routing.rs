//! The functions for routing a token to experts: softmax, sigmoid and the largest of some scores.
//! All in one fixed order with our own exponential, so that every machine routes alike.

use crate::isa::{Isa, Kernel, run};
use crate::math::{exp, sigmoid, softplus, tainted};
use crate::norm::{load_padded, store_part};
use crate::simd::{LANES, Simd};

/// Replaces `x` by its softmax: all NaN if any is NaN, or if the largest is infinite.
pub fn softmax(x: &mut [f32]) {
    run(Isa::chosen(), Softmax { x });
}

/// Replaces each element by `1 / (1 + e^-x)`, and infinity by NaN.
pub fn sigmoid_in_place(x: &mut [f32]) {
    run(Isa::chosen(), Sigmoid { x });
}

/// Replaces each element by the root of its softplus, `sqrt(log(1 + e^x))`.
pub fn root_softplus_in_place(x: &mut [f32]) {
    run(Isa::chosen(), RootSoftplus { x });
}

/// Writes the indices of the `best.len()` largest elements, largest first; of equal ones, the first
/// comes first. NaN counts as the smallest.
///
/// # Panics
/// If there are fewer numbers than indices.
pub fn top_k(x: &[f32], best: &mut [u32]) {
    assert!(best.len() <= x.len(), "the {} largest of {} numbers", best.len(), x.len());
    let larger = |a: usize, b: usize| x[a] > x[b] || (x[b].is_nan() && !x[a].is_nan());
    let wanted = best.len();
    let mut found = 0;
    for index in 0..x.len() {
        let place = best[..found].iter().rposition(|&other| !larger(index, other as usize));
        let place = place.map_or(0, |place| place + 1);
        if place < wanted {
            found = wanted.min(found + 1);
            best.copy_within(place..found - 1, place + 1);
            best[place] = index as u32;
        }
    }
}

struct RootSoftplus<'a> {
    x: &'a mut [f32],
}

impl Kernel for RootSoftplus<'_> {
    type Out = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        for x in self.x.chunks_mut(LANES) {
            let positive = softplus(s, load_padded(s, x));
            store_part(s, x, positive);
            x.iter_mut().for_each(|x| *x = x.sqrt());
        }
    }
}

struct Softmax<'a> {
    x: &'a mut [f32],
}

impl Kernel for Softmax<'_> {
    type Out = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let top = self.x.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let mut sum = 0.0;
        for x in self.x.chunks_mut(LANES) {
            let weights = exp(s, s.sub(load_padded(s, x), s.splat(top)));
            store_part(s, x, weights);
            for weight in x {
                sum += *weight;
            }
        }
        self.x.iter_mut().for_each(|x| *x /= sum);
    }
}

struct Sigmoid<'a> {
    x: &'a mut [f32],
}

impl Kernel for Sigmoid<'_> {
    type Out = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        for x in self.x.chunks_mut(LANES) {
            let v = load_padded(s, x);
            store_part(s, x, tainted(s, sigmoid(s, v), v));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn softmax_is_close_and_alike_everywhere() {
        for len in [1, 7, 16, 100] {
            let x: Vec<f32> = (0..len).map(|i| (i as f32 * 1.3).sin() * 20.0).collect();
            let of = |isa| {
                let mut out = x.clone();
                run(isa, Softmax { x: &mut out });
                run(isa, Sigmoid { x: &mut out.clone() });
                out
            };
            let expected = of(Isa::Scalar);
            let sum: f64 = x.iter().map(|x| f64::from(*x).exp()).sum();
            for (x, got) in x.iter().zip(&expected) {
                assert!((f64::from(*got) - f64::from(*x).exp() / sum).abs() < 1e-6);
            }
            for isa in Isa::available() {
                assert_eq!(of(isa), expected, "{}", isa.name());
            }
        }
    }

    #[test]
    fn the_largest_come_first_and_ties_keep_their_order() {
        for (x, k, expected) in [
            (vec![0.1, 0.5, 0.3], 2, vec![1, 2]),
            (vec![1.0, 1.0, 1.0], 2, vec![0, 1]),
            (vec![0.0, 3.0, 3.0, 9.0, 3.0], 3, vec![3, 1, 2]),
            (vec![f32::NAN, -1.0, f32::NAN, -2.0], 3, vec![1, 3, 0]),
            (vec![2.0], 0, vec![]),
        ] {
            let mut best = vec![99; k];
            top_k(&x, &mut best);
            assert_eq!(best, expected, "the {k} largest of {x:?}");
        }
        let mut weights = [0.0, 2.0, 1.0];
        softmax(&mut weights);
        assert!((weights[1] - 0.665_241).abs() < 1e-5 && (weights[2] - 0.244_728).abs() < 1e-5);
        let mut half = [0.0];
        sigmoid_in_place(&mut half);
        assert_eq!(half, [0.5]);
    }
}

//! The rotation of keys and values before they are rounded to eight bits.
//!
//! Some models' keys have a few elements much larger than the rest of their block, which then get
//! too coarse a scale. A Walsh-Hadamard transform spreads every element over all of them, and
//! changes no scalar product: queries are rotated too, and the heads' outputs are rotated back.

use crate::isa::Kernel;
use crate::simd::Simd;

/// Rotates a head's elements in place; the rotation is its own inverse. If their number is no power
/// of two, the largest power-of-two blocks are rotated.
pub(super) struct Rotate<'a>(pub &'a mut [f32]);

impl Kernel for Rotate<'_> {
    type Out = ();

    #[inline(always)]
    fn run<S: Simd>(self, _: S) {
        let Self(x) = self;
        let block = 1 << x.len().trailing_zeros();
        let scale = 1.0 / (block as f32).sqrt();
        let mut half = 1;
        while half < block {
            for pair in x.chunks_exact_mut(2 * half) {
                let (a, b) = pair.split_at_mut(half);
                for (a, b) in a.iter_mut().zip(b) {
                    (*a, *b) = (*a + *b, *a - *b);
                }
            }
            half *= 2;
        }
        x.iter_mut().for_each(|x| *x *= scale);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::reference::floats;
    use crate::isa::{Isa, run};

    fn rotated(isa: Isa, x: &[f32]) -> Vec<f32> {
        let mut x = x.to_vec();
        run(isa, Rotate(&mut x));
        x
    }

    #[test]
    fn a_rotation_is_its_own_inverse_and_the_same_everywhere() {
        let mut rng = fastrand::Rng::with_seed(3);
        for dim in [1, 2, 20, 64, 80, 96, 128, 576] {
            let x = floats(&mut rng, dim);
            let once = rotated(Isa::chosen(), &x);
            assert!(Isa::available().into_iter().all(|isa| rotated(isa, &x) == once), "{dim}");
            let twice = rotated(Isa::chosen(), &once);
            assert!(twice.iter().zip(&x).all(|(a, b)| (a - b).abs() < 1e-6), "{dim}");
        }
        assert_eq!(rotated(Isa::chosen(), &[4.0, 0.0, 0.0, 0.0]), [2.0; 4]);
        assert_eq!(rotated(Isa::chosen(), &[0.0, 2.0, 0.0, 2.0]), [2.0, -2.0, 0.0, 0.0]);
    }
}

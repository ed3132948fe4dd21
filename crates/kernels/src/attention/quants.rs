//! Keys and values as 8-bit numbers: Q8_0 of the GGUF format, 32 elements of one head and position
//! with a common half-precision scale; the last block of a head is short if its dimension is no
//! multiple of 32.

use super::page::PAGE_POSITIONS;
use crate::isa::Kernel;
use crate::math::tainted;
use crate::simd::{LANES, Simd};

/// Elements with a common scale.
pub(super) const BLOCK: usize = 32;

/// The largest quant.
const QUANT_MAX: f32 = 127.0;

/// The largest magnitude of a block: its scale is then the largest half-precision number.
const LARGEST: f32 = QUANT_MAX * 65504.0;

/// Scales of a vector of `dim` numbers.
pub(super) fn blocks(dim: usize) -> usize {
    dim.div_ceil(BLOCK)
}

/// One head of one page.
#[derive(Clone, Copy)]
pub(super) struct Quants<'a> {
    /// `[key blocks + value blocks, 64]`, half precision.
    pub scales: &'a [u16],
    /// `[k_dim, 64]`.
    pub keys: &'a [i8],
    /// `[64, v_stride]`.
    pub values: &'a [i8],
}

/// Quantises one vector of keys or values.
pub(super) struct Quantize<'a> {
    pub x: &'a [f32],
    /// One for each block, 64 apart.
    pub scales: *mut u16,
    /// One for each number, `stride` apart.
    pub quants: *mut i8,
    pub stride: usize,
}

impl Kernel for Quantize<'_> {
    type Out = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        for (block, x) in self.x.chunks(BLOCK).enumerate() {
            let mut padded = [0.0; BLOCK];
            padded[..x.len()].copy_from_slice(x);
            let (scale, quants) = quantize(s, &padded);
            // SAFETY: the caller of the kernel promises room for the scales and quants of the
            // blocks and elements of `x`.
            unsafe {
                *self.scales.add(block * PAGE_POSITIONS) = scale;
                for (i, quant) in quants[..x.len()].iter().enumerate() {
                    *self.quants.add((block * BLOCK + i) * self.stride) = *quant;
                }
            }
        }
    }
}

/// A block's scale, and each of its elements over it, rounded to the nearest integer. Elements that
/// are too large become the largest possible. If an element is infinite or NaN, the scale is NaN.
#[inline(always)]
fn quantize<S: Simd>(s: S, x: &[f32; BLOCK]) -> (u16, [i8; BLOCK]) {
    let mut quants = [0; BLOCK];
    // SAFETY: a block is two vectors, and so are its quants; `scale` is one.
    let (first, second) = unsafe { (s.load(x.as_ptr()), s.load(x.as_ptr().add(LANES))) };
    let (low, high) = (clamp(s, first, LARGEST), clamp(s, second, LARGEST));
    let top = s.top(s.max(s.abs(low), s.abs(high)));
    let taint = s.sum(s.add(s.sub(first, first), s.sub(second, second)));
    let exact = tainted(s, s.div(s.splat(top), s.splat(QUANT_MAX)), s.splat(taint));
    let mut scale = [0; LANES];
    // SAFETY: see above.
    unsafe { s.store_f16(scale.as_mut_ptr(), exact) };
    if scale[0] != 0 {
        // SAFETY: see above.
        let by = unsafe { s.load_f16(scale.as_ptr()) };
        for (at, v) in [(0, low), (LANES, high)] {
            // With a scale that was rounded down, the largest element is a little over 127.
            let v = s.to_i(clamp(s, s.div(v, by), QUANT_MAX));
            // SAFETY: see above.
            unsafe { s.store_i8(quants.as_mut_ptr().add(at), v) };
        }
    }
    (scale[0], quants)
}

#[inline(always)]
fn clamp<S: Simd>(s: S, v: S::F, limit: f32) -> S::F {
    s.max(s.min(v, s.splat(limit)), s.splat(-limit))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::reference::floats;
    use crate::isa::{Isa, run};
    use fastrand::Rng;
    use half::f16;

    /// Scales and quants of a vector of numbers.
    fn quantized(isa: Isa, x: &[f32]) -> (Vec<u16>, Vec<i8>) {
        let mut scales = vec![0; blocks(x.len()) * PAGE_POSITIONS];
        let mut quants = vec![0; x.len()];
        let (to_scales, to_quants) = (scales.as_mut_ptr(), quants.as_mut_ptr());
        run(isa, Quantize { x, scales: to_scales, quants: to_quants, stride: 1 });
        (scales.into_iter().step_by(PAGE_POSITIONS).collect(), quants)
    }

    #[test]
    fn a_block_is_within_half_a_step_and_alike_everywhere() {
        let mut rng = Rng::with_seed(1);
        for (len, size) in [(32, 1.0), (20, 1e-3), (72, 300.0), (1, 5e4), (64, 8e6), (40, 1e-6)] {
            let x: Vec<f32> = floats(&mut rng, len).iter().map(|x| x * size).collect();
            let (scales, quants) = quantized(Isa::Scalar, &x);
            for isa in Isa::available() {
                assert_eq!(quantized(isa, &x), (scales.clone(), quants.clone()), "{}", isa.name());
            }
            for ((x, quants), scale) in x.chunks(BLOCK).zip(quants.chunks(BLOCK)).zip(scales) {
                let scale = f16::from_bits(scale).to_f32();
                let top = x.iter().fold(0.0_f32, |top, x| top.max(x.abs()));
                // Half precision has 11 bits, and steps of 2^-24 at its lower end.
                let rounding = (scale * 2.0_f32.powi(-11)).max(2.0_f32.powi(-25));
                assert!((scale - top / QUANT_MAX).abs() <= rounding, "{scale} for {top}");
                for (x, quant) in x.iter().zip(quants) {
                    let error = (x - scale * f32::from(*quant)).abs();
                    let limit = 0.501 * scale + QUANT_MAX * 2.0_f32.powi(-25);
                    assert!(error <= limit, "{x}: {quant} times {scale}");
                }
            }
        }
    }

    #[test]
    fn what_no_block_can_hold_becomes_the_nearest_that_it_can() {
        let largest = f16::MAX.to_bits();
        for isa in Isa::available() {
            assert_eq!(quantized(isa, &[0.0, -0.0, 1e-9]), (vec![0], vec![0; 3]));
            let (scales, quants) = quantized(isa, &[1e30, -1e30, 1.0]);
            assert_eq!((scales, quants), (vec![largest], vec![127, -127, 0]));
        }
    }

    #[test]
    fn a_number_that_is_not_finite_leaves_its_block_no_scale() {
        for isa in Isa::available() {
            for bad in [f32::NAN, -f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
                for at in 0..70 {
                    let mut x = vec![0.5; 70];
                    x[at] = bad;
                    let scales = quantized(isa, &x).0.into_iter().map(f16::from_bits);
                    let found: Vec<bool> = scales.map(f16::is_nan).collect();
                    let expected: Vec<bool> = (0..3).map(|block| block == at / BLOCK).collect();
                    assert_eq!(found, expected, "{bad} at {at} on {}", isa.name());
                }
            }
        }
    }
}

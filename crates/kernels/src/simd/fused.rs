//! Multiply and add, rounded once, without hardware for it.

/// `a * b + c` with one rounding, as IEEE 754 defines it.
///
/// `f32::mul_add` calls the C library where no instruction is known to exist, and MinGW's library,
/// which programs for Windows have, rounds twice. In f64 the product is exact. Their sum is rounded
/// to odd: if it is inexact, the neighbour with an odd last bit is taken. The second rounding, to
/// f32, then gives what one alone would (Boldo and Melquiond, "Emulation of FMA and
/// Correctly-Rounded Sums: Proved Algorithms Using Rounding to Odd", 2008).
pub(crate) fn fused(a: f32, b: f32, c: f32) -> f32 {
    let (product, c) = (f64::from(a) * f64::from(b), f64::from(c));
    let sum = product + c;
    // What the sum lost; not a number where it is infinite.
    let back = sum - product;
    let lost = (product - (sum - back)) + (c - back);
    let bits = sum.to_bits();
    let odd = match lost.abs() > 0.0 && bits & 1 == 0 {
        true if (lost > 0.0) == (sum > 0.0) => bits + 1,
        true => bits - 1,
        false => bits,
    };
    f64::from_bits(odd) as f32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sum_is_rounded_once() {
        let near_one = 1.0 + 2_f32.powi(-12);
        // In f64 the sum is halfway between two numbers of f32; what f64 lost decides.
        let (down, up) = (1.0 + 2_f32.powi(-11), 1.0 + 2_f32.powi(-11) + f32::EPSILON);
        for (c, due) in [(2_f32.powi(-70), up), (0.0, down), (-2_f32.powi(-70), down)] {
            assert_eq!(fused(near_one, near_one, c), due, "{c}");
            assert_eq!(fused(-near_one, near_one, -c), -due, "{c}");
        }
        // The same at the smallest numbers, and where the last one overflows.
        let tiny = f32::from_bits(1);
        assert_eq!(fused(tiny, 0.5, 2_f32.powi(-149)), 2.0 * tiny);
        assert_eq!(fused(f32::MAX, 2.0, f32::MIN), f32::MAX);
        assert_eq!(fused(f32::MAX, f32::MAX, f32::NEG_INFINITY), f32::NEG_INFINITY);
        assert_eq!(fused(f32::MAX, f32::MAX, 0.0), f32::INFINITY);
        assert!(fused(f32::INFINITY, 1.0, f32::NEG_INFINITY).is_nan());
        assert!(fused(-1.0, 0.0, -0.0).is_sign_negative());
        assert!(fused(1.0, 1.0, -1.0).is_sign_positive());
    }

    /// Numbers of all sizes, beside integers that hold the exact sum.
    #[test]
    fn sums_are_those_of_exact_arithmetic() {
        let mut seed = 0x9e37_79b9_u64;
        let mut draw = |bits: u32| {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (seed >> 33) as i64 & ((1 << bits) - 1)
        };
        for _ in 0..200_000 {
            let sign = |negative: i64| if negative == 1 { -1 } else { 1 };
            let (a, b) = (sign(draw(1)) * draw(24), sign(draw(1)) * draw(24));
            let (c, shift) = (sign(draw(1)) * draw(24), draw(6) as i32 - 8);
            // All are multiples of 2^-8, below 2^90.
            let exact = i128::from(a) * i128::from(b) * 256 + (i128::from(c) << (shift + 8));
            let found = fused(a as f32, b as f32, c as f32 * 2_f32.powi(shift));
            assert_eq!(found, round(exact) * 2_f32.powi(-8), "{a} {b} {c} {shift}");
        }
    }

    /// The nearest f32, an even one of two.
    fn round(exact: i128) -> f32 {
        let size = 128 - exact.unsigned_abs().leading_zeros();
        let drop = size.saturating_sub(24);
        let whole = exact.unsigned_abs() >> drop;
        let rest = exact.unsigned_abs() - (whole << drop);
        let half = if drop == 0 { 1 } else { 1 << (drop - 1) };
        let up = drop > 0 && (rest > half || (rest == half && whole & 1 == 1));
        let found = (whole + u128::from(up)) as f32 * 2_f32.powi(drop as i32);
        if exact < 0 { -found } else { found }
    }
}

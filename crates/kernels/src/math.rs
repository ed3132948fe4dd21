//! Exponentials in vector form, built only from exact and correctly rounded operations, so that
//! every machine gets the same bits (the system's own `expf` differs between machines).
//!
//! Every function here maps NaN to NaN, because [`Simd::max`] and [`Simd::min`] do if their second
//! argument is NaN. A saturating function also hides an infinity; [`tainted`] preserves it where
//! necessary.

use crate::simd::Simd;

/// Below this `exp` gives zero; e^-87 is still a normal number.
const EXP_MIN: f32 = -87.0;

/// Above this `exp` stays constant; e^88 is still finite.
const EXP_MAX: f32 = 88.0;

/// `v`, or NaN where `x` is infinite or NaN.
#[inline(always)]
pub(crate) fn tainted<S: Simd>(s: S, v: S::F, x: S::F) -> S::F {
    // The difference has no bit set if `x` is finite, and all bits of the exponent otherwise.
    s.cast_f(s.or(s.cast_i(v), s.cast_i(s.sub(x, x))))
}

/// `x`, or NaN where it is infinite.
pub(crate) fn finite(x: f32) -> f32 {
    if x.is_finite() { x } else { f32::NAN }
}

/// e^x to about 2 units in the last place; exactly zero below -87 (and for minus infinity).
///
/// x = n ln 2 + r with |r| <= ln 2 / 2; e^r by its Taylor polynomial of degree 7, whose remainder
/// (r^8 / 8! < 6e-9) is below half a unit in the last place.
#[inline(always)]
pub(crate) fn exp<S: Simd>(s: S, x: S::F) -> S::F {
    // ln 2 in two parts, the first short enough that n times it is exact.
    const LN_2_HIGH: f32 = 0.693_145_75;
    const LN_2_LOW: f32 = 1.428_606_8e-6;
    let clamped = s.max(s.splat(EXP_MIN), s.min(s.splat(EXP_MAX), x));
    let n = s.to_i(s.mul(clamped, s.splat(std::f32::consts::LOG2_E)));
    let n_float = s.to_f(n);
    let r = s.fma(n_float, s.splat(-LN_2_HIGH), clamped);
    let r = s.fma(n_float, s.splat(-LN_2_LOW), r);
    let mut p = s.splat(1.0 / 5040.0);
    for factor in [1.0 / 720.0, 1.0 / 120.0, 1.0 / 24.0, 1.0 / 6.0, 0.5, 1.0, 1.0] {
        p = s.fma(p, r, s.splat(factor));
    }
    let power = s.cast_f(s.shl(s.add_i(n, s.splat_i(127)), 23));
    s.keep_from(s.mul(p, power), x, s.splat(EXP_MIN))
}

/// Below this `exp2` gives zero; 2^-125 is still a normal number.
const EXP2_MIN: f32 = -125.0;

/// 2^x for x up to 126, to about 3 units in the last place; exactly zero below -125, exactly one
/// at zero.
///
/// x = n + r with |r| <= 1/2; 2^r by the polynomial of degree 5 through 1 at 0 with the smallest
/// relative error, 9.2e-8, and its exponent raised by n.
#[inline(always)]
pub(crate) fn exp2<S: Simd>(s: S, x: S::F) -> S::F {
    let clamped = s.max(s.splat(EXP2_MIN), x);
    let n = s.to_i(clamped);
    let r = s.sub(clamped, s.to_f(n));
    const FIRST: f32 = std::f32::consts::LN_2 - 1.8e-7;
    let mut p = s.splat(0.001_326_472_7);
    for factor in [0.009_671_513, 0.055_507_336, 0.240_222_42, FIRST, 1.0] {
        p = s.fma(p, r, s.splat(factor));
    }
    // NaN has an `n` with zero low bits, and stays NaN.
    let power = s.add_i(s.cast_i(p), s.shl(n, 23));
    s.keep_from(s.cast_f(power), x, s.splat(EXP2_MIN))
}

/// tanh x = 1 - 2 / (e^2x + 1): absolute error below 2e-7.
#[inline(always)]
pub(crate) fn tanh<S: Simd>(s: S, x: S::F) -> S::F {
    let e = exp(s, s.add(x, x));
    s.sub(s.splat(1.0), s.div(s.splat(2.0), s.add(e, s.splat(1.0))))
}

/// 1 / (1 + e^-x).
#[inline(always)]
pub(crate) fn sigmoid<S: Simd>(s: S, x: S::F) -> S::F {
    let e = exp(s, s.sub(s.splat(0.0), x));
    s.div(s.splat(1.0), s.add(s.splat(1.0), e))
}

/// log(1 + e^x) to a relative error below 4e-7; x itself from about 17 on, zero below -87.
///
/// It is max(x, 0) + log(1 + y) with y = e^-|x|, and log(1 + y) = 2 artanh(z) with
/// z = y / (2 + y) <= 1/3, by its Taylor polynomial, whose remainder is below 1.4e-8 of it. So
/// small results keep their digits, which a sum with one would lose.
#[inline(always)]
pub(crate) fn softplus<S: Simd>(s: S, x: S::F) -> S::F {
    let y = exp(s, s.sub(s.splat(0.0), s.abs(x)));
    let z = s.div(y, s.add(y, s.splat(2.0)));
    let square = s.mul(z, z);
    let mut p = s.splat(2.0 / 13.0);
    for factor in [2.0 / 11.0, 2.0 / 9.0, 2.0 / 7.0, 2.0 / 5.0, 2.0 / 3.0, 2.0] {
        p = s.fma(p, square, s.splat(factor));
    }
    s.fma(p, z, s.max(x, s.splat(0.0)))
}

/// Φ(-|x|), the normal distribution below -|x|, to an absolute error below 2e-7.
///
/// It is t p(t) e^(-x² / 2) with t = 1 / (1 + 0.39 |x| / √2), as in Abramowitz and Stegun, "Handbook
/// of Mathematical Functions" (1964), 7.1.26; p has two terms more than theirs, and the smallest
/// error over all x, 4.2e-9.
#[inline(always)]
pub(crate) fn normal_tail<S: Simd>(s: S, x: S::F) -> S::F {
    let z = s.mul(s.abs(x), s.splat(std::f32::consts::FRAC_1_SQRT_2));
    let t = s.div(s.splat(1.0), s.fma(z, s.splat(0.39), s.splat(1.0)));
    let mut p = s.splat(-0.113_768_63);
    for factor in [0.443_332_44, -0.317_700_56, 0.324_780_03, 0.045_694_11, 0.117_662_63] {
        p = s.fma(p, t, s.splat(factor));
    }
    let power = exp(s, s.mul(s.mul(z, s.splat(-1.0)), z));
    s.mul(s.mul(p, t), power)
}

/// Φ(x) in f64, by its series, for tests: exact to 1e-12 for |x| below 8, zero or one beyond.
#[cfg(test)]
pub(crate) fn normal(x: f64) -> f64 {
    if x.abs() > 8.0 {
        return if x > 0.0 { 1.0 } else { 0.0 };
    }
    let (mut term, mut sum, mut n) = (x, x, 1.0);
    while term.abs() > 1e-18 {
        n += 2.0;
        term *= x * x / n;
        sum += term;
    }
    0.5 + sum * (-x * x / 2.0).exp() / (2.0 * std::f64::consts::PI).sqrt()
}

/// x / (1 + e^-x).
#[inline(always)]
pub(crate) fn silu<S: Simd>(s: S, x: S::F) -> S::F {
    s.mul(x, sigmoid(s, x))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::simd::scalar::Scalar;

    #[test]
    fn exp_and_tanh_are_close_over_their_range() {
        for step in -8800..=8700 {
            let x = step as f32 * 0.01 + 0.003;
            let exact = f64::from(x).exp();
            let got = f64::from(exp(Scalar, [x; 16])[0]);
            let limit = if x < EXP_MIN { 1.7e-38 } else { exact * 2.5e-7 };
            assert!((got - exact).abs() <= limit, "exp({x}) is {exact}, not {got}");
            let got = f64::from(tanh(Scalar, [x; 16])[0]);
            assert!((got - f64::from(x).tanh()).abs() < 4e-7, "tanh({x}) is not {got}");
        }
        for step in -12600..=1000 {
            let x = step as f32 * 0.01 + 0.003;
            let exact = f64::from(x).exp2();
            let got = f64::from(exp2(Scalar, [x; 16])[0]);
            let limit = if x < EXP2_MIN { 2.4e-38 } else { exact * 2.0e-7 };
            assert!((got - exact).abs() <= limit, "2^{x} is {exact}, not {got}");
        }
        assert_eq!(exp2(Scalar, [0.0; 16])[0], 1.0);
        for none in [f32::NEG_INFINITY, -1000.0] {
            assert_eq!(exp2(Scalar, [none; 16])[0], 0.0);
        }
        assert_eq!(exp(Scalar, [f32::NEG_INFINITY; 16])[0], 0.0);
        assert_eq!(exp(Scalar, [0.0; 16])[0], 1.0);
        assert!(exp(Scalar, [1000.0; 16])[0].is_finite());
    }

    #[test]
    fn what_is_not_a_number_stays_none() {
        let functions: [fn([f32; 16]) -> [f32; 16]; 6] = [
            |x| exp(Scalar, x),
            |x| exp2(Scalar, x),
            |x| tanh(Scalar, x),
            |x| sigmoid(Scalar, x),
            |x| softplus(Scalar, x),
            |x| silu(Scalar, x),
        ];
        for function in functions {
            assert!(function([f32::NAN; 16])[0].is_nan() && function([-f32::NAN; 16])[0].is_nan());
        }
        for infinity in [f32::INFINITY, f32::NEG_INFINITY] {
            assert!(tainted(Scalar, [1.0; 16], [infinity; 16])[0].is_nan());
        }
        assert_eq!(tainted(Scalar, [-0.0; 16], [-1.0; 16])[0].to_bits(), (-0.0_f32).to_bits());
    }

    #[test]
    fn the_normal_distribution_is_close_over_its_range() {
        for step in -1500..=1500 {
            let x = step as f32 * 0.01;
            let (exact, got) = (normal(-f64::from(x.abs())), normal_tail(Scalar, [x; 16])[0]);
            assert!((f64::from(got) - exact).abs() <= 2e-7, "Φ(-|{x}|) is {exact}, not {got}");
        }
        assert!((normal(1.0) - 0.841_344_746_068_542_9).abs() < 1e-12);
    }

    #[test]
    fn softplus_and_silu_are_close_over_their_range() {
        let mut last = 0.0;
        for step in -12000..=12000 {
            let x = step as f32 * 0.01 + 0.003;
            let exact = f64::from(x).exp().ln_1p();
            let got = softplus(Scalar, [x; 16])[0];
            let limit = if x < EXP_MIN { 1.7e-38 } else { exact * 4.0e-7 };
            assert!((f64::from(got) - exact).abs() <= limit, "softplus({x}) is {exact}, not {got}");
            assert!(got >= last, "softplus({x}) is {got}, below the {last} before it");
            assert!(x < 20.0 || got == x, "softplus({x}) is {got}");
            last = got;
            let exact = f64::from(x) / (1.0 + (-f64::from(x)).exp());
            let got = f64::from(silu(Scalar, [x; 16])[0]);
            let limit = if x < EXP_MIN { 2e-36 } else { exact.abs() * 5.0e-7 };
            assert!((got - exact).abs() <= limit, "silu({x}) is {exact}, not {got}");
        }
    }
}

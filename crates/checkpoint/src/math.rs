//! Exponentials and logarithms by additions and products alone. Those of the system's library
//! differ in last bits between machines, and a folder must give the same bytes on all of them.

use std::f64::consts::{LN_2, SQRT_2};

/// e to the power of `x`, to some 1e-15 of its value.
pub(crate) fn exp(x: f64) -> f64 {
    if !x.is_finite() || x.abs() > 700.0 {
        return if x > 0.0 {
            f64::INFINITY
        } else if x < 0.0 {
            0.0
        } else {
            x
        };
    }
    let twos = (x / LN_2).round();
    let rest = x - twos * LN_2;
    let (mut term, mut sum) = (1.0, 1.0);
    for at in 1..20 {
        term *= rest / f64::from(at);
        sum += term;
    }
    sum * f64::from_bits(((1023 + twos as i64) as u64) << 52)
}

/// The natural logarithm of `x`, which must be positive and normal.
pub(crate) fn ln(x: f64) -> f64 {
    let bits = x.to_bits();
    let mut twos = (bits >> 52) as i64 - 1023;
    let mut rest = f64::from_bits(bits & !(0x7ff << 52) | 1023 << 52);
    if rest > SQRT_2 {
        (rest, twos) = (rest / 2.0, twos + 1);
    }
    // ln(x) = 2 artanh((x - 1) / (x + 1)).
    let ratio = (rest - 1.0) / (rest + 1.0);
    let (mut power, mut sum) = (ratio, 0.0);
    for at in 0..20 {
        sum += power / f64::from(2 * at + 1);
        power *= ratio * ratio;
    }
    2.0 * sum + twos as f64 * LN_2
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn they_are_near_the_library_s() {
        for at in -300..300 {
            let x = f64::from(at) * 0.37;
            assert!((exp(x) / x.exp() - 1.0).abs() < 1e-13, "{x}");
            let y = x.exp();
            assert!((ln(y) - x).abs() < 1e-13 * x.abs().max(1.0), "{x}");
        }
        assert_eq!(exp(0.0), 1.0);
        assert_eq!(exp(1000.0), f64::INFINITY);
        assert_eq!(exp(f64::NEG_INFINITY), 0.0);
        assert!(exp(f64::NAN).is_nan());
    }
}

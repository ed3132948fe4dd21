//! Logarithm and exponential of single numbers, only from basic operations: those of the system
//! differ between machines.

/// Terms of both series. Each term is at most a ninth of the one before it, or is divided by its
/// number.
const TERMS: u32 = 18;

/// The natural logarithm of a positive number; of others that of the smallest normal one.
pub fn ln(x: f64) -> f64 {
    const FRACTION: u64 = (1 << 52) - 1;
    let bits = x.max(f64::MIN_POSITIVE).to_bits();
    let exponent = (bits >> 52) as i32 - 1023;
    let part = f64::from_bits(bits & FRACTION | 1.0_f64.to_bits());
    // ln(part) = 2 artanh((part - 1) / (part + 1)).
    let t = (part - 1.0) / (part + 1.0);
    let (mut power, mut sum) = (t, 0.0);
    for term in 0..TERMS {
        sum += power / f64::from(2 * term + 1);
        power *= t * t;
    }
    f64::from(exponent) * std::f64::consts::LN_2 + 2.0 * sum
}

/// The exponential of a number, which counts as -700 to 700.
pub fn exp(x: f64) -> f64 {
    let x = x.clamp(-700.0, 700.0);
    let halvings = (x / std::f64::consts::LN_2).round();
    let rest = x - halvings * std::f64::consts::LN_2;
    let (mut power, mut sum) = (1.0, 1.0);
    for term in 1..TERMS {
        power *= rest / f64::from(term);
        sum += power;
    }
    sum * f64::from_bits(((halvings as i64 + 1023) as u64) << 52)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn they_are_those_of_the_system() {
        let counts = (1..5000).chain([1 << 20, (1 << 32) + 7]).map(|count: u64| count as f64);
        for x in counts.chain([0.1, 1e-30, 0.999, 1e-300, 1e300]) {
            let exact = x.ln();
            assert!((ln(x) - exact).abs() <= 1e-15 * exact.abs().max(1.0), "{x}");
        }
        assert_eq!((ln(1.0), exp(0.0), ln(0.0)), (0.0, 1.0, ln(f64::MIN_POSITIVE)));
        for x in [-690.0, -3.3, -1e-9, 0.1, 0.35, 1.0, 20.0, 690.0] {
            let exact = f64::exp(x);
            assert!((exp(x) / exact - 1.0).abs() < 1e-13, "{x}");
        }
        assert!(exp(-1e9) > 0.0 && exp(1e9).is_finite());
    }
}

//! Integers of any length, in decimal digits: the bounds of a schema can have more than 64 bits.

use std::cmp::Ordering;

use serde_json::Value;

use crate::digits::is_long_number;
use crate::json_text;

/// A whole number. Zero has no sign, and no number starts with a zero that it does not need.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Whole {
    pub(super) is_negative: bool,
    pub(super) digits: String,
}

impl Whole {
    pub(super) fn new(text: &str) -> Self {
        let digits = text.trim_start_matches('-').trim_start_matches('0');
        let is_negative = text.starts_with('-') && !digits.is_empty();
        Self { is_negative, digits: if digits.is_empty() { "0" } else { digits }.to_owned() }
    }

    /// The largest number of so many digits, or the least.
    pub(super) fn nines(digits: usize, is_negative: bool) -> Self {
        Self { is_negative, digits: "9".repeat(digits) }
    }

    /// A number of a schema, and whether it is whole; else it is rounded up or down.
    pub(super) fn of(value: &Value, up: bool) -> Option<(Self, bool)> {
        let is_short = value.is_i64() || value.is_u64();
        if is_short || is_long_number(value) {
            return Some((Self::new(&json_text(value)), true));
        }
        let float = value.as_f64()?;
        let rounded = if up { float.ceil() } else { float.floor() };
        Some((Self::new(&format!("{rounded:.0}")), float.fract() == 0.0))
    }

    /// A number of a schema as a float.
    pub(super) fn float(value: &Value) -> Option<f64> {
        let long = || json_text(value).parse().ok().filter(|_| is_long_number(value));
        value.as_f64().or_else(long)
    }

    /// Whether it is as far from zero as another number, or further.
    pub(super) fn is_beyond(&self, other: &Self) -> bool {
        self.size() >= other.size()
    }

    fn size(&self) -> (usize, &str) {
        (self.digits.len(), &self.digits)
    }

    /// The next number up or down.
    pub(super) fn next(&self, up: bool) -> Self {
        let mut digits = self.digits.clone().into_bytes();
        if self.digits == "0" {
            return Self { is_negative: !up, digits: "1".to_owned() };
        }
        let (last, first) = if up == self.is_negative { (b'0', b'9') } else { (b'9', b'0') };
        let mut is_carried = false;
        for digit in digits.iter_mut().rev() {
            is_carried = *digit == last;
            *digit = match (is_carried, last) {
                (true, _) => first,
                (false, b'9') => *digit + 1,
                (false, _) => *digit - 1,
            };
            if !is_carried {
                break;
            }
        }
        let carry = if is_carried && last == b'9' { "1" } else { "" };
        let sign = if self.is_negative { "-" } else { "" };
        Self::new(&format!("{sign}{carry}{}", String::from_utf8_lossy(&digits)))
    }

    /// The number, or the end of the range that is nearest to it.
    pub(super) fn clamped(&self) -> i128 {
        let sign = if self.is_negative { "-" } else { "" };
        let far = if self.is_negative { i128::MIN } else { i128::MAX };
        format!("{sign}{}", self.digits).parse().unwrap_or(far)
    }
}

impl Ord for Whole {
    fn cmp(&self, other: &Self) -> Ordering {
        match (self.is_negative, other.is_negative) {
            (false, false) => self.size().cmp(&other.size()),
            (true, true) => other.size().cmp(&self.size()),
            (true, false) => Ordering::Less,
            (false, true) => Ordering::Greater,
        }
    }
}

impl PartialOrd for Whole {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn like_small_numbers() {
        let of = |number: i64| Whole::new(&number.to_string());
        for number in -1100..1100_i64 {
            assert_eq!(of(number).next(true), of(number + 1), "{number}");
            assert_eq!(of(number).next(false), of(number - 1), "{number}");
            assert_eq!(of(number).clamped(), i128::from(number));
            for other in [-1000, -999, -101, -1, 0, 1, 9, 10, 99, 100, number] {
                assert_eq!(of(number).cmp(&of(other)), number.cmp(&other), "{number} {other}");
            }
        }
        let long = Whole::new(&"9".repeat(60));
        assert_eq!(long.next(true).digits, format!("1{}", "0".repeat(60)));
        assert_eq!((long.next(true).next(false), long.clamped()), (long, i128::MAX));
    }
}

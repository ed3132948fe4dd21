//! Bytes with a unit.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// Bytes, read with an optional unit: 1000-based KB, MB, GB, TB or 1024-based KiB, MiB, GiB, TiB.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct ByteSize(pub u64);

const UNITS: [(&str, u64); 10] = [
    ("kib", 1 << 10),
    ("mib", 1 << 20),
    ("gib", 1 << 30),
    ("tib", 1 << 40),
    ("kb", 1_000),
    ("mb", 1_000_000),
    ("gb", 1_000_000_000),
    ("tb", 1_000_000_000_000),
    ("b", 1),
    ("", 1),
];

impl FromStr for ByteSize {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let digits = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
        let (number, unit) = text.split_at(digits);
        let unit = unit.trim().to_ascii_lowercase();
        let unit = UNITS.iter().find(|(name, _)| *name == unit);
        match (number.parse::<f64>(), unit) {
            (Ok(number), Some((_, unit))) if number > 0.0 => {
                Ok(Self((number * *unit as f64) as u64))
            }
            _ => Err("expected a size such as 48GiB, 500MB or 1000000".to_owned()),
        }
    }
}

impl fmt::Display for ByteSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_units() {
        for (text, bytes) in [("1000", 1000), ("1.5KiB", 1536), ("2 GB", 2_000_000_000)] {
            assert_eq!(text.parse(), Ok(ByteSize(bytes)), "{text}");
        }
        for text in ["", "0", "-1", "GB", "1XB"] {
            assert!(text.parse::<ByteSize>().is_err(), "{text}");
        }
    }
}

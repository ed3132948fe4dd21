//! How long an idle model stays in memory.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// How long an idle model stays loaded: a number of seconds, or for good. As JSON a whole number of
/// seconds; a negative one is for good, and 0 unloads after the last answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "i64", into = "i64")]
pub struct KeepAlive(Option<u32>);

impl KeepAlive {
    pub const FOR_GOOD: Self = Self(None);

    /// Ollama's default.
    pub const MINUTES_5: Self = Self(Some(300));

    /// More than 136 years is for good.
    pub fn secs(secs: u64) -> Self {
        Self(u32::try_from(secs).ok())
    }

    /// The limit; `None` is for good.
    pub fn limit(self) -> Option<Duration> {
        self.0.map(|secs| Duration::from_secs(secs.into()))
    }
}

impl From<i64> for KeepAlive {
    fn from(secs: i64) -> Self {
        Self(u32::try_from(secs).ok())
    }
}

impl From<KeepAlive> for i64 {
    fn from(keep: KeepAlive) -> Self {
        keep.0.map_or(-1, Self::from)
    }
}

impl fmt::Display for KeepAlive {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            None => f.write_str("for good"),
            Some(secs) if secs >= 60 && secs.is_multiple_of(60) => write!(f, "{} min", secs / 60),
            Some(secs) => write!(f, "{secs} s"),
        }
    }
}

/// Reads `10m`, `1h30m`, `0.5h`, `90` (seconds), `0`, or, for good, anything negative, as Ollama
/// does. Less than a second but more than zero is a second.
impl FromStr for KeepAlive {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let unsigned = text.strip_prefix('-');
        let secs = seconds(unsigned.unwrap_or(text)).ok_or_else(|| {
            format!("{text:?} is no time: give one such as 10m, 1h30m, 0, or -1 to stay for good")
        })?;
        match unsigned {
            Some(_) if secs > 0.0 => Ok(Self::FOR_GOOD),
            _ => Ok(Self::secs(secs.ceil() as u64)),
        }
    }
}

/// Reads a duration such as `10m`, `1h30m`, `0.5h` or `90` (seconds).
pub fn seconds(text: &str) -> Option<f64> {
    let (mut rest, mut secs) = (text, 0.0);
    if rest.is_empty() {
        return None;
    }
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(rest.len());
        let number: f64 = rest[..digits].parse().ok()?;
        let after = &rest[digits..];
        let unit = after.find(|c: char| c.is_ascii_digit()).unwrap_or(after.len());
        secs += number
            * match &after[..unit] {
                "h" => 3600.0,
                "m" => 60.0,
                "s" => 1.0,
                "ms" => 1e-3,
                "us" | "µs" => 1e-6,
                "ns" => 1e-9,
                "" if digits == text.len() => 1.0,
                _ => return None,
            };
        rest = &after[unit..];
    }
    Some(secs)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_as_ollama_writes_them() {
        let cases = [
            ("10m", 600),
            ("1h30m0s", 5400),
            ("0.5h", 1800),
            ("90", 90),
            ("0", 0),
            ("0s", 0),
            ("500ms", 1),
            ("-1", -1),
            ("-1m", -1),
            ("9999999h", -1),
        ];
        for (text, secs) in cases {
            let keep: KeepAlive = text.parse().unwrap();
            assert_eq!(i64::from(keep), secs, "{text}");
            let json = serde_json::to_string(&keep).unwrap();
            assert_eq!(serde_json::from_str::<KeepAlive>(&json).unwrap(), keep, "{text}");
        }
        for text in ["", "-", "m", "5x", "1h30", "five", "1..2s", "1e3", "NaN"] {
            assert!(text.parse::<KeepAlive>().is_err(), "{text}");
        }
    }
}

//! Integers in schemas: their bounds by digits, and an end for those without bounds.
//!
//! A small model can write digits until its answer is cut. And the compiler of grammars reads
//! bounds as floats, which are not exact from 2^53 on.

use serde_json::{Map, Value, json};

/// Integers of up to 40 digits, which holds those of 128 bits.
const UNBOUND: &str = "-?(0|[1-9][0-9]{0,39})";
/// The largest integer on the open side of a regex with one bound: 38 digits, nearly 128 bits.
const REGEX_MAX: i128 = 10_i128.pow(38) - 1;
/// The range of integers in a schema: 64 bits.
const MIN: i128 = i64::MIN as i128;
const MAX: i128 = i64::MAX as i128;
/// From here on not every integer is a float.
const EXACT: i128 = 1 << 53;

/// The integers that a schema allows: from the least to the greatest.
fn bounds(fields: &Map<String, Value>) -> (Option<i128>, Option<i128>) {
    let bound = |key: &str, excluded: i128| {
        let value = fields.get(key)?;
        let whole = value.as_i64().map(i128::from).or(value.as_u64().map(i128::from));
        if let Some(whole) = whole {
            return Some(whole + excluded);
        }
        let float = value.as_f64()?;
        let is_low = key.ends_with("inimum");
        let whole = if is_low { float.ceil() } else { float.floor() };
        let excluded = if float.fract() == 0.0 { excluded } else { 0 };
        Some((whole as i128).saturating_add(excluded))
    };
    let low = bound("minimum", 0).into_iter().chain(bound("exclusiveMinimum", 1)).max();
    let high = bound("maximum", 0).into_iter().chain(bound("exclusiveMaximum", -1)).min();
    (low, high)
}

/// A regex for the integers that a schema allows.
pub(super) fn regex(fields: &Map<String, Value>) -> Option<String> {
    let (low, high) = match bounds(fields) {
        (None, None) => return Some(UNBOUND.to_owned()),
        (low, high) => (low.unwrap_or(-REGEX_MAX), high.unwrap_or(REGEX_MAX)),
    };
    let (low, high) = (low.max(-REGEX_MAX), high.min(REGEX_MAX));
    let mut parts = Vec::new();
    if low < 0 && low <= high {
        parts.push(format!("-(?:{})", between(1.max(-high), -low)));
    }
    if low <= 0 && high >= 0 {
        parts.push("0".to_owned());
    }
    if high > 0 && low <= high {
        parts.push(between(low.max(1), high));
    }
    (!parts.is_empty()).then(|| parts.join("|"))
}

/// A regex for the integers from `low` on to `high`, both above 0.
fn between(low: i128, high: i128) -> String {
    let (low, high) = (low.to_string(), high.to_string());
    if low.len() == high.len() {
        return of_one_length(&low, &high);
    }
    let mut parts = vec![of_one_length(&low, &"9".repeat(low.len()))];
    match high.len() - low.len() {
        1 => {}
        _ => parts.push(format!("[1-9][0-9]{{{},{}}}", low.len(), high.len() - 2)),
    }
    parts.push(of_one_length(&format!("1{}", "0".repeat(high.len() - 1)), &high));
    parts.join("|")
}

/// A regex for the digits from `low` to `high`, of one length.
fn of_one_length(low: &str, high: &str) -> String {
    let same = low.bytes().zip(high.bytes()).take_while(|(low, high)| low == high).count();
    let (head, low, high) = (&low[..same], &low[same..], &high[same..]);
    let (Some(first), Some(last)) = (low.bytes().next(), high.bytes().next()) else {
        return head.to_owned();
    };
    let any =
        |digits: usize| if digits == 0 { String::new() } else { format!("[0-9]{{{digits}}}") };
    let range = |from: u8, to: u8| format!("[{}-{}]", from as char, to as char);
    let rest = low.len() - 1;
    let (is_least, is_most) =
        (low[1..].bytes().all(|digit| digit == b'0'), high[1..].bytes().all(|digit| digit == b'9'));
    let from = if is_least { first } else { first + 1 };
    let to = if is_most { last } else { last - 1 };
    let mut parts = Vec::new();
    if !is_least {
        parts.push(format!("{}(?:{})", first as char, of_one_length(&low[1..], &"9".repeat(rest))));
    }
    if from <= to {
        parts.push(format!("{}{}", range(from, to), any(rest)));
    }
    if !is_most {
        parts.push(format!("{}(?:{})", last as char, of_one_length(&"0".repeat(rest), &high[1..])));
    }
    format!("{head}(?:{})", parts.join("|"))
}

/// Bounds the integers of a schema, but not those in its parts: by what it says, and by 64 bits.
pub(super) fn bound(schema: &mut Value) {
    let Some(fields) = schema.as_object_mut() else { return };
    let is_kind = |kind: &str| match fields.get("type") {
        Some(Value::Array(kinds)) => kinds.iter().any(|one| one == kind),
        one => one.is_some_and(|one| one == kind),
    };
    let is_listed = ["enum", "const"].iter().any(|key| fields.contains_key(*key));
    if !is_kind("integer") || is_kind("number") || is_listed {
        return;
    }
    let (low, high) = bounds(fields);
    let (low, high) = (low.unwrap_or(MIN).max(MIN), high.unwrap_or(MAX).min(MAX));
    if low > high {
        return;
    }
    // Numbers between two floats are left out at the ends of the range.
    let (from, to) = (exact(low, 1), exact(high, -1));
    if from <= to {
        for key in ["exclusiveMaximum", "exclusiveMinimum"] {
            fields.remove(key);
        }
        fields.insert("minimum".to_owned(), json!(from as i64));
        fields.insert("maximum".to_owned(), json!(to as i64));
    }
}

/// The nearest integer in a direction that is a float and that the compiler reads as it is.
fn exact(mut number: i128, step: i128) -> i128 {
    let is_read = |number: i128| number != MIN && (number as f64) as i128 == number;
    while number.abs() > EXACT && number != MAX && !is_read(number) {
        number += step;
    }
    number
}

#[cfg(test)]
mod tests {
    use regex_automata::meta::Regex;

    use super::*;

    fn fields(schema: &Value) -> &Map<String, Value> {
        schema.as_object().unwrap()
    }

    #[test]
    fn bounds_hold_by_digits() {
        let cases = [
            (
                json!({"minimum": 0, "maximum": i64::MAX}),
                vec!["0", "9223372036854775807", "999999999999999999"],
                vec!["-1", "9223372036854775808", "10000000000000000000", "01", "-0"],
            ),
            (
                json!({"minimum": i64::MIN, "maximum": u64::MAX}),
                vec!["-9223372036854775808", "18446744073709551615", "0"],
                vec!["-9223372036854775809", "18446744073709551616"],
            ),
            (
                json!({"exclusiveMinimum": 9_007_199_254_740_992_i64, "maximum": 9_007_199_254_740_995_i64}),
                vec!["9007199254740993", "9007199254740995"],
                vec!["9007199254740992", "9007199254740996"],
            ),
            (json!({"minimum": 0.5, "exclusiveMaximum": 3.0}), vec!["1", "2"], vec!["0", "3"]),
            (json!({"maximum": -17}), vec!["-17", "-18", "-170"], vec!["-16", "17", "0", "-1"]),
            (
                json!({}),
                vec!["0", "-5", "340282366920938463463374607431768211455"],
                vec!["1e5", "", "00"],
            ),
        ];
        for (schema, good, bad) in cases {
            let regex = format!("\\A(?:{})\\z", regex(fields(&schema)).unwrap());
            let regex = Regex::new(&regex).unwrap();
            good.iter().for_each(|text| assert!(regex.is_match(text), "{schema} {text}"));
            bad.iter().for_each(|text| assert!(!regex.is_match(text), "{schema} {text}"));
        }
        assert_eq!(regex(fields(&json!({"minimum": 2, "maximum": 1}))), None);
    }

    #[test]
    fn every_range_of_small_integers() {
        for low in -120..120_i64 {
            for high in [low, low + 1, low + 9, low + 95, low + 230] {
                let schema = json!({"minimum": low, "maximum": high});
                let regex = format!("\\A(?:{})\\z", regex(fields(&schema)).unwrap());
                let regex = Regex::new(&regex).unwrap();
                for number in low - 30..high + 30 {
                    let is_in = (low..=high).contains(&number);
                    assert_eq!(regex.is_match(&number.to_string()), is_in, "{schema} {number}");
                }
            }
        }
    }

    #[test]
    fn integers_in_a_schema_have_exact_bounds() {
        const LEAST: i64 = i64::MIN + 1024;
        let own = |low: i64, high: i64| json!({"type": "integer", "minimum": low, "maximum": high});
        let cases = [
            (json!({"type": "integer"}), own(LEAST, i64::MAX)),
            (own(0, i64::MAX), own(0, i64::MAX)),
            (json!({"type": "integer", "minimum": 0, "maximum": u64::MAX}), own(0, i64::MAX)),
            (json!({"type": "integer", "exclusiveMinimum": 4}), own(5, i64::MAX)),
            (own(0, (1 << 53) + 1), own(0, 1 << 53)),
            (own((1 << 53) + 1, (1 << 53) + 3), own((1 << 53) + 2, (1 << 53) + 2)),
            (own(i64::MIN, 0), own(LEAST, 0)),
            (json!({"enum": [1]}), json!({"enum": [1]})),
            (json!({"type": "number"}), json!({"type": "number"})),
            (
                json!({"type": ["integer", "null"]}),
                json!({"type": ["integer", "null"], "minimum": LEAST, "maximum": i64::MAX}),
            ),
        ];
        for (schema, want) in cases {
            let mut found = schema.clone();
            bound(&mut found);
            assert_eq!(found, want, "{schema}");
        }
    }
}

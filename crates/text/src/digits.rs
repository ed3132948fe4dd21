//! Integers of more than 64 bits, which keep their digits.
//!
//! JSON values here hold 64-bit numbers and floats. A longer integer, such as a chat service's id,
//! is kept as a string of its digits behind a mark, and written as a number again when the value
//! becomes text.

use serde_json::Value;

/// The mark before the digits; no text starts with it.
const MARK: char = '\u{f8fc}';

/// A value that keeps a number's digits, if no other value does.
pub fn long_number(text: &str) -> Option<Value> {
    let digits = text.strip_prefix('-').unwrap_or(text);
    let is_whole = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
    let fits = text.parse::<i64>().is_ok() || text.parse::<u64>().is_ok();
    let is_json = !digits.starts_with('0') || digits == "0";
    (is_whole && is_json && !fits).then(|| Value::String(format!("{MARK}{text}")))
}

/// Whether a value keeps a number's digits.
pub(crate) fn is_long_number(value: &Value) -> bool {
    value.as_str().and_then(|text| text.strip_prefix(MARK)).is_some_and(is_number)
}

/// A value as JSON; long numbers keep their digits.
pub fn json_text(value: &Value) -> String {
    with_digits(value.to_string())
}

/// Turns the long numbers in JSON text back into numbers, without quotes and marks.
pub fn with_digits(text: String) -> String {
    if !text.contains(MARK) {
        return text;
    }
    let mut written = String::with_capacity(text.len());
    let mut rest = text.as_str();
    while let Some(at) = rest.find(MARK) {
        let (before, marked) = rest.split_at(at);
        let after = &marked[MARK.len_utf8()..];
        let end = after.find(|ch: char| !ch.is_ascii_digit() && ch != '-').unwrap_or(after.len());
        let (digits, after) = after.split_at(end);
        if !is_number(digits) {
            written.push_str(before);
            written.push(MARK);
            rest = &marked[MARK.len_utf8()..];
            continue;
        }
        let quote = before.chars().next_back().filter(|quote| "\"'".contains(*quote));
        let unquoted =
            quote.and_then(|quote| Some((before.strip_suffix(quote)?, after.strip_prefix(quote)?)));
        let (before, after) = unquoted.unwrap_or((before, after));
        written.push_str(before);
        written.push_str(digits);
        rest = after;
    }
    written + rest
}

fn is_number(digits: &str) -> bool {
    let digits = digits.strip_prefix('-').unwrap_or(digits);
    digits.len() > 18 && digits.bytes().all(|byte| byte.is_ascii_digit())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn digits_come_out_as_they_went_in() {
        let long = |text| long_number(text).unwrap();
        let value = json!({
            "a": long("12345678901234567890123"), "b": [long("-99999999999999999999"), 7, "x"],
        });
        let text = r#"{"a":12345678901234567890123,"b":[-99999999999999999999,7,"x"]}"#;
        assert_eq!(json_text(&value), text);
        assert!(is_long_number(&value["a"]) && !is_long_number(&value["b"][1]));
        for short in ["7", "-9223372036854775808", "18446744073709551615", "", "-", "1.5", "007"] {
            assert_eq!(long_number(short), None, "{short}");
        }
        let spoken = format!("id {MARK}12345678901234567890123, {MARK}7 and {MARK}");
        let expected = format!("id 12345678901234567890123, {MARK}7 and {MARK}");
        assert_eq!(with_digits(spoken), expected);
    }
}

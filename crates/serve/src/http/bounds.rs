//! Numbers outside the range of JSON parsers: bounds in schemas beyond the range of f64, because
//! some languages write their largest number as 1.8e308, and integers of more than 64 bits.

/// The keys of bounds in a schema.
const BOUNDS: &[&[u8]] =
    &[b"\"maximum\"", b"\"minimum\"", b"\"exclusiveMaximum\"", b"\"exclusiveMinimum\""];

/// Shorter integers fit in 64 bits.
const DIGITS_MIN: usize = 19;

/// The body with such bounds replaced by the largest f64, and with long integers in a form that
/// keeps their digits; `None` if it has neither.
pub(super) fn within_range(body: &[u8]) -> Option<Vec<u8>> {
    if !has_long_digits(body) && !body.windows(4).any(|four| four == b"imum") {
        return None;
    }
    let mut written = Vec::new();
    let mut copied = 0;
    let (mut in_text, mut is_escaped) = (false, false);
    let mut at = 0;
    while at < body.len() {
        let byte = body[at];
        at += 1;
        match byte {
            _ if is_escaped => is_escaped = false,
            b'\\' if in_text => is_escaped = true,
            b'"' => in_text = !in_text,
            b':' | b',' | b'[' if !in_text => {
                let start = at + spaces(&body[at..]);
                let end = start + body[start..].iter().take_while(|byte| is_digit(**byte)).count();
                let number = &body[start..end];
                let fitted = match byte == b':' && is_bound(&body[..at - 1]) {
                    true => largest(number).map(<[u8]>::to_vec).or_else(|| long(number)),
                    false => long(number),
                };
                if let Some(fitted) = fitted {
                    written.extend_from_slice(&body[copied..start]);
                    written.extend_from_slice(&fitted);
                    copied = end;
                }
                at = end;
            }
            _ => {}
        }
    }
    if copied == 0 {
        return None;
    }
    written.extend_from_slice(&body[copied..]);
    Some(written)
}

fn is_bound(before: &[u8]) -> bool {
    let before = before.trim_ascii_end();
    BOUNDS.iter().any(|word| before.ends_with(word))
}

fn spaces(text: &[u8]) -> usize {
    text.len() - text.trim_ascii_start().len()
}

fn is_digit(byte: u8) -> bool {
    byte.is_ascii_digit() || b"+-.eE".contains(&byte)
}

fn has_long_digits(body: &[u8]) -> bool {
    let digits = body.split(|byte| !byte.is_ascii_digit());
    digits.into_iter().any(|run| run.len() >= DIGITS_MIN)
}

/// An integer of more than 64 bits as a string that keeps its digits.
fn long(number: &[u8]) -> Option<Vec<u8>> {
    let number = std::str::from_utf8(number).ok().filter(|text| text.len() >= DIGITS_MIN)?;
    text::long_number(number).map(|kept| kept.to_string().into_bytes())
}

/// The largest f64 with the sign of a number that is too large.
fn largest(number: &[u8]) -> Option<&'static [u8]> {
    let number: f64 = std::str::from_utf8(number).ok()?.parse().ok()?;
    let largest: &[u8] =
        if number > 0.0 { b"1.7976931348623157e308" } else { b"-1.7976931348623157e308" };
    number.is_infinite().then_some(largest)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_bounds_change() {
        let cases = [
            (r#"{"maximum": 1.8e308}"#, Some(r#"{"maximum": 1.7976931348623157e308}"#)),
            (r#"{"minimum":-1e999,"a":1}"#, Some(r#"{"minimum":-1.7976931348623157e308,"a":1}"#)),
            (
                r#"{"maximum": 99999999999999999999}"#,
                Some(concat!(r#"{"maximum": ""#, "\u{f8fc}", r#"99999999999999999999"}"#)),
            ),
            (
                r#"{"input": {"id": 12345678901234567890123, "a": [1, -99999999999999999999]}}"#,
                Some(concat!(
                    r#"{"input": {"id": ""#,
                    "\u{f8fc}",
                    r#"12345678901234567890123", "a": [1, ""#,
                    "\u{f8fc}",
                    r#"-99999999999999999999"]}}"#
                )),
            ),
            (r#"{"seed": 18446744073709551615}"#, None),
            (r#"{"text": "12345678901234567890123"}"#, None),
            (r#"{"maximum": 7}"#, None),
            (r#"{"number": 1e999}"#, None),
            (r#"{"text": "\"maximum\": 1e999"}"#, None),
            (r#"{"maximum":"#, None),
            (r#"{"maximum": "1e999"}"#, None),
        ];
        for (body, expected) in cases {
            let found = within_range(body.as_bytes());
            assert_eq!(found.as_deref(), expected.map(str::as_bytes), "{body}");
        }
    }
}

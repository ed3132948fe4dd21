//! Integers in schemas: their bounds by digits, and an end for those without bounds.
//!
//! A small model can write digits until its answer is cut. And the compiler of schemas reads bounds
//! as floats, which are not exact from 2^53 on, and as 64 bits.

use serde_json::{Map, Value, json};

use super::whole::Whole;

/// A number that ends.
pub(super) const NUMBER: &str = r"-?(0|[1-9][0-9]{0,39})(\.[0-9]{1,40})?([eE][+-]?[0-9]{1,3})?";

/// The most digits of an integer on an open side: 128 bits have fewer.
const OPEN_DIGITS: usize = 40;
/// A bound with more digits is no bound: no answer comes near it.
const DIGITS_MAX: usize = 100;
/// The range of integers in a schema: 64 bits.
const MIN: i128 = i64::MIN as i128;
const MAX: i128 = i64::MAX as i128;
/// From here on not every integer is a float.
const EXACT: i128 = 1 << 53;
/// The most endings of numbers in a step.
const ENDINGS_MAX: usize = 1000;

/// The integers that a schema allows: from the least to the greatest. A bound is left out if it is
/// beyond every answer.
fn bounds(fields: &Map<String, Value>) -> (Option<Whole>, Option<Whole>) {
    let bound = |key: &str, up: bool, is_excluded: bool| {
        let (whole, is_whole) = Whole::of(fields.get(key)?, up)?;
        Some(if is_excluded && is_whole { whole.next(up) } else { whole })
    };
    let low = bound("minimum", true, false).max(bound("exclusiveMinimum", true, true));
    let high = [bound("maximum", false, false), bound("exclusiveMaximum", false, true)];
    let is_far = |bound: &Whole| bound.digits.len() > DIGITS_MAX;
    let low = low.filter(|low| !(low.is_negative && is_far(low)));
    let high = high.into_iter().flatten().min();
    (low, high.filter(|high| high.is_negative || !is_far(high)))
}

/// A regex for the integers that a schema allows, if there are any.
pub(super) fn regex(fields: &Map<String, Value>) -> Option<String> {
    range(fields, [true, false].map(|is_negative| Whole::nines(OPEN_DIGITS, is_negative)))
}

/// The same within an object or a list: on a side without a bound they have 64 bits.
pub(super) fn inner_regex(fields: &Map<String, Value>) -> Option<String> {
    range(fields, [i64::MIN, i64::MAX].map(|end| Whole::new(&end.to_string())))
}

/// `ends`: the least and the greatest on sides without a bound.
fn range(fields: &Map<String, Value>, [least, most]: [Whole; 2]) -> Option<String> {
    let (low, high) = bounds(fields);
    // Beyond a bound that is further away there are longer numbers.
    let longer = |bound: &Whole| Whole::nines(bound.digits.len() + 1, bound.is_negative);
    let further = |bound: Option<&Whole>, end: Whole| match bound {
        Some(bound) if bound.is_negative == end.is_negative && bound.is_beyond(&end) => {
            longer(bound)
        }
        _ => end,
    };
    let (least, most) = (further(high.as_ref(), least), further(low.as_ref(), most));
    let (low, high) = (low.unwrap_or(least), high.unwrap_or(most));
    if low > high || low.digits.len().max(high.digits.len()) > DIGITS_MAX + 1 {
        return None;
    }
    let one = Whole::new("1");
    let positive = |bound: &Whole| Whole { is_negative: false, ..bound.clone() };
    let mut parts = Vec::new();
    if low.is_negative {
        let least = if high.is_negative { positive(&high) } else { one.clone() };
        parts.push(format!("-(?:{})", between(&least, &positive(&low))));
    }
    if !high.is_negative && (low.is_negative || low.digits == "0") {
        parts.push("0".to_owned());
    }
    if high >= one {
        parts.push(between(&low.max(one), &high));
    }
    Some(parts.join("|"))
}

/// A regex for the integers from `low` on to `high`, both above 0.
fn between(low: &Whole, high: &Whole) -> String {
    let (low, high) = (&low.digits, &high.digits);
    if low.len() == high.len() {
        return of_one_length(low, high);
    }
    let mut parts = vec![of_one_length(low, &"9".repeat(low.len()))];
    match high.len() - low.len() {
        1 => {}
        _ => parts.push(format!("[1-9][0-9]{{{},{}}}", low.len(), high.len() - 2)),
    }
    parts.push(of_one_length(&format!("1{}", "0".repeat(high.len() - 1)), high));
    parts.join("|")
}

/// A regex for the digits from `low` to `high`, of one length: each alternative is the beginning of
/// one of them, a digit between, and any digits.
fn of_one_length(low: &str, high: &str) -> String {
    let same = low.bytes().zip(high.bytes()).take_while(|(low, high)| low == high).count();
    let (Some(from), Some(to)) = (low.as_bytes().get(same), high.as_bytes().get(same)) else {
        return low.to_owned();
    };
    let rest = |at: usize| match low.len() - at - 1 {
        0 => String::new(),
        digits => format!("[0-9]{{{digits}}}"),
    };
    let range = |at: usize, from: u8, to: u8, head: &str| {
        let is_there = from <= to;
        is_there.then(|| format!("{head}[{}-{}]{}", from as char, to as char, rest(at)))
    };
    let is_all = |text: &str, digit: u8| text.bytes().all(|one| one == digit);
    let is_least = is_all(&low[same + 1..], b'0');
    let is_most = is_all(&high[same + 1..], b'9');
    let (from, to) = (from + u8::from(!is_least), to - u8::from(!is_most));
    let mut parts: Vec<String> = range(same, from, to, &low[..same]).into_iter().collect();
    let later = same + 1..low.len();
    let is_last = |at: usize| at + 1 == low.len();
    if !is_least {
        parts.extend(later.clone().filter_map(|at| {
            let digit = low.as_bytes()[at] + u8::from(!is_last(at));
            range(at, digit, b'9', &low[..at])
        }));
    }
    if !is_most {
        parts.extend(later.filter_map(|at| {
            let digit = high.as_bytes()[at].checked_sub(u8::from(!is_last(at)))?;
            range(at, b'0', digit, &high[..at])
        }));
    }
    format!("(?:{})", parts.join("|"))
}

/// A regex for the multiples of a schema's step, by how they end: the step divides a power of ten.
/// `None` also without a step.
pub(super) fn step(fields: &Map<String, Value>) -> Option<String> {
    let (step, _) = Whole::of(fields.get("multipleOf")?, true).filter(|(_, is_whole)| *is_whole)?;
    let short = step.digits.trim_end_matches('0');
    let zeros = step.digits.len() - short.len();
    let short: usize = short.parse().ok().filter(|short| *short <= ENDINGS_MAX)?;
    let mut power = 1;
    while power % short != 0 {
        power = Some(power * 10).filter(|power| *power <= ENDINGS_MAX * short)?;
    }
    let digits = power.to_string().len() - 1;
    let endings = (0..power).step_by(short).map(|ending| match digits {
        0 => String::new(),
        _ => format!("{ending:0digits$}"),
    });
    let endings: Vec<String> = endings.collect();
    let zeros = "0".repeat(zeros);
    let long = format!("[0-9]*(?:{}){zeros}", endings.join("|"));
    // Numbers with fewer digits than the endings, and zero.
    let short: Vec<String> = (0..power).step_by(short).map(|one| format!("{one}{zeros}")).collect();
    Some(format!("-?(?:{long}|{}|0)", short.join("|")))
}

/// Whether a schema's bounds hold exactly once [`bound`] has rewritten them.
pub(super) fn is_exact(fields: &Map<String, Value>) -> bool {
    let (low, high) = bounds(fields);
    let is_kept = |bound: Option<Whole>, step| {
        bound
            .map(|bound| bound.clamped())
            .is_none_or(|bound| (MIN..=MAX).contains(&bound) && exact(bound, step) == bound)
    };
    is_kept(low, 1) && is_kept(high, -1)
}

/// Whether a value of a schema has no integer that becomes another one as a float.
pub(super) fn is_whole_exact(value: &Value) -> bool {
    match value {
        Value::Array(items) => items.iter().all(is_whole_exact),
        Value::Object(fields) => fields.values().all(is_whole_exact),
        value if value.is_f64() => true,
        value => Whole::of(value, true).is_none_or(|(whole, _)| {
            let number = whole.clamped();
            (MIN + 1..MAX).contains(&number) && exact(number, 1) == number
        }),
    }
}

/// Bounds the integers of a schema, but not those in its parts: by what it says, and by 64 bits.
pub(super) fn bound(schema: &mut Value) {
    let Some(fields) = schema.as_object_mut() else { return };
    let is_listed = ["enum", "const"].iter().any(|key| fields.contains_key(*key));
    if !is_integer(fields) || is_listed {
        return;
    }
    let (low, high) = bounds(fields);
    let low = low.map_or(MIN, |low| low.clamped()).max(MIN);
    let high = high.map_or(MAX, |high| high.clamped()).min(MAX);
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

/// Whether the only numbers of a schema are integers.
pub(super) fn is_integer(fields: &Map<String, Value>) -> bool {
    let is_kind = |kind: &str| match fields.get("type") {
        Some(Value::Array(kinds)) => kinds.iter().any(|one| one == kind),
        one => one.is_some_and(|one| one == kind),
    };
    is_kind("integer") && !is_kind("number")
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
        let long = |text: &str| crate::long_number(text).unwrap();
        let [below, above] = ["1", "0"].map(|last| format!("-1{}{last}", "0".repeat(59)));
        let nines = format!("-{}", "9".repeat(61));
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
                json!({"minimum": long("100000000000000000000000"),
                    "exclusiveMaximum": long("100000000000000000000004")}),
                vec!["100000000000000000000000", "100000000000000000000003"],
                vec!["99999999999999999999999", "100000000000000000000004", "0", "-1"],
            ),
            (
                json!({"exclusiveMaximum": long(&format!("-1{}", "0".repeat(60)))}),
                vec![&below, &nines],
                vec![&above, "0", "5"],
            ),
            (json!({"minimum": 3, "maximum": 1e300}), vec!["3", &nines[1..41]], vec!["2"]),
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
        let none = [json!({"minimum": 2, "maximum": 1}), json!({"minimum": 1e300})];
        none.iter().for_each(|none| assert_eq!(regex(fields(none)), None, "{none}"));
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
    fn steps_that_divide_a_power_of_ten() {
        for by in [1, 2, 4, 5, 8, 10, 20, 25, 125, 500, 1000, 2000] {
            let regex = step(fields(&json!({"multipleOf": by}))).unwrap();
            let regex = Regex::new(&format!("\\A(?:{regex})\\z")).unwrap();
            for number in -4000..4001_i64 {
                assert_eq!(regex.is_match(&number.to_string()), number % by == 0, "{number} {by}");
            }
        }
        let none = [json!({"multipleOf": 3}), json!({"multipleOf": 0.5}), json!({})];
        none.iter().for_each(|none| assert_eq!(step(fields(none)), None, "{none}"));
        assert!(step(fields(&json!({"multipleOf": 5_000_000_000_u64}))).is_some());
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

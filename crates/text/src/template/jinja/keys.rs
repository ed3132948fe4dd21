//! Keys of maps: text, or integers, which Python distinguishes from text.
//!
//! Maps store all keys as text, like those of a request. An integer has a mark before its digits.

use std::rc::Rc;

use super::budget::{Budget, Fault};
use super::print::to_text;
use super::value::Value;

/// The mark before the digits of an integer; no key of a request starts with it.
const NUMBER: char = '\u{f8fd}';

/// The key for a value.
pub(super) fn key_of(value: &Value, budget: &mut Budget) -> Result<Rc<str>, Fault> {
    let number = match value {
        Value::Str(text) => {
            budget.read(text.len())?;
            return Ok(Rc::clone(text));
        }
        Value::Int(number) => *number,
        Value::Bool(flag) => i64::from(*flag),
        Value::Float(float) if float.fract() == 0.0 && float.abs() < 1e15 => *float as i64,
        other => return Ok(to_text(other, budget)?.into()),
    };
    Ok(format!("{NUMBER}{number}").into())
}

/// The value of a key.
pub(super) fn value_of<'t>(key: &Rc<str>) -> Value<'t> {
    number(key).map_or_else(|| Value::Str(Rc::clone(key)), Value::Int)
}

/// The integer of a key, if it is one.
pub(super) fn number(key: &str) -> Option<i64> {
    key.strip_prefix(NUMBER)?.parse().ok()
}

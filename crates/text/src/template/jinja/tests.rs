//! Tests: `value is name`.

use super::args::Args;
use super::budget::{Budget, Fault};
use super::ops;
use super::value::Value;

pub(super) fn check(
    name: &str,
    value: &Value,
    mut args: Args,
    budget: &mut Budget,
) -> Result<bool, Fault> {
    budget.read(value.as_str().map_or(0, str::len))?;
    let other = args.take(0, "other").unwrap_or(Value::Undefined);
    let is_lower = |upper: bool| {
        value.as_str().is_some_and(|text| {
            text.chars().any(char::is_alphabetic)
                && !text.chars().any(|ch| if upper { ch.is_lowercase() } else { ch.is_uppercase() })
        })
    };
    Ok(match name {
        "defined" => !value.is_undefined(),
        "undefined" => value.is_undefined(),
        "none" => matches!(value, Value::None),
        "string" => matches!(value, Value::Str(_)),
        "boolean" => matches!(value, Value::Bool(_)),
        "integer" => matches!(value, Value::Int(_)),
        "float" => matches!(value, Value::Float(_)),
        "number" => matches!(value, Value::Int(_) | Value::Float(_) | Value::Bool(_)),
        "mapping" => matches!(value, Value::Map(_)),
        // In Jinja undefined is iterable, and a string is a sequence.
        "iterable" => {
            matches!(value, Value::List(_) | Value::Map(_) | Value::Str(_) | Value::Undefined)
        }
        "sequence" => matches!(value, Value::List(_) | Value::Map(_) | Value::Str(_)),
        "callable" => matches!(value, Value::Macro(_) | Value::Function(_)),
        "true" => matches!(value, Value::Bool(true)),
        "false" => matches!(value, Value::Bool(false)),
        "odd" => ops::float(&ops::rem(value, &Value::Int(2))?) == Some(1.0),
        "even" => ops::float(&ops::rem(value, &Value::Int(2))?) == Some(0.0),
        "divisibleby" => ops::float(&ops::rem(value, &other)?) == Some(0.0),
        "lower" => is_lower(false),
        "upper" => is_lower(true),
        "eq" | "equalto" | "==" | "sameas" => ops::equal(value, &other, budget)?,
        "ne" | "!=" => !ops::equal(value, &other, budget)?,
        "lt" | "lessthan" | "<" => ops::compare(value, &other, budget)?.is_lt(),
        "le" | "<=" => ops::compare(value, &other, budget)?.is_le(),
        "gt" | "greaterthan" | ">" => ops::compare(value, &other, budget)?.is_gt(),
        "ge" | ">=" => ops::compare(value, &other, budget)?.is_ge(),
        "in" => ops::contains(&other, value, budget)?,
        "startingwith" | "endingwith" => match (value.as_str(), other.as_str()) {
            (Some(text), Some(part)) if name == "startingwith" => text.starts_with(part),
            (Some(text), Some(part)) => text.ends_with(part),
            _ => false,
        },
        _ => return Err(Fault::failed(format!("there is no test `{name}`"))),
    })
}

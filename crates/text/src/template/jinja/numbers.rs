//! Filters that return numbers: `int`, `float`, `abs` and `round`.

use super::args::Args;
use super::budget::{Budget, Fault};
use super::ops;
use super::value::Value;

type Result<'t> = std::result::Result<Value<'t>, Fault>;

pub(super) fn apply<'t>(
    name: &str,
    value: &Value<'t>,
    mut args: Args<'t>,
    budget: &mut Budget,
) -> Result<'t> {
    // Python allows underscores between digits.
    let text = value.as_str().unwrap_or("").trim();
    budget.read(text.len().saturating_mul(4))?;
    let is_plain = !text.starts_with('_') && !text.ends_with('_') && !text.contains("__");
    let text = if is_plain { text.replace('_', "") } else { text.to_owned() };
    let number = ops::float(value).or_else(|| text.parse::<f64>().ok());
    match name {
        "int" => {
            let default = args.take(0, "default").unwrap_or(Value::Int(0));
            let base = args.int(1, "base")?.unwrap_or(10).clamp(2, 36) as u32;
            Ok(match (value, whole(&text, base)) {
                (Value::Int(int), _) => Value::Int(*int),
                (_, Some(int)) => Value::Int(int),
                // A conversion from a float saturates.
                _ => number.map_or(default, |number| Value::Int(number as i64)),
            })
        }
        "float" => {
            let default = args.take(0, "default").unwrap_or(Value::Float(0.0));
            Ok(number.map_or(default, Value::Float))
        }
        "abs" => match value {
            Value::Int(int) => Ok(Value::Int(int.saturating_abs())),
            Value::Bool(flag) => Ok(Value::Int((*flag).into())),
            _ => Ok(Value::Float(number.unwrap_or(0.0).abs())),
        },
        _ => {
            let digits = args.int(0, "precision")?.unwrap_or(0).clamp(-18, 15) as i32;
            let method = args.take(1, "method");
            let method = method.as_ref().and_then(Value::as_str).unwrap_or("common");
            if matches!(value, Value::Int(_)) && (digits >= 0 || method != "common") {
                return Ok(value.clone());
            }
            let rounded = round(number.unwrap_or(0.0), digits, method)?;
            Ok(match value {
                Value::Int(_) => Value::Int(rounded as i64),
                _ => Value::Float(rounded),
            })
        }
    }
}

/// Digits of a base, with or without its prefix.
fn whole(text: &str, base: u32) -> Option<i64> {
    let (sign, digits) = match text.strip_prefix('-') {
        Some(digits) => ("-", digits),
        None => ("", text),
    };
    let mark = match base {
        2 => "0b",
        8 => "0o",
        16 => "0x",
        _ => "",
    };
    let digits = digits.to_ascii_lowercase();
    let digits = digits.strip_prefix(mark).unwrap_or(&digits);
    i64::from_str_radix(&(sign.to_owned() + digits), base).ok()
}

fn round(number: f64, digits: i32, method: &str) -> std::result::Result<f64, Fault> {
    let scale = 10f64.powi(digits.abs());
    let scaled = if digits < 0 { number / scale } else { number * scale };
    let rounded = match method {
        // The nearest decimal of the float's exact value, as in Python.
        "common" if digits >= 0 => {
            let places = digits.unsigned_abs() as usize;
            return Ok(format!("{number:.places$}").parse().unwrap_or(number));
        }
        "common" => scaled.round_ties_even(),
        "ceil" => scaled.ceil(),
        "floor" => scaled.floor(),
        other => return Err(Fault::failed(format!("round has no method `{other}`"))),
    };
    Ok(if digits < 0 { rounded * scale } else { rounded / scale })
}

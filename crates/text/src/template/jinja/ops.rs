//! Operators with Python's semantics.

use std::cmp::Ordering;

use super::budget::{Budget, Fault};
use super::keys;
use super::print::{print, to_text};
use super::value::Value;

type Result<'t> = std::result::Result<Value<'t>, Fault>;

/// A number, a bool being 0 or 1.
enum Number {
    Int(i64),
    Float(f64),
}

fn number(value: &Value) -> Option<Number> {
    match value {
        Value::Bool(flag) => Some(Number::Int((*flag).into())),
        Value::Int(int) => Some(Number::Int(*int)),
        Value::Float(float) => Some(Number::Float(*float)),
        _ => None,
    }
}

pub(super) fn float(value: &Value) -> Option<f64> {
    match number(value)? {
        Number::Int(int) => Some(int as f64),
        Number::Float(float) => Some(float),
    }
}

fn unsupported<'t>(op: &str, left: &Value, right: &Value) -> Result<'t> {
    Err(Fault::failed(format!("{} {op} {} is not possible", left.kind(), right.kind())))
}

fn arithmetic<'t>(
    op: &str,
    left: &Value,
    right: &Value,
    ints: impl Fn(i64, i64) -> Option<i64>,
    floats: impl Fn(f64, f64) -> f64,
) -> Result<'t> {
    match (number(left), number(right)) {
        (Some(Number::Int(a)), Some(Number::Int(b))) => match ints(a, b) {
            Some(int) => Ok(Value::Int(int)),
            None => Err(Fault::failed(format!("{a} {op} {b} has no result in 64 bits"))),
        },
        (Some(_), Some(_)) => match (float(left), float(right)) {
            (Some(a), Some(b)) => Ok(Value::Float(floats(a, b))),
            _ => unsupported(op, left, right),
        },
        _ => unsupported(op, left, right),
    }
}

pub(super) fn add<'t>(left: &Value<'t>, right: &Value<'t>, budget: &mut Budget) -> Result<'t> {
    match (left, right) {
        (Value::Str(_), Value::Str(_)) => concat(left, right, budget),
        (Value::List(a), Value::List(b)) => {
            budget.steps((a.items.len() + b.items.len()) / 16)?;
            Value::list(a.items.iter().chain(&b.items).cloned().collect(), budget)
        }
        _ => arithmetic("+", left, right, i64::checked_add, |a, b| a + b),
    }
}

pub(super) fn concat<'t>(left: &Value, right: &Value, budget: &mut Budget) -> Result<'t> {
    let mut text = to_text(left, budget)?;
    print(right, &mut text, budget)?;
    Ok(Value::Str(text.into()))
}

pub(super) fn sub<'t>(left: &Value, right: &Value) -> Result<'t> {
    arithmetic("-", left, right, i64::checked_sub, |a, b| a - b)
}

pub(super) fn mul<'t>(left: &Value<'t>, right: &Value<'t>, budget: &mut Budget) -> Result<'t> {
    let times = |value: &Value| match number(value) {
        Some(Number::Int(times)) => Some(times.max(0) as usize),
        _ => None,
    };
    match (left, right, times(left).or(times(right))) {
        (Value::Str(text), _, Some(times)) | (_, Value::Str(text), Some(times)) => {
            budget.charge(text.len().saturating_mul(times))?;
            Ok(Value::Str(text.repeat(times).into()))
        }
        (Value::List(list), _, Some(times)) | (_, Value::List(list), Some(times)) => {
            let count = list.items.len().saturating_mul(times);
            budget.steps(count)?;
            let items = list.items.iter().cycle().take(count).cloned().collect();
            Value::list(items, budget)
        }
        _ => arithmetic("*", left, right, i64::checked_mul, |a, b| a * b),
    }
}

pub(super) fn div<'t>(left: &Value, right: &Value) -> Result<'t> {
    match (float(left), float(right)) {
        (Some(_), Some(0.0)) => Err(Fault::failed("division by zero")),
        (Some(a), Some(b)) => Ok(Value::Float(a / b)),
        _ => unsupported("/", left, right),
    }
}

pub(super) fn floor_div<'t>(left: &Value, right: &Value) -> Result<'t> {
    if float(right) == Some(0.0) {
        return Err(Fault::failed("division by zero"));
    }
    // Python rounds towards minus infinity.
    let ints = |a: i64, b: i64| {
        let quotient = a.checked_div(b)?;
        Some(quotient - i64::from(a % b != 0 && (a < 0) != (b < 0)))
    };
    arithmetic("//", left, right, ints, |a, b| (a / b).floor())
}

pub(super) fn rem<'t>(left: &Value, right: &Value) -> Result<'t> {
    if float(right) == Some(0.0) {
        return Err(Fault::failed("division by zero"));
    }
    // The sign is that of the divisor, as in Python.
    let ints = |a: i64, b: i64| a.checked_rem(b)?.checked_add(b)?.checked_rem(b);
    arithmetic("%", left, right, ints, |a, b| a - b * (a / b).floor())
}

pub(super) fn pow<'t>(left: &Value, right: &Value) -> Result<'t> {
    if let (Some(base), Some(Number::Int(..0))) = (float(left), number(right)) {
        let exponent = float(right).expect("it is a number");
        return Ok(Value::Float(base.powf(exponent)));
    }
    let ints = |a: i64, b: i64| a.checked_pow(u32::try_from(b).ok()?);
    arithmetic("**", left, right, ints, f64::powf)
}

pub(super) fn neg<'t>(value: &Value) -> Result<'t> {
    match value {
        Value::Float(float) => Ok(Value::Float(-float)),
        other => sub(&Value::Int(0), other),
    }
}

/// Equality; values of different kinds differ.
pub(super) fn equal(
    left: &Value,
    right: &Value,
    budget: &mut Budget,
) -> std::result::Result<bool, Fault> {
    budget.step()?;
    Ok(match (left, right) {
        (Value::Undefined, Value::Undefined) | (Value::None, Value::None) => true,
        (Value::Str(a), Value::Str(b)) => {
            budget.read(a.len().min(b.len()))?;
            a == b
        }
        (Value::List(a), Value::List(b)) => {
            if a.items.len() != b.items.len() {
                return Ok(false);
            }
            for (a, b) in a.items.iter().zip(&b.items) {
                if !equal(a, b, budget)? {
                    return Ok(false);
                }
            }
            true
        }
        (Value::Map(a), Value::Map(b)) => {
            if a.entries.len() != b.entries.len() {
                return Ok(false);
            }
            for (key, value) in &a.entries {
                budget.steps(b.entries.len() / 16)?;
                match b.get(key) {
                    Some(other) if equal(value, other, budget)? => {}
                    _ => return Ok(false),
                }
            }
            true
        }
        _ => match (number(left), number(right)) {
            (Some(Number::Int(a)), Some(Number::Int(b))) => a == b,
            _ => matches!((float(left), float(right)), (Some(a), Some(b)) if a == b),
        },
    })
}

/// The order of numbers, of strings and of lists of them.
pub(super) fn compare(
    left: &Value,
    right: &Value,
    budget: &mut Budget,
) -> std::result::Result<Ordering, Fault> {
    budget.step()?;
    match (left, right) {
        (Value::Str(a), Value::Str(b)) => {
            budget.read(a.len().min(b.len()))?;
            Ok(a.cmp(b))
        }
        (Value::List(a), Value::List(b)) => {
            for (a, b) in a.items.iter().zip(&b.items) {
                if !equal(a, b, budget)? {
                    return compare(a, b, budget);
                }
            }
            Ok(a.items.len().cmp(&b.items.len()))
        }
        _ => match (number(left), number(right)) {
            (Some(Number::Int(a)), Some(Number::Int(b))) => Ok(a.cmp(&b)),
            _ => match (float(left), float(right)) {
                (Some(a), Some(b)) => Ok(a.partial_cmp(&b).unwrap_or(Ordering::Equal)),
                _ => Err(Fault::failed(format!(
                    "{} and {} have no order",
                    left.kind(),
                    right.kind()
                ))),
            },
        },
    }
}

/// `item in container`.
pub(super) fn contains(
    container: &Value,
    item: &Value,
    budget: &mut Budget,
) -> std::result::Result<bool, Fault> {
    match (container, item) {
        (Value::Str(text), Value::Str(part)) => {
            budget.read(text.len())?;
            Ok(text.contains(&**part))
        }
        (Value::List(list), item) => {
            for found in &list.items {
                if equal(found, item, budget)? {
                    return Ok(true);
                }
            }
            Ok(false)
        }
        (Value::Map(map), key) => {
            budget.steps(map.entries.len() / 16)?;
            let key = keys::key_of(key, budget)?;
            Ok(map.get(&key).is_some())
        }
        (Value::Undefined, _) => Ok(false),
        (Value::Namespace(map), Value::Str(key)) => {
            budget.steps(map.borrow().len() / 16)?;
            Ok(map.borrow().iter().any(|(found, _)| found == key))
        }
        _ => {
            let (item, container) = (item.kind(), container.kind());
            Err(Fault::failed(format!("{item} cannot be in {container}")))
        }
    }
}

/// `value[start:stop:step]`, as in Python.
pub(super) fn slice<'t>(
    value: &Value<'t>,
    [start, stop, step]: [Option<i64>; 3],
    budget: &mut Budget,
) -> Result<'t> {
    let step = step.unwrap_or(1);
    if step == 0 {
        return Err(Fault::failed("a slice cannot have step 0"));
    }
    match value {
        Value::Str(text) => {
            budget.read(text.len())?;
            budget.charge(text.len())?;
            let chars: Vec<char> = text.chars().collect();
            let picked = indices(chars.len(), start, stop, step).map(|at| chars[at]);
            Ok(Value::Str(picked.collect::<String>().into()))
        }
        Value::List(list) => {
            let picked = indices(list.items.len(), start, stop, step);
            let picked: Vec<Value> = picked.map(|at| list.items[at].clone()).collect();
            budget.steps(picked.len() / 16)?;
            Value::list(picked, budget)
        }
        other => Err(Fault::failed(format!("{} cannot be sliced", other.kind()))),
    }
}

fn indices(
    len: usize,
    start: Option<i64>,
    stop: Option<i64>,
    step: i64,
) -> impl Iterator<Item = usize> {
    let len = len as i64;
    let bound = |at: i64| {
        let at = if at < 0 { at.saturating_add(len) } else { at };
        if step > 0 { at.clamp(0, len) } else { at.clamp(-1, len - 1) }
    };
    let (first, end) = if step > 0 { (0, len) } else { (len - 1, -1) };
    let (mut at, end) = (start.map_or(first, bound), stop.map_or(end, bound));
    std::iter::from_fn(move || {
        let inside = if step > 0 { at < end } else { at > end };
        let current = inside.then_some(at as usize);
        at = at.saturating_add(step);
        current
    })
}

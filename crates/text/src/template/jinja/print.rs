//! Values as text: Python's print format, and JSON.

use super::budget::{Budget, Fault};
use super::keys;
use super::value::Value;
use crate::tokenizer::GUARD;

/// Appends `str(value)` of Python; undefined is empty.
pub(super) fn print(value: &Value, out: &mut String, budget: &mut Budget) -> Result<(), Fault> {
    match value {
        Value::Undefined => Ok(()),
        Value::Str(text) => push(out, text, budget),
        other => repr(other, out, budget),
    }
}

pub(super) fn to_text(value: &Value, budget: &mut Budget) -> Result<String, Fault> {
    let mut out = String::new();
    print(value, &mut out, budget)?;
    Ok(out)
}

pub(super) fn push(out: &mut String, text: &str, budget: &mut Budget) -> Result<(), Fault> {
    budget.charge(text.len())?;
    out.push_str(text);
    Ok(())
}

/// Appends `repr(value)` of Python.
pub(super) fn repr(value: &Value, out: &mut String, budget: &mut Budget) -> Result<(), Fault> {
    budget.step()?;
    match value {
        Value::Undefined => push(out, "Undefined", budget),
        Value::None => push(out, "None", budget),
        Value::Bool(flag) => push(out, if *flag { "True" } else { "False" }, budget),
        Value::Int(int) => push(out, &int.to_string(), budget),
        Value::Float(float) => push(out, &float_text(*float), budget),
        Value::Str(text) => repr_str(text, out, budget),
        Value::List(list) => {
            push(out, "[", budget)?;
            for (at, item) in list.items.iter().enumerate() {
                push(out, if at == 0 { "" } else { ", " }, budget)?;
                repr(item, out, budget)?;
            }
            push(out, "]", budget)
        }
        Value::Map(map) => {
            push(out, "{", budget)?;
            for (at, (key, value)) in map.entries.iter().enumerate() {
                push(out, if at == 0 { "" } else { ", " }, budget)?;
                repr(&keys::value_of(key), out, budget)?;
                push(out, ": ", budget)?;
                repr(value, out, budget)?;
            }
            push(out, "}", budget)
        }
        other => push(out, &format!("<{}>", other.kind()), budget),
    }
}

fn repr_str(text: &str, out: &mut String, budget: &mut Budget) -> Result<(), Fault> {
    let quote = if text.contains('\'') && !text.contains('"') { '"' } else { '\'' };
    let mut quoted = String::with_capacity(text.len() + 2);
    quoted.push(quote);
    for ch in text.chars() {
        match ch {
            '\n' => quoted.push_str("\\n"),
            '\r' => quoted.push_str("\\r"),
            '\t' => quoted.push_str("\\t"),
            '\\' => quoted.push_str("\\\\"),
            ch if is_hidden(ch) => {
                let code = u32::from(ch);
                quoted.push_str(&match code {
                    ..=0xff => format!("\\x{code:02x}"),
                    _ => format!("\\u{code:04x}"),
                });
            }
            ch if ch == quote => quoted.extend(['\\', ch]),
            ch => quoted.push(ch),
        }
    }
    quoted.push(quote);
    push(out, &quoted, budget)
}

/// Whether Python shows a character by its code.
fn is_hidden(ch: char) -> bool {
    ch.is_control()
        || matches!(ch, '\u{a0}' | '\u{ad}' | '\u{200b}'..='\u{200f}' | '\u{feff}')
        || matches!(ch, '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}')
}

/// Python's float: at least one decimal, or an exponent of a sign and two digits.
fn float_text(float: f64) -> String {
    if float.is_nan() {
        return "nan".to_owned();
    }
    if float.is_infinite() {
        return if float > 0.0 { "inf" } else { "-inf" }.to_owned();
    }
    let text = format!("{float:?}");
    match text.split_once('e') {
        Some((digits, exponent)) => {
            let digits = digits.strip_suffix(".0").unwrap_or(digits);
            let sign = if exponent.starts_with('-') { '-' } else { '+' };
            format!("{digits}e{sign}{:0>2}", exponent.trim_start_matches('-'))
        }
        None => text,
    }
}

/// The JSON style: that of Python's `json.dumps`, which Hugging Face's `tojson` keeps.
pub(super) struct JsonStyle {
    pub(super) indent: Option<usize>,
    pub(super) item_separator: String,
    pub(super) key_separator: String,
    pub(super) ensure_ascii: bool,
    pub(super) sort_keys: bool,
}

impl JsonStyle {
    pub(super) fn write(
        &self,
        value: &Value,
        level: usize,
        out: &mut String,
        budget: &mut Budget,
    ) -> Result<(), Fault> {
        budget.step()?;
        match value {
            Value::Undefined | Value::None => push(out, "null", budget),
            Value::Bool(flag) => push(out, if *flag { "true" } else { "false" }, budget),
            Value::Int(int) => push(out, &int.to_string(), budget),
            Value::Float(float) if float.is_nan() => push(out, "NaN", budget),
            Value::Float(float) if float.is_infinite() => {
                push(out, if *float > 0.0 { "Infinity" } else { "-Infinity" }, budget)
            }
            Value::Float(float) => push(out, &float_text(*float), budget),
            Value::Str(text) => self.string(text, out, budget),
            Value::List(list) => {
                let count = list.items.len();
                self.block(["[", "]"], count, level, out, budget, |at, out, budget| {
                    self.write(&list.items[at], level + 1, out, budget)
                })
            }
            Value::Map(map) => {
                let mut entries: Vec<_> = map.entries.iter().collect();
                if self.sort_keys {
                    entries.sort_by(|left, right| left.0.cmp(&right.0));
                }
                self.block(["{", "}"], entries.len(), level, out, budget, |at, out, budget| {
                    let key = &*entries[at].0;
                    let number = keys::number(key).map(|number| number.to_string());
                    self.string(number.as_deref().unwrap_or(key), out, budget)?;
                    push(out, &self.key_separator, budget)?;
                    self.write(&entries[at].1, level + 1, out, budget)
                })
            }
            other => Err(Fault::failed(format!("{} is not JSON", other.kind()))),
        }
    }

    fn block(
        &self,
        brackets: [&str; 2],
        count: usize,
        level: usize,
        out: &mut String,
        budget: &mut Budget,
        mut write: impl FnMut(usize, &mut String, &mut Budget) -> Result<(), Fault>,
    ) -> Result<(), Fault> {
        push(out, brackets[0], budget)?;
        for at in 0..count {
            push(out, if at == 0 { "" } else { &self.item_separator }, budget)?;
            self.line(level + 1, out, budget)?;
            write(at, out, budget)?;
        }
        if count > 0 {
            self.line(level, out, budget)?;
        }
        push(out, brackets[1], budget)
    }

    fn line(&self, level: usize, out: &mut String, budget: &mut Budget) -> Result<(), Fault> {
        let Some(width) = self.indent else { return Ok(()) };
        budget.charge(1 + level.saturating_mul(width))?;
        out.push('\n');
        out.extend(std::iter::repeat_n(' ', level * width));
        Ok(())
    }

    fn string(&self, text: &str, out: &mut String, budget: &mut Budget) -> Result<(), Fault> {
        let quoted = serde_json::to_string(text).expect("strings are JSON");
        if !self.ensure_ascii {
            return push(out, &quoted, budget);
        }
        let mut ascii = String::with_capacity(quoted.len());
        let mut units = [0; 2];
        for ch in quoted.chars() {
            if ch.is_ascii() || ch == GUARD {
                ascii.push(ch);
            } else {
                let units = ch.encode_utf16(&mut units).iter();
                ascii.extend(units.map(|unit| format!("\\u{unit:04x}")));
            }
        }
        push(out, &ascii, budget)
    }
}

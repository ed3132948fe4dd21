//! Python's two ways to format: `'%5.2f' % value` and `'{:>5}'.format(value)`.

use super::args::Args;
use super::budget::{Budget, Fault};
use super::print::{print, push, repr, to_text};
use super::value::Value;
use super::{keys, ops};

type Result<'t> = std::result::Result<Value<'t>, Fault>;

/// The most digits after a decimal point.
const PRECISION_MAX: usize = 1000;

/// The format of one value.
#[derive(Default)]
struct Spec {
    fill: Option<char>,
    align: Option<char>,
    sign: Option<char>,
    /// `#`, which adds a number's base prefix.
    is_alternate: bool,
    width: usize,
    /// The separator between groups of three digits.
    separator: Option<char>,
    precision: Option<usize>,
    kind: Option<char>,
}

/// `'{} {name} {0:>5}'.format(...)`.
pub(super) fn brace<'t>(text: &str, mut args: Args<'t>, budget: &mut Budget) -> Result<'t> {
    let mut out = String::new();
    let mut next = 0;
    let mut rest = text;
    while let Some(at) = rest.find(['{', '}']) {
        push(&mut out, &rest[..at], budget)?;
        let (brace, after) = rest[at..].split_at(1);
        if after.starts_with(brace) {
            push(&mut out, brace, budget)?;
            rest = &after[1..];
            continue;
        }
        let end = after.find('}').filter(|_| brace == "{");
        let end = end.ok_or_else(|| Fault::failed("a format string with a single brace"))?;
        let (field, spec) = after[..end].split_once(':').unwrap_or((&after[..end], ""));
        let (field, conversion) = field.split_once('!').unwrap_or((field, ""));
        let value = field_value(field, &mut next, &mut args, budget)?;
        let value = match conversion {
            "" => value,
            "s" => Value::str(&to_text(&value, budget)?, budget)?,
            "r" => {
                let mut shown = String::new();
                repr(&value, &mut shown, budget)?;
                Value::Str(shown.into())
            }
            other => return Err(Fault::failed(format!("there is no conversion `!{other}`"))),
        };
        if spec.is_empty() {
            print(&value, &mut out, budget)?;
        } else {
            let spec = brace_spec(spec)?;
            write(&value, &spec, '<', &mut out, budget)?;
        }
        rest = &after[end + 1..];
    }
    push(&mut out, rest, budget)?;
    Ok(Value::Str(out.into()))
}

/// The value of a field: `0`, `name`, `name[key]`, `name.key`.
fn field_value<'t>(
    field: &str,
    next: &mut usize,
    args: &mut Args<'t>,
    budget: &mut Budget,
) -> Result<'t> {
    let name = &field[..field.find(['.', '[']).unwrap_or(field.len())];
    let place = match name.parse() {
        Ok(place) => place,
        Err(_) if name.is_empty() => {
            *next += 1;
            *next - 1
        }
        Err(_) => usize::MAX,
    };
    budget.steps(args.named.len() / 16)?;
    let named = args.named.iter().find(|(found, _)| **found == *name).map(|(_, value)| value);
    let missing = || Fault::failed(format!("no value for {{{field}}}"));
    let mut value = args.positional.get(place).or(named).cloned().ok_or_else(missing)?;
    for part in field[name.len()..].split(['.', '[']).skip(1) {
        let part = part.trim_end_matches(']');
        budget.step()?;
        let found = match (&value, part.parse::<usize>()) {
            (Value::List(list), Ok(at)) => list.items.get(at),
            (Value::Map(map), Ok(at)) => {
                map.get(&keys::key_of(&Value::Int(at as i64), budget)?).or_else(|| map.get(part))
            }
            (Value::Map(map), Err(_)) => map.get(part),
            _ => None,
        };
        value = found.cloned().ok_or_else(missing)?;
    }
    Ok(value)
}

/// `[[fill]align][sign][#][0][width][,][.precision][kind]`.
fn brace_spec(text: &str) -> std::result::Result<Spec, Fault> {
    let chars: Vec<char> = text.chars().collect();
    let is_align = |at: usize| chars.get(at).is_some_and(|ch| "<>=^".contains(*ch));
    let mut spec = Spec::default();
    let mut at = 0;
    if is_align(1) {
        (spec.fill, spec.align, at) = (Some(chars[0]), Some(chars[1]), 2);
    } else if is_align(0) {
        (spec.align, at) = (Some(chars[0]), 1);
    }
    let rest: String = chars[at..].iter().collect();
    let mut rest = rest.as_str();
    if let Some(sign) = rest.chars().next().filter(|ch| "+- ".contains(*ch)) {
        spec.sign = Some(sign);
        rest = &rest[1..];
    }
    if let Some(after) = rest.strip_prefix('#') {
        (spec.is_alternate, rest) = (true, after);
    }
    if rest.starts_with('0') {
        spec.fill = spec.fill.or(Some('0'));
        spec.align = spec.align.or(Some('='));
    }
    spec.width = number(&mut rest).unwrap_or(0);
    if let Some(separator) = rest.chars().next().filter(|ch| ",_".contains(*ch)) {
        spec.separator = Some(separator);
        rest = &rest[1..];
    }
    precision(&mut spec, &mut rest)?;
    let mut kinds = rest.chars();
    spec.kind = kinds.next();
    match kinds.next() {
        None => Ok(spec),
        Some(_) => Err(Fault::failed(format!("there is no format `{text}`"))),
    }
}

fn precision(spec: &mut Spec, rest: &mut &str) -> std::result::Result<(), Fault> {
    if let Some(after) = rest.strip_prefix('.') {
        *rest = after;
        spec.precision = Some(number(rest).unwrap_or(0));
    }
    match spec.precision.filter(|digits| *digits > PRECISION_MAX) {
        None => Ok(()),
        Some(_) => Err(Fault::failed(format!("a precision above {PRECISION_MAX}"))),
    }
}

/// Takes the digits in front; a number that is too large becomes the largest one.
fn number(rest: &mut &str) -> Option<usize> {
    let end = rest.find(|ch: char| !ch.is_ascii_digit()).unwrap_or(rest.len());
    let (digits, after) = rest.split_at(end);
    *rest = after;
    (!digits.is_empty()).then(|| digits.parse().unwrap_or(usize::MAX))
}

/// `'%s %(name)05d' % value`.
pub(super) fn percent<'t>(text: &str, value: &Value<'t>, budget: &mut Budget) -> Result<'t> {
    let values = match value {
        Value::List(list) => {
            budget.steps(list.items.len() / 16)?;
            list.items.clone()
        }
        other => vec![other.clone()],
    };
    let mut values = values.into_iter();
    let mut out = String::new();
    let mut rest = text;
    while let Some(at) = rest.find('%') {
        push(&mut out, &rest[..at], budget)?;
        rest = &rest[at + 1..];
        if let Some(after) = rest.strip_prefix('%') {
            push(&mut out, "%", budget)?;
            rest = after;
            continue;
        }
        let mut named = None;
        if let Some((name, after)) = rest.strip_prefix('(').and_then(|rest| rest.split_once(')')) {
            let Value::Map(map) = value else { return Err(Fault::failed("% wants a map")) };
            budget.steps(map.entries.len() / 16)?;
            let found = map.get(name).cloned();
            named = Some(found.ok_or_else(|| Fault::failed(format!("no value for %({name})")))?);
            rest = after;
        }
        let mut spec = Spec::default();
        let flags = rest.len() - rest.trim_start_matches(['#', '0', '-', ' ', '+']).len();
        for flag in rest[..flags].chars() {
            match flag {
                '#' => spec.is_alternate = true,
                '-' => spec.align = Some('<'),
                '0' => spec.fill = Some('0'),
                sign => spec.sign = Some(sign),
            }
        }
        spec.align = spec.align.or(spec.fill.map(|_| '='));
        spec.fill = spec.fill.filter(|_| spec.align == Some('='));
        rest = &rest[flags..];
        spec.width = number(&mut rest).unwrap_or(0);
        precision(&mut spec, &mut rest)?;
        let kind = rest.chars().next();
        let known = kind.filter(|kind| "sdiurfFeEgGxXoc".contains(*kind));
        let kind = known.ok_or_else(|| Fault::failed("a format string with an unknown %"))?;
        spec.kind = Some(if matches!(kind, 'i' | 'u') { 'd' } else { kind });
        rest = &rest[1..];
        let value = named.or_else(|| values.next());
        let value = value.ok_or_else(|| Fault::failed("too few values for %"))?;
        let value = match (kind, &value) {
            ('s', other) => Value::Str(to_text(other, budget)?.into()),
            ('r', other) => {
                let mut shown = String::new();
                repr(other, &mut shown, budget)?;
                Value::Str(shown.into())
            }
            ('d' | 'i' | 'u', Value::Float(float)) => Value::Int(*float as i64),
            _ => value,
        };
        write(&value, &spec, '>', &mut out, budget)?;
    }
    push(&mut out, rest, budget)?;
    Ok(Value::Str(out.into()))
}

/// Writes a value with `spec`; text is aligned by `text_align`, numbers to the right.
fn write(
    value: &Value,
    spec: &Spec,
    text_align: char,
    out: &mut String,
    budget: &mut Budget,
) -> std::result::Result<(), Fault> {
    let whole = match value {
        Value::Int(int) => Some(*int),
        Value::Bool(flag) if spec.kind.is_some() => Some((*flag).into()),
        _ => None,
    };
    let float = ops::float(value);
    let odd = || Fault::failed(format!("{} is not written so", value.kind()));
    let (is_negative, digits) = match (spec.kind.unwrap_or(' '), whole, float) {
        (' ' | 'd', Some(int), _) => (int < 0, int.unsigned_abs().to_string()),
        ('x', Some(int), _) => (int < 0, format!("{:x}", int.unsigned_abs())),
        ('X', Some(int), _) => (int < 0, format!("{:X}", int.unsigned_abs())),
        ('o', Some(int), _) => (int < 0, format!("{:o}", int.unsigned_abs())),
        ('b', Some(int), _) => (int < 0, format!("{:b}", int.unsigned_abs())),
        ('c', Some(int), _) => {
            let ch = u32::try_from(int).ok().and_then(char::from_u32).ok_or_else(odd)?;
            (false, ch.to_string())
        }
        (' ', None, Some(float)) if spec.precision.is_none() && value.as_str().is_none() => {
            (float.is_sign_negative(), to_text(&Value::Float(float.abs()), budget)?)
        }
        (kind, _, Some(float)) if " fFeEgG%".contains(kind) => {
            (float.is_sign_negative(), decimal(float.abs(), kind, spec.precision))
        }
        (' ' | 's' | 'r' | 'c', None, None) => {
            let text = to_text(value, budget)?;
            let most = spec.precision.unwrap_or(usize::MAX);
            let end = text.char_indices().nth(most).map_or(text.len(), |(at, _)| at);
            return pad(&text[..end], "", spec, text_align, out, budget);
        }
        _ => return Err(odd()),
    };
    let sign = match (is_negative, spec.sign) {
        (true, _) => "-",
        (false, Some('+')) => "+",
        (false, Some(' ')) => " ",
        _ => "",
    };
    let base = match spec.kind {
        Some(kind @ ('x' | 'X' | 'o' | 'b')) if spec.is_alternate => format!("0{kind}"),
        _ => String::new(),
    };
    let digits = match spec.separator {
        Some(separator) => grouped(&digits, separator),
        None => digits,
    };
    pad(&digits, &(sign.to_owned() + &base), spec, '>', out, budget)
}

/// A non-negative float in the notation `f`, `e`, `g` or `%`.
fn decimal(float: f64, kind: char, precision: Option<usize>) -> String {
    if !float.is_finite() {
        return if float.is_nan() { "nan" } else { "inf" }.to_owned();
    }
    let digits = precision.unwrap_or(6);
    let text = match kind.to_ascii_lowercase() {
        'f' => format!("{float:.digits$}"),
        '%' => return format!("{:.digits$}%", float * 100.0),
        'e' => exponent(&format!("{float:.digits$e}")),
        _ => {
            let digits = digits.max(1);
            let scientific = format!("{:.*e}", digits - 1, float);
            let power = scientific.split_once('e').and_then(|(_, power)| power.parse::<i32>().ok());
            let power = power.unwrap_or(0);
            let trimmed = |text: &str| match text.contains('.') {
                true => text.trim_end_matches('0').trim_end_matches('.').to_owned(),
                false => text.to_owned(),
            };
            match usize::try_from(digits as i32 - 1 - power) {
                Ok(places) if power >= -4 => trimmed(&format!("{float:.places$}")),
                _ => {
                    let (digits, power) = scientific.split_once('e').unwrap_or((&scientific, "0"));
                    exponent(&format!("{}e{power}", trimmed(digits)))
                }
            }
        }
    };
    if kind.is_ascii_uppercase() { text.to_uppercase() } else { text }
}

/// `1e4` in Python's notation, `1e+04`.
fn exponent(text: &str) -> String {
    let (digits, power) = text.split_once('e').unwrap_or((text, "0"));
    let sign = if power.starts_with('-') { '-' } else { '+' };
    format!("{digits}e{sign}{:0>2}", power.trim_start_matches('-'))
}

/// Digits with a separator between groups of three before the decimal point.
fn grouped(digits: &str, separator: char) -> String {
    let end = digits.find(|ch: char| !ch.is_ascii_digit()).unwrap_or(digits.len());
    let mut out = String::new();
    for (at, digit) in digits[..end].chars().enumerate() {
        if at > 0 && (end - at) % 3 == 0 {
            out.push(separator);
        }
        out.push(digit);
    }
    out + &digits[end..]
}

fn pad(
    text: &str,
    sign: &str,
    spec: &Spec,
    align: char,
    out: &mut String,
    budget: &mut Budget,
) -> std::result::Result<(), Fault> {
    let fill = spec.fill.unwrap_or(' ');
    let missing = spec.width.saturating_sub(text.chars().count() + sign.len());
    budget.charge(text.len().saturating_add(missing.saturating_mul(fill.len_utf8())))?;
    let (before, inside) = match spec.align.unwrap_or(align) {
        '<' => (0, 0),
        '^' => (missing / 2, 0),
        '=' => (0, missing),
        _ => (missing, 0),
    };
    out.extend(std::iter::repeat_n(fill, before));
    out.push_str(sign);
    out.extend(std::iter::repeat_n(fill, inside));
    out.push_str(text);
    out.extend(std::iter::repeat_n(fill, missing - before - inside));
    Ok(())
}

//! Methods of Python's strings, dictionaries and lists.

use std::rc::Rc;

use super::args::Args;
use super::budget::{Budget, Fault};
use super::exec::Machine;
use super::print::{print, push, to_text};
use super::value::Value;
use super::{keys, ops};

type Result<'t> = std::result::Result<Value<'t>, Fault>;

pub(super) fn call<'t>(
    machine: &mut Machine<'t>,
    value: &Value<'t>,
    name: &str,
    args: Args<'t>,
) -> Result<'t> {
    match value {
        Value::Str(text) => string_method(machine, text, name, args),
        Value::Map(map) => map_method(&map.entries, name, args, &mut machine.budget),
        Value::Namespace(entries) => {
            let entries = entries.borrow().clone();
            map_method(&entries, name, args, &mut machine.budget)
        }
        Value::List(list) => list_method(&list.items, name, args, &mut machine.budget),
        Value::Loop(state) if name == "cycle" && !args.positional.is_empty() => {
            Ok(args.positional[state.index % args.positional.len()].clone())
        }
        other => Err(no_method(other, name)),
    }
}

fn no_method(value: &Value, name: &str) -> Fault {
    Fault::failed(format!("{} has no method `{name}`", value.kind()))
}

fn map_method<'t>(
    entries: &[(Rc<str>, Value<'t>)],
    name: &str,
    mut args: Args<'t>,
    budget: &mut Budget,
) -> Result<'t> {
    budget.steps(entries.len() / 16)?;
    match name {
        "get" => {
            let key = args.take(0, "key").unwrap_or(Value::Undefined);
            let key = keys::key_of(&key, budget)?;
            let found = entries.iter().find(|(found, _)| **found == *key);
            Ok(match found {
                Some((_, value)) => value.clone(),
                None => args.take(1, "default").unwrap_or(Value::None),
            })
        }
        "keys" => {
            let keys = entries.iter().map(|(key, _)| keys::value_of(key)).collect();
            Value::list(keys, budget)
        }
        "values" => Value::list(entries.iter().map(|(_, value)| value.clone()).collect(), budget),
        "items" => items(entries, budget),
        _ => Err(Fault::failed(format!("a map has no method `{name}`"))),
    }
}

/// Pairs of keys and values.
pub(super) fn items<'t>(entries: &[(Rc<str>, Value<'t>)], budget: &mut Budget) -> Result<'t> {
    let pair = |(key, value): &(Rc<str>, Value<'t>)| {
        Value::list(vec![keys::value_of(key), value.clone()], budget)
    };
    let pairs = entries.iter().map(pair).collect::<std::result::Result<_, _>>()?;
    Value::list(pairs, budget)
}

fn list_method<'t>(
    items: &[Value<'t>],
    name: &str,
    mut args: Args<'t>,
    budget: &mut Budget,
) -> Result<'t> {
    let wanted = args.take(0, "value").unwrap_or(Value::Undefined);
    let mut places = Vec::new();
    for (at, item) in items.iter().enumerate() {
        if ops::equal(item, &wanted, budget)? {
            places.push(at as i64);
        }
    }
    match (name, places.first()) {
        ("count", _) => Ok(Value::Int(places.len() as i64)),
        ("index", Some(at)) => Ok(Value::Int(*at)),
        ("index", None) => Err(Fault::failed("the value is not in the list")),
        _ => Err(Fault::failed(format!("a list has no method `{name}`"))),
    }
}

fn string_method<'t>(
    machine: &mut Machine<'t>,
    text: &str,
    name: &str,
    mut args: Args<'t>,
) -> Result<'t> {
    machine.budget.read(text.len())?;
    let budget = &mut machine.budget;
    match name {
        "strip" | "lstrip" | "rstrip" => {
            let chars = args.text(0, "chars", "", budget)?;
            Value::str(strip(text, &chars, name), budget)
        }
        "upper" => Value::str(&text.to_uppercase(), budget),
        "lower" => Value::str(&text.to_lowercase(), budget),
        "capitalize" => Value::str(&capitalize(text), budget),
        "title" => Value::str(&title(text), budget),
        "startswith" => any_part(&mut args, |part| text.starts_with(part)),
        "endswith" => any_part(&mut args, |part| text.ends_with(part)),
        "removeprefix" | "removesuffix" => {
            let part = args.text(0, "part", "", budget)?;
            let rest = match name {
                "removeprefix" => text.strip_prefix(part.as_str()),
                _ => text.strip_suffix(part.as_str()),
            };
            Value::str(rest.unwrap_or(text), budget)
        }
        "split" | "rsplit" => {
            let separator = args.take(0, "sep").filter(|value| value.as_str().is_some());
            let count = args.int(1, "maxsplit")?.and_then(|count| usize::try_from(count).ok());
            let from_right = name == "rsplit";
            split(text, separator.as_ref().and_then(Value::as_str), count, from_right, budget)
        }
        "splitlines" => strings(text.lines(), budget),
        "replace" => {
            let (from, to) = (args.text(0, "old", "", budget)?, args.text(1, "new", "", budget)?);
            let count = args.int(2, "count")?.and_then(|count| usize::try_from(count).ok());
            replace(text, &from, &to, count, budget)
        }
        "join" => {
            let values = args.take(0, "iterable").unwrap_or(Value::Undefined);
            let items = machine.items(&values)?;
            join(&items, text, &mut machine.budget)
        }
        "find" | "rfind" | "index" => {
            let part = args.text(0, "sub", "", budget)?;
            let found = if name == "rfind" { text.rfind(&part) } else { text.find(&part) };
            match found {
                Some(at) => Ok(Value::Int(text[..at].chars().count() as i64)),
                None if name == "index" => Err(Fault::failed("the text is not in the string")),
                None => Ok(Value::Int(-1)),
            }
        }
        "count" => {
            let part = args.text(0, "sub", "", budget)?;
            Ok(Value::Int(text.matches(&part).count() as i64))
        }
        "format" => brace_format(text, args, budget),
        _ => match predicate(text, name) {
            Some(result) => Ok(Value::Bool(result)),
            None => Err(Fault::failed(format!("a string has no method `{name}`"))),
        },
    }
}

/// The methods that ask what a string consists of.
fn predicate(text: &str, name: &str) -> Option<bool> {
    let all = |is: fn(char) -> bool| !text.is_empty() && text.chars().all(is);
    let cased = text.chars().any(|ch| ch.is_uppercase() || ch.is_lowercase());
    Some(match name {
        "isdigit" | "isnumeric" | "isdecimal" => all(char::is_numeric),
        "isalpha" => all(char::is_alphabetic),
        "isalnum" => all(char::is_alphanumeric),
        "isspace" => all(char::is_whitespace),
        "isascii" => text.is_ascii(),
        "isupper" => cased && !text.chars().any(char::is_lowercase),
        "islower" => cased && !text.chars().any(char::is_uppercase),
        _ => return None,
    })
}

/// Text without the characters of `chars` (white space if empty) at its ends.
pub(super) fn strip<'s>(text: &'s str, chars: &str, name: &str) -> &'s str {
    let is_in = |ch: char| if chars.is_empty() { ch.is_whitespace() } else { chars.contains(ch) };
    let text = if name == "rstrip" { text } else { text.trim_start_matches(is_in) };
    if name == "lstrip" { text } else { text.trim_end_matches(is_in) }
}

pub(super) fn capitalize(text: &str) -> String {
    let mut chars = text.chars();
    let first = chars.next().map(char::to_uppercase);
    first.into_iter().flatten().chain(chars.flat_map(char::to_lowercase)).collect()
}

pub(super) fn title(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut inside = false;
    for ch in text.chars() {
        if inside {
            out.extend(ch.to_lowercase())
        } else {
            out.extend(ch.to_uppercase())
        }
        inside = ch.is_alphabetic();
    }
    out
}

fn any_part<'t>(args: &mut Args<'t>, is: impl Fn(&str) -> bool) -> Result<'t> {
    match args.take(0, "prefix") {
        Some(Value::Str(part)) => Ok(Value::Bool(is(&part))),
        Some(Value::List(parts)) => {
            Ok(Value::Bool(parts.items.iter().filter_map(Value::as_str).any(is)))
        }
        _ => Err(Fault::failed("a string or a list of strings is wanted")),
    }
}

fn strings<'t, 's>(parts: impl Iterator<Item = &'s str>, budget: &mut Budget) -> Result<'t> {
    let mut items = Vec::new();
    for part in parts {
        budget.charge(64)?;
        items.push(Value::str(part, budget)?);
    }
    Value::list(items, budget)
}

pub(super) fn split<'t>(
    text: &str,
    separator: Option<&str>,
    count: Option<usize>,
    from_right: bool,
    budget: &mut Budget,
) -> Result<'t> {
    let limit = count.map_or(usize::MAX, |count| count.saturating_add(1));
    match separator {
        Some("") => Err(Fault::failed("an empty separator")),
        Some(separator) if from_right => {
            let mut parts: Vec<&str> = text.rsplitn(limit, separator).collect();
            parts.reverse();
            strings(parts.into_iter(), budget)
        }
        Some(separator) => strings(text.splitn(limit, separator), budget),
        None if count.is_none() => strings(text.split_whitespace(), budget),
        None => {
            let mut parts = Vec::new();
            let mut rest = text.trim_start();
            while !rest.is_empty() && parts.len() + 1 < limit {
                let end = rest.find(char::is_whitespace).unwrap_or(rest.len());
                parts.push(&rest[..end]);
                rest = rest[end..].trim_start();
            }
            parts.extend((!rest.is_empty()).then_some(rest));
            strings(parts.into_iter(), budget)
        }
    }
}

pub(super) fn replace<'t>(
    text: &str,
    from: &str,
    to: &str,
    count: Option<usize>,
    budget: &mut Budget,
) -> Result<'t> {
    budget.read(text.len())?;
    let found = text.matches(from).count().min(count.unwrap_or(usize::MAX));
    budget.charge(text.len().saturating_add(found.saturating_mul(to.len())))?;
    Ok(Value::Str(text.replacen(from, to, found).into()))
}

pub(super) fn join<'t>(items: &[Value], separator: &str, budget: &mut Budget) -> Result<'t> {
    let mut out = String::new();
    for (at, item) in items.iter().enumerate() {
        budget.step()?;
        push(&mut out, if at == 0 { "" } else { separator }, budget)?;
        print(item, &mut out, budget)?;
    }
    Ok(Value::Str(out.into()))
}

/// `'{} {name}'.format(...)`, without format specifications.
fn brace_format<'t>(text: &str, mut args: Args<'t>, budget: &mut Budget) -> Result<'t> {
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
        let field = &after[..end];
        let place = match field.parse() {
            Ok(place) => place,
            Err(_) if field.is_empty() => {
                next += 1;
                next - 1
            }
            Err(_) => usize::MAX,
        };
        let value = args.positional.get(place).cloned().or_else(|| args.take(usize::MAX, field));
        let value = value.ok_or_else(|| Fault::failed(format!("no value for {{{field}}}")))?;
        print(&value, &mut out, budget)?;
        rest = &after[end + 1..];
    }
    push(&mut out, rest, budget)?;
    Ok(Value::Str(out.into()))
}

/// `'%s' % value`, without widths.
pub(super) fn percent_format<'t>(text: &str, value: &Value<'t>, budget: &mut Budget) -> Result<'t> {
    let values = match value {
        Value::List(list) => list.items.clone(),
        other => vec![other.clone()],
    };
    let mut values = values.into_iter();
    let mut out = String::new();
    let mut rest = text;
    while let Some(at) = rest.find('%') {
        push(&mut out, &rest[..at], budget)?;
        let code = rest[at + 1..].chars().next();
        match code {
            Some('%') => push(&mut out, "%", budget)?,
            Some('s' | 'd' | 'i' | 'f' | 'r') => {
                let value = values.next().ok_or_else(|| Fault::failed("too few values for %"))?;
                let text = to_text(&value, budget)?;
                push(&mut out, &text, budget)?;
            }
            _ => return Err(Fault::failed("a format string with an unknown %")),
        }
        rest = &rest[at + 2..];
    }
    push(&mut out, rest, budget)?;
    Ok(Value::Str(out.into()))
}

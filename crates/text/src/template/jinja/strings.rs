//! Methods of Python's strings.

use std::collections::HashSet;

use super::args::Args;
use super::budget::{Budget, Fault};
use super::exec::Machine;
use super::formats;
use super::print::{print, push};
use super::value::Value;

/// Up to this many characters a linear search is fast.
const SHORT: usize = 16;

type Result<'t> = std::result::Result<Value<'t>, Fault>;

pub(super) fn call<'t>(
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
            pay_strip(text, &chars, budget)?;
            Value::str(strip(text, &chars, name), budget)
        }
        "upper" => Value::str(&text.to_uppercase(), budget),
        "lower" => Value::str(&text.to_lowercase(), budget),
        "casefold" => Value::str(&text.to_lowercase().replace('ß', "ss"), budget),
        "swapcase" => Value::str(&swapcase(text), budget),
        "capitalize" => Value::str(&capitalize(text), budget),
        "title" => Value::str(&title(text), budget),
        "center" | "ljust" | "rjust" | "zfill" => justify(text, name, args, budget),
        "expandtabs" => expand_tabs(text, args.int(0, "tabsize")?.unwrap_or(8), budget),
        "startswith" | "endswith" => {
            let (part, _) = part_of(text, &mut args)?;
            let is = |affix: &str| match name {
                "startswith" => part.is_some_and(|part| part.starts_with(affix)),
                _ => part.is_some_and(|part| part.ends_with(affix)),
            };
            any_affix(&mut args, is, budget)
        }
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
        "partition" | "rpartition" => {
            let separator = args.text(0, "sep", "", budget)?;
            let parts = match name {
                "partition" => text.split_once(&separator).map(|(a, b)| [a, &separator, b]),
                _ => text.rsplit_once(&separator).map(|(a, b)| [a, &separator, b]),
            };
            let none = if name == "partition" { [text, "", ""] } else { ["", "", text] };
            strings(parts.unwrap_or(none).into_iter(), budget)
        }
        "splitlines" => strings(lines(text, args.flag(0, "keepends")).into_iter(), budget),
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
        "find" | "rfind" | "index" | "rindex" | "count" => search(text, name, args, budget),
        "format" => formats::brace(text, args, budget),
        _ => match predicate(text, name) {
            Some(result) => Ok(Value::Bool(result)),
            None => Err(Fault::failed(format!("a string has no method `{name}`"))),
        },
    }
}

/// The methods that test the characters of a string.
fn predicate(text: &str, name: &str) -> Option<bool> {
    let all = |is: fn(char) -> bool| !text.is_empty() && text.chars().all(is);
    let cased = text.chars().any(|ch| ch.is_uppercase() || ch.is_lowercase());
    let is_word = |ch: char| ch.is_alphanumeric() || ch == '_';
    Some(match name {
        "isdigit" | "isnumeric" | "isdecimal" => all(char::is_numeric),
        "isalpha" => all(char::is_alphabetic),
        "isalnum" => all(char::is_alphanumeric),
        "isspace" => all(char::is_whitespace),
        "isascii" => text.is_ascii(),
        "isprintable" => !text.chars().any(char::is_control),
        "isidentifier" => all(is_word) && !text.starts_with(char::is_numeric),
        "istitle" => cased && title(text) == text,
        "isupper" => cased && !text.chars().any(char::is_lowercase),
        "islower" => cased && !text.chars().any(char::is_uppercase),
        _ => return None,
    })
}

/// Charges for [`strip`], which compares each character with the set.
pub(super) fn pay_strip(
    text: &str,
    chars: &str,
    budget: &mut Budget,
) -> std::result::Result<(), Fault> {
    let price = if chars.len() > SHORT { 16 } else { 3 };
    budget.read(text.len().saturating_add(chars.len()).saturating_mul(price))
}

/// Text without the characters of `chars` (white space if empty) at its ends.
pub(super) fn strip<'s>(text: &'s str, chars: &str, name: &str) -> &'s str {
    // A set pays off for many characters.
    let set: HashSet<char> = chars.chars().skip(SHORT).collect();
    let is_in = |ch: char| match chars.is_empty() {
        true => ch.is_whitespace(),
        false => {
            chars.chars().take(SHORT).any(|own| own == ch) || (!set.is_empty() && set.contains(&ch))
        }
    };
    let text = if name == "rstrip" { text } else { text.trim_start_matches(is_in) };
    if name == "lstrip" { text } else { text.trim_end_matches(is_in) }
}

pub(super) fn capitalize(text: &str) -> String {
    let mut chars = text.chars();
    let first = chars.next().map(char::to_uppercase);
    first.into_iter().flatten().chain(chars.flat_map(char::to_lowercase)).collect()
}

fn swapcase(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for ch in text.chars() {
        if ch.is_uppercase() {
            out.extend(ch.to_lowercase())
        } else {
            out.extend(ch.to_uppercase())
        }
    }
    out
}

fn title(text: &str) -> String {
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

pub(super) fn justify<'t>(
    text: &str,
    name: &str,
    mut args: Args<'t>,
    budget: &mut Budget,
) -> Result<'t> {
    let width = usize::try_from(args.int(0, "width")?.unwrap_or(80)).unwrap_or(0);
    let fill = match name {
        "zfill" => "0".to_owned(),
        _ => args.text(1, "fillchar", " ", budget)?,
    };
    let mut chars = fill.chars();
    let (Some(fill), None) = (chars.next(), chars.next()) else {
        return Err(Fault::failed(format!("`{name}` fills with one character")));
    };
    let missing = width.saturating_sub(text.chars().count());
    budget.charge(text.len().saturating_add(missing.saturating_mul(fill.len_utf8())))?;
    let before = match name {
        "ljust" => 0,
        "center" => missing / 2 + (missing & width & 1),
        _ => missing,
    };
    let sign = usize::from(name == "zfill" && text.starts_with(['+', '-']));
    let mut out = text[..sign].to_owned();
    out.extend(std::iter::repeat_n(fill, before));
    out.push_str(&text[sign..]);
    out.extend(std::iter::repeat_n(fill, missing - before));
    Ok(Value::Str(out.into()))
}

fn expand_tabs<'t>(text: &str, size: i64, budget: &mut Budget) -> Result<'t> {
    let size = usize::try_from(size).unwrap_or(0);
    let tabs = text.matches('\t').count();
    budget.charge(text.len().saturating_add(tabs.saturating_mul(size)))?;
    let (mut out, mut column) = (String::new(), 0);
    for ch in text.chars() {
        match ch {
            '\t' => {
                let width = if size == 0 { 0 } else { size - column % size };
                out.extend(std::iter::repeat_n(' ', width));
                column += width;
            }
            ch => {
                out.push(ch);
                column = if matches!(ch, '\n' | '\r') { 0 } else { column + 1 };
            }
        }
    }
    Ok(Value::Str(out.into()))
}

/// Lines by Python's rules, which include more line ends than a line feed.
fn lines(text: &str, keeps_ends: bool) -> Vec<&str> {
    let is_end = |ch: char| {
        matches!(ch, '\n' | '\r' | '\x0b' | '\x0c' | '\x1c'..='\x1e')
            || matches!(ch, '\u{85}' | '\u{2028}' | '\u{2029}')
    };
    let mut lines = Vec::new();
    let mut rest = text;
    while !rest.is_empty() {
        let Some(at) = rest.find(is_end) else {
            lines.push(rest);
            break;
        };
        let end = match rest[at..].starts_with("\r\n") {
            true => at + 2,
            false => at + rest[at..].chars().next().map_or(1, char::len_utf8),
        };
        lines.push(&rest[..if keeps_ends { end } else { at }]);
        rest = &rest[end..];
    }
    lines
}

/// The part of a text selected by the second and third arguments, and the characters before it.
/// `None` if the part would start beyond the text.
fn part_of<'s>(
    text: &'s str,
    args: &mut Args,
) -> std::result::Result<(Option<&'s str>, i64), Fault> {
    let (start, end) = (args.int(1, "start")?, args.int(2, "end")?);
    if start.is_none() && end.is_none() {
        return Ok((Some(text), 0));
    }
    let count = text.chars().count() as i64;
    let bound = |at: i64| if at < 0 { (at + count).max(0) } else { at };
    let (start, end) = (bound(start.unwrap_or(0)), bound(end.unwrap_or(count)).min(count));
    if start > end {
        return Ok((None, 0));
    }
    let byte = |at: i64| text.char_indices().nth(at as usize).map_or(text.len(), |(at, _)| at);
    Ok((Some(&text[byte(start)..byte(end)]), start))
}

fn search<'t>(text: &str, name: &str, mut args: Args<'t>, budget: &mut Budget) -> Result<'t> {
    let wanted = args.text(0, "sub", "", budget)?;
    let (part, before) = part_of(text, &mut args)?;
    let part = part.filter(|part| !part.is_empty() || wanted.is_empty());
    if name == "count" {
        return Ok(Value::Int(part.map_or(0, |part| part.matches(&wanted).count() as i64)));
    }
    let place = part.and_then(|part| {
        let at = if name.starts_with('r') { part.rfind(&wanted) } else { part.find(&wanted) };
        at.map(|at| before + part[..at].chars().count() as i64)
    });
    match place {
        None if name.ends_with("index") => Err(Fault::failed("the text is not in the string")),
        place => Ok(Value::Int(place.unwrap_or(-1))),
    }
}

fn any_affix<'t>(
    args: &mut Args<'t>,
    is: impl Fn(&str) -> bool,
    budget: &mut Budget,
) -> Result<'t> {
    match args.take(0, "prefix") {
        Some(Value::Str(part)) => Ok(Value::Bool(is(&part))),
        Some(Value::List(parts)) => {
            budget.steps(parts.items.len())?;
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
            let mut rest = if from_right { text.trim_end() } else { text.trim_start() };
            while !rest.is_empty() && parts.len() + 1 < limit {
                let blank = char::is_whitespace;
                let (part, more) = match from_right {
                    true => {
                        let before = rest.trim_end_matches(|ch| !blank(ch));
                        (&rest[before.len()..], before.trim_end())
                    }
                    false => {
                        let end = rest.find(blank).unwrap_or(rest.len());
                        (&rest[..end], rest[end..].trim_start())
                    }
                };
                parts.push(part);
                rest = more;
            }
            parts.extend((!rest.is_empty()).then_some(rest));
            if from_right {
                parts.reverse();
            }
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

//! Filters: `value|name(...)`.

use std::cmp::Ordering;
use std::rc::Rc;

use super::args::Args;
use super::budget::{Budget, Fault};
use super::exec::Machine;
use super::print::{JsonStyle, repr, to_text};
use super::value::Value;
use super::{accepted, formats, groups, keys, methods, numbers, ops, strings, tests};

type Result<'t> = std::result::Result<Value<'t>, Fault>;

/// The widest indent.
const INDENT_MAX: i64 = 64;

pub(super) fn apply<'t>(
    machine: &mut Machine<'t>,
    name: &str,
    value: Value<'t>,
    mut args: Args<'t>,
) -> Result<'t> {
    accepted::check(name, &args)?;
    match name {
        "default" | "d" => {
            let falls_back = args.flag(1, "boolean") && !value.is_true();
            let is_missing = value.is_undefined() || falls_back;
            let default = args.take(0, "default_value");
            Ok(if is_missing { default.unwrap_or(Value::Str("".into())) } else { value })
        }
        "safe" | "forceescape" => Ok(value),
        "tojson" => tojson(machine, &value, args),
        "length" | "count" => length(&value, &mut machine.budget),
        "bool" => Ok(Value::Bool(value.is_true())),
        "int" | "float" | "abs" | "round" => {
            numbers::apply(name, &value, args, &mut machine.budget)
        }
        "batch" | "slice" | "groupby" => groups::apply(machine, name, &value, args),
        "items" | "dictsort" => map_filter(machine, name, &value, args),
        "first" | "last" | "list" | "reverse" | "sort" | "unique" | "sum" | "min" | "max"
        | "join" => list_filter(machine, name, value, args),
        "map" => map(machine, value, args),
        "select" | "reject" | "selectattr" | "rejectattr" => select(machine, name, value, args),
        _ => text_filter(machine, name, &value, args),
    }
}

fn text_filter<'t>(
    machine: &mut Machine<'t>,
    name: &str,
    value: &Value<'t>,
    mut args: Args<'t>,
) -> Result<'t> {
    let budget = &mut machine.budget;
    let text = to_text(value, budget)?;
    budget.read(text.len())?;
    match name {
        "string" => Ok(Value::Str(text.into())),
        "upper" => Value::str(&text.to_uppercase(), budget),
        "lower" => Value::str(&text.to_lowercase(), budget),
        "title" => Value::str(&title_words(&text), budget),
        "capitalize" => Value::str(&strings::capitalize(&text), budget),
        "trim" => {
            let chars = args.text(0, "chars", "", budget)?;
            strings::pay_strip(&text, &chars, budget)?;
            Value::str(strings::strip(&text, &chars, "strip"), budget)
        }
        "replace" => {
            let (from, to) = (args.text(0, "old", "", budget)?, args.text(1, "new", "", budget)?);
            let count = args.int(2, "count")?.and_then(|count| usize::try_from(count).ok());
            strings::replace(&text, &from, &to, count, budget)
        }
        "split" => {
            let separator = args.text(0, "sep", "", budget)?;
            let separator = Some(separator.as_str()).filter(|text| !text.is_empty());
            let most = args.int(1, "maxsplit")?.and_then(|most| usize::try_from(most).ok());
            strings::split(&text, separator, most, false, budget)
        }
        "indent" => indent(machine, &text, args),
        "center" => strings::justify(&text, name, args, budget),
        "wordcount" => Ok(Value::Int(text.split_whitespace().count() as i64)),
        "truncate" => truncate(&text, args, budget),
        "pprint" => {
            let mut shown = String::new();
            repr(value, &mut shown, budget)?;
            Ok(Value::Str(shown.into()))
        }
        "escape" | "e" => {
            let escaped = text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;");
            let escaped = escaped.replace('\'', "&#39;").replace('"', "&#34;");
            Value::str(&escaped, budget)
        }
        "format" => {
            let values = Value::list(args.positional, budget)?;
            formats::percent(&text, &values, budget)
        }
        _ => Err(Fault::failed(format!("there is no filter `{name}`"))),
    }
}

fn tojson<'t>(machine: &mut Machine<'t>, value: &Value<'t>, mut args: Args<'t>) -> Result<'t> {
    let indent = args.int(0, "indent")?.map(|width| width.clamp(0, INDENT_MAX) as usize);
    let mut style = JsonStyle {
        indent,
        item_separator: if indent.is_some() { "," } else { ", " }.to_owned(),
        key_separator: ": ".to_owned(),
        ensure_ascii: args.flag(1, "ensure_ascii"),
        sort_keys: args.flag(2, "sort_keys"),
    };
    if let Some(Value::List(pair)) = args.take(usize::MAX, "separators")
        && let [item, key] = &pair.items[..]
    {
        style.item_separator = to_text(item, &mut machine.budget)?;
        style.key_separator = to_text(key, &mut machine.budget)?;
    }
    let mut out = String::new();
    style.write(value, 0, &mut out, &mut machine.budget)?;
    Ok(Value::Str(out.into()))
}

fn length<'t>(value: &Value, budget: &mut Budget) -> Result<'t> {
    let length = match value {
        Value::Str(text) => {
            budget.read(text.len())?;
            text.chars().count()
        }
        Value::List(list) => list.items.len(),
        Value::Map(map) => map.entries.len(),
        Value::Undefined => 0,
        other => return Err(Fault::failed(format!("{} has no length", other.kind()))),
    };
    Ok(Value::Int(length as i64))
}

fn map_filter<'t>(
    machine: &mut Machine<'t>,
    name: &str,
    value: &Value<'t>,
    mut args: Args<'t>,
) -> Result<'t> {
    let mut entries = match value {
        Value::Map(map) => map.entries.clone(),
        Value::Undefined => Vec::new(),
        other => return Err(Fault::failed(format!("{name} wants a map, not {}", other.kind()))),
    };
    machine.budget.steps(entries.len())?;
    let budget = &mut machine.budget;
    if name == "dictsort" {
        let is_exact = args.flag(0, "case_sensitive");
        let by_value = match args.text(1, "by", "key", budget)?.as_str() {
            "key" => false,
            "value" => true,
            other => return Err(Fault::failed(format!("dictsort by {other}, not key or value"))),
        };
        let key = |(key, value): (Rc<str>, Value<'t>)| {
            let by = if by_value { value.clone() } else { keys::value_of(&key) };
            (by, (key, value))
        };
        let pairs = entries.into_iter().map(key).collect();
        let is_reverse = args.flag(2, "reverse");
        entries = in_order(pairs, is_exact, is_reverse, budget)?;
    }
    methods::items(&entries, budget)
}

fn list_filter<'t>(
    machine: &mut Machine<'t>,
    name: &str,
    value: Value<'t>,
    mut args: Args<'t>,
) -> Result<'t> {
    if let ("reverse", Value::Str(text)) = (name, &value) {
        return Value::str(&text.chars().rev().collect::<String>(), &mut machine.budget);
    }
    let mut items = machine.items(&value)?;
    match name {
        "first" => Ok(items.into_iter().next().unwrap_or(Value::Undefined)),
        "last" => Ok(items.pop().unwrap_or(Value::Undefined)),
        "list" => Value::list(items, &mut machine.budget),
        "reverse" => {
            items.reverse();
            Value::list(items, &mut machine.budget)
        }
        "join" => {
            let separator = args.text(0, "d", "", &mut machine.budget)?;
            let attribute = args.take(1, "attribute");
            if let Some(attribute) = attribute.as_ref().and_then(Value::as_str) {
                items = attributes(machine, items, attribute)?;
            }
            strings::join(&items, &separator, &mut machine.budget)
        }
        "sum" => {
            let attribute = args.take(0, "attribute");
            let zero = Ok(args.take(1, "start").unwrap_or(Value::Int(0)));
            let items = keyed(machine, &items, attribute.as_ref())?;
            items.iter().fold(zero, |sum, item| ops::add(&sum?, item, &mut machine.budget))
        }
        "unique" => {
            let is_exact = args.flag(0, "case_sensitive");
            let attribute = args.take(1, "attribute");
            let keys = keyed(machine, &items, attribute.as_ref())?;
            let mut unique: Vec<(Value, Value)> = Vec::new();
            'items: for (key, item) in keys.into_iter().zip(items) {
                for (found, _) in &unique {
                    if is_same(found, &key, is_exact, &mut machine.budget)? {
                        continue 'items;
                    }
                }
                unique.push((key, item));
            }
            let unique = unique.into_iter().map(|(_, item)| item).collect();
            Value::list(unique, &mut machine.budget)
        }
        _ => sorted(machine, name, items, args),
    }
}

/// `sort`, `min` and `max`.
fn sorted<'t>(
    machine: &mut Machine<'t>,
    name: &str,
    items: Vec<Value<'t>>,
    mut args: Args<'t>,
) -> Result<'t> {
    // `sort` has one more argument before those of `min` and `max`.
    let place = usize::from(name == "sort");
    let is_reverse = name == "sort" && args.flag(0, "reverse");
    let is_exact = args.flag(place, "case_sensitive");
    let attribute = args.take(place + 1, "attribute");
    let keys = keyed(machine, &items, attribute.as_ref())?;
    let pairs = keys.into_iter().zip(items).collect();
    let items = in_order(pairs, is_exact, is_reverse, &mut machine.budget)?;
    let mut items = items.into_iter();
    match name {
        "min" => Ok(items.next().unwrap_or(Value::Undefined)),
        "max" => Ok(items.next_back().unwrap_or(Value::Undefined)),
        _ => Value::list(items.collect(), &mut machine.budget),
    }
}

/// The sort keys of items: the items themselves, or one of their attributes.
pub(super) fn keyed<'t>(
    machine: &mut Machine<'t>,
    items: &[Value<'t>],
    attribute: Option<&Value<'t>>,
) -> std::result::Result<Vec<Value<'t>>, Fault> {
    match attribute {
        None | Some(Value::None | Value::Undefined) => Ok(items.to_vec()),
        Some(Value::Str(path)) => attributes(machine, items.to_vec(), path),
        Some(place) => {
            let path = to_text(place, &mut machine.budget)?;
            attributes(machine, items.to_vec(), &path)
        }
    }
}

/// Sorts values by their keys.
pub(super) fn in_order<'t, T>(
    mut pairs: Vec<(Value<'t>, T)>,
    is_exact: bool,
    is_reverse: bool,
    budget: &mut Budget,
) -> std::result::Result<Vec<T>, Fault> {
    let mut fault = None;
    pairs.sort_by(|left, right| {
        let order = match (&fault, is_exact) {
            (Some(_), _) => Ok(Ordering::Equal),
            (None, true) => ops::compare(&left.0, &right.0, budget),
            (None, false) => folded(&left.0, &right.0, budget),
        };
        let order = order.unwrap_or_else(|error| {
            fault = Some(error);
            Ordering::Equal
        });
        if is_reverse { order.reverse() } else { order }
    });
    match fault {
        Some(fault) => Err(fault),
        None => Ok(pairs.into_iter().map(|(_, item)| item).collect()),
    }
}

/// Strings are sorted without regard to case, as in Jinja.
fn folded(
    left: &Value,
    right: &Value,
    budget: &mut Budget,
) -> std::result::Result<Ordering, Fault> {
    match (left, right) {
        (Value::Str(a), Value::Str(b)) => {
            budget.step()?;
            budget.read(a.len() + b.len())?;
            Ok(a.to_lowercase().cmp(&b.to_lowercase()))
        }
        _ => ops::compare(left, right, budget),
    }
}

/// Equality, without regard to case unless it is exact; Jinja uses it to find repeated items.
pub(super) fn is_same(
    left: &Value,
    right: &Value,
    is_exact: bool,
    budget: &mut Budget,
) -> std::result::Result<bool, Fault> {
    match (left, right) {
        (Value::Str(_), Value::Str(_)) if !is_exact => {
            folded(left, right, budget).map(Ordering::is_eq)
        }
        _ => ops::equal(left, right, budget),
    }
}

/// Jinja's `title`, which unlike Python's does not capitalize the letter after an apostrophe.
fn title_words(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut starts = true;
    for ch in text.chars() {
        if starts {
            out.extend(ch.to_uppercase())
        } else {
            out.extend(ch.to_lowercase())
        }
        starts = ch.is_whitespace() || "-({[<".contains(ch);
    }
    out
}

fn attributes<'t>(
    machine: &mut Machine<'t>,
    items: Vec<Value<'t>>,
    path: &str,
) -> std::result::Result<Vec<Value<'t>>, Fault> {
    items.into_iter().map(|item| attribute_path(machine, item, path)).collect()
}

/// `a.b` of an item.
fn attribute_path<'t>(machine: &mut Machine<'t>, item: Value<'t>, path: &str) -> Result<'t> {
    let mut value = item;
    for name in path.split('.') {
        machine.budget.step()?;
        value = match (&value, name.parse::<usize>()) {
            (Value::List(list), Ok(at)) => list.items.get(at).cloned().unwrap_or(Value::Undefined),
            _ => machine.attribute(&value, name)?,
        };
    }
    Ok(value)
}

/// A false value, such as none, counts as an empty list.
fn items_if_any<'t>(
    machine: &mut Machine<'t>,
    value: &Value<'t>,
) -> std::result::Result<Vec<Value<'t>>, Fault> {
    if value.is_true() { machine.items(value) } else { Ok(Vec::new()) }
}

fn map<'t>(machine: &mut Machine<'t>, value: Value<'t>, mut args: Args<'t>) -> Result<'t> {
    let items = items_if_any(machine, &value)?;
    let attribute = args.take(usize::MAX, "attribute");
    if attribute.as_ref().is_some_and(Value::is_true) || matches!(attribute, Some(Value::Int(_))) {
        let default = args.take(usize::MAX, "default");
        let mut values = keyed(machine, &items, attribute.as_ref())?;
        if let Some(default) = default {
            let missing = values.iter_mut().filter(|value| value.is_undefined());
            missing.for_each(|value| *value = default.clone());
        }
        return Value::list(values, &mut machine.budget);
    }
    let filter = args.text(0, "filter", "", &mut machine.budget)?;
    let mut mapped = Vec::with_capacity(items.len());
    for item in items {
        machine.budget.enter()?;
        let positional = args.positional.iter().skip(1).cloned().collect();
        let args = Args { positional, named: args.named.clone() };
        mapped.push(apply(machine, &filter, item, args)?);
        machine.budget.leave();
    }
    Value::list(mapped, &mut machine.budget)
}

fn select<'t>(
    machine: &mut Machine<'t>,
    name: &str,
    value: Value<'t>,
    mut args: Args<'t>,
) -> Result<'t> {
    let items = items_if_any(machine, &value)?;
    let by_attribute = name.ends_with("attr");
    let wanted = name.starts_with("select");
    let attribute = match by_attribute {
        true => args.text(0, "attribute", "", &mut machine.budget)?,
        false => String::new(),
    };
    let place = usize::from(by_attribute);
    let test = args.text(place, "test", "", &mut machine.budget)?;
    let mut kept = Vec::new();
    for item in items {
        machine.budget.step()?;
        let tested = match by_attribute {
            true => attribute_path(machine, item.clone(), &attribute)?,
            false => item.clone(),
        };
        let result = if test.is_empty() {
            tested.is_true()
        } else {
            let positional = args.positional.iter().skip(place + 1).cloned().collect();
            let args = Args { positional, named: Vec::new() };
            tests::check(&test, &tested, args, &mut machine.budget)?
        };
        if result == wanted {
            kept.push(item);
        }
    }
    Value::list(kept, &mut machine.budget)
}

/// `text|indent(width, first, blank)`: adds spaces before all lines except the first.
fn indent<'t>(machine: &mut Machine<'t>, text: &str, mut args: Args<'t>) -> Result<'t> {
    let spaces = match args.take(0, "width") {
        Some(Value::Str(text)) => text.to_string(),
        Some(Value::Int(width)) => " ".repeat(width.clamp(0, INDENT_MAX) as usize),
        _ => " ".repeat(4),
    };
    let (first, blank) = (args.flag(1, "first"), args.flag(2, "blank"));
    let lines = text.matches('\n').count() + 1;
    machine.budget.charge(lines.saturating_mul(spaces.len()).saturating_add(text.len()))?;
    let mut out = String::new();
    for (at, line) in text.split('\n').enumerate() {
        if at > 0 {
            out.push('\n');
        }
        if (at > 0 || first) && (blank || !line.is_empty()) {
            out.push_str(&spaces);
        }
        out.push_str(line);
    }
    Ok(Value::Str(out.into()))
}

/// `text|truncate(length, killwords, end, leeway)`: shortens a text that is too long.
fn truncate<'t>(text: &str, mut args: Args<'t>, budget: &mut Budget) -> Result<'t> {
    let count = |found: Option<i64>, default: i64| found.unwrap_or(default).max(0) as usize;
    let length = count(args.int(0, "length")?, 255);
    let cuts_words = args.flag(1, "killwords");
    let end = args.text(2, "end", "...", budget)?;
    let leeway = count(args.int(3, "leeway")?, 5);
    if text.chars().count() <= length.saturating_add(leeway) {
        return Value::str(text, budget);
    }
    let kept = length.saturating_sub(end.chars().count());
    let at = text.char_indices().nth(kept).map_or(text.len(), |(at, _)| at);
    let words = text[..at].rfind(' ').filter(|_| !cuts_words);
    Value::str(&(text[..words.unwrap_or(at)].to_owned() + &end), budget)
}

//! Methods of Python's dictionaries and lists; those of strings are in [`strings`].

use std::rc::Rc;

use super::args::Args;
use super::budget::{Budget, Fault};
use super::exec::Machine;
use super::value::Value;
use super::{keys, ops, strings};

type Result<'t> = std::result::Result<Value<'t>, Fault>;

pub(super) fn call<'t>(
    machine: &mut Machine<'t>,
    value: &Value<'t>,
    name: &str,
    args: Args<'t>,
) -> Result<'t> {
    match value {
        Value::Str(text) => strings::call(machine, text, name, args),
        Value::Map(map) => map_method(&map.entries, name, args, &mut machine.budget),
        Value::Namespace(entries) => {
            machine.budget.steps(entries.borrow().len() / 16)?;
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

/// Whether Python's dictionaries have a method of this name.
pub(super) fn of_map(name: &str) -> bool {
    matches!(name, "get" | "items" | "keys" | "values" | "copy" | "pop" | "update" | "clear")
        || matches!(name, "setdefault" | "popitem" | "fromkeys")
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
        "copy" => Value::map(entries.to_vec(), budget),
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
    if name == "copy" {
        return Value::list(items.to_vec(), budget);
    }
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

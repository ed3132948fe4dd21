//! Filters that group the items of a list: `batch`, `slice` and `groupby`.

use super::args::Args;
use super::budget::Fault;
use super::exec::Machine;
use super::filters::{in_order, is_same, keyed};
use super::value::Value;

type Result<'t> = std::result::Result<Value<'t>, Fault>;

pub(super) fn apply<'t>(
    machine: &mut Machine<'t>,
    name: &str,
    value: &Value<'t>,
    mut args: Args<'t>,
) -> Result<'t> {
    let items = machine.items(value)?;
    if name == "groupby" {
        return group(machine, items, args);
    }
    let size = args.int(0, if name == "batch" { "linecount" } else { "slices" })?.unwrap_or(0);
    let size = usize::try_from(size).ok().filter(|size| *size > 0);
    let size = size.ok_or_else(|| Fault::failed(format!("`{name}` wants a number above 0")))?;
    let fill = args.take(1, "fill_with").filter(|fill| !matches!(fill, Value::None));
    let mut groups = Vec::new();
    match name {
        "batch" => {
            for part in items.chunks(size) {
                let mut part = part.to_vec();
                if let Some(fill) = &fill {
                    let missing = size - part.len();
                    machine.budget.steps(missing)?;
                    part.extend(std::iter::repeat_n(fill.clone(), missing));
                }
                groups.push(Value::list(part, &mut machine.budget)?);
            }
        }
        _ => {
            machine.budget.steps(size)?;
            let (each, longer) = (items.len() / size, items.len() % size);
            let mut rest = items.into_iter();
            for at in 0..size {
                let mut part: Vec<_> =
                    rest.by_ref().take(each + usize::from(at < longer)).collect();
                part.extend(fill.clone().filter(|_| at >= longer));
                groups.push(Value::list(part, &mut machine.budget)?);
            }
        }
    }
    Value::list(groups, &mut machine.budget)
}

/// Pairs of a common value and its items, in order of the value.
fn group<'t>(machine: &mut Machine<'t>, items: Vec<Value<'t>>, mut args: Args<'t>) -> Result<'t> {
    let attribute = args.take(0, "attribute");
    let default = args.take(1, "default");
    let is_exact = args.flag(2, "case_sensitive");
    let mut keys = keyed(machine, &items, attribute.as_ref())?;
    if let Some(default) = default {
        let missing = keys.iter_mut().filter(|key| key.is_undefined());
        missing.for_each(|key| *key = default.clone());
    }
    let pairs = keys.into_iter().zip(items).map(|(key, item)| (key.clone(), (key, item)));
    let sorted = in_order(pairs.collect(), is_exact, false, &mut machine.budget)?;
    let mut groups: Vec<(Value, Vec<Value>)> = Vec::new();
    for (key, item) in sorted {
        match groups.last_mut() {
            Some((last, members)) if is_same(last, &key, is_exact, &mut machine.budget)? => {
                members.push(item);
            }
            _ => groups.push((key, vec![item])),
        }
    }
    let mut pairs = Vec::with_capacity(groups.len());
    for (key, members) in groups {
        let members = Value::list(members, &mut machine.budget)?;
        pairs.push(Value::list(vec![key, members], &mut machine.budget)?);
    }
    Value::list(pairs, &mut machine.budget)
}

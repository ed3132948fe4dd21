//! Methods that change a list: `append`, `extend`, `insert` and `pop`.
//!
//! Values are immutable, so the variable or the attribute of a namespace that holds the list gets a
//! new one. A second name for the same list keeps the old one.

use minijinja::machinery::ast::Expr;

use super::args::Args;
use super::budget::Fault;
use super::exec::Machine;
use super::value::Value;

/// Whether a method changes its list.
pub(super) fn changes(name: &str) -> bool {
    matches!(name, "append" | "extend" | "insert" | "pop")
}

impl<'t> Machine<'t> {
    /// Calls a method that changes the list at `place`.
    pub(super) fn change_list(
        &mut self,
        place: &'t Expr<'t>,
        list: &Value<'t>,
        name: &str,
        mut args: Args<'t>,
    ) -> Result<Value<'t>, Fault> {
        let mut items = self.items(list)?;
        let missing = || Fault::failed(format!("`{name}` needs a value"));
        let result = match name {
            "append" => {
                items.push(args.take(0, "object").ok_or_else(missing)?);
                Value::None
            }
            "extend" => {
                let more = args.take(0, "iterable").ok_or_else(missing)?;
                items.extend(self.items(&more)?);
                Value::None
            }
            "insert" => {
                let at = args.int(0, "index")?.unwrap_or(0);
                let value = args.take(1, "object").ok_or_else(missing)?;
                items.insert(position(at, items.len()).min(items.len()), value);
                Value::None
            }
            _ => {
                let at = position(args.int(0, "index")?.unwrap_or(-1), items.len());
                if at >= items.len() {
                    return Err(Fault::failed("`pop` from a place that the list does not have"));
                }
                items.remove(at)
            }
        };
        let changed = Value::list(items, &mut self.budget)?;
        match place {
            Expr::Var(variable) => {
                // The first frame holds the request's variables and the messages.
                let mut own = self.frames.iter_mut().skip(1).rev();
                match own.find_map(|frame| frame.get_mut(variable.id)) {
                    Some(kept) => *kept = changed,
                    None => {
                        let name = variable.id;
                        return Err(Fault::failed(format!("the list `{name}` cannot be changed")));
                    }
                }
            }
            Expr::GetAttr(_) => self.assign(place, changed)?,
            // A list without a name is discarded after the call.
            _ => {}
        }
        Ok(result)
    }
}

/// A position counted from the front, or from the end if it is negative.
fn position(at: i64, len: usize) -> usize {
    let from_end = usize::try_from(at.unsigned_abs()).unwrap_or(usize::MAX);
    if at < 0 { len.saturating_sub(from_end) } else { from_end }
}

use std::rc::Rc;

use super::budget::{Budget, Fault};
use super::print::to_text;
use super::value::Value;

/// The arguments of a call.
#[derive(Default)]
pub(super) struct Args<'t> {
    pub(super) positional: Vec<Value<'t>>,
    pub(super) named: Vec<(Rc<str>, Value<'t>)>,
}

impl<'t> Args<'t> {
    /// The argument at `place` or with that name.
    pub(super) fn take(&mut self, place: usize, name: &str) -> Option<Value<'t>> {
        if let Some(value) = self.positional.get_mut(place) {
            return Some(std::mem::replace(value, Value::Undefined));
        }
        let at = self.named.iter().position(|(found, _)| **found == *name)?;
        Some(self.named.swap_remove(at).1)
    }

    pub(super) fn text(
        &mut self,
        place: usize,
        name: &str,
        default: &str,
        budget: &mut Budget,
    ) -> Result<String, Fault> {
        match self.take(place, name) {
            None | Some(Value::Undefined | Value::None) => Ok(default.to_owned()),
            Some(value) => to_text(&value, budget),
        }
    }

    pub(super) fn int(&mut self, place: usize, name: &str) -> Result<Option<i64>, Fault> {
        match self.take(place, name) {
            None | Some(Value::Undefined | Value::None) => Ok(None),
            Some(Value::Int(int)) => Ok(Some(int)),
            Some(Value::Bool(flag)) => Ok(Some(flag.into())),
            Some(other) => {
                Err(Fault::failed(format!("`{name}` must be an integer, not {}", other.kind())))
            }
        }
    }

    pub(super) fn flag(&mut self, place: usize, name: &str) -> bool {
        self.take(place, name).is_some_and(|value| value.is_true())
    }
}

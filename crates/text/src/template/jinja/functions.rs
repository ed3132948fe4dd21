//! Calls: of methods, of macros, and of the functions that every template has.

use std::cell::RefCell;
use std::rc::Rc;

use minijinja::machinery::ast::{self, Expr};

use super::args::Args;
use super::budget::Fault;
use super::eval::optional_int;
use super::exec::{Frame, Machine};
use super::print::to_text;
use super::value::{Entries, Function, Macro, Value};
use super::{keys, lists, methods};
use crate::template::date;

/// The most items of a `range`; templates count messages with it.
const RANGE_MAX: i64 = 100_000;

impl<'t> Machine<'t> {
    pub(super) fn call(&mut self, call: &'t ast::Call<'t>) -> Result<Value<'t>, Fault> {
        self.call_with(call, None)
    }

    pub(super) fn call_with(
        &mut self,
        call: &'t ast::Call<'t>,
        caller: Option<Value<'t>>,
    ) -> Result<Value<'t>, Fault> {
        if let Expr::GetAttr(method) = &call.expr {
            let value = self.eval(&method.expr)?;
            let args = self.args(&call.args)?;
            let own = match &value {
                Value::Map(_) | Value::Namespace(_) => self.attribute(&value, method.name)?,
                _ => Value::Undefined,
            };
            return match own {
                Value::Macro(_) | Value::Function(_) => self.invoke(own, args, caller),
                _ if matches!(value, Value::List(_)) && lists::changes(method.name) => {
                    self.change_list(&method.expr, &value, method.name, args)
                }
                _ => methods::call(self, &value, method.name, args),
            };
        }
        let function = self.eval(&call.expr)?;
        let args = self.args(&call.args)?;
        if let (Value::Undefined, Expr::Var(variable)) = (&function, &call.expr) {
            return Err(Fault::failed(format!("there is no function `{}`", variable.id)));
        }
        self.invoke(function, args, caller)
    }

    fn invoke(
        &mut self,
        function: Value<'t>,
        args: Args<'t>,
        caller: Option<Value<'t>>,
    ) -> Result<Value<'t>, Fault> {
        match function {
            Value::Macro(found) => self.invoke_macro(&found, args, caller),
            Value::Function(function) => self.invoke_function(function, args),
            other => Err(Fault::failed(format!("{} cannot be called", other.kind()))),
        }
    }

    fn invoke_macro(
        &mut self,
        found: &Rc<Macro<'t>>,
        args: Args<'t>,
        caller: Option<Value<'t>>,
    ) -> Result<Value<'t>, Fault> {
        let decl = found.decl;
        let names = || {
            decl.args.iter().filter_map(|arg| match arg {
                Expr::Var(name) => Some(name.id),
                _ => None,
            })
        };
        let mut args = args;
        if args.positional.len() > decl.args.len() {
            return Err(Fault::failed(format!("too many arguments for {}", decl.name)));
        }
        let mut given = Vec::with_capacity(decl.args.len());
        for (at, name) in names().enumerate() {
            given.push(args.take(at, name));
        }
        let caller =
            caller.or_else(|| found.caller.clone()).or_else(|| args.take(usize::MAX, "caller"));
        if let Some((odd, _)) = args.named.first() {
            return Err(Fault::failed(format!("{} takes no argument `{odd}`", decl.name)));
        }
        // A macro sees the present top level, and the scopes of its definition.
        let mut frame = Frame::new();
        frame.extend(caller.map(|caller| ("caller", caller)));
        let inner = match &found.frames {
            Some(frames) => {
                self.budget.steps(frames.iter().map(Frame::len).sum())?;
                let mut seen = frames.clone();
                let top = self.frames.iter().zip(&mut seen).take(2);
                top.for_each(|(now, seen)| seen.clone_from(now));
                frame.entry(decl.name).or_insert_with(|| Value::Macro(Rc::clone(found)));
                std::mem::replace(&mut self.frames, seen)
            }
            None => self.frames.split_off(2),
        };
        self.frames.push(frame);
        // A default sees the arguments before it.
        let first_default = decl.args.len().saturating_sub(decl.defaults.len());
        for (at, (name, given)) in names().zip(given).enumerate() {
            let default = at.checked_sub(first_default).and_then(|at| decl.defaults.get(at));
            let value = match (given, default) {
                (Some(value), _) => value,
                (None, Some(default)) => self.eval(default)?,
                (None, None) => Value::Undefined,
            };
            self.define(name, value);
        }
        let result = self.capture(&decl.body);
        match &found.frames {
            Some(_) => self.frames = inner,
            None => {
                self.frames.truncate(2);
                self.frames.extend(inner);
            }
        }
        result
    }

    fn invoke_function(
        &mut self,
        function: Function,
        mut args: Args<'t>,
    ) -> Result<Value<'t>, Fault> {
        match function {
            Function::Range => self.range(&args),
            Function::Namespace | Function::Dict => {
                let mut entries = match args.take(0, "") {
                    Some(Value::Map(map)) => map.entries.clone(),
                    Some(pairs @ Value::List(_)) => self.pairs(&pairs)?,
                    _ => Vec::new(),
                };
                entries.extend(args.named);
                let Value::Map(map) = Value::map(entries, &mut self.budget)? else {
                    unreachable!("Value::map makes maps")
                };
                Ok(match function {
                    Function::Dict => Value::Map(map),
                    _ => Value::Namespace(Rc::new(RefCell::new(map.entries.clone()))),
                })
            }
            Function::Method => Err(Fault::failed("a map's method is called where it is named")),
            Function::RaiseException => {
                let message = args.take(0, "message").unwrap_or(Value::Undefined);
                Err(Fault::Raised(to_text(&message, &mut self.budget)?))
            }
            Function::StrftimeNow => {
                let format = args.text(0, "format", "", &mut self.budget)?;
                self.budget.charge(format.len().saturating_mul(8))?;
                Value::str(&date::strftime(self.now_unix_s, &format), &mut self.budget)
            }
        }
    }

    /// Entries from a list of pairs, for `dict`.
    fn pairs(&mut self, pairs: &Value<'t>) -> Result<Entries<'t>, Fault> {
        let mut entries = Vec::new();
        for pair in self.items(pairs)? {
            match &self.items(&pair)?[..] {
                [key, value] => entries.push((keys::key_of(key, &mut self.budget)?, value.clone())),
                _ => return Err(Fault::failed("`dict` wants a list of pairs")),
            }
        }
        Ok(entries)
    }

    fn range(&mut self, args: &Args<'t>) -> Result<Value<'t>, Fault> {
        let mut numbers = [0; 3];
        for (number, arg) in numbers.iter_mut().zip(&args.positional) {
            let found = optional_int(arg)?;
            *number = found.ok_or_else(|| Fault::failed("range wants integers"))?;
        }
        let (start, stop, step) = match args.positional.len() {
            1 => (0, numbers[0], 1),
            2 => (numbers[0], numbers[1], 1),
            3 if numbers[2] != 0 => (numbers[0], numbers[1], numbers[2]),
            _ => return Err(Fault::failed("range wants one to three integers, no step of 0")),
        };
        let distance = i128::from(stop) - i128::from(start);
        let step = i128::from(step);
        let count = (distance + step - step.signum()).div_euclid(step).max(0);
        if count > i128::from(RANGE_MAX) {
            return Err(Fault::failed(format!("a range has at most {RANGE_MAX} items")));
        }
        self.budget.steps(count as usize)?;
        let item = |at: i128| Value::Int((i128::from(start) + at * step) as i64);
        Value::list((0..count).map(item).collect(), &mut self.budget)
    }
}

//! Expressions.

use std::cell::RefCell;
use std::rc::Rc;

use minijinja::machinery::ast::{self, BinOpKind, CallArg, CompareOpKind, Expr, UnaryOpKind};

use super::args::Args;
use super::budget::Fault;
use super::exec::{Frame, Machine};
use super::ops;
use super::print::to_text;
use super::value::{Function, Loop, Macro, Value};
use super::{filters, methods, tests};
use crate::template::date;

/// Items of a `range`; templates count messages with it.
const RANGE_MAX: i64 = 100_000;

impl<'t> Machine<'t> {
    pub(super) fn eval(&mut self, expr: &'t Expr<'t>) -> Result<Value<'t>, Fault> {
        self.budget.enter()?;
        let value = self.eval_inner(expr)?;
        self.budget.leave();
        Ok(value)
    }

    fn eval_inner(&mut self, expr: &'t Expr<'t>) -> Result<Value<'t>, Fault> {
        match expr {
            Expr::Var(variable) => Ok(self.lookup(variable.id)),
            Expr::Const(constant) => Ok(Value::from_const(&constant.value)),
            Expr::Slice(slice) => {
                let value = self.eval(&slice.expr)?;
                let mut bound = |expr: &'t Option<Expr<'t>>| match expr {
                    Some(expr) => self.eval(expr).and_then(|value| optional_int(&value)),
                    None => Ok(None),
                };
                let bounds = [bound(&slice.start)?, bound(&slice.stop)?, bound(&slice.step)?];
                ops::slice(&value, bounds, &mut self.budget)
            }
            Expr::UnaryOp(op) => {
                let value = self.eval(&op.expr)?;
                match op.op {
                    UnaryOpKind::Not => Ok(Value::Bool(!value.is_true())),
                    UnaryOpKind::Neg => ops::neg(&value),
                }
            }
            Expr::BinOp(op) => self.binary(op),
            Expr::Compare(compare) => self.compare_chain(compare),
            Expr::IfExpr(choice) => {
                if self.eval(&choice.test_expr)?.is_true() {
                    return self.eval(&choice.true_expr);
                }
                choice.false_expr.as_ref().map_or(Ok(Value::Undefined), |other| self.eval(other))
            }
            Expr::Filter(filter) => {
                let inner = filter.expr.as_ref();
                let inner = inner.ok_or_else(|| Fault::failed("a filter without a value"))?;
                let value = self.eval(inner)?;
                let args = self.args(&filter.args)?;
                filters::apply(self, filter.name, value, args)
            }
            Expr::Test(test) => {
                let value = self.eval(&test.expr)?;
                let args = self.args(&test.args)?;
                tests::check(test.name, &value, args, &mut self.budget).map(Value::Bool)
            }
            Expr::GetAttr(attribute) => {
                let value = self.eval(&attribute.expr)?;
                self.attribute(&value, attribute.name)
            }
            Expr::GetItem(item) => {
                let value = self.eval(&item.expr)?;
                let key = self.eval(&item.subscript_expr)?;
                self.item(&value, &key)
            }
            Expr::Call(call) => self.call(call),
            Expr::List(list) => {
                let items = list.items.iter().map(|item| self.eval(item));
                let items = items.collect::<Result<_, _>>()?;
                Value::list(items, &mut self.budget)
            }
            Expr::Map(map) => {
                let mut entries = Vec::with_capacity(map.keys.len());
                for (key, value) in map.keys.iter().zip(&map.values) {
                    let key = self.eval(key)?;
                    let key = to_text(&key, &mut self.budget)?;
                    entries.push((Rc::from(key), self.eval(value)?));
                }
                Value::map(entries, &mut self.budget)
            }
        }
    }

    fn lookup(&self, name: &str) -> Value<'t> {
        let found = self.frames.iter().rev().find_map(|frame| frame.get(name));
        found.cloned().unwrap_or(match name {
            "range" => Value::Function(Function::Range),
            "namespace" => Value::Function(Function::Namespace),
            "dict" => Value::Function(Function::Dict),
            "raise_exception" => Value::Function(Function::RaiseException),
            "strftime_now" => Value::Function(Function::StrftimeNow),
            _ => Value::Undefined,
        })
    }

    fn binary(&mut self, op: &'t ast::BinOp<'t>) -> Result<Value<'t>, Fault> {
        let left = self.eval(&op.left)?;
        // Like Python, `and` and `or` give one of their operands.
        match op.op {
            BinOpKind::ScAnd if !left.is_true() => return Ok(left),
            BinOpKind::ScOr if left.is_true() => return Ok(left),
            _ => {}
        }
        let right = self.eval(&op.right)?;
        let budget = &mut self.budget;
        match op.op {
            BinOpKind::ScAnd | BinOpKind::ScOr => Ok(right),
            BinOpKind::Add => ops::add(&left, &right, budget),
            BinOpKind::Sub => ops::sub(&left, &right),
            BinOpKind::Mul => ops::mul(&left, &right, budget),
            BinOpKind::Div => ops::div(&left, &right),
            BinOpKind::FloorDiv => ops::floor_div(&left, &right),
            BinOpKind::Rem => match left {
                Value::Str(format) => methods::percent_format(&format, &right, budget),
                left => ops::rem(&left, &right),
            },
            BinOpKind::Pow => ops::pow(&left, &right),
            BinOpKind::Concat => ops::concat(&left, &right, budget),
            BinOpKind::Eq => self.compare(CompareOpKind::Eq, &left, &right),
            BinOpKind::Ne => self.compare(CompareOpKind::Ne, &left, &right),
            BinOpKind::Lt => self.compare(CompareOpKind::Lt, &left, &right),
            BinOpKind::Lte => self.compare(CompareOpKind::Lte, &left, &right),
            BinOpKind::Gt => self.compare(CompareOpKind::Gt, &left, &right),
            BinOpKind::Gte => self.compare(CompareOpKind::Gte, &left, &right),
            BinOpKind::In => self.compare(CompareOpKind::In, &left, &right),
        }
    }

    fn compare_chain(&mut self, compare: &'t ast::Compare<'t>) -> Result<Value<'t>, Fault> {
        let mut left = self.eval(&compare.expr)?;
        for op in &compare.ops {
            let right = self.eval(&op.expr)?;
            let result = self.compare(op.op, &left, &right)?;
            if !result.is_true() {
                return Ok(result);
            }
            left = right;
        }
        Ok(Value::Bool(true))
    }

    fn compare(
        &mut self,
        op: CompareOpKind,
        left: &Value<'t>,
        right: &Value<'t>,
    ) -> Result<Value<'t>, Fault> {
        let budget = &mut self.budget;
        Ok(Value::Bool(match op {
            CompareOpKind::Eq => ops::equal(left, right, budget)?,
            CompareOpKind::Ne => !ops::equal(left, right, budget)?,
            CompareOpKind::Lt => ops::compare(left, right, budget)?.is_lt(),
            CompareOpKind::Lte => ops::compare(left, right, budget)?.is_le(),
            CompareOpKind::Gt => ops::compare(left, right, budget)?.is_gt(),
            CompareOpKind::Gte => ops::compare(left, right, budget)?.is_ge(),
            CompareOpKind::In => ops::contains(right, left, budget)?,
            CompareOpKind::NotIn => !ops::contains(right, left, budget)?,
        }))
    }

    /// `value.name`: what is not there is undefined, but undefined has no attributes.
    pub(super) fn attribute(&mut self, value: &Value<'t>, name: &str) -> Result<Value<'t>, Fault> {
        match value {
            Value::Undefined => {
                Err(Fault::failed(format!("`{name}` is asked of something undefined")))
            }
            Value::Map(map) => {
                self.budget.steps(map.entries.len() / 16)?;
                Ok(map.get(name).cloned().unwrap_or(Value::Undefined))
            }
            Value::Namespace(entries) => {
                let entries = entries.borrow();
                let found = entries.iter().find(|(found, _)| **found == *name);
                Ok(found.map_or(Value::Undefined, |(_, value)| value.clone()))
            }
            Value::Loop(state) => Ok(loop_attribute(state, name)),
            _ => Ok(Value::Undefined),
        }
    }

    fn item(&mut self, value: &Value<'t>, key: &Value<'t>) -> Result<Value<'t>, Fault> {
        match (value, key) {
            (_, Value::Str(name)) => self.attribute(value, name),
            (Value::Undefined, _) => Err(Fault::failed("an item is asked of something undefined")),
            (Value::List(list), Value::Int(at)) => {
                let at = place(*at, list.items.len());
                Ok(at.map_or(Value::Undefined, |at| list.items[at].clone()))
            }
            (Value::Str(text), Value::Int(at)) => {
                self.budget.read(text.len())?;
                let found = place(*at, text.chars().count()).and_then(|at| text.chars().nth(at));
                match found {
                    Some(ch) => Value::str(ch.encode_utf8(&mut [0; 4]), &mut self.budget),
                    None => Ok(Value::Undefined),
                }
            }
            (Value::Map(_), key) => {
                let name = to_text(key, &mut self.budget)?;
                self.attribute(value, &name)
            }
            _ => Ok(Value::Undefined),
        }
    }

    pub(super) fn args(&mut self, args: &'t [CallArg<'t>]) -> Result<Args<'t>, Fault> {
        let mut found = Args::default();
        for arg in args {
            match arg {
                CallArg::Pos(expr) => found.positional.push(self.eval(expr)?),
                CallArg::Kwarg(name, expr) => found.named.push(((*name).into(), self.eval(expr)?)),
                CallArg::PosSplat(expr) => {
                    let values = self.eval(expr)?;
                    found.positional.extend(self.items(&values)?);
                }
                CallArg::KwargSplat(expr) => match self.eval(expr)? {
                    Value::Map(map) => {
                        self.budget.steps(map.entries.len())?;
                        found.named.extend(map.entries.iter().cloned());
                    }
                    other => {
                        return Err(Fault::failed(format!("** wants a map, not {}", other.kind())));
                    }
                },
            }
        }
        Ok(found)
    }

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
        let mut frame = Frame::new();
        let mut args = args;
        let first_default = decl.args.len().saturating_sub(decl.defaults.len());
        for (at, target) in decl.args.iter().enumerate() {
            let Expr::Var(name) = target else { continue };
            let value = match args.take(at, name.id) {
                Some(value) => value,
                None => match at.checked_sub(first_default).and_then(|at| decl.defaults.get(at)) {
                    Some(default) => self.eval(default)?,
                    None => Value::Undefined,
                },
            };
            frame.insert(name.id, value);
        }
        if args.positional.len() > decl.args.len() {
            return Err(Fault::failed(format!("too many arguments for {}", decl.name)));
        }
        if let Some(caller) = caller.or_else(|| found.caller.clone()) {
            frame.insert("caller", caller);
        }
        // A macro sees the top level, the body of a call block where it was written.
        let inner = match &found.frames {
            Some(frames) => {
                self.budget.steps(frames.iter().map(Frame::len).sum())?;
                std::mem::replace(&mut self.frames, frames.clone())
            }
            None => self.frames.split_off(2),
        };
        self.frames.push(frame);
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

    /// Applies a chain of filters that begins at a block's text.
    pub(super) fn filter_chain(
        &mut self,
        chain: &'t Expr<'t>,
        text: Value<'t>,
    ) -> Result<Value<'t>, Fault> {
        let Expr::Filter(filter) = chain else { return self.eval(chain) };
        let value = match &filter.expr {
            Some(inner) => self.filter_chain(inner, text)?,
            None => text,
        };
        let args = self.args(&filter.args)?;
        filters::apply(self, filter.name, value, args)
    }
}

fn loop_attribute<'t>(state: &Loop<'t>, name: &str) -> Value<'t> {
    let (index, len) = (state.index, state.items.items.len());
    let item = |at: Option<usize>| {
        at.and_then(|at| state.items.items.get(at)).cloned().unwrap_or(Value::Undefined)
    };
    let int = |number: usize| Value::Int(number as i64);
    match name {
        "index" => int(index + 1),
        "index0" => int(index),
        "revindex" => int(len - index),
        "revindex0" => int(len - index - 1),
        "first" => Value::Bool(index == 0),
        "last" => Value::Bool(index + 1 == len),
        "length" => int(len),
        "depth" => int(state.depth),
        "depth0" => int(state.depth - 1),
        "previtem" => item(index.checked_sub(1)),
        "nextitem" => item(Some(index + 1)),
        _ => Value::Undefined,
    }
}

fn place(at: i64, len: usize) -> Option<usize> {
    let at = if at < 0 { at + len as i64 } else { at };
    usize::try_from(at).ok().filter(|at| *at < len)
}

fn optional_int(value: &Value) -> Result<Option<i64>, Fault> {
    match value {
        Value::Undefined | Value::None => Ok(None),
        Value::Int(int) => Ok(Some(*int)),
        Value::Bool(flag) => Ok(Some((*flag).into())),
        other => Err(Fault::failed(format!("an integer is wanted, not {}", other.kind()))),
    }
}

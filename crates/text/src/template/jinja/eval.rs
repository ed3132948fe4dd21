//! Expressions.

use minijinja::machinery::ast::{self, BinOpKind, CallArg, CompareOpKind, Expr, UnaryOpKind};

use super::args::Args;
use super::budget::Fault;
use super::exec::Machine;
use super::ops;
use super::value::{Function, Loop, Value};
use super::{filters, formats, keys, methods, tests};

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
            Expr::Const(constant) => Value::from_const(&constant.value, &mut self.budget),
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
                // After a dot, Python finds a map's methods before its keys.
                match value {
                    Value::Map(_) if methods::of_map(attribute.name) => {
                        Ok(Value::Function(Function::Method))
                    }
                    value => self.attribute(&value, attribute.name),
                }
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
                    let key = keys::key_of(&key, &mut self.budget)?;
                    entries.push((key, self.eval(value)?));
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
        // As in Python, `and` and `or` return one of their operands.
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
                Value::Str(format) => formats::percent(&format, &right, budget),
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

    /// `value.name`: a missing attribute is undefined, but undefined itself has no attributes.
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
                self.budget.steps(entries.len() / 16)?;
                let found = entries.iter().find(|(found, _)| **found == *name);
                Ok(found.map_or(Value::Undefined, |(_, value)| value.clone()))
            }
            Value::Loop(state) => Ok(loop_attribute(state, name)),
            _ => Ok(Value::Undefined),
        }
    }

    fn item(&mut self, value: &Value<'t>, key: &Value<'t>) -> Result<Value<'t>, Fault> {
        match (value, key) {
            (_, Value::Str(name)) => {
                self.budget.read(name.len())?;
                self.attribute(value, name)
            }
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
                let name = keys::key_of(key, &mut self.budget)?;
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
                CallArg::Kwarg(name, expr) => {
                    self.budget.charge(name.len())?;
                    found.named.push(((*name).into(), self.eval(expr)?));
                }
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

    /// Applies a chain of filters to a block's text.
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

pub(super) fn optional_int(value: &Value) -> Result<Option<i64>, Fault> {
    match value {
        Value::Undefined | Value::None => Ok(None),
        Value::Int(int) => Ok(Some(*int)),
        Value::Bool(flag) => Ok(Some((*flag).into())),
        other => Err(Fault::failed(format!("an integer is wanted, not {}", other.kind()))),
    }
}

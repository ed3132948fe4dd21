//! Statements.

use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;

use minijinja::machinery::ast::{self, Expr, Stmt};

use super::budget::{Budget, Fault};
use super::keys;
use super::print::{print, push};
use super::value::{Entries, List, Loop, Macro, Value};

/// Variables of one scope.
pub(super) type Frame<'t> = HashMap<&'t str, Value<'t>>;

/// The control flow after a statement.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Flow {
    Next,
    Break,
    Continue,
}

/// A running template.
pub(super) struct Machine<'t> {
    pub(super) budget: Budget,
    /// The request's variables first, then the template's top level, then inner scopes.
    pub(super) frames: Vec<Frame<'t>>,
    pub(super) out: String,
    pub(super) now_unix_s: i64,
    /// The current line, for messages.
    pub(super) line: u16,
    loops: usize,
}

impl<'t> Machine<'t> {
    pub(super) fn new(budget: Budget, variables: Frame<'t>, now_unix_s: i64) -> Self {
        let frames = vec![variables, Frame::new()];
        Self { budget, frames, out: String::new(), now_unix_s, line: 1, loops: 0 }
    }

    pub(super) fn run(&mut self, body: &'t [Stmt<'t>]) -> Result<Flow, Fault> {
        for stmt in body {
            self.budget.enter()?;
            let flow = self.statement(stmt)?;
            self.budget.leave();
            if flow != Flow::Next {
                return Ok(flow);
            }
        }
        Ok(Flow::Next)
    }

    fn statement(&mut self, stmt: &'t Stmt<'t>) -> Result<Flow, Fault> {
        match stmt {
            Stmt::Template(template) => return self.run(&template.children),
            Stmt::EmitRaw(raw) => push(&mut self.out, raw.raw, &mut self.budget)?,
            Stmt::EmitExpr(emit) => {
                self.line = emit.span().start_line;
                let value = self.eval(&emit.expr)?;
                print(&value, &mut self.out, &mut self.budget)?;
            }
            Stmt::IfCond(cond) => {
                self.line = cond.span().start_line;
                let taken = self.eval(&cond.expr)?.is_true();
                return self.run(if taken { &cond.true_body } else { &cond.false_body });
            }
            Stmt::ForLoop(for_loop) => {
                self.line = for_loop.span().start_line;
                self.for_loop(for_loop)?;
            }
            Stmt::Set(set) => {
                self.line = set.span().start_line;
                let value = self.eval(&set.expr)?;
                self.assign(&set.target, value)?;
            }
            Stmt::SetBlock(set) => {
                self.line = set.span().start_line;
                let text = self.capture(&set.body)?;
                let value = match &set.filter {
                    Some(filter) => self.filter_chain(filter, text)?,
                    None => text,
                };
                self.assign(&set.target, value)?;
            }
            Stmt::FilterBlock(block) => {
                let text = self.capture(&block.body)?;
                let value = self.filter_chain(&block.filter, text)?;
                print(&value, &mut self.out, &mut self.budget)?;
            }
            Stmt::WithBlock(with) => return self.with_block(with),
            Stmt::AutoEscape(block) => return self.run(&block.body),
            Stmt::Macro(decl) => {
                // A macro in an inner scope sees that scope.
                let frames = if self.frames.len() > 2 { Some(self.captured()?) } else { None };
                let value = Value::Macro(Rc::new(Macro { decl, frames, caller: None }));
                self.define(decl.name, value);
            }
            Stmt::CallBlock(block) => self.call_block(block)?,
            Stmt::Do(statement) => {
                self.call(&statement.call)?;
            }
            Stmt::Continue(_) => return Ok(Flow::Continue),
            Stmt::Break(_) => return Ok(Flow::Break),
        }
        Ok(Flow::Next)
    }

    fn for_loop(&mut self, for_loop: &'t ast::ForLoop<'t>) -> Result<(), Fault> {
        if for_loop.recursive {
            return Err(Fault::failed("recursive loops are not supported"));
        }
        let values = self.eval(&for_loop.iter)?;
        let mut items = self.items(&values)?;
        if let Some(condition) = &for_loop.filter_expr {
            let mut kept = Vec::new();
            for item in items {
                self.frames.push(Frame::new());
                self.assign(&for_loop.target, item.clone())?;
                if self.eval(condition)?.is_true() {
                    kept.push(item);
                }
                self.frames.pop();
            }
            items = kept;
        }
        let Value::List(items) = Value::list(items, &mut self.budget)? else {
            unreachable!("Value::list makes lists")
        };
        if items.items.is_empty() {
            self.run_else(&for_loop.else_body)?;
            return Ok(());
        }
        self.loops += 1;
        self.iterate(for_loop, &items)?;
        self.loops -= 1;
        Ok(())
    }

    fn iterate(
        &mut self,
        for_loop: &'t ast::ForLoop<'t>,
        items: &Rc<List<'t>>,
    ) -> Result<(), Fault> {
        for (index, item) in items.items.iter().enumerate() {
            self.frames.push(Frame::new());
            self.assign(&for_loop.target, item.clone())?;
            let state = Loop { items: Rc::clone(items), index, depth: self.loops };
            self.define("loop", Value::Loop(Rc::new(state)));
            let flow = self.run(&for_loop.body)?;
            self.frames.pop();
            if flow == Flow::Break {
                break;
            }
        }
        Ok(())
    }

    fn run_else(&mut self, body: &'t [Stmt<'t>]) -> Result<(), Fault> {
        self.frames.push(Frame::new());
        self.run(body)?;
        self.frames.pop();
        Ok(())
    }

    fn with_block(&mut self, with: &'t ast::WithBlock<'t>) -> Result<Flow, Fault> {
        self.frames.push(Frame::new());
        for (target, expr) in &with.assignments {
            let value = self.eval(expr)?;
            self.assign(target, value)?;
        }
        let flow = self.run(&with.body)?;
        self.frames.pop();
        Ok(flow)
    }

    fn call_block(&mut self, block: &'t ast::CallBlock<'t>) -> Result<(), Fault> {
        let frames = Some(self.captured()?);
        let decl = &*block.macro_decl;
        let caller = Value::Macro(Rc::new(Macro { decl, frames, caller: None }));
        let value = self.call_with(&block.call, Some(caller))?;
        print(&value, &mut self.out, &mut self.budget)
    }

    /// All visible scopes.
    fn captured(&mut self) -> Result<Vec<Frame<'t>>, Fault> {
        let variables: usize = self.frames.iter().map(HashMap::len).sum();
        self.budget.steps(variables)?;
        self.budget.charge(variables * 64)?;
        Ok(self.frames.clone())
    }

    /// Runs `body` and returns its output.
    pub(super) fn capture(&mut self, body: &'t [Stmt<'t>]) -> Result<Value<'t>, Fault> {
        let outer = std::mem::take(&mut self.out);
        let result = self.run(body);
        let text = std::mem::replace(&mut self.out, outer);
        result?;
        Value::str(&text, &mut self.budget)
    }

    pub(super) fn define(&mut self, name: &'t str, value: Value<'t>) {
        self.frames.last_mut().expect("the top level is always there").insert(name, value);
    }

    pub(super) fn assign(&mut self, target: &'t Expr<'t>, value: Value<'t>) -> Result<(), Fault> {
        match target {
            Expr::Var(variable) => self.define(variable.id, value),
            Expr::GetAttr(attribute) => {
                let Value::Namespace(namespace) = self.eval(&attribute.expr)? else {
                    return Err(Fault::failed("only a namespace's attributes can be set"));
                };
                set_attribute(&namespace, attribute.name, value, &mut self.budget)?;
            }
            Expr::List(targets) => {
                let values = self.items(&value)?;
                if values.len() != targets.items.len() {
                    let (found, wanted) = (values.len(), targets.items.len());
                    return Err(Fault::failed(format!("{found} values for {wanted} variables")));
                }
                for (target, value) in targets.items.iter().zip(values) {
                    self.assign(target, value)?;
                }
            }
            other => {
                return Err(Fault::failed(format!("{} cannot be set", other.description())));
            }
        }
        Ok(())
    }

    /// The items of a loop over `value`: a list's items, a map's keys, a string's characters.
    pub(super) fn items(&mut self, value: &Value<'t>) -> Result<Vec<Value<'t>>, Fault> {
        match value {
            Value::Undefined => Ok(Vec::new()),
            Value::List(list) => {
                self.budget.steps(list.items.len() / 16)?;
                Ok(list.items.clone())
            }
            Value::Map(map) => {
                self.budget.steps(map.entries.len() / 16)?;
                Ok(map.entries.iter().map(|(key, _)| keys::value_of(key)).collect())
            }
            Value::Str(text) => {
                self.budget.charge(text.len().saturating_mul(64))?;
                let mut utf8 = [0; 4];
                Ok(text
                    .chars()
                    .map(|ch| Value::Str((&*ch.encode_utf8(&mut utf8)).into()))
                    .collect())
            }
            other => Err(Fault::failed(format!("{} cannot be looped over", other.kind()))),
        }
    }
}

fn set_attribute<'t>(
    namespace: &RefCell<Entries<'t>>,
    name: &str,
    value: Value<'t>,
    budget: &mut Budget,
) -> Result<(), Fault> {
    // A namespace that contained itself would make walks over it endless.
    if !value.is_plain() {
        return Err(Fault::failed(format!("{} cannot be kept in a namespace", value.kind())));
    }
    let mut entries = namespace.borrow_mut();
    budget.steps(entries.len() / 16)?;
    match entries.iter_mut().find(|(found, _)| **found == *name) {
        Some((_, old)) => *old = value,
        None => {
            budget.charge(name.len() + 64)?;
            entries.push((name.into(), value));
        }
    }
    Ok(())
}

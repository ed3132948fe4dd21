//! An interpreter for Jinja that is safe against hostile templates.
//!
//! `minijinja` parses; its own machine cannot run untrusted templates, since doubling a string
//! forty times takes all memory, and a namespace that contains itself ends the process. Here every
//! operation is charged to a [`budget`] of steps and bytes before it runs, values cannot contain
//! themselves, nesting is limited, and the stack is sized for that limit.
//!
//! It supports the part of the language that chat templates use: see [`filters`], [`tests`] and
//! [`methods`].

mod accepted;
mod args;
pub(super) mod budget;
mod eval;
mod exec;
mod filters;
mod formats;
mod functions;
mod groups;
mod keys;
mod lists;
mod methods;
mod numbers;
mod ops;
mod print;
mod strings;
mod tests;
mod value;

use minijinja::machinery::{WhitespaceConfig, ast, parse};
use serde_json::{Map, Value as Json};

use crate::TextError;
use budget::{Budget, Fault};
use exec::{Frame, Machine};
use value::Value;

/// Stack of the thread that parses and runs. The parser recurses without a limit in places (`--1`,
/// `elif`), so the longest tag decides (see `nesting`). Only used pages are ever backed by memory.
const STACK_BYTES: usize = 256 << 20;

/// Checks that `source` is valid.
pub(super) fn check(source: &str) -> Result<(), TextError> {
    on_big_stack(|| parse_source(source).map(drop))
}

/// Runs a valid template.
pub(super) fn render(
    source: &str,
    variables: &Map<String, Json>,
    now_unix_s: i64,
) -> Result<String, TextError> {
    on_big_stack(|| {
        let template = parse_source(source)?;
        let ast::Stmt::Template(root) = &template else { return Ok(String::new()) };
        let mut budget = Budget::default();
        let frame = frame(variables, &mut budget).map_err(|fault| fault.into_error(0))?;
        let mut machine = Machine::new(budget, frame, now_unix_s);
        match machine.run(&root.children) {
            Ok(_) => Ok(machine.out),
            Err(fault) => Err(fault.into_error(machine.line)),
        }
    })
}

fn frame<'t>(variables: &'t Map<String, Json>, budget: &mut Budget) -> Result<Frame<'t>, Fault> {
    let variable =
        |(name, json): (&'t String, &'t Json)| Ok((name.as_str(), Value::from_json(json, budget)?));
    variables.iter().map(variable).collect()
}

fn parse_source(source: &str) -> Result<ast::Stmt<'_>, TextError> {
    let whitespace =
        WhitespaceConfig { keep_trailing_newline: false, lstrip_blocks: true, trim_blocks: true };
    parse(source, "template", Default::default(), whitespace).map_err(|error| {
        let line = error.line().map_or(String::new(), |line| format!(" (line {line})"));
        let text = error.detail().map_or_else(|| error.kind().to_string(), str::to_owned);
        TextError::TemplateSyntax { detail: text + &line }
    })
}

fn on_big_stack<T: Send>(
    run: impl FnOnce() -> Result<T, TextError> + Send,
) -> Result<T, TextError> {
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new()
            .name("chat-template".to_owned())
            .stack_size(STACK_BYTES)
            .spawn_scoped(scope, run)
            .map_err(|error| TextError::TemplateThread { source: error })?;
        thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

//! How calls, tools and variables are given to a template: what it fails on in one way, it may take
//! in another.

use serde_json::{Map, Value, json};

use super::date;
use super::message::Style;

#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Variant {
    pub(super) style: Style,
    /// Tools have all their fields, no tools are an empty list, and the variables that
    /// firefunction's template wants are there.
    full_tools: bool,
}

impl Variant {
    /// All ways, the usual one first. Most templates want a call's arguments as an object; some can
    /// only append text.
    pub(super) fn all(has_calls: bool, no_text: bool) -> impl Iterator<Item = Self> {
        let ways = [(false, false), (true, false), (false, true), (true, true)];
        let ways = ways.into_iter().filter(move |(text_arguments, _)| has_calls || !text_arguments);
        ways.map(move |(text_arguments, full_tools)| Self {
            style: Style { text_arguments, no_text },
            full_tools,
        })
    }

    /// Adds the variables that tell of tools.
    pub(super) fn add_tools(
        self,
        tools: &[Value],
        now_unix_s: i64,
        context: &mut Map<String, Value>,
    ) {
        if !self.full_tools {
            // Templates ask `tools is not none` as well as `tools`.
            context.insert("tools".into(), json!((!tools.is_empty()).then_some(tools)));
            return;
        }
        let tools: Vec<Value> = tools.iter().cloned().map(full).collect();
        let functions: Vec<&Value> = tools.iter().filter_map(|tool| tool.get("function")).collect();
        let functions = serde_json::to_string_pretty(&functions).expect("values are JSON");
        let now = date::strftime(now_unix_s, "%Y-%m-%d %H:%M:%S UTC");
        context.entry("functions").or_insert(functions.into());
        context.entry("datetime").or_insert(now.into());
        context.insert("tools".into(), tools.into());
    }
}

/// A tool with a description and parameters, if only empty ones.
fn full(mut tool: Value) -> Value {
    if let Some(function) = tool.get_mut("function").and_then(Value::as_object_mut) {
        let fill = |function: &mut Map<String, Value>, key: &str, empty: Value| {
            let field = function.entry(key).or_insert(Value::Null);
            if field.is_null() {
                *field = empty;
            }
        };
        fill(function, "description", "".into());
        fill(function, "parameters", json!({"type": "object", "properties": {}}));
    }
    tool
}

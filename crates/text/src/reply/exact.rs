//! Schemas with what their compiler does not hold: integers whose bounds or values it reads as
//! floats, which are not exact from 2^53 on, or not at all, beyond 64 bits; numbers without an
//! end; texts with grammars.
//!
//! Such a schema becomes a grammar of its own, down to the values without parts: there these are
//! held by digits or characters, and the compiler has the others. Schemas that this file cannot
//! write stay as they are.

use std::collections::HashMap;
use std::fmt::Write as _;

use serde_json::{Map, Value, json};

use super::counts::{counted, repeated};
use super::fault::{fits_type, order};
use super::integers::{NUMBER, inner_regex, is_exact, is_integer, is_whole_exact, step};
use super::object::Shape;
use super::refs::resolve;
use super::schema::{BOUNDS, COUNTS, SPACE, each_schema, leave_out, tight_schema};
use super::terms::{lark_regex, quote};
use crate::gbnf::{LARK, json_of_lark};
use crate::json_text;

/// The most schemas of one grammar, each alternative counted.
const SCHEMAS_MAX: usize = 5000;

/// The longest grammar: half of what a whole one may have.
const BYTES_MAX: usize = 128 << 10;

/// A string of JSON.
const STRING: &str = r#"/"(\\(["\\\/bfnrt]|u[0-9a-fA-F]{4})|[^"\\\x00-\x1F\x7F])*"/"#;

/// Keywords that say nothing about a value.
const NOTES: &[&str] = &[
    "$comment",
    "$defs",
    "$id",
    "$schema",
    "default",
    "definitions",
    "deprecated",
    "description",
    "examples",
    "readOnly",
    "title",
    "writeOnly",
];
/// Keywords of objects and lists.
const OF_PARTS: &[&str] = &[
    "additionalItems",
    "additionalProperties",
    "items",
    "maxItems",
    "maxProperties",
    "minItems",
    "minProperties",
    "patternProperties",
    "prefixItems",
    "properties",
    "required",
];
const TYPES: &[&str] = &["null", "boolean", "number", "string", "array", "object"];

/// The grammar of a schema; `None` if its compiler holds it, or this file cannot write it.
pub(super) fn exact(schema: &Value) -> Option<String> {
    let mut root = schema.clone();
    leave_out(&mut root);
    if is_held(&mut root.clone()) {
        return None;
    }
    let mut grammar =
        Exact { root: &root, rules: String::new(), names: HashMap::new(), schemas: 0 };
    let start = grammar.value(&root)?;
    let rules = &grammar.rules;
    let head = "%llguidance {\"ignore_once\": true}\n%ignore";
    let all = format!("%lark {{\n{head} {}\nstart: {start}\n{rules}}}", lark_regex(SPACE));
    (all.len() <= BYTES_MAX).then_some(all)
}

/// Whether the compiler of schemas holds all of a schema.
fn is_held(schema: &mut Value) -> bool {
    let Some(fields) = schema.as_object_mut() else { return true };
    let values = fields.get("enum").and_then(Value::as_array).into_iter().flatten();
    let mut are_held = !fields.contains_key(LARK);
    are_held &= values.chain(fields.get("const")).all(is_whole_exact);
    are_held &= !is_integer(fields) || is_exact(fields);
    are_held &= !has_endless_number(fields);
    each_schema(fields, &mut |inner| are_held &= is_held(inner));
    are_held
}

/// Whether a schema allows any number: the compiler gives it no end.
fn has_endless_number(fields: &Map<String, Value>) -> bool {
    let says_more = |key: &&str| fields.contains_key(*key);
    let is_number = fields.get("type").is_some_and(|kinds| has_kind(kinds, "number"));
    is_number && !BOUNDS.iter().chain(&["multipleOf", "enum", "const"]).any(says_more)
}

/// A grammar under construction.
struct Exact<'s> {
    root: &'s Value,
    rules: String,
    /// The rules' names by what they stand for: a reference, or their own text.
    names: HashMap<String, String>,
    schemas: usize,
}

impl Exact<'_> {
    /// The values of a schema; `None` if there are none, or they cannot be written.
    fn value(&mut self, schema: &Value) -> Option<String> {
        self.schemas += 1;
        let none = Map::new();
        let fields = match schema {
            _ if self.schemas > SCHEMAS_MAX => return None,
            Value::Bool(true) => &none,
            schema => schema.as_object()?,
        };
        let is_only = |key: &str| fields.keys().all(|one| one == key || NOTES.contains(&&**one));
        let list = |key: &str| fields.get(key).and_then(Value::as_array);
        if let Some(reference) = fields.get("$ref").and_then(Value::as_str) {
            let target = resolve(self.root, schema)?;
            return match is_only("$ref") {
                true => self.reference(reference, target),
                false => self.value(&joined(fields, "$ref", target)?),
            };
        }
        if let Some(parts) = list("allOf") {
            let (first, others) = parts.split_first()?;
            let mut rest = fields.clone();
            rest.insert("allOf".to_owned(), Value::from(others));
            if others.is_empty() {
                rest.remove("allOf");
            }
            return match is_only("allOf") && others.is_empty() {
                true => self.value(first),
                false => self.value(&joined(&rest, "", resolve(self.root, first)?)?),
            };
        }
        for key in ["anyOf", "oneOf"] {
            let Some(parts) = list(key) else { continue };
            let mut ways = Vec::new();
            for part in parts.iter().filter(|part| **part != json!(false)) {
                ways.push(match is_only(key) {
                    true => self.value(part)?,
                    false => self.value(&joined(fields, key, resolve(self.root, part)?)?)?,
                });
            }
            return choice(ways);
        }
        let one = fields.get("const").map(std::slice::from_ref);
        if let Some(values) = list("enum").map(Vec::as_slice).or(one) {
            let fitting = values.iter().filter(|value| fits_type(fields, value));
            let (many, one): (Vec<_>, Vec<_>) =
                fitting.partition(|value| value.is_array() || value.is_object());
            let one = choice(one.into_iter().map(literal).collect());
            let one = one.map(|all| self.terminal(&all));
            return choice(one.into_iter().chain(many.into_iter().map(literal)).collect());
        }
        self.by_type(fields)
    }

    /// A rule for the target of a reference, which may refer to itself.
    fn reference(&mut self, reference: &str, target: &Value) -> Option<String> {
        if let Some(name) = self.names.get(reference) {
            return Some(name.clone());
        }
        let name = format!("r{}", self.names.len());
        self.names.insert(reference.to_owned(), name.clone());
        let body = self.value(target)?;
        self.write(&name, &body);
        Some(name)
    }

    fn by_type(&mut self, fields: &Map<String, Value>) -> Option<String> {
        let kinds: Vec<&str> = match fields.get("type") {
            Some(Value::Array(kinds)) => kinds.iter().filter_map(Value::as_str).collect(),
            Some(kind) => vec![kind.as_str()?],
            None if fields.keys().all(|key| NOTES.contains(&&**key)) => vec![],
            None => TYPES.to_vec(),
        };
        let (mut ways, mut simple) = (Vec::new(), Vec::new());
        for kind in &kinds {
            match *kind {
                "object" => ways.push(self.object(fields)?),
                "array" => ways.push(self.array(fields)?),
                "integer" if kinds.contains(&"number") => {}
                "number" if has_endless_number(fields) => {
                    ways.push(self.terminal(&lark_regex(NUMBER)));
                }
                "integer" => ways.push(self.integer(fields)?),
                "string" if fields.contains_key(LARK) => {
                    let text = json_of_lark(fields[LARK].as_str()?)?;
                    ways.push(self.rule(&format!("%lark {{\n{text}}}")));
                }
                kind => simple.push(kind),
            }
        }
        if !simple.is_empty() || kinds.is_empty() {
            let mut rest = fields.clone();
            rest.retain(|key, _| !OF_PARTS.contains(&&**key) && !NOTES.contains(&&**key));
            if !simple.is_empty() {
                rest.insert("type".to_owned(), json!(simple));
            }
            ways.push(self.compiled(Value::Object(rest)));
        }
        choice(ways)
    }

    /// A value without parts, which the compiler of schemas has.
    fn compiled(&mut self, schema: Value) -> String {
        let body = format!("%json {}", json_text(&tight_schema(&schema)));
        self.rule(&body)
    }

    fn integer(&mut self, fields: &Map<String, Value>) -> Option<String> {
        let numbers = lark_regex(&inner_regex(fields)?);
        if !fields.contains_key("multipleOf") {
            return Some(self.terminal(&numbers));
        }
        if let Some(step) = step(fields) {
            return Some(self.terminal(&format!("{numbers} & {}", lark_regex(&step))));
        }
        let mut rest = fields.clone();
        rest.retain(|key, _| BOUNDS.contains(&&**key) || key == "multipleOf");
        rest.insert("type".to_owned(), "integer".into());
        Some(self.compiled(Value::Object(rest)))
    }

    fn object(&mut self, fields: &Map<String, Value>) -> Option<String> {
        if fields.contains_key("patternProperties") {
            return None;
        }
        let mut shape = Shape::of(fields);
        shape.list_required();
        let mut members = Vec::new();
        for (key, property) in &shape.properties {
            let value = self.value(property)?;
            let optional = if shape.required.contains(key) { "" } else { "?" };
            members.push((format!("{} \":\" {value}", quote(&quote(key))), optional));
        }
        let more = match shape.more() {
            None => None,
            Some(schema) => {
                let keys = shape.properties.keys().map(|key| quote(&quote(key)));
                let keys = keys.collect::<Vec<_>>().join(" | ");
                let other = if keys.is_empty() { String::new() } else { format!(" & ~({keys})") };
                let key = self.terminal(&format!("{STRING}{other}"));
                Some(format!("({key} \":\" {})", self.value(&schema)?))
            }
        };
        let mut rule = |body: &str| self.rule(body);
        let members = counted(&shape, &members, more.as_deref(), "\",\"", &mut rule)?;
        Some(self.rule(&format!("\"{{\" {members} \"}}\"")))
    }

    fn array(&mut self, fields: &Map<String, Value>) -> Option<String> {
        let list = |key: &str| fields.get(key).and_then(Value::as_array);
        let count = |key: &str| usize::try_from(fields.get(key)?.as_u64()?).ok();
        let (first, others) = match (list("items"), list("prefixItems")) {
            (Some(first), _) => (Some(first), "additionalItems"),
            (None, first) => (first, "items"),
        };
        let (least, most) = (count("minItems").unwrap_or(0), count("maxItems"));
        let others = fields.get(others).unwrap_or(&Value::Bool(true));
        let most = match (others, first.map_or(0, Vec::len)) {
            (Value::Bool(false), length) => Some(most.unwrap_or(length).min(length)),
            _ => most,
        };
        let first = first.map_or(&[][..], Vec::as_slice);
        let first = &first[..first.len().min(most.unwrap_or(usize::MAX))];
        let left = most.map(|most| most - first.len());
        let needed = least.saturating_sub(first.len());
        if left.is_some_and(|left| needed > left) {
            return None;
        }
        let mut items = String::new();
        if left != Some(0) {
            let item = self.value(others)?;
            let [least, most] = [needed.saturating_sub(1), 1];
            items = match first.is_empty() {
                false => repeated(&format!("(\",\" {item})"), needed, left),
                true => {
                    let more = left.map(|left| left - most);
                    let all =
                        format!("{item} {}", repeated(&format!("(\",\" {item})"), least, more));
                    if needed == 0 { format!("({all})?") } else { all }
                }
            };
        }
        for (at, item) in first.iter().enumerate().rev() {
            let comma = if at == 0 { "" } else { "\",\"" };
            let all = format!("{comma} {} {items}", self.value(item)?);
            items = if at < least { all } else { format!("({all})?") };
        }
        Some(self.rule(&format!("\"[\" {items} \"]\"")))
    }

    /// Adds a rule, unless there is the same one, and names it.
    fn rule(&mut self, body: &str) -> String {
        self.named("r", body)
    }

    fn terminal(&mut self, body: &str) -> String {
        self.named("T", body)
    }

    fn named(&mut self, kind: &str, body: &str) -> String {
        if let Some(name) = self.names.get(body) {
            return name.clone();
        }
        let name = format!("{kind}{}", self.names.len());
        self.names.insert(body.to_owned(), name.clone());
        self.write(&name, body);
        name
    }

    fn write(&mut self, name: &str, body: &str) {
        writeln!(self.rules, "{name}: {body}").expect("a string takes everything");
    }
}

fn choice(mut ways: Vec<String>) -> Option<String> {
    ways.dedup();
    match &ways[..] {
        [] => None,
        [one] => Some(one.clone()),
        many => Some(format!("({})", many.join(" | "))),
    }
}

/// Exactly this value, with white space between its parts.
fn literal(value: &Value) -> String {
    let parts = match value {
        Value::Array(items) => {
            let items: Vec<String> = items.iter().map(literal).collect();
            ["\"[\"".to_owned(), items.join(" \",\" "), "\"]\"".to_owned()]
        }
        Value::Object(fields) => {
            let key = |key: &str| quote(&quote(key));
            let fields = fields
                .iter()
                .map(|(name, value)| format!("{} \":\" {}", key(name), literal(value)));
            let fields: Vec<String> = fields.collect();
            ["\"{\"".to_owned(), fields.join(" \",\" "), "\"}\"".to_owned()]
        }
        value => return quote(&json_text(value)),
    };
    parts.join(" ")
}

/// What fits a schema without one of its keys and another schema too; `None` if that cannot be said
/// in one schema.
fn joined(fields: &Map<String, Value>, without: &str, other: &Value) -> Option<Value> {
    let mut both = fields.clone();
    both.shift_remove(without);
    let other = match other {
        Value::Bool(true) => return Some(Value::Object(both)),
        other => other.as_object()?,
    };
    // What one of them closes, the other must not open.
    let closes = |one: &Map<String, Value>| one.contains_key("additionalProperties");
    if (closes(&both) || closes(other)) && both.contains_key("properties") {
        return None;
    }
    for (key, value) in other.iter().filter(|(key, _)| !NOTES.contains(&&***key)) {
        match (both.get_mut(key), value) {
            (None, _) => {
                both.insert(key.clone(), value.clone());
            }
            (Some(known), value) if known == value => {}
            (Some(Value::Array(known)), Value::Array(more)) if key == "required" => {
                known.extend(more.iter().cloned());
            }
            (Some(Value::Array(known)), Value::Array(more)) if key == "allOf" => {
                known.extend(more.iter().cloned());
            }
            (Some(Value::Object(known)), Value::Object(more)) if key == "properties" => {
                for (name, property) in more {
                    let one = known.entry(name).or_insert(json!(true));
                    *one = json!({"allOf": [one.clone(), property]});
                }
            }
            (Some(known), value) if BOUNDS.contains(&&**key) || COUNTS.contains(&&**key) => {
                let is_low = key.to_lowercase().contains("min");
                if is_tighter(value, known, is_low)? {
                    *known = value.clone();
                }
            }
            (Some(known), Value::String(kind)) if key == "type" && has_kind(known, kind) => {
                *known = value.clone();
            }
            (Some(Value::String(known)), value) if key == "type" && has_kind(value, known) => {}
            _ => return None,
        }
    }
    Some(Value::Object(both))
}

/// Whether a schema's types have this one.
fn has_kind(kinds: &Value, kind: &str) -> bool {
    let is_kind = |one: &Value| one == kind || kind == "integer" && one == "number";
    kinds.as_array().map_or_else(|| is_kind(kinds), |kinds| kinds.iter().any(is_kind))
}

fn is_tighter(one: &Value, other: &Value, is_low: bool) -> Option<bool> {
    let order = order((one, other))?;
    Some(if is_low { order.is_gt() } else { order.is_lt() })
}

//! JSON schemas as parts of a grammar.

use serde_json::Value;

use super::exact::exact;
use super::integers::{NUMBER, regex};
use super::schema::{BOUNDS, tight_schema};
use super::terms::lark_regex;
use crate::json_text;

/// A JSON schema as a part of a grammar. A schema that only asks for a number gets one that ends:
/// a small model can write digits until its answer is cut.
pub fn lark_json(schema: &Value) -> String {
    let integers = || regex(schema.as_object()?);
    let json = || format!("%json {}", json_text(&tight_schema(schema)));
    match only_type(schema) {
        Some("integer") => integers().map_or_else(json, |regex| lark_regex(&regex)),
        Some("number") => lark_regex(NUMBER),
        _ => exact(schema).unwrap_or_else(json),
    }
}

/// The type of a schema whose other keywords restrict nothing, but for the bounds of integers.
fn only_type(schema: &Value) -> Option<&str> {
    let says_more =
        |name: &str| !["type", "title", "description", "$defs", "definitions"].contains(&name);
    let fields = schema.as_object()?;
    let kind = fields.get("type")?.as_str()?;
    let is_bound = |name: &str| kind == "integer" && BOUNDS.contains(&name);
    let is_plain = fields.keys().all(|name| is_bound(name) || !says_more(name));
    is_plain.then_some(kind)
}

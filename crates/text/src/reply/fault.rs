//! Finds the part of a schema that makes it unusable as a constraint.

use std::cmp::Ordering;

use regex_syntax::hir::Look;
use serde_json::{Map, Value};

use super::refs::resolve;
use super::schema::{BOUNDS, COUNTS, leave_out, places};
use super::typed::type_of;
use super::whole::Whole;

/// Keywords of JSON Schema that cannot be enforced during generation.
const UNKNOWN: &[&str] = &[
    "$dynamicRef",
    "contains",
    "dependencies",
    "dependentRequired",
    "dependentSchemas",
    "else",
    "if",
    "maxContains",
    "minContains",
    "not",
    "propertyNames",
    "then",
    "unevaluatedItems",
    "unevaluatedProperties",
];

const TYPES: &[&str] = &["array", "boolean", "integer", "null", "number", "object", "string"];

/// Pairs of lower and upper bounds.
const PAIRS: &[(&str, &str)] = &[
    ("minItems", "maxItems"),
    ("minLength", "maxLength"),
    ("minProperties", "maxProperties"),
    ("minimum", "maximum"),
    ("minimum", "exclusiveMaximum"),
    ("exclusiveMinimum", "maximum"),
    ("exclusiveMinimum", "exclusiveMaximum"),
];

/// The first unusable part of a schema.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SchemaFault {
    /// Its path: `properties.name.pattern`.
    pub path: String,
    pub why: String,
}

const WRONG_FORM: &str = "has not the form that JSON Schema gives it";

/// The most bytes of a schema, the limit of a grammar.
const BYTES_MAX: usize = 256 * 1024;

/// The fault of a schema, if it has one.
pub fn schema_fault(schema: &Value) -> Option<SchemaFault> {
    let bytes = schema.to_string().len();
    if bytes > BYTES_MAX {
        let why = format!("has {bytes} bytes; {BYTES_MAX} are the most");
        return Some(SchemaFault { path: "the schema".to_owned(), why });
    }
    let mut held = schema.clone();
    leave_out(&mut held);
    find(&held, &held, "")
}

fn find(root: &Value, schema: &Value, path: &str) -> Option<SchemaFault> {
    let at = |key: &str| if path.is_empty() { key.to_owned() } else { format!("{path}.{key}") };
    let fault = |key: &str, why: &str| Some(SchemaFault { path: at(key), why: why.to_owned() });
    let fields = match schema {
        Value::Object(fields) => fields,
        Value::Bool(_) => return None,
        _ => {
            let path = if path.is_empty() { "the schema" } else { path };
            return Some(SchemaFault {
                path: path.to_owned(),
                why: "must be an object, true or false".to_owned(),
            });
        }
    };
    for (key, value) in fields {
        if let Some(why) = why_not(root, schema, key, value) {
            return fault(key, &why);
        }
    }
    if let Some((low, high)) = crossed(fields) {
        return fault(low, &format!("is more than {high}"));
    }
    places(fields).find_map(|(key, inner)| find(root, inner, &at(&key)))
}

/// Why a keyword of a schema cannot be enforced.
fn why_not(root: &Value, schema: &Value, key: &str, value: &Value) -> Option<String> {
    let is_wrong = match key {
        "$ref" => {
            return resolve(root, schema).is_none().then(|| "leads to no schema".to_owned());
        }
        "pattern" => return pattern(value),
        "type" => return types(value),
        "$defs" | "definitions" | "properties" | "patternProperties" => !value.is_object(),
        "enum" | "const" => {
            let values = if key == "enum" { value.as_array() } else { None };
            let one = std::slice::from_ref(value);
            let values = values.map_or(if key == "const" { one } else { &[] }, Vec::as_slice);
            let fits = |value: &Value| schema.as_object().is_none_or(|all| fits_type(all, value));
            if !values.is_empty() && !values.iter().any(fits) {
                return Some("has no value of its type".to_owned());
            }
            values.is_empty()
        }
        "anyOf" | "oneOf" => value.as_array().is_none_or(Vec::is_empty),
        "allOf" | "prefixItems" => !value.is_array(),
        "required" => {
            return match value.as_array().filter(|names| names.iter().all(Value::is_string)) {
                Some(names) => never(schema, names),
                None => Some(WRONG_FORM.to_owned()),
            };
        }
        _ if COUNTS.contains(&key) => !value.is_u64(),
        _ if BOUNDS.contains(&key) => type_of(value) != "number",
        _ if UNKNOWN.contains(&key) => {
            return Some("is a word that no answer can be held to".to_owned());
        }
        _ => false,
    };
    is_wrong.then(|| WRONG_FORM.to_owned())
}

/// A required name with a schema that no value fits.
fn never(schema: &Value, names: &[Value]) -> Option<String> {
    let is_never =
        |name: &&str| schema.get("properties")?.get(*name).map(|one| *one == Value::Bool(false));
    let name = names.iter().filter_map(Value::as_str).find(|name| is_never(name) == Some(true))?;
    Some(format!("has {name}, which nothing fits"))
}

/// Whether a value has the type in the schema, if there is one.
pub(super) fn fits_type(fields: &Map<String, Value>, value: &Value) -> bool {
    let fits = |kind: &Value| match (kind.as_str(), value) {
        (Some("integer"), value) if type_of(value) == "number" => {
            Whole::of(value, true).is_some_and(|(_, is_whole)| is_whole)
        }
        (Some(kind), value) => kind == type_of(value),
        (None, _) => true,
    };
    match fields.get("type") {
        Some(Value::Array(kinds)) => kinds.iter().any(fits),
        kind => kind.is_none_or(fits),
    }
}

fn types(value: &Value) -> Option<String> {
    let names = value.as_array().map_or(std::slice::from_ref(value), Vec::as_slice);
    if names.is_empty() {
        return Some("names no type".to_owned());
    }
    let odd = names.iter().find(|name| !name.as_str().is_some_and(|name| TYPES.contains(&name)));
    odd.map(|odd| format!("is {odd}; there are {}", TYPES.join(", ")))
}

fn pattern(value: &Value) -> Option<String> {
    let Some(pattern) = value.as_str() else { return Some("must be a string".to_owned()) };
    match regex_syntax::parse(pattern) {
        Ok(found) => {
            let looks = found.properties().look_set();
            let is_known = |look| matches!(look, Look::Start | Look::End);
            (!looks.iter().all(is_known)).then(|| "looks at what stands around it".to_owned())
        }
        Err(regex_syntax::Error::Parse(error)) => {
            Some(format!("is no expression that can be held to: {}", error.kind()))
        }
        Err(error) => Some(format!("is no expression that can be held to: {error}")),
    }
}

/// Bounds with nothing in between.
fn crossed(fields: &Map<String, Value>) -> Option<(&'static str, &'static str)> {
    let is_crossed = |(low, high): &&(&str, &str)| {
        let touches = low.starts_with("exclusive") || high.starts_with("exclusive");
        let order = fields.get(*low).zip(fields.get(*high)).and_then(order);
        order.is_some_and(|order| order.is_gt() || touches && order.is_eq())
    };
    PAIRS.iter().find(is_crossed).copied()
}

/// The order of two numbers: as floats, or by digits if they are whole.
pub(super) fn order((one, other): (&Value, &Value)) -> Option<Ordering> {
    let whole = |value| Whole::of(value, true).filter(|(_, is_whole)| *is_whole);
    match (whole(one), whole(other)) {
        (Some((one, _)), Some((other, _))) => Some(one.cmp(&other)),
        _ => Whole::float(one)?.partial_cmp(&Whole::float(other)?),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_first_fault_is_named_with_its_path() {
        let inner =
            |schema: Value| json!({"type": "object", "properties": {"a": {"items": schema}}});
        let long = crate::long_number("100000000000000000001").unwrap();
        let cases = [
            (json!({"pattern": "(?!x)"}), "pattern", "look-around"),
            (json!({"pattern": "\\bx"}), "pattern", "around it"),
            (json!({"pattern": 7}), "pattern", "string"),
            (json!({"type": "str"}), "type", "\"str\""),
            (json!({"type": ["string", 7]}), "type", "7"),
            (json!({"not": {"type": "null"}}), "not", "no answer"),
            (json!({"dependencies": {}}), "dependencies", "no answer"),
            (json!({"type": []}), "type", "no type"),
            (json!({"anyOf": []}), "anyOf", "form"),
            (json!({"minimum": "0"}), "minimum", "form"),
            (json!({"exclusiveMinimum": 0, "maximum": 0}), "exclusiveMinimum", "maximum"),
            (json!({"type": "integer", "minimum": long, "maximum": 1e20}), "minimum", "maximum"),
            (json!({"const": 1, "type": "string"}), "const", "its type"),
            (json!({"type": ["string", "null"], "enum": [1, 2]}), "enum", "its type"),
            (json!({"properties": {"x": {"not": {}}}, "required": ["x"]}), "required", "has x"),
            (json!({"$ref": "#/$defs/none"}), "$ref", "leads"),
            (json!({"$ref": "http://x/y"}), "$ref", "leads"),
            (json!({"enum": []}), "enum", "form"),
            (json!({"required": "a"}), "required", "form"),
            (json!({"minLength": 5, "maxLength": 2}), "minLength", "maxLength"),
            (json!({"anyOf": [{}, {"if": {}}]}), "anyOf.1.if", "no answer"),
        ];
        for (schema, path, why) in cases {
            let found = schema_fault(&inner(schema.clone())).expect(path);
            assert_eq!(found.path, format!("properties.a.items.{path}"), "{schema}");
            assert!(found.why.contains(why), "{schema}: {}", found.why);
        }
        assert_eq!(schema_fault(&json!(7)).unwrap().path, "the schema");
        let long = json!({"description": "a".repeat(BYTES_MAX)});
        assert!(schema_fault(&long).unwrap().why.contains("are the most"));
        let sound = inner(json!({
            "anyOf": [{"$ref": "#"}, {"pattern": "^a$"}, {"type": ["string", "null"]}, true],
            "minLength": 2, "maxLength": 2.0, "enum": null,
            "exclusiveMinimum": 1_i64 << 53, "maximum": (1_i64 << 53) + 1,
            "x-own": {"not": 1}, "default": {"not": 1},
        }));
        assert_eq!(schema_fault(&sound), None);
    }
}

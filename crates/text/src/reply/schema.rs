//! Adapts JSON schemas as constraints: stricter than the client's schema where the freedom would
//! lead a model without JSON training astray, and without annotations.

use serde_json::{Map, Value, json};

use super::formats::format;
use super::integers::{bound, is_integer};
use super::refs::respell;
use crate::digits::is_long_number;

/// White space between parts of JSON: a space, or a line break with indentation.
pub(super) const SPACE: &str = r"( |\r?\n[ \t]{0,20})";

/// Keywords that extend an object beyond its own list of properties.
const OPEN: &[&str] = &[
    "$ref",
    "additionalProperties",
    "allOf",
    "anyOf",
    "dependentSchemas",
    "if",
    "not",
    "oneOf",
    "patternProperties",
    "unevaluatedProperties",
];

/// Bounds of numbers. A bound beyond the limit has no effect: no answer comes near it.
pub(super) const BOUNDS: &[&str] = &["exclusiveMaximum", "exclusiveMinimum", "maximum", "minimum"];
const BOUND_MAX: f64 = ((1u64 << 53) - 1) as f64;
/// A smaller bound counts as zero.
const BOUND_MIN: f64 = 1e-15;

/// Counts. Some clients write them as 5.0.
pub(super) const COUNTS: &[&str] =
    &["maxItems", "maxLength", "maxProperties", "minItems", "minLength", "minProperties"];

/// Keywords that cannot be enforced during generation and are ignored: the client checks whether
/// items are unique.
const LEFT_OUT: &[&str] = &["uniqueItems"];

/// Keywords with nested schemas: in maps, and as single ones or lists.
const IN_MAPS: &[&str] =
    &["$defs", "definitions", "dependentSchemas", "patternProperties", "properties"];
const IN_PLACES: &[&str] = &[
    "additionalItems",
    "additionalProperties",
    "allOf",
    "anyOf",
    "contains",
    "else",
    "if",
    "items",
    "oneOf",
    "prefixItems",
    "propertyNames",
    "then",
];

/// Limits white space, and closes objects that list their properties without
/// `additionalProperties`. `oneOf` is relaxed to `anyOf`.
pub fn tight_schema(schema: &Value) -> Value {
    let mut schema = schema.clone();
    leave_out(&mut schema);
    respell(&mut schema);
    bound_all(&mut schema);
    // The parts of an `allOf` describe one object: none of them may close it.
    if !has_key(&schema, "allOf") {
        close(&mut schema);
    }
    if let Some(fields) = schema.as_object_mut() {
        let options = json!({ "whitespace_pattern": SPACE, "coerce_one_of": true });
        fields.insert("x-guidance".to_owned(), options);
    }
    schema
}

/// Removes unenforceable and empty keywords; a schema that nothing fits becomes false.
pub(super) fn leave_out(schema: &mut Value) {
    let Some(fields) = schema.as_object_mut() else { return };
    let is_known = |name: &Value| name.as_str().is_none_or(|name| format(name).is_some());
    let any = [json!({}), json!(true)];
    if fields.get("not").is_some_and(|not| any.contains(not)) {
        *schema = json!(false);
        return;
    }
    // The bounds of integers are held by digits.
    let is_integer = is_integer(fields);
    fields.retain(|name, value| match name.as_str() {
        "const" | "default" => true,
        _ if value.is_null() => false,
        // Field names are strings anyway.
        "propertyNames" => !any.contains(value) && *value != json!({"type": "string"}),
        "unevaluatedItems" | "unevaluatedProperties" => !any.contains(value),
        "format" => is_known(value),
        "multipleOf" => value.as_f64().is_none_or(|step| (1e-9..1e12).contains(&step.abs())),
        name if BOUNDS.contains(&name) => {
            let is_near = |at: f64| at.abs() <= BOUND_MAX;
            is_integer || !is_long_number(value) && value.as_f64().is_none_or(is_near)
        }
        name => !LEFT_OUT.contains(&name),
    });
    for name in BOUNDS {
        if let Some(bound) = fields.get_mut(*name)
            && bound.as_f64().is_some_and(|at| at != 0.0 && at.abs() < BOUND_MIN)
        {
            *bound = json!(0);
        }
    }
    for name in COUNTS {
        if let Some(count) = fields.get_mut(*name)
            && let Some(whole) =
                count.as_f64().filter(|count| count.fract() == 0.0 && *count >= 0.0)
        {
            *count = json!(whole as u64);
        }
    }
    let is_alone = !["$ref", "allOf", "anyOf", "oneOf"].iter().any(|key| fields.contains_key(*key));
    if is_alone && fields.get("unevaluatedProperties") == Some(&json!(false)) {
        fields.remove("unevaluatedProperties");
        fields.entry("additionalProperties").or_insert(json!(false));
    }
    each_schema(fields, &mut leave_out);
}

/// Applies `act` to each directly nested schema.
pub(super) fn each_schema(fields: &mut Map<String, Value>, act: &mut dyn FnMut(&mut Value)) {
    IN_MAPS.iter().for_each(|name| members(fields, name).for_each(&mut *act));
    IN_PLACES.iter().for_each(|name| each(fields, name).for_each(&mut *act));
}

/// The directly nested schemas, each with its path.
pub(super) fn places(fields: &Map<String, Value>) -> impl Iterator<Item = (String, &Value)> {
    let of = |names: &'static [&'static str]| {
        names.iter().filter_map(|name| Some((*name, fields.get(*name)?)))
    };
    let maps = of(IN_MAPS).flat_map(|(name, map)| {
        let members = map.as_object().into_iter().flatten();
        members.map(move |(key, inner)| (format!("{name}.{key}"), inner))
    });
    let one = of(IN_PLACES).filter(|(_, inner)| !inner.is_array());
    let many = of(IN_PLACES).flat_map(|(name, list)| {
        let items = list.as_array().into_iter().flatten().enumerate();
        items.map(move |(at, inner)| (format!("{name}.{at}"), inner))
    });
    maps.chain(one.map(|(name, inner)| (name.to_owned(), inner))).chain(many)
}

fn bound_all(schema: &mut Value) {
    if let Some(fields) = schema.as_object_mut() {
        each_schema(fields, &mut bound_all);
    }
    bound(schema);
}

fn has_key(value: &Value, key: &str) -> bool {
    match value {
        Value::Object(fields) => {
            fields.contains_key(key) || fields.values().any(|value| has_key(value, key))
        }
        Value::Array(items) => items.iter().any(|item| has_key(item, key)),
        _ => false,
    }
}

/// Closes a schema's objects. The depth is bounded by that of JSON bodies.
fn close(schema: &mut Value) {
    let Some(fields) = schema.as_object_mut() else { return };
    let lists = fields.get("properties").is_some_and(Value::is_object);
    for name in ["properties", "$defs", "definitions"] {
        members(fields, name).for_each(close);
    }
    for name in ["items", "prefixItems"] {
        each(fields, name).for_each(close);
    }
    if lists && !OPEN.iter().any(|name| fields.contains_key(*name)) {
        list_required(fields);
        fields.insert("additionalProperties".to_owned(), false.into());
    }
    // Next to a list of properties, alternatives describe the same object.
    if !lists {
        for name in ["anyOf", "oneOf"] {
            each(fields, name).for_each(close);
        }
    }
}

/// Lists the required properties that are not listed; they may have any value.
fn list_required(fields: &mut Map<String, Value>) {
    let required = fields.get("required").and_then(Value::as_array).cloned().unwrap_or_default();
    let Some(Value::Object(listed)) = fields.get_mut("properties") else { return };
    for name in required.iter().filter_map(Value::as_str) {
        listed.entry(name).or_insert_with(|| json!({}));
    }
}

fn members<'a>(
    fields: &'a mut Map<String, Value>,
    name: &str,
) -> impl Iterator<Item = &'a mut Value> {
    fields.get_mut(name).and_then(Value::as_object_mut).into_iter().flat_map(Map::values_mut)
}

/// The schemas in a list, or a single one in its place.
fn each<'a>(fields: &'a mut Map<String, Value>, name: &str) -> impl Iterator<Item = &'a mut Value> {
    let (one, many) = match fields.get_mut(name) {
        Some(Value::Array(many)) => (None, Some(many)),
        one => (one, None),
    };
    one.into_iter().chain(many.into_iter().flatten())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tight(schema: Value) -> Value {
        let mut tight = tight_schema(&schema);
        assert_eq!(tight["x-guidance"]["whitespace_pattern"], SPACE);
        tight.as_object_mut().unwrap().remove("x-guidance");
        tight
    }

    #[test]
    fn objects_that_list_their_properties_are_closed() {
        let inner = json!({"type": "object", "properties": {"b": {}}});
        let mut closed = inner.clone();
        closed["additionalProperties"] = false.into();
        for place in ["items", "anyOf", "oneOf", "prefixItems"] {
            let of = |inner: &Value| {
                let value = if place == "items" { inner.clone() } else { json!([inner, {}]) };
                json!({ place: value })
            };
            assert_eq!(tight(of(&inner)), of(&closed), "{place}");
        }
        for place in ["$defs", "definitions"] {
            let of = |inner: &Value| json!({ place: { "x": inner } });
            assert_eq!(tight(of(&inner)), of(&closed), "{place}");
        }
        let nested = json!({"properties": {"a": inner}});
        let want = json!({"properties": {"a": closed}, "additionalProperties": false});
        assert_eq!(tight(nested), want);
    }

    #[test]
    fn what_only_annotates_is_left_out() {
        let schema = json!({
            "type": "object",
            "properties": {
                "format": {"type": "string", "format": "path"},
                "uniqueItems": {"items": {"format": "uuid"}, "uniqueItems": true},
                "a": {"enum": [{"format": "path"}], "anyOf": [{"format": "int32"}]},
            },
            "additionalProperties": {"format": "color"},
        });
        let want = json!({
            "type": "object",
            "properties": {
                "format": {"type": "string"},
                "uniqueItems": {"items": {"format": "uuid"}},
                "a": {"enum": [{"format": "path"}], "anyOf": [{}]},
            },
            "additionalProperties": {},
        });
        assert_eq!(tight(schema), want);
    }

    #[test]
    fn bounds_that_no_answer_comes_near_are_left_out() {
        let schema = json!({"type": "number", "maximum": f64::MAX, "minimum": -1e300,
            "exclusiveMinimum": 5e-324, "exclusiveMaximum": 7, "multipleOf": 1e300});
        let want = json!({"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 7});
        assert_eq!(tight(schema), want);
    }

    #[test]
    fn what_says_nothing_is_left_out() {
        let cases = [
            (
                json!({"enum": null, "const": null, "maxLength": 5.0}),
                json!({"const": null, "maxLength": 5}),
            ),
            (json!({"propertyNames": {"type": "string"}}), json!({})),
            (json!({"unevaluatedProperties": true, "unevaluatedItems": {}}), json!({})),
            (json!({"unevaluatedProperties": false}), json!({"additionalProperties": false})),
            (json!({"additionalProperties": {"not": {}}}), json!({"additionalProperties": false})),
        ];
        for (schema, want) in cases {
            assert_eq!(tight(schema.clone()), want, "{schema}");
        }
    }

    #[test]
    fn what_is_required_is_listed() {
        let schema = json!({"properties": {"b": {"type": "null"}}, "required": ["a", "b"]});
        let want = json!({
            "properties": {"a": {}, "b": {"type": "null"}},
            "required": ["a", "b"],
            "additionalProperties": false,
        });
        assert_eq!(tight(schema), want);
    }

    #[test]
    fn what_says_more_stays_open() {
        let cases = [
            json!({"type": "object"}),
            json!({"properties": {"a": {}}, "additionalProperties": true}),
            json!({"properties": {"a": {}}, "patternProperties": {"^x": {}}}),
            json!({"properties": {"a": {}}, "oneOf": [{"properties": {"b": {}}}]}),
            json!({"allOf": [{"properties": {"a": {}}}, {"properties": {"b": {}}}]}),
            json!({"$defs": {"x": {"properties": {"a": {}}}}, "items": {"allOf": [{}]}}),
        ];
        for schema in cases {
            assert_eq!(tight(schema.clone()), schema);
        }
        assert_eq!(tight_schema(&Value::Bool(true)), Value::Bool(true));
    }
}

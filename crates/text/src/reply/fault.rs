//! What keeps a schema from holding an answer, and where in it.

use regex_syntax::hir::Look;
use serde_json::{Map, Value};

use super::refs::resolve;
use super::schema::places;

/// Words of JSON Schema that no answer can be held to while it is written.
const UNKNOWN: &[&str] = &[
    "$dynamicRef",
    "contains",
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

/// Lower and upper bounds of which both can be there.
const PAIRS: &[(&str, &str)] = &[
    ("minItems", "maxItems"),
    ("minLength", "maxLength"),
    ("minProperties", "maxProperties"),
    ("minimum", "maximum"),
];

/// The first thing in a schema that no answer can be held to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SchemaFault {
    /// Where it stands: `properties.name.pattern`.
    pub path: String,
    pub why: String,
}

/// Bytes of a schema: no longer grammar is taken.
const BYTES_MAX: usize = 256 * 1024;

/// What keeps a schema from holding an answer, if something does.
pub fn schema_fault(schema: &Value) -> Option<SchemaFault> {
    let bytes = schema.to_string().len();
    if bytes > BYTES_MAX {
        let why = format!("has {bytes} bytes; {BYTES_MAX} are the most");
        return Some(SchemaFault { path: "the schema".to_owned(), why });
    }
    find(schema, schema, "")
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

/// Why a word of a schema cannot be held to.
fn why_not(root: &Value, schema: &Value, key: &str, value: &Value) -> Option<String> {
    let is_wrong = match key {
        "$ref" => {
            return resolve(root, schema).is_none().then(|| "leads to no schema".to_owned());
        }
        "pattern" => return pattern(value),
        "type" => return types(value),
        "$defs" | "definitions" | "properties" | "patternProperties" => !value.is_object(),
        "enum" => value.as_array().is_none_or(Vec::is_empty),
        "allOf" | "anyOf" | "oneOf" | "prefixItems" => !value.is_array(),
        "required" => !is_names(value),
        "minItems" | "maxItems" | "minLength" | "maxLength" => {
            !value.as_f64().is_some_and(|count| count >= 0.0 && count.fract() == 0.0)
        }
        _ if UNKNOWN.contains(&key) => {
            return Some("is a word that no answer can be held to".to_owned());
        }
        _ => false,
    };
    is_wrong.then(|| "has not the form that JSON Schema gives it".to_owned())
}

fn is_names(value: &Value) -> bool {
    value.as_array().is_some_and(|names| names.iter().all(Value::is_string))
}

fn types(value: &Value) -> Option<String> {
    let names = value.as_array().map_or(std::slice::from_ref(value), Vec::as_slice);
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

/// Bounds that nothing lies between.
fn crossed(fields: &Map<String, Value>) -> Option<(&'static str, &'static str)> {
    let number = |key: &str| fields.get(key).and_then(Value::as_f64);
    let is_crossed = |(low, high): &&(&str, &str)| number(low) > number(high);
    PAIRS.iter().filter(|(_, high)| number(high).is_some()).find(is_crossed).copied()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_first_fault_is_named_with_its_path() {
        let inner =
            |schema: Value| json!({"type": "object", "properties": {"a": {"items": schema}}});
        let cases = [
            (json!({"pattern": "(?!x)"}), "pattern", "look-around"),
            (json!({"pattern": "\\bx"}), "pattern", "around it"),
            (json!({"pattern": 7}), "pattern", "string"),
            (json!({"type": "str"}), "type", "\"str\""),
            (json!({"type": ["string", 7]}), "type", "7"),
            (json!({"not": {}}), "not", "no answer"),
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
            "minLength": 2, "maxLength": 2, "x-own": {"not": 1}, "default": {"not": 1},
        }));
        assert_eq!(schema_fault(&sound), None);
    }
}

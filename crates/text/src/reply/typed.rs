//! Typed values from plain text, by the schemas of their fields.

use serde_json::{Map, Value};

use super::read::{End, Reader};
use super::refs::{DEPTH_MAX, VISITS_MAX, resolve};
use super::value::{exact_value, whole_value};
use crate::digits::is_long_number;

/// The name of an offered tool.
pub(super) fn name_of(tool: &Value) -> Option<&str> {
    tool.get("function").unwrap_or(tool).get("name")?.as_str()
}

/// The schema of a tool's arguments.
pub(super) fn parameters<'t>(tools: &'t [Value], name: &str) -> Option<&'t Value> {
    let tool = tools.iter().find(|tool| name_of(tool) == Some(name))?;
    tool.get("function").unwrap_or(tool).get("parameters")
}

/// A field's value: a non-string if the schema allows its type and the text parses as one, else the
/// text if a string is allowed. Without a schema, JSON text becomes its value.
pub(super) fn typed(text: &str, parameters: Option<&Value>, key: &str) -> Value {
    typed_as(text, parameters, parameters.and_then(|root| field(root, root, key)))
}

/// The schema of an object's field.
pub(super) fn field<'s>(root: &'s Value, object: &'s Value, key: &str) -> Option<&'s Value> {
    resolve(root, object)?.get("properties")?.get(key)
}

/// Like `typed`, for a value with a known schema.
pub(super) fn typed_as(text: &str, root: Option<&Value>, schema: Option<&Value>) -> Value {
    let strict = || exact_value(text.trim());
    let string = || Value::String(text.to_owned());
    let types = Types::of(root, schema);
    if types.choices.contains(&text) {
        return string();
    }
    if types.any || types.names.is_empty() {
        return strict().unwrap_or_else(string);
    }
    let mut reader = Reader::new(text.trim(), End::Finished);
    let read = reader.value("").ok().filter(|_| reader.rest().is_empty());
    let allowed = read.and_then(|value| types.fit(value));
    match allowed {
        Some(value) => value,
        None if types.names.contains(&"string") => string(),
        None => strict().unwrap_or_else(string),
    }
}

/// Like [`typed_as`], for a word without quotes: without a schema it is a text only if it is
/// nothing else.
pub(super) fn typed_word(text: &str, root: Option<&Value>, schema: Option<&Value>) -> Value {
    match typed_as(text, root, schema) {
        Value::String(same) if same == text && !is_text(root, schema) => {
            let types = Types::of(root, schema);
            let is_any = types.any || types.names.is_empty();
            whole_value(text).filter(|_| is_any).unwrap_or(Value::String(same))
        }
        value => value,
    }
}

/// Whether a value can only be a string.
pub(super) fn is_text(root: Option<&Value>, schema: Option<&Value>) -> bool {
    let types = Types::of(root, schema);
    !types.any && !types.names.is_empty() && types.names.iter().all(|name| *name == "string")
}

/// Fields as an object. Of several with one name the first counts, as in values.
pub(super) fn first_of(fields: impl IntoIterator<Item = (String, Value)>) -> Map<String, Value> {
    let mut object = Map::new();
    for (key, value) in fields {
        object.entry(key).or_insert(value);
    }
    object
}

/// The types that a schema allows.
#[derive(Default)]
struct Types<'s> {
    any: bool,
    /// Visited schemas.
    visits: usize,
    names: Vec<&'s str>,
    /// The strings listed one by one.
    choices: Vec<&'s str>,
}

impl<'s> Types<'s> {
    fn of(root: Option<&'s Value>, schema: Option<&'s Value>) -> Self {
        let mut types = Self::default();
        if let (Some(root), Some(schema)) = (root, schema) {
            types.add(root, schema, 0);
        }
        types
    }

    fn add(&mut self, root: &'s Value, schema: &'s Value, depth: usize) {
        self.visits += 1;
        let goes_on = depth < DEPTH_MAX && self.visits < VISITS_MAX;
        let schema = resolve(root, schema).filter(|_| goes_on);
        let Some(fields) = schema.and_then(Value::as_object) else {
            self.any = true;
            return;
        };
        if let Some(values) = fields.get("enum").and_then(Value::as_array) {
            self.names.extend(values.iter().map(|value| type_of(value)));
            let texts = values.iter().filter(|value| !is_long_number(value));
            self.choices.extend(texts.filter_map(Value::as_str));
        } else if let Some(value) = fields.get("const") {
            self.names.push(type_of(value));
        } else if let Some(name) = fields.get("type") {
            let many = name.as_array().map_or(std::slice::from_ref(name), Vec::as_slice);
            self.names.extend(many.iter().filter_map(Value::as_str));
        } else if let Some(parts) = ["anyOf", "oneOf"].iter().find_map(|key| list(fields, key)) {
            parts.iter().for_each(|part| self.add(root, part, depth + 1));
        } else if let Some(part) = list(fields, "allOf").and_then(|parts| parts.first()) {
            self.add(root, part, depth + 1);
        } else if fields.contains_key("properties") {
            self.names.push("object");
        } else {
            self.any = true;
        }
    }

    /// The value, if it is a non-string of an allowed type.
    fn fit(&self, value: Value) -> Option<Value> {
        let has = |name| self.names.contains(&name);
        match &value {
            Value::Number(number) if has("integer") && !has("number") => {
                let whole = number.as_f64().filter(|float| float.fract() == 0.0)?;
                let is_float = number.is_f64() && whole.abs() < (1u64 << 53) as f64;
                Some(if is_float { Value::from(whole as i64) } else { value })
            }
            Value::String(_) if !is_long_number(&value) => None,
            Value::String(_) => (has("integer") || has("number")).then_some(value),
            _ => has(type_of(&value)).then_some(value),
        }
    }
}

fn list<'s>(fields: &'s Map<String, Value>, key: &str) -> Option<&'s Vec<Value>> {
    fields.get(key).and_then(Value::as_array)
}

pub(super) fn type_of(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(_) => "number",
        Value::String(_) if is_long_number(value) => "number",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::long_number;

    #[test]
    fn by_schema() {
        let both = json!({"anyOf": [{"$ref": "#/$defs/Both"}, {"$ref": "#/$defs/Both"}]});
        let long = |text| long_number(text).unwrap();
        let string_or_null = json!({"anyOf": [{"type": "string"}, {"type": "null"}]});
        let cases = [
            (json!({}), "12", json!(12)),
            (json!({}), "a b", json!("a b")),
            (json!(true), "[1]", json!([1])),
            (json!({"type": "string"}), "12", json!("12")),
            (json!({"type": "string"}), " null ", json!(" null ")),
            (string_or_null.clone(), "12", json!("12")),
            (string_or_null, "null", json!(null)),
            (json!({"type": ["string", "integer"]}), "12", json!(12)),
            (json!({"type": ["string", "integer"]}), "1.5", json!("1.5")),
            (json!({"type": "integer"}), "2.0", json!(2)),
            (json!({"type": "integer"}), "many", json!("many")),
            (json!({"type": "boolean"}), "True", json!(true)),
            (json!({"type": "array"}), "['a', None]", json!(["a", null])),
            (json!({"enum": ["1", "on"]}), "1", json!("1")),
            (json!({"enum": [1, 2]}), "1", json!(1)),
            (
                json!({"type": "integer"}),
                "98765432109876543210987",
                long("98765432109876543210987"),
            ),
            (
                json!({"type": "string"}),
                "98765432109876543210987",
                json!("98765432109876543210987"),
            ),
            (json!({}), "98765432109876543210987", long("98765432109876543210987")),
            (
                json!({}),
                "{\"a\": [98765432109876543210987]}",
                json!({"a": [long("98765432109876543210987")]}),
            ),
            (
                json!({"enum": ["x", long("98765432109876543210987")]}),
                "98765432109876543210987",
                long("98765432109876543210987"),
            ),
            (json!({"enum": ["1", 2]}), "1", json!("1")),
            (json!({"enum": ["1", 2]}), "2", json!(2)),
            (json!({"$ref": "#/$defs/Na%6De"}), "42", json!("42")),
            (json!({"const": "7"}), "7", json!("7")),
            (json!({"$ref": "#/$defs/Name"}), "42", json!("42")),
            (json!({"$ref": "#/$defs/Loop"}), "42", json!(42)),
            (json!({"$ref": "#/$defs/Both"}), "42", json!(42)),
            (json!({"allOf": [{"$ref": "#/$defs/Name"}]}), "42", json!("42")),
            (json!({"properties": {}}), "{\"a\": 1}", json!({"a": 1})),
        ];
        for (schema, text, expected) in cases {
            let root = json!({
                "properties": {"x": schema},
                "$defs": {"Name": {"type": "string"}, "Both": both, "Loop": {"$ref": "#/$defs/Loop"}},
            });
            assert_eq!(typed(text, Some(&root), "x"), expected, "{schema} {text}");
        }
        assert_eq!(typed("12", None, "x"), json!(12));
    }
}

//! The ways to pass calls, tools and variables to a template: one that fails with one way may
//! succeed with another.

use serde_json::{Map, Value, json};

use super::date;
use super::message::Style;
use crate::reply::resolve;

/// The deepest nesting of schemas; deeper ones are shown as strings.
const DEPTH_MAX: usize = 16;

#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Variant {
    pub(super) style: Style,
    tools: Tools,
}

/// The form of tools.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
enum Tools {
    #[default]
    AsTheyAre,
    /// With all their fields; no tools are an empty list, and the variables of firefunction's
    /// template are set.
    Full,
    /// The same, with one type and a description in each schema, and no references.
    Plain,
}

impl Variant {
    /// All ways, the usual one first. Most templates expect a call's arguments as an object; some
    /// can only append text.
    pub(super) fn all(has_calls: bool, style: Style) -> impl Iterator<Item = Self> {
        let tools = [Tools::AsTheyAre, Tools::Full, Tools::Plain];
        let ways = tools.into_iter().flat_map(|tools| [(false, tools), (true, tools)]);
        let ways = ways.filter(move |(text_arguments, _)| has_calls || !text_arguments);
        ways.map(move |(text_arguments, tools)| Self {
            style: Style { text_arguments, ..style },
            tools,
        })
    }

    /// Adds the variables for tools.
    pub(super) fn add_tools(
        self,
        tools: &[Value],
        now_unix_s: i64,
        context: &mut Map<String, Value>,
    ) {
        if self.tools == Tools::AsTheyAre {
            // Templates check `tools is not none` as well as `tools`.
            context.insert("tools".into(), json!((!tools.is_empty()).then_some(tools)));
            return;
        }
        let mut tools: Vec<Value> = tools.iter().cloned().map(full).collect();
        if self.tools == Tools::Plain {
            tools.iter_mut().for_each(make_plain);
        }
        let functions: Vec<&Value> = tools.iter().filter_map(|tool| tool.get("function")).collect();
        let functions = serde_json::to_string_pretty(&functions).expect("values are JSON");
        let now = date::strftime(now_unix_s, "%Y-%m-%d %H:%M:%S UTC");
        context.entry("functions").or_insert(functions.into());
        context.entry("datetime").or_insert(now.into());
        context.insert("tools".into(), tools.into());
    }
}

/// A tool with a type, a description and parameters with properties, even if they are empty.
fn full(mut tool: Value) -> Value {
    let fill = |fields: &mut Map<String, Value>, key: &str, empty: Value| {
        let field = fields.entry(key).or_insert(Value::Null);
        if field.is_null() {
            *field = empty;
        }
    };
    if let Some(fields) = tool.as_object_mut() {
        fill(fields, "type", "function".into());
    }
    if let Some(function) = tool.get_mut("function").and_then(Value::as_object_mut) {
        fill(function, "description", "".into());
        fill(function, "parameters", json!({"type": "object"}));
        if let Some(parameters) = function.get_mut("parameters").and_then(Value::as_object_mut) {
            fill(parameters, "properties", json!({}));
        }
    }
    tool
}

fn make_plain(tool: &mut Value) {
    if let Some(parameters) = tool.get_mut("function").and_then(|one| one.get_mut("parameters")) {
        let mut schema = plain(parameters, parameters, 0);
        if let Some(fields) = schema.as_object_mut() {
            fields.insert("type".to_owned(), "object".into());
            for (key, empty) in [("properties", json!({})), ("required", json!([]))] {
                fields.entry(key).or_insert(empty);
            }
        }
        *parameters = schema;
    }
}

/// A schema in its simplest form: its first type, with a description.
fn plain(root: &Value, schema: &Value, depth: usize) -> Value {
    let meant = resolve(root, schema).filter(|_| depth < DEPTH_MAX);
    let empty = Map::new();
    let fields = meant.and_then(Value::as_object).unwrap_or(&empty);
    let description = [schema, meant.unwrap_or(schema)].into_iter();
    let description = description.filter_map(|one| one.get("description")?.as_str()).next();
    let mut simple = match alternative(fields) {
        Some(one) => plain(root, one, depth + 1).as_object().cloned().unwrap_or_default(),
        None => simple(root, fields, depth),
    };
    if description.is_some() || !simple.contains_key("description") {
        simple.insert("description".to_owned(), description.unwrap_or("").into());
    }
    Value::Object(simple)
}

/// The first alternative that is not null, for a schema without its own type.
fn alternative(fields: &Map<String, Value>) -> Option<&Value> {
    let has_own =
        ["type", "properties", "enum", "const"].iter().any(|key| fields.contains_key(*key));
    let parts = ["anyOf", "oneOf", "allOf"].iter().find_map(|key| fields.get(*key)?.as_array());
    let is_some = |part: &&Value| part.get("type").is_none_or(|kind| kind != "null");
    parts?.iter().find(is_some).filter(|_| !has_own)
}

fn simple(root: &Value, fields: &Map<String, Value>, depth: usize) -> Map<String, Value> {
    let kind = kind(fields);
    let mut simple = Map::new();
    simple.insert("type".to_owned(), kind.into());
    let inner = |schema: &Value| plain(root, schema, depth + 1);
    if kind == "object" {
        let properties = fields.get("properties").and_then(Value::as_object);
        let properties = properties.into_iter().flatten();
        let properties: Map<_, _> =
            properties.map(|(key, one)| (key.clone(), inner(one))).collect();
        let required = fields.get("required").filter(|names| names.is_array());
        simple.insert("properties".to_owned(), properties.into());
        simple.insert("required".to_owned(), required.cloned().unwrap_or_else(|| json!([])));
        // Command R+ describes all fields of an object together instead of each.
        let more = fields.get("additionalProperties").filter(|more| more.is_object());
        let more = more.map_or_else(|| json!({"type": "string", "description": ""}), inner);
        simple.insert("additionalProperties".to_owned(), more);
    } else if kind == "array" {
        let items = fields.get("items").filter(|items| items.is_object());
        simple.insert("items".to_owned(), items.map_or_else(|| inner(&json!({})), inner));
    }
    for key in ["enum", "default"] {
        simple.extend(fields.get(key).map(|value| (key.to_owned(), value.clone())));
    }
    simple
}

/// The first type of a schema that is not null.
fn kind(fields: &Map<String, Value>) -> &str {
    let types = match fields.get("type") {
        Some(Value::Array(types)) => types.as_slice(),
        Some(one) => std::slice::from_ref(one),
        None => &[],
    };
    let named = types.iter().filter_map(Value::as_str).find(|kind| *kind != "null");
    let values = fields.get("enum").and_then(Value::as_array).and_then(|all| all.first());
    let of_value = match values.or(fields.get("const")) {
        Some(Value::Bool(_)) => "boolean",
        Some(Value::Number(number)) => {
            if number.is_f64() {
                "number"
            } else {
                "integer"
            }
        }
        Some(Value::Array(_)) => "array",
        Some(Value::Object(_)) => "object",
        _ if fields.contains_key("properties") => "object",
        _ => "string",
    };
    named.unwrap_or(of_value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn schemas_become_plain() {
        let mut tool = full(json!({"function": {"name": "f", "parameters": {
            "properties": {
                "types": {"type": ["null", "integer"]},
                "any": {"anyOf": [{"type": "null"}, {"type": "boolean"}], "description": "yes?"},
                "ref": {"$ref": "#/$defs/N"},
                "enum": {"enum": [1, 2]},
                "list": {"type": "array"},
                "map": {"type": "object", "additionalProperties": true},
                "loop": {"$ref": "#/$defs/L"},
                "any thing": true,
            },
            "$defs": {"N": {"type": "number", "description": "n"}, "L": {"$ref": "#/$defs/L"}},
        }}}));
        make_plain(&mut tool);
        let text = json!({"type": "string", "description": ""});
        let map = json!({"type": "object", "properties": {}, "required": [],
            "additionalProperties": text, "description": ""});
        let wanted = json!({"type": "object", "properties": {
            "types": {"type": "integer", "description": ""},
            "any": {"type": "boolean", "description": "yes?"},
            "ref": {"type": "number", "description": "n"},
            "enum": {"type": "integer", "enum": [1, 2], "description": ""},
            "list": {"type": "array", "items": text, "description": ""},
            "map": map, "loop": text, "any thing": text,
        }, "required": [], "additionalProperties": text, "description": ""});
        assert_eq!(tool["function"]["parameters"], wanted);
        assert_eq!(
            (&tool["type"], &tool["function"]["description"]),
            (&json!("function"), &json!(""))
        );
    }
}

//! The possible fields of a call for any schema: with a reference at its root, with `allOf` parts,
//! or with alternatives.

use serde_json::{Map, Value, json};

use super::refs::{DEPTH_MAX, VISITS_MAX, resolve};

/// The most alternatives of one schema; with more, only their common part counts.
const SHAPES_MAX: usize = 16;

/// One shape of an object.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Shape {
    pub(super) properties: Map<String, Value>,
    pub(super) required: Vec<String>,
    /// Whether the schema lists properties.
    is_listed: bool,
    more: More,
    /// The least and the most fields.
    pub(super) least: usize,
    pub(super) most: Option<usize>,
}

/// Additional fields.
#[derive(Debug, Clone, Default, PartialEq)]
enum More {
    #[default]
    Unsaid,
    None,
    /// Fields with this schema.
    Some(Value),
}

impl Shape {
    /// The shapes that a schema allows, at least one.
    pub(super) fn all(root: &Value) -> Vec<Self> {
        let mut shapes = shapes(root, root, &mut Walk::default());
        shapes.iter_mut().for_each(Self::list_required);
        shapes.dedup();
        shapes
    }

    /// The schema of additional fields, if they are allowed. An unrestricted object may have some;
    /// one with listed fields has only those, unless the schema says otherwise.
    pub(super) fn more(&self) -> Option<Value> {
        match &self.more {
            More::None => None,
            More::Some(schema) => Some(schema.clone()),
            More::Unsaid => (!self.is_listed).then(|| json!({})),
        }
    }

    pub(super) fn list_required(&mut self) {
        for name in &self.required {
            self.properties.entry(name).or_insert_with(|| json!({}));
        }
    }

    /// The shape that a schema describes by itself.
    pub(super) fn of(fields: &Map<String, Value>) -> Self {
        let properties = fields.get("properties").and_then(Value::as_object);
        let required = fields.get("required").and_then(Value::as_array);
        let names = required.into_iter().flatten().filter_map(Value::as_str);
        let patterns = fields.get("patternProperties").and_then(Value::as_object);
        let more = match (fields.get("additionalProperties"), patterns) {
            (Some(Value::Bool(false)), None) => More::None,
            (Some(Value::Bool(_)), _) => More::Some(json!({})),
            (Some(schema), _) => More::Some(schema.clone()),
            (None, Some(patterns)) => {
                More::Some(patterns.values().next().cloned().unwrap_or(json!({})))
            }
            (None, None) => More::Unsaid,
        };
        let count = |key: &str| usize::try_from(fields.get(key)?.as_u64()?).ok();
        let can_be = |(_, schema): &(&String, &Value)| **schema != json!(false);
        let properties_there = properties.into_iter().flatten().filter(can_be);
        Self {
            properties: properties_there.map(|(key, one)| (key.clone(), one.clone())).collect(),
            required: names.map(str::to_owned).collect(),
            is_listed: properties.is_some(),
            more,
            least: count("minProperties").unwrap_or(0),
            most: count("maxProperties"),
        }
    }

    /// The intersection of two shapes.
    fn and(&self, other: &Self) -> Self {
        let mut both = self.clone();
        for (name, schema) in &other.properties {
            match both.properties.get_mut(name) {
                Some(known) if known == schema || schema == &json!({}) => {}
                Some(known) if known == &json!({}) => *known = schema.clone(),
                Some(known) => *known = json!({"allOf": [known.clone(), schema]}),
                None => {
                    both.properties.insert(name.clone(), schema.clone());
                }
            }
        }
        for name in &other.required {
            if !both.required.contains(name) {
                both.required.push(name.clone());
            }
        }
        both.is_listed |= other.is_listed;
        both.least = both.least.max(other.least);
        both.most = both.most.into_iter().chain(other.most).min();
        both.more = match (&self.more, &other.more) {
            (More::None, _) | (_, More::None) => More::None,
            (More::Unsaid, more) | (more, More::Unsaid) => more.clone(),
            (more, _) => more.clone(),
        };
        both
    }
}

/// The progress of a walk along references.
#[derive(Default)]
struct Walk {
    depth: usize,
    visits: usize,
}

fn shapes(root: &Value, schema: &Value, walk: &mut Walk) -> Vec<Shape> {
    walk.visits += 1;
    let goes_on = walk.depth < DEPTH_MAX && walk.visits < VISITS_MAX;
    let Some(fields) = schema.as_object().filter(|_| goes_on) else {
        return vec![Shape::default()];
    };
    walk.depth += 1;
    let found = of_parts(root, schema, fields, walk);
    walk.depth -= 1;
    found
}

fn of_parts(
    root: &Value,
    schema: &Value,
    fields: &Map<String, Value>,
    walk: &mut Walk,
) -> Vec<Shape> {
    let mut found = vec![Shape::of(fields)];
    if fields.contains_key("$ref")
        && let Some(meant) = resolve(root, schema)
    {
        found = product(&found, &shapes(root, meant, walk));
    }
    let list = |key: &str| fields.get(key).and_then(Value::as_array).into_iter().flatten();
    for part in list("allOf") {
        found = product(&found, &shapes(root, part, walk));
    }
    for key in ["anyOf", "oneOf"] {
        let mut choices: Vec<Shape> = Vec::new();
        for part in list(key).filter(|part| may_be_object(root, part)) {
            if choices.len() > SHAPES_MAX {
                break;
            }
            choices.extend(shapes(root, part, walk));
        }
        if !choices.is_empty() {
            found = product(&found, &choices);
        }
    }
    found
}

fn may_be_object(root: &Value, schema: &Value) -> bool {
    let kind = resolve(root, schema).and_then(|schema| schema.get("type"));
    kind.is_none_or(|kind| kind == "object" || kind.is_array())
}

fn product(left: &[Shape], right: &[Shape]) -> Vec<Shape> {
    if left.len() * right.len() > SHAPES_MAX {
        return left.to_vec();
    }
    left.iter().flat_map(|one| right.iter().map(|other| one.and(other))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The shapes as `required! optional`, with `...` for additional fields.
    fn shown(schema: Value) -> Vec<String> {
        let shown = |shape: &Shape| {
            let name = |name: &String| {
                let mark = if shape.required.contains(name) { "!" } else { "" };
                format!("{name}{mark}")
            };
            let more = shape.more().map(|_| "...".to_owned());
            let names = shape.properties.keys().map(name).chain(more);
            names.collect::<Vec<_>>().join(" ")
        };
        Shape::all(&schema).iter().map(shown).collect()
    }

    #[test]
    fn cases() {
        let a = json!({"type": "object", "properties": {"a": {}}, "required": ["a"]});
        let b = json!({"type": "object", "properties": {"b": {}}});
        let cases = [
            (a.clone(), vec!["a!"]),
            (json!({"$ref": "#/$defs/R", "$defs": {"R": a}}), vec!["a!"]),
            (json!({"allOf": [a, b]}), vec!["a! b"]),
            (json!({"anyOf": [a, b, {"type": "null"}]}), vec!["a!", "b"]),
            (json!({"properties": {"c": {}}, "oneOf": [a, b]}), vec!["c a!", "c b"]),
            (
                json!({"properties": {"a": {}, "b": {}},
                    "anyOf": [{"required": ["a"]}, {"required": ["b"]}]}),
                vec!["a! b", "a b!"],
            ),
            (json!({"type": "object"}), vec!["..."]),
            (json!({"type": "object", "properties": {}}), vec![""]),
            (
                json!({"properties": {"a": {}}, "additionalProperties": {"type": "integer"}}),
                vec!["a ..."],
            ),
            (json!({"required": ["x"], "properties": {}}), vec!["x!"]),
            (json!({"properties": {"a": {}, "never": false}}), vec!["a"]),
            (json!({"$ref": "#"}), vec!["..."]),
            (json!(true), vec!["..."]),
        ];
        for (schema, expected) in cases {
            assert_eq!(shown(schema.clone()), expected, "{schema}");
        }
        let twice = json!({"$defs": {"R": {"anyOf": [{"$ref": "#/$defs/R"}, {"$ref": "#/$defs/R"}],
            "allOf": [{"$ref": "#/$defs/R"}, {"$ref": "#/$defs/R"}]}}, "$ref": "#/$defs/R"});
        assert!(!shown(twice).is_empty(), "it ends");
        let many: Vec<Value> =
            (0..99).map(|n| json!({"properties": {n.to_string(): {}}})).collect();
        assert_eq!(shown(json!({"anyOf": many, "properties": {"a": {}}})), ["a"]);
    }
}

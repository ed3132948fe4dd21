//! References within a schema: `#/$defs/a~1b%20c`.

use serde_json::{Map, Value};

use super::schema::each_schema;

/// The most references in a chain; longer chains are loops.
pub(super) const DEPTH_MAX: usize = 32;

/// The most schemas in one walk along references: two that refer to each other twice would make it
/// endless.
pub(super) const VISITS_MAX: usize = 1000;
/// The most references whose spelling differs from their keys.
const RESPELLED_MAX: usize = 256;

/// The target of a reference within `root`, or the schema itself if it has none.
pub(crate) fn resolve<'s>(root: &'s Value, mut schema: &'s Value) -> Option<&'s Value> {
    for _ in 0..DEPTH_MAX {
        let Some(reference) = schema.get("$ref").and_then(Value::as_str) else {
            return Some(schema);
        };
        schema = target(root, reference)?;
    }
    None
}

fn target<'s>(root: &'s Value, reference: &str) -> Option<&'s Value> {
    let pointer = reference.strip_prefix('#')?;
    root.pointer(&decoded(pointer)).or_else(|| root.pointer(pointer))
}

/// A percent-decoded part of a URL: `%3C` is `<`.
fn decoded(text: &str) -> String {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let [first, after @ ..] = rest {
        let code = after.get(..2).and_then(|digits| std::str::from_utf8(digits).ok());
        let code = code.and_then(|digits| u8::from_str_radix(digits, 16).ok());
        match code.filter(|_| *first == b'%') {
            Some(byte) => {
                bytes.push(byte);
                rest = &after[2..];
            }
            None => {
                bytes.push(*first);
                rest = after;
            }
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Redirects references with escaped segments to new definitions, because llguidance compares
/// segments literally.
pub(super) fn respell(schema: &mut Value) {
    let root = schema.clone();
    define(schema, &root, &|reference| reference.contains(['~', '%']));
}

/// A part of a schema, with the definitions that it refers to.
pub(super) fn with_definitions(root: &Value, part: &Value) -> Value {
    let mut part = part.clone();
    let Some(fields) = part.as_object_mut() else { return part };
    let places = ["$defs", "definitions"];
    for place in places {
        fields.extend(root.get(place).map(|definitions| (place.to_owned(), definitions.clone())));
    }
    // Other paths of the whole schema do not exist in a part of it.
    let is_there = |reference: &str| {
        let place = reference.strip_prefix("#/").and_then(|path| path.split_once('/'));
        place.is_some_and(|(place, _)| places.contains(&place))
    };
    define(&mut part, root, &|reference| reference.contains(['~', '%']) || !is_there(reference));
    part
}

/// Redirects the selected references to definitions of their targets in `root`.
fn define(schema: &mut Value, root: &Value, is_meant: &dyn Fn(&str) -> bool) {
    let mut definitions = Map::new();
    let mut names: Vec<String> = Vec::new();
    rename(schema, root, is_meant, &mut names);
    // A definition may contain such references as well.
    let mut at = 0;
    while let Some(reference) = names.get(at).cloned() {
        let Some(mut found) = target(root, &reference).cloned() else { return };
        rename(&mut found, root, is_meant, &mut names);
        definitions.insert(name(at), found);
        at += 1;
    }
    if let Some(fields) = schema.as_object_mut().filter(|_| !definitions.is_empty()) {
        let own = fields.entry("$defs").or_insert_with(|| Value::Object(Map::new()));
        if let Some(own) = own.as_object_mut() {
            own.append(&mut definitions);
        }
    }
}

fn rename(
    schema: &mut Value,
    root: &Value,
    is_meant: &dyn Fn(&str) -> bool,
    names: &mut Vec<String>,
) {
    let Some(fields) = schema.as_object_mut() else { return };
    if let Some(Value::String(reference)) = fields.get_mut("$ref")
        && is_meant(reference)
        && names.len() < RESPELLED_MAX
        && target(root, reference).is_some()
    {
        let known = names.iter().position(|one| one == reference);
        let at = known.unwrap_or(names.len());
        if known.is_none() {
            names.push(reference.clone());
        }
        *reference = format!("#/$defs/{}", name(at));
    }
    each_schema(fields, &mut |inner| rename(inner, root, is_meant, names));
}

fn name(number: usize) -> String {
    format!("respelled-{number}")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn references_are_decoded() {
        let root = json!({
            "$defs": {"a/b": {"const": 1}, "List<A>": {"const": 2}, "50%": {"const": 3}, "c": {}},
        });
        let cases = [
            ("#/$defs/a~1b", Some(json!({"const": 1}))),
            ("#/$defs/List%3CA%3E", Some(json!({"const": 2}))),
            ("#/$defs/50%", Some(json!({"const": 3}))),
            ("#/$defs/c", Some(json!({}))),
            ("#", Some(root.clone())),
            ("#/$defs/none", None),
            ("http://example.com/x", None),
        ];
        for (reference, expected) in cases {
            let found = resolve(&root, &json!({ "$ref": reference })).cloned();
            assert_eq!(found, expected, "{reference}");
        }
        let looped = json!({"$ref": "#"});
        assert_eq!(resolve(&looped, &looped), None);
    }

    #[test]
    fn spellings_that_are_no_keys_get_definitions() {
        let mut schema = json!({
            "properties": {"a": {"$ref": "#/$defs/a~1b"}, "b": {"$ref": "#/$defs/plain"}},
            "$defs": {"a/b": {"items": {"$ref": "#/$defs/a~1b"}}, "plain": {}},
        });
        respell(&mut schema);
        assert_eq!(schema["properties"]["a"]["$ref"], "#/$defs/respelled-0");
        assert_eq!(schema["properties"]["b"]["$ref"], "#/$defs/plain");
        let own = json!({"items": {"$ref": "#/$defs/respelled-0"}});
        assert_eq!(schema["$defs"]["respelled-0"], own);
    }

    #[test]
    fn a_part_has_what_it_refers_to() {
        let root = json!({
            "properties": {"a": {"$ref": "#"}, "b": {"$ref": "#/properties/c"}, "c": {"const": 1}},
            "$defs": {"d": {}},
        });
        let part = with_definitions(&root, &root["properties"]["b"]);
        assert_eq!(part["$ref"], "#/$defs/respelled-0");
        assert_eq!(part["$defs"], json!({"d": {}, "respelled-0": {"const": 1}}));
        let part = with_definitions(&root, &root["properties"]["a"]);
        let whole = &part["$defs"]["respelled-0"];
        assert_eq!(whole["properties"]["a"]["$ref"], "#/$defs/respelled-0");
        assert_eq!(whole["properties"]["b"]["$ref"], "#/$defs/respelled-1");
    }
}

//! The values of tagged fields: strings are literal, anything else is JSON.

use serde_json::{Map, Value, json};

use super::fault::fits_type;
use super::formats::format;
use super::refs::{DEPTH_MAX, VISITS_MAX, resolve};
use crate::digits::is_long_number;
use crate::gbnf::{Gbnf, LARK};

/// One possible form of a field's value.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Text {
    /// Any text.
    Free,
    /// This exact text.
    Literal(String),
    /// A text that all of these expressions match.
    Held(Vec<String>),
    /// A text of this grammar in Lark.
    Grammar(String),
    /// JSON of this schema.
    Json(Value),
}

/// The possible forms of a value of `schema`. If any text is allowed, that is the only form.
pub(super) fn texts(root: &Value, schema: &Value) -> Vec<Text> {
    let mut found = Vec::new();
    add(root, schema, 0, &mut 0, &mut found);
    if found.contains(&Text::Free) { vec![Text::Free] } else { found }
}

fn add(root: &Value, schema: &Value, depth: usize, visits: &mut usize, found: &mut Vec<Text>) {
    *visits += 1;
    if *visits > VISITS_MAX {
        return;
    }
    let json = || Text::Json(schema.clone());
    let meant = resolve(root, schema).filter(|_| depth < DEPTH_MAX);
    let Some(fields) = meant.and_then(Value::as_object) else { return found.push(json()) };
    let list = |key: &str| fields.get(key).and_then(Value::as_array);
    let one = fields.get("const").map(std::slice::from_ref);
    if let Some(values) = list("enum").map(Vec::as_slice).or(one) {
        let fitting = values.iter().filter(|value| fits_type(fields, value));
        found.extend(fitting.map(|value| match value {
            Value::String(text) if !is_long_number(value) => Text::Literal(text.clone()),
            other => Text::Json(json!({ "const": other })),
        }));
    } else if let Some(parts) = list("allOf") {
        let merged = merged(root, fields, parts);
        add(root, &merged, depth + 1, visits, found);
    } else if let Some(parts) = list("anyOf").or(list("oneOf")) {
        parts.iter().for_each(|part| add(root, part, depth + 1, visits, found));
    } else {
        by_type(fields, json(), found);
    }
}

/// A schema merged with its `allOf` parts.
fn merged(root: &Value, fields: &Map<String, Value>, parts: &[Value]) -> Value {
    let mut merged = fields.clone();
    merged.remove("allOf");
    merged.remove("$ref");
    for part in parts.iter().filter_map(|part| resolve(root, part)?.as_object()) {
        for (key, value) in part {
            match (merged.get_mut(key), value) {
                (Some(Value::Object(known)), Value::Object(more)) => known.extend(more.clone()),
                (Some(Value::Array(known)), Value::Array(more)) if key == "required" => {
                    known.extend(more.iter().cloned());
                }
                (Some(_), _) => {}
                (None, _) => {
                    merged.insert(key.clone(), value.clone());
                }
            }
        }
    }
    Value::Object(merged)
}

fn by_type(fields: &Map<String, Value>, json: Text, found: &mut Vec<Text>) {
    let is_string = |kind: &Value| kind == "string";
    match fields.get("type") {
        Some(kind) if is_string(kind) => found.push(string(fields)),
        Some(Value::Array(kinds)) if kinds.iter().any(is_string) => {
            found.push(string(fields));
            let others: Vec<&Value> = kinds.iter().filter(|kind| !is_string(kind)).collect();
            let mut rest = fields.clone();
            rest.insert("type".into(), json!(others));
            if !others.is_empty() {
                found.push(Text::Json(Value::Object(rest)));
            }
        }
        _ => found.push(json),
    }
}

fn string(fields: &Map<String, Value>) -> Text {
    let text = |key: &str| fields.get(key).and_then(Value::as_str);
    let count = |key: &str| fields.get(key).and_then(Value::as_u64);
    if let Some(Ok(Gbnf::Lark(grammar))) = text(LARK).map(Gbnf::of_lark) {
        return Text::Grammar(grammar);
    }
    let mut held = Vec::new();
    held.extend(text("pattern").map(searched));
    held.extend(text("format").and_then(format).map(str::to_owned));
    match (count("minLength"), count("maxLength")) {
        (None | Some(0), None) => {}
        (min, max) => {
            let max = max.map_or(String::new(), |max| max.to_string());
            held.push(format!("(?s:.{{{},{max}}})", min.unwrap_or(0)));
        }
    }
    if held.is_empty() { Text::Free } else { Text::Held(held) }
}

/// An expression for a whole text that contains a match of `pattern`.
fn searched(pattern: &str) -> String {
    let one = |choice: &str| {
        let (start, rest) = match choice.strip_prefix('^') {
            Some(rest) => ("", rest),
            None => ("(?s:.*)", choice),
        };
        let escapes = |text: &str| text.len() - text.trim_end_matches('\\').len();
        let (rest, end) = match rest.strip_suffix('$') {
            Some(rest) if escapes(rest) % 2 == 0 => (rest, ""),
            _ => (rest, "(?s:.*)"),
        };
        format!("{start}(?:{}){end}", ascii(rest))
    };
    choices(pattern).into_iter().map(one).collect::<Vec<_>>().join("|")
}

/// An expression's alternatives.
fn choices(pattern: &str) -> Vec<&str> {
    let (mut found, mut start) = (Vec::new(), 0);
    let (mut depth, mut in_class, mut is_escaped) = (0usize, false, false);
    for (at, ch) in pattern.char_indices() {
        if std::mem::take(&mut is_escaped) {
            continue;
        }
        match ch {
            '\\' => is_escaped = true,
            '[' => in_class = true,
            ']' => in_class = false,
            '(' if !in_class => depth += 1,
            ')' if !in_class => depth = depth.saturating_sub(1),
            '|' if !in_class && depth == 0 => {
                found.push(&pattern[start..at]);
                start = at + 1;
            }
            _ => {}
        }
    }
    found.push(&pattern[start..]);
    found
}

/// Rewrites `\d` and `\w` to their meaning in ECMAScript, the language of schema patterns.
fn ascii(pattern: &str) -> String {
    let mut written = String::with_capacity(pattern.len());
    let (mut in_class, mut is_escaped) = (false, false);
    for ch in pattern.chars() {
        if std::mem::take(&mut is_escaped) {
            match (ch, in_class) {
                ('d', false) => written.push_str("[0-9]"),
                ('d', true) => written.push_str("0-9"),
                ('w', false) => written.push_str("[0-9A-Za-z_]"),
                ('w', true) => written.push_str("0-9A-Za-z_"),
                (other, _) => written.extend(['\\', other]),
            }
            continue;
        }
        match ch {
            '\\' => is_escaped = true,
            '[' => in_class = true,
            ']' => in_class = false,
            _ => {}
        }
        if ch != '\\' {
            written.push(ch);
        }
    }
    written
}

#[cfg(test)]
mod tests {
    use regex_automata::meta::Regex;

    use super::*;

    #[test]
    fn ways() {
        let root = json!({"$defs": {"Name": {"type": "string"}, "Loop": {"$ref": "#/$defs/Loop"}}});
        let literal = |text: &str| Text::Literal(text.into());
        let held = |text: &str| Text::Held(vec![text.into()]);
        let integer = json!({"type": "integer"});
        let cases = [
            (json!({"type": "string"}), vec![Text::Free]),
            (json!({"$ref": "#/$defs/Name"}), vec![Text::Free]),
            (json!({"anyOf": [integer, {"$ref": "#/$defs/Name"}]}), vec![Text::Free]),
            (json!({"type": ["string", "null"]}), vec![Text::Free]),
            (json!({"enum": ["a", 1]}), vec![literal("a"), Text::Json(json!({"const": 1}))]),
            (json!({"type": "string", "enum": ["a", 1]}), vec![literal("a")]),
            (json!({"const": "a"}), vec![literal("a")]),
            (
                json!({"allOf": [{"$ref": "#/$defs/Name"}, {"maxLength": 3}]}),
                vec![held("(?s:.{0,3})")],
            ),
            (json!({"type": "string", "minLength": 1}), vec![held("(?s:.{1,})")]),
            (json!({"type": "string", "minLength": 0}), vec![Text::Free]),
            (
                json!({"type": ["string", "null"], "maxLength": 2}),
                vec![held("(?s:.{0,2})"), Text::Json(json!({"type": ["null"], "maxLength": 2}))],
            ),
            (integer.clone(), vec![Text::Json(integer)]),
            (json!({}), vec![Text::Json(json!({}))]),
        ];
        for (schema, expected) in cases {
            assert_eq!(texts(&root, &schema), expected, "{schema}");
        }
        let both = json!({"anyOf": [{"$ref": "#/$defs/R"}, {"$ref": "#/$defs/R"}]});
        assert!(!texts(&json!({"$defs": {"R": both}}), &both).is_empty(), "it ends");
        let looped = json!({"$ref": "#/$defs/Loop"});
        assert_eq!(texts(&root, &looped), [Text::Json(looped)]);
    }

    #[test]
    fn patterns_are_searched_for() {
        let cases = [
            ("^a|b$", vec!["a", "ab", "b", "xb"], vec!["xa", "bx"]),
            ("^[|]$", vec!["|"], vec!["a", "||"]),
            ("(a|b)", vec!["xax"], vec!["x"]),
            (r"^\d\$$", vec!["1$"], vec!["1", "x$"]),
            (r"^[\w-]+$", vec!["a_-1"], vec!["é", ""]),
            (r"a\$", vec!["a$", "xa$y"], vec!["a"]),
        ];
        for (pattern, good, bad) in cases {
            let regex = Regex::new(&format!("\\A(?:{})\\z", searched(pattern))).unwrap();
            for text in good {
                assert!(regex.is_match(text), "{pattern} {text}");
            }
            for text in bad {
                assert!(!regex.is_match(text), "{pattern} {text}");
            }
        }
    }
}

//! Integers are held by digits, wherever they stand in an answer.

use crate::support::Model;
use protocol::Grammar;
use serde_json::{Value, json};
use text::{lark_json, long_number};

fn grammar(schema: &Value) -> Grammar {
    assert_eq!(text::schema_fault(schema), None, "{schema}");
    Grammar::Lark(format!("start: {}", lark_json(schema)))
}

/// Schemas with an integer in them, and the text around it.
fn places(number: &Value) -> Vec<(Value, &'static str, &'static str)> {
    let object = |inner: Value| json!({"type": "object", "properties": {"n": inner}});
    let both = json!({"allOf": [{"type": "integer"}, number]});
    let more = json!({"type": "object", "additionalProperties": number});
    let of_list = json!({"type": "array", "items": number, "minItems": 2});
    let first = json!({"type": "array", "prefixItems": [{"const": 7}, number], "items": false});
    let defined = json!({"type": "object", "properties": {"l": {"$ref": "#/$defs/l"}},
        "$defs": {"l": {"type": "array", "items": {"anyOf": [{"$ref": "#/$defs/l"}, number]}}}});
    vec![
        (number.clone(), "", ""),
        (object(number.clone()), "{\"n\": ", "}"),
        (object(object(both)), "{\"n\":{\"n\": ", "} }"),
        (object(json!({"anyOf": [{"type": "null"}, number]})), "{\"n\":", "}"),
        (more, "{\"a\": ", "}"),
        (of_list, "[", ",NUMBER]"),
        (first, "[7, ", "]"),
        (defined, "{\"l\": [[], [[", "]]]}"),
    ]
}

#[test]
fn bounds_hold_to_the_digit_in_every_place() {
    let long = |text: &str| long_number(text).unwrap();
    let integer = |more: Value| {
        let mut schema = json!({"type": "integer"});
        schema.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        schema
    };
    let cases = [
        (
            integer(json!({"minimum": 0, "maximum": u64::MAX})),
            vec!["0", "18446744073709551615", "18446744073709551614"],
            vec!["-1", "18446744073709551616", "-0", "007"],
        ),
        (
            integer(json!({"minimum": i64::MIN, "maximum": i64::MAX})),
            vec!["-9223372036854775808", "9223372036854775807"],
            vec!["-9223372036854775809", "9223372036854775808"],
        ),
        (
            integer(json!({"exclusiveMinimum": 1_u64 << 53, "maximum": (1_u64 << 53) + 3})),
            vec!["9007199254740993", "9007199254740995"],
            vec!["9007199254740992", "9007199254740996"],
        ),
        (
            integer(json!({"minimum": long("100000000000000000001"),
                "exclusiveMaximum": long("100000000000000000000000000000000000000000004")})),
            vec!["100000000000000000001", "100000000000000000000000000000000000000000003"],
            vec!["100000000000000000000", "100000000000000000000000000000000000000000004", "5"],
        ),
        (
            integer(json!({"maximum": long("-100000000000000000000000000000000000000001")})),
            vec![
                "-100000000000000000000000000000000000000001",
                "-999999999999999999999999999999999999999999",
            ],
            vec!["-100000000000000000000000000000000000000000", "0", "1"],
        ),
        (
            integer(json!({"multipleOf": 500, "minimum": 1, "maximum": u64::MAX})),
            vec!["500", "18446744073709551500"],
            vec!["0", "501", "18446744073709552000", "50"],
        ),
        (
            json!({"enum": [long("-123456789012345678901234567890"), 9007199254740993_u64, 1]}),
            vec!["-123456789012345678901234567890", "9007199254740993", "1"],
            vec!["9007199254740992", "123456789012345678901234567890", "11"],
        ),
    ];
    let model = Model::all().next().unwrap();
    for (number, good, bad) in cases {
        for (schema, before, after) in places(&number) {
            let text = |number: &str| {
                let after = after.replace("NUMBER", good[0]);
                format!("{}{number}{after}", before)
            };
            let grammar = grammar(&schema);
            for number in &good {
                assert!(model.allows(&grammar, &text(number)), "{schema} {number}");
            }
            for number in &bad {
                assert!(!model.allows(&grammar, &text(number)), "{schema} {number}");
            }
        }
    }
}

/// Schemas with everything but integers that need this.
fn plain() -> Vec<Value> {
    let size = json!({"type": "integer", "minimum": 0, "maximum": 12});
    let item = json!({"type": "object", "required": ["s"], "properties": {
        "s": size, "t": {"type": "string", "maxLength": 4}, "u": {"enum": ["a", null, [1, {"b": 2}]]}}});
    vec![
        json!({"type": "object", "properties": {"a": size, "b": {"type": "boolean"}, "c": item},
            "required": ["b"]}),
        json!({"type": "array", "items": item, "minItems": 1, "maxItems": 3}),
        json!({"type": "array", "prefixItems": [size, {"type": "null"}], "items": size,
            "minItems": 1, "maxItems": 4}),
        json!({"type": "array", "items": [size, item], "additionalItems": false}),
        json!({"anyOf": [{"type": ["null", "boolean"]}, item, {"$ref": "#/$defs/tree"}],
            "$defs": {"tree": {"type": "array", "maxItems": 2, "items": {"$ref": "#/$defs/tree"}}}}),
        json!({"type": ["object", "string"], "maxLength": 3, "required": ["a"],
            "properties": {"a": size}, "minProperties": 1, "additionalProperties": false}),
        json!({"type": "object", "properties": {"a\"b": size, "é": size}, "required": ["é", "a\"b"]}),
    ]
}

/// A small model can write digits until its answer is cut.
#[test]
fn any_number_ends_within_objects_too() {
    let number = json!({"type": "number"});
    let nested = json!({"type": "object", "required": ["a", "b"], "properties": {
        "a": {"type": "array", "items": {"anyOf": [{"type": "null"}, number]}},
        "b": {"type": ["number", "boolean"]}}});
    let model = Model::all().next().unwrap();
    let grammar = grammar(&nested);
    let text = |number: &str| format!("{{\"a\": [null, {number}], \"b\": {number} }}");
    let digits = |count: usize| "7".repeat(count);
    for good in ["0", "-1.5e-7", &digits(40), &format!("0.{}", digits(40))] {
        assert!(model.allows(&grammar, &text(good)), "{good}");
    }
    let both = json!({"type": "object", "properties": {"n": number, "m": {"type": "integer"}}});
    let both = self::grammar(&both);
    for (integer, is_right) in [("9223372036854775807", true), ("9223372036854775808", false)] {
        let text = format!("{{\"n\": 0.5, \"m\": {integer} }}");
        assert_eq!(model.allows(&both, &text), is_right, "{integer}");
    }
    for bad in ["01", "1.", ".5", &digits(41), &format!("0.{}", digits(41)), "1e1000"] {
        assert!(!model.allows(&grammar, &text(bad)), "{bad}");
    }
}

/// The same schema, with a definition that nothing refers to and that is held by digits.
fn with_far(schema: &Value) -> Value {
    let mut far = schema.clone();
    let defined = far.as_object_mut().unwrap().entry("$defs").or_insert(json!({}));
    defined["far"] = json!({"type": "integer", "maximum": (1_u64 << 53) + 1});
    far
}

#[test]
fn other_fields_are_counted_as_before() {
    let nothing = json!({"type": "null"});
    let of = |least: usize, most: usize, required: &[&str]| {
        json!({"type": "object", "properties": {"a": nothing}, "additionalProperties": nothing,
            "required": required, "minProperties": least, "maxProperties": most})
    };
    let open = json!({"type": "object", "additionalProperties": nothing, "minProperties": 1});
    let cases = [(of(2, 3, &["a"]), 1, 2), (of(1, 2, &["a"]), 0, 1), (open, 1, 9)];
    let model = Model::all().next().unwrap();
    for (schema, least, most) in cases {
        let grammars = [&schema, &with_far(&schema)].map(grammar);
        for others in 0..5 {
            let first = if schema["required"].is_array() { vec!["a"] } else { vec![] };
            let keys =
                first.into_iter().chain(["b", "a b", "é", "ab", "bb"].into_iter().take(others));
            let fields: Vec<String> = keys.map(|key| format!("{key:?}: null")).collect();
            let text = format!("{{{}}}", fields.join(", "));
            for grammar in &grammars {
                let is_right = (least..=most).contains(&others);
                assert_eq!(model.allows(grammar, &text), is_right, "{schema} {text}");
            }
        }
        for wrong in ["{\"a\": null, \"a\": null}", "{\"b\": null}", "{\"a\": 1}", "{,}"] {
            // An object that lists no fields does not know which ones it has.
            let is_right = schema["required"].is_null() && wrong.ends_with(": null}");
            let allowed = grammars.each_ref().map(|grammar| model.allows(grammar, wrong));
            assert_eq!(allowed, [is_right; 2], "{schema} {wrong}");
        }
    }
}

/// Written as a grammar of its own, a schema allows what it allows otherwise, and nothing else.
#[test]
fn what_needs_no_digits_is_allowed_as_before() {
    let model = Model::all().next().unwrap();
    let mut lengths = 0;
    for schema in plain() {
        let [exact, plain] = [&with_far(&schema), &schema].map(grammar);
        let is_exact = |grammar: &Grammar| format!("{grammar:?}").contains("%lark");
        assert!(is_exact(&exact) && !is_exact(&plain), "{schema}");
        for seed in 0..60 {
            for (one, other) in [(&exact, &plain), (&plain, &exact)] {
                // One of several values may have white space in front.
                let text = model.text(&model.answer(one, seed)).trim_start().to_owned();
                assert!(model.allows(other, &text), "{schema} {text} of {one:?}");
                lengths += text.len();
            }
        }
    }
    assert!(lengths > 10_000, "{lengths}");
}

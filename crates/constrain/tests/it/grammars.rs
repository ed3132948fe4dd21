//! Random answers under a constraint fit the grammar, whatever a model would prefer.

use crate::support::{Model, tokens};
use constrain::{ConstrainError, Constraint, GRAMMAR_BYTES_MAX};
use protocol::{Grammar, Token};
use serde_json::{Value, json};
use text::{Held, ReplyFormat, ReplyParser, ReplyPart};

fn schema(schema: &Value) -> Grammar {
    Grammar::JsonSchema(schema.to_string())
}

#[test]
fn a_schema_is_kept_to() {
    let grammar = schema(&json!({
        "type": "object",
        "properties": {
            "colour": {"enum": ["red", "green", "dark blue"]},
            "sizes": {"type": "array", "items": {"$ref": "#/$defs/size"}, "maxItems": 3},
            "name": {"type": "string", "maxLength": 8},
            "ok": {"type": "boolean"},
        },
        "required": ["colour", "sizes"],
        "additionalProperties": false,
        "$defs": {"size": {"type": "integer", "minimum": -5, "maximum": 120}},
    }));
    for model in Model::all() {
        for seed in 0..40 {
            let text = model.text(&model.answer(&grammar, seed));
            let value: Value =
                serde_json::from_str(&text).unwrap_or_else(|e| panic!("{text}: {e}"));
            let object = value.as_object().unwrap();
            assert!(["red", "green", "dark blue"].contains(&object["colour"].as_str().unwrap()));
            let sizes = object["sizes"].as_array().unwrap();
            assert!(sizes.len() <= 3, "{text}");
            let is_size = |size: f64| size.fract() == 0.0 && (-5.0..=120.0).contains(&size);
            assert!(sizes.iter().all(|size| is_size(size.as_f64().unwrap())), "{text}");
            let name = object.get("name").map_or(Some(""), Value::as_str).unwrap();
            assert!(name.chars().count() <= 8, "{text}");
            let known = ["colour", "sizes", "name", "ok"];
            assert!(object.keys().all(|key| known.contains(&key.as_str())), "{text}");
        }
    }
}

#[test]
fn white_space_between_the_parts_of_json_has_a_limit() {
    let size = json!({"type": "integer", "minimum": 0, "maximum": 9});
    let grammar = schema(&text::tight_schema(&json!({
        "type": "object",
        "properties": {"sizes": {"type": "array", "items": size, "maxItems": 3}},
        "required": ["sizes"],
    })));
    for model in Model::all() {
        for seed in 0..40 {
            let text = model.text(&model.answer(&grammar, seed));
            let space = text.split(|c: char| !c.is_whitespace());
            for space in space.filter(|space| !space.is_empty()) {
                let line = space.trim_start_matches('\r').strip_prefix('\n');
                let fits = line.map_or(space == " ", |indent| indent.len() <= 20);
                assert!(fits, "{space:?} in {text}");
            }
        }
    }
}

#[test]
fn a_regex_is_kept_to() {
    let grammar = Grammar::Regex(r"(yes|no), [a-f]{3}-[0-9]{2}(é|/)".to_owned());
    for model in Model::all() {
        for seed in 0..40 {
            let text = model.text(&model.answer(&grammar, seed));
            let (word, rest) = text.split_once(", ").unwrap();
            assert!(["yes", "no"].contains(&word), "{text}");
            let (letters, digits) = rest.split_once('-').unwrap();
            assert!(letters.len() == 3 && letters.chars().all(|c| ('a'..='f').contains(&c)));
            assert!(digits.chars().take(2).all(|c| c.is_ascii_digit()), "{text}");
            assert!(digits.ends_with(['é', '/']) && digits.chars().count() == 3, "{text}");
        }
    }
}

#[test]
fn control_tokens_come_by_number_and_never_as_text() {
    for model in Model::all() {
        let special = (0..model.tokenizer.len() as Token)
            .find(|id| model.tokenizer.is_special(*id) && *id != model.end())
            .unwrap();
        let lark = format!("start: \"a\" <[{special}]> /(?s:.{{0,5}})/");
        for seed in 0..40 {
            let answer = model.answer(&Grammar::Lark(lark.clone()), seed);
            let at = answer.iter().position(|token| *token == special).unwrap();
            assert_eq!(model.text(&answer[..at]), "a");
            assert!(answer[at + 1..].iter().all(|token| !model.tokenizer.is_special(*token)));
        }
    }
}

#[test]
fn the_end_comes_where_the_answer_is_whole_and_only_there() {
    for model in Model::all() {
        let end = model.end();
        let mut constraint = model.vocabulary.compile(&Grammar::Regex("ab?".into())).unwrap();
        let allowed = |constraint: &mut Constraint| tokens(constraint.allowed(&[end]).unwrap());
        assert!(!allowed(&mut constraint).contains(&end));
        constraint.take(model.tokenizer.find_token("a").unwrap()).unwrap();
        assert!(allowed(&mut constraint).contains(&end));
        assert!(!constraint.is_done());
        constraint.take(model.tokenizer.find_token("b").unwrap()).unwrap();
        assert!(constraint.is_done(), "nothing may follow");
    }
}

#[test]
fn hostile_and_broken_grammars_are_refused() {
    let nested = |open: &str, close: &str| open.repeat(5000) + &close.repeat(5000);
    let lark = |text: &str| Grammar::Lark(text.to_owned());
    let model = Model::all().next().unwrap();
    for grammar in [
        Grammar::JsonSchema("{".into()),
        Grammar::JsonSchema(nested("[", "]")),
        schema(&json!({"$ref": "#/$defs/none"})),
        schema(&json!({"$ref": "http://example.com/schema.json"})),
        schema(&json!({"type": "object", "not": {"type": "string"}})),
        schema(&json!(false)),
        Grammar::Regex(nested("(", ")")),
        Grammar::Regex("(((((a{1,1000}){1,1000}){1,1000}){1,1000}){1,1000}".into()),
        Grammar::Regex("(".into()),
        Grammar::Regex("(?=a)b".into()),
        Grammar::Regex(format!("[{}", "a".repeat(GRAMMAR_BYTES_MAX))),
        lark("start: missing"),
        lark("start: start"),
        lark("start: \"a"),
        lark(&format!("start: {}", nested("(", ")"))),
        lark("start: <[99999999]>"),
        lark("start: %json {"),
        lark(""),
    ] {
        let error = model.refuse(grammar.clone()).to_string();
        assert!(error.contains("grammar") && error.len() < 2000, "{error}");
    }
}

#[test]
fn a_grammar_that_can_never_match_says_so_and_a_regex_what_is_wrong_with_it() {
    let model = Model::all().next().unwrap();
    assert_eq!(model.refuse(Grammar::Lark("start: start".into())), ConstrainError::DeadEnd);
    let error = model.refuse(Grammar::Regex("[0-9".into())).to_string();
    assert!(error.contains("unclosed character class"), "{error}");
}

#[test]
fn a_grammar_that_costs_too_much_on_the_way_ends_with_an_error_or_the_answer() {
    let model = Model::all().next().unwrap();
    let lark = "start: x\nx: x x | x x x | \"a\" | \"aa\" | ".to_owned();
    let regex = r"(.*a.{1,40}b.*c.{1,40}d)*".to_owned();
    for grammar in [Grammar::Lark(lark), Grammar::Regex(regex)] {
        let Ok(mut constraint) = model.vocabulary.compile(&grammar) else { continue };
        let mut rng = fastrand::Rng::with_seed(7);
        for _ in 0..300 {
            let Ok(allowed) = constraint.allowed(&[]) else { break };
            let allowed = tokens(allowed);
            if constraint.take(allowed[rng.usize(..allowed.len())]).is_err() {
                break;
            }
        }
    }
}

/// A required call of `act` with arguments of `schema`, in the form of a template and drawn at
/// random.
fn demanded(model: &Model, template: &str, schema: &Value, seed: u64) -> Value {
    let format = ReplyFormat::detect(template);
    let tools = [json!({"type": "function", "function": {"name": "act", "parameters": schema}})];
    let prompt = if template.starts_with(">>>") { ">>>" } else { "" };
    let lark = format.call_grammar(&model.tokenizer, prompt, &tools, false, None);
    let text = model.text(&model.answer(&Grammar::Lark(lark), seed));
    let mut parser = ReplyParser::new(&format, prompt, &tools).held(Held::Calls);
    let mut parts = parser.push(&text);
    parts.extend(parser.finish());
    match &parts[..] {
        [.., ReplyPart::Call(call)] if call.name == "act" => call.arguments.clone(),
        other => panic!("{template} {schema}\n{text}\n{other:?}"),
    }
}

#[test]
fn tagged_calls_are_held_to_the_whole_schema() {
    type Check = fn(&Value) -> bool;
    let cases: [(Value, Check); 9] = [
        (
            json!({"$ref": "#/$defs/a~1R", "$defs": {"a/R": {"type": "object", "required": ["a"],
                "properties": {"a": {"type": "integer", "minimum": 0, "maximum": 99}, "b": {"const": "x"}}}}}),
            |found| found["a"].is_i64() && found.get("b").is_none_or(|b| b == "x"),
        ),
        (
            json!({"anyOf": [
                {"properties": {"a": {"type": "boolean"}}, "required": ["a"]},
                {"properties": {"b": {"type": "integer", "minimum": 0, "maximum": 99}}, "required": ["b"]},
            ]}),
            |found| found["a"].is_boolean() != found["b"].is_i64(),
        ),
        (
            json!({"allOf": [
                {"properties": {"a": {"type": "boolean"}}, "required": ["a"]},
                {"properties": {"b": {"enum": ["x", 7, null]}}, "required": ["b"]},
            ]}),
            |found| {
                let b = found.get("b");
                found["a"].is_boolean()
                    && [json!("x"), json!(7), json!(null)].iter().any(|one| b == Some(one))
            },
        ),
        (
            json!({"properties": {"a": {"type": "integer", "minimum": 0, "maximum": 99}}, "required": ["a"],
                "additionalProperties": {"type": "boolean"}}),
            |found| {
                let fields = found.as_object().unwrap().iter();
                fields.clone().any(|(key, _)| key == "a")
                    && fields
                        .clone()
                        .all(|(key, one)| if key == "a" { one.is_i64() } else { one.is_boolean() })
            },
        ),
        (
            json!({"properties": {"a": {"type": "string", "pattern": "^[a-c]+-[0-9]$", "maxLength": 5}},
                "required": ["a"]}),
            |found| {
                let (letters, digit) = found["a"].as_str().unwrap().split_once('-').unwrap();
                (1..4).contains(&letters.len())
                    && letters.bytes().all(|byte| b"abc".contains(&byte))
                    && digit.len() == 1
            },
        ),
        (
            json!({"properties": {"a": {"type": "string", "minLength": 2, "maxLength": 4}},
                "required": ["a"]}),
            |found| (2..=4).contains(&found["a"].as_str().unwrap().chars().count()),
        ),
        (
            json!({"properties": {"a": {"type": "string", "format": "uuid"}}, "required": ["a"]}),
            |found| found["a"].as_str().unwrap().len() == 36,
        ),
        (
            json!({"properties": {"a": {"anyOf": [{"$ref": "#/$defs/D"}, {"type": "null"}]}},
                "required": ["a"], "$defs": {"D": {"type": "string", "format": "date"}}}),
            |found| found["a"].is_null() || found["a"].as_str().unwrap().len() == 10,
        ),
        (json!({"type": "object", "properties": {}}), |found| *found == json!({})),
    ];
    let templates =
        ["<tool_call>\n<function=", "<tool_call>{{ name }}<arg_key>", "<minimax:tool_call>"];
    for model in Model::all() {
        for template in templates {
            for (schema, check) in &cases {
                for seed in 0..10 {
                    let found = demanded(&model, template, schema, seed);
                    assert!(check(&found), "{template} {schema} {found}");
                }
            }
        }
    }
}

/// A tagged call respects the field counts of its schema.
#[test]
fn digits_end_where_a_model_would_write_them_for_ever() {
    for model in Model::all() {
        for number in ["integer", "number"] {
            let lark = format!("start: {}", text::lark_json(&json!({"type": number})));
            let mut constraint = model.vocabulary.compile(&Grammar::Lark(lark)).unwrap();
            let mut digits = String::new();
            while !constraint.is_done() {
                let allowed = tokens(constraint.allowed(&[model.end()]).unwrap());
                let nine = |token: &&Token| model.text(&[**token]) == "9";
                let Some(token) = allowed.iter().find(nine) else { break };
                constraint.take(*token).unwrap();
                digits += "9";
            }
            assert_eq!(digits.len(), 40, "{number}");
        }
    }
}

#[test]
fn tagged_calls_are_counted() {
    let any = |names: &[&str]| -> Value {
        names.iter().map(|name| (name.to_string(), json!({"type": "boolean"}))).collect()
    };
    let cases = [
        (json!({"properties": any(&["a", "b", "c"]), "minProperties": 2}), 2..=3),
        (json!({"properties": any(&["a", "b", "c"]), "maxProperties": 1}), 0..=1),
        (
            json!({"properties": any(&["a", "b", "c", "d"]), "required": ["c"],
                "minProperties": 2, "maxProperties": 3}),
            2..=3,
        ),
        (
            json!({"additionalProperties": {"type": "boolean"}, "minProperties": 1,
                "maxProperties": 2}),
            1..=2,
        ),
        (
            json!({"properties": any(&["a"]), "additionalProperties": {"type": "boolean"},
                "allOf": [{"minProperties": 1}]}),
            1..=usize::MAX,
        ),
        // Nothing fits, so the count is not enforced.
        (json!({"properties": any(&["a"]), "minProperties": 5}), 0..=1),
    ];
    for model in Model::all() {
        for template in ["<tool_call>\n<function=", "<tool_call>{{ name }}<arg_key>"] {
            for (schema, counts) in &cases {
                for seed in 0..20 {
                    let found = demanded(&model, template, schema, seed);
                    let count = found.as_object().unwrap().len();
                    // A name drawn twice counts once.
                    let is_free = schema.get("additionalProperties").is_some();
                    let least = if is_free { 1 } else { *counts.start() };
                    assert!((least..=*counts.end()).contains(&count), "{schema} {found}");
                }
            }
        }
    }
}

/// In each form, the arguments of a call are an object that fits its schema.
#[test]
fn calls_have_arguments_in_every_form() {
    let limited = json!({"type": "integer", "minimum": 0, "maximum": 9});
    let cases = [
        json!({"additionalProperties": false}),
        json!({"type": ["object", "null"], "required": ["weird key!"],
            "properties": {"weird key!": limited}}),
        json!({"type": ["array", "object"], "additionalProperties": false}),
        json!({"required": ["a", "b"],
            "properties": {"a": {"$ref": "#/properties/b"}, "b": limited}}),
        json!({"properties": {"a": {"$ref": "#"}, "b": limited}, "required": ["b"]}),
        json!({"properties": {"a": {"type": "string", "enum": ["x", 1]}}, "required": ["a"]}),
        json!({"properties": {"a": {"not": {}}, "b": {"type": "number"}}, "required": ["b"]}),
    ];
    let templates = [
        "<tool_call></tool_call>",
        "<tool_call>\n<function=",
        "<tool_call>{{ name }}<arg_key>",
        "<minimax:tool_call>",
        "<seed:tool_call><function=",
        "<|tool_call_start|>",
        "[TOOL_CALLS][ARGS]",
        "]<]minimax[>[",
        ">>>all\n",
    ];
    for model in Model::all() {
        for template in templates {
            for schema in &cases {
                for seed in 0..4 {
                    let found = demanded(&model, template, schema, seed);
                    let required = schema["required"].as_array().into_iter().flatten();
                    let has = |name: &Value| found.get(name.as_str().unwrap()).is_some();
                    assert!(found.is_object() && required.clone().all(has), "{schema} {found}");
                    assert!(found["a"] != json!(1) || found["b"].is_i64(), "{schema} {found}");
                }
            }
        }
    }
}

#[test]
fn bounds_and_spellings_of_references_compile() {
    let schema = text::tight_schema(&json!({
        "type": "object",
        "properties": {
            "b": {"$ref": "#/definitions/List%3CA%3E"},
        },
        "required": ["b"],
        "definitions": {"List<A>": {"type": "array", "items": {"$ref": "#/definitions/x~1y"},
            "maxItems": 2}, "x/y": {"type": "boolean"}},
    }));
    let far = json!({"type": "number", "minimum": -1.7e308, "maximum": f64::MAX});
    let far = self::schema(&text::tight_schema(&far));
    for model in Model::all() {
        let mut far = model.vocabulary.compile(&far).unwrap();
        far.allowed(&[model.end()]).unwrap();
        for seed in 0..10 {
            let text = model.text(&model.answer(&self::schema(&schema), seed));
            let value: Value = serde_json::from_str(&text).unwrap();
            let items = value["b"].as_array().unwrap();
            assert!(items.len() < 3 && items.iter().all(Value::is_boolean), "{text}");
        }
    }
}

#[test]
fn calls_to_recipients_compile() {
    let template = "<|start|>assistant to=self<|message|><|eom|><atem:function_calls>";
    let format = ReplyFormat::detect(template);
    let schema = json!({"type": "object", "properties": {"a": {"enum": ["x", 7]}}});
    let tools = [json!({"type": "function", "function": {"name": "act", "parameters": schema}})];
    for model in Model::all() {
        for otherwise in [None, Some("/[a-z]{1,9}/")] {
            let lark = format.call_grammar(&model.tokenizer, "", &tools, true, otherwise);
            let mut constraint = model.vocabulary.compile(&Grammar::Lark(lark)).unwrap();
            let allowed = tokens(constraint.allowed(&[model.end()]).unwrap());
            let mut first: Vec<String> = allowed.iter().map(|one| model.text(&[*one])).collect();
            first.retain(|text| !" to=".starts_with(text.as_str()) && !text.starts_with(" to="));
            assert_eq!(first, [""; 0], "each message begins with its recipient");
        }
    }
}

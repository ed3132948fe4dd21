//! Texts of custom tools, held to their grammars in Lark, in every form of calls.

use crate::support::Model;
use protocol::Grammar;
use serde_json::{Value, json};
use text::{Gbnf, ReplyFormat, lark_json};

/// A grammar without recursion, and one with it.
const LINES: &str = "start: \"<<\" LF line+ \">\"\nline: (\"+\" | \"-\") /(.*)/ LF\n\
                     %import common.LF\n";
const NESTED: &str = "start: value\nvalue: NUMBER | TEXT | \"[\" (value (\",\" value)*)? \"]\"\n\
                      NUMBER: /[0-9]{1,3}/\nTEXT: \"\\\"\" /[^\"]/ ~ 0..4 \"\\\"\"\n\
                      %ignore /[ \\n]/\n";

const CASES: [(&str, &[&str], &[&str]); 2] = [
    (
        LINES,
        &["<<\n+a \"b\" \\\n>", "<<\n-\n+</parameter>\n>", "<<\n+é\t\n>"],
        &["<<\n>", "<<\na\n>", "<<\n+a\n", "+a"],
    ),
    (
        NESTED,
        &["7", "[1, [2],\n [\"a\n\\\"]]", "[]", "\"</p>\"", " 1 "],
        &["", "[1", "[1,]", "1234", "\"12345\"", "[1]]"],
    ),
];

fn tool(definition: &str) -> Value {
    let input = Gbnf::schema_of_lark(definition).unwrap();
    assert_eq!(text::schema_fault(&input), None);
    json!({"type": "function", "function": {"name": "run", "parameters": {
        "type": "object", "properties": {"input": input}, "required": ["input"],
        "additionalProperties": false}}})
}

#[test]
fn a_text_within_json_matches_its_grammar() {
    let model = Model::all().next().unwrap();
    for (definition, good, bad) in CASES {
        let schema = &tool(definition)["function"]["parameters"];
        let grammar = Grammar::Lark(format!("start: {}", lark_json(schema)));
        let all = good.iter().map(|text| (text, true)).chain(bad.iter().map(|text| (text, false)));
        for (text, is_allowed) in all {
            let json = json!({ "input": text }).to_string();
            assert_eq!(model.allows(&grammar, &json), is_allowed, "{definition}: {json}");
        }
    }
}

#[test]
fn a_text_between_tags_matches_its_grammar() {
    let format = ReplyFormat::detect("<tool_call>\n<function=");
    let model = Model::all().next().unwrap();
    for (definition, good, bad) in CASES {
        let lark = format.call_grammar(&model.tokenizer, "", &[tool(definition)], false, None);
        let grammar = Grammar::Lark(lark);
        let all = good.iter().map(|text| (text, true)).chain(bad.iter().map(|text| (text, false)));
        for (text, is_allowed) in all {
            let call = format!(
                "<tool_call>\n<function=run>\n<parameter=input>\n{text}\n</parameter>\n\
                 </function>\n</tool_call>"
            );
            assert_eq!(model.allows(&grammar, &call), is_allowed, "{definition}: {call}");
        }
    }
}

#[test]
fn random_texts_of_a_grammar_are_read_as_json() {
    for model in Model::all() {
        for seed in 0..20 {
            let nested = "start: \"(\" start \")\" | /[\\x00-\\x7f]{1,5}/s";
            let schema = Gbnf::schema_of_lark(nested).unwrap();
            let grammar = Grammar::Lark(format!("start: {}", lark_json(&schema)));
            let text = model.text(&model.answer(&grammar, seed));
            let read: Result<String, _> = serde_json::from_str(&text);
            assert!(read.is_ok(), "{text}");
        }
    }
}

//! Replies of `replies.json`, whole and in pieces of one to seven characters.
//!
//! A case has the marks of a template, the prompt's end, the reply, and its expected parts; all
//! tools are offered. `held` is the grammar of the reply; `cut` means that a limit ended it. Each
//! of `values` is also written in each of `writings`, as `TEXT` or as `JSON`: whatever marks it
//! contains, it must come out unchanged.

use serde_json::{Value, json};
use text::{Held, ReplyFormat, ReplyParser, ReplyPart};

pub fn read() -> Value {
    serde_json::from_str(include_str!("replies.json")).unwrap()
}

pub fn list<'v>(all: &'v Value, key: &str) -> &'v [Value] {
    all[key].as_array().unwrap()
}

pub fn parser(case: &Value, tools: &[Value]) -> ReplyParser {
    let held = match case["held"].as_str() {
        None => Held::Free,
        Some("Text") => Held::Text,
        Some("Calls") => Held::Calls,
        Some("TextOrCalls") => Held::TextOrCalls,
        Some("Whole") => Held::Whole,
        Some(other) => panic!("{other}"),
    };
    let format = ReplyFormat::detect(case["template"].as_str().unwrap());
    ReplyParser::new(&format, case["prompt"].as_str().unwrap_or(""), tools).held(held)
}

/// The parts, with consecutive ones of the same kind joined.
fn parts(case: &Value, tools: &[Value], piece_chars: usize) -> Value {
    let mut parser = parser(case, tools);
    let reply: Vec<char> = case["reply"].as_str().unwrap().chars().collect();
    let mut parts = Vec::new();
    for piece in reply.chunks(piece_chars) {
        parts.extend(parser.push(&piece.iter().collect::<String>()));
    }
    parts.extend(if case["cut"] == json!(true) { parser.cut() } else { parser.finish() });
    let mut joined: Vec<Value> = Vec::new();
    // The name, id and arguments of a call in progress.
    let mut begun: Option<(String, String, String)> = None;
    for part in parts {
        let (kind, text) = match part {
            ReplyPart::Begin { id, name } => {
                assert_eq!(begun.replace((id, name, String::new())), None);
                continue;
            }
            ReplyPart::Arguments(piece) => {
                begun.as_mut().expect("a call has begun").2.push_str(&piece);
                continue;
            }
            ReplyPart::Reasoning(text) => ("thought", text),
            ReplyPart::Text(text) => ("text", text),
            ReplyPart::Call(call) => {
                if let Some((id, name, written)) = begun.take() {
                    assert_eq!((&id, &name), (&call.id, &call.name), "{case}");
                    let whole = call.arguments_text();
                    assert!(whole.starts_with(&written), "{case}: {written} in {whole}");
                }
                joined.push(json!(["call", call.name, call.arguments, call.id]));
                continue;
            }
        };
        match joined.last_mut() {
            Some(last) if last[0] == kind => {
                last[1] = json!(last[1].as_str().unwrap().to_owned() + &text);
            }
            _ => joined.push(json!([kind, text])),
        }
        assert_eq!(begun, None, "{case}");
    }
    assert_eq!(begun, None, "{case}");
    Value::Array(joined)
}

/// Checks the parts for every cut.
fn check(case: &Value, tools: &[Value]) -> Result<(), String> {
    for piece_chars in [usize::MAX, 1, 2, 3, 4, 5, 6, 7] {
        let found = parts(case, tools, piece_chars);
        if found != case["parts"] {
            let (name, reply, expected) = (&case["name"], &case["reply"], &case["parts"]);
            return Err(format!(
                "{name}, in {piece_chars}: {reply}\n  became   {found}\n  expected {expected}"
            ));
        }
    }
    Ok(())
}

#[test]
fn every_reply_in_every_cut() {
    let all = read();
    let checked = list(&all, "cases").iter().map(|case| check(case, list(&all, "tools")));
    let wrong: Vec<String> = checked.filter_map(Result::err).collect();
    assert!(wrong.is_empty(), "{} replies:\n{}", wrong.len(), wrong.join("\n"));
}

#[test]
fn every_value_in_every_writing() {
    let all = read();
    let mut wrong = Vec::new();
    for writing in list(&all, "writings") {
        for value in list(&all, "values") {
            let reply = writing["reply"].as_str().unwrap();
            let reply = reply.replace("TEXT", value.as_str().unwrap());
            let reply = reply.replace("JSON", &value.to_string());
            let arguments = json!({"path": "a", "content": value});
            let id = writing["id"].as_str().unwrap_or("");
            let mut case = writing.clone();
            case["parts"] = match writing["held"].as_str() {
                Some(_) => json!([["text", reply]]),
                None => json!([["call", "write_file", arguments, id]]),
            };
            if let Some((thought, _)) = reply.split_once("\n").filter(|(first, _)| *first == "Hm.")
            {
                case["parts"].as_array_mut().unwrap().insert(0, json!(["thought", thought]));
            }
            case["reply"] = json!(reply);
            wrong.extend(check(&case, list(&all, "tools")).err());
        }
    }
    assert!(wrong.is_empty(), "{} replies:\n{}", wrong.len(), wrong.join("\n"));
}

/// Text that cannot be a call is emitted at once, except white space and a partial mark at its end.
#[test]
fn text_is_never_held_back() {
    let all = read();
    let plain = ["Hello, ", "{\"age\": 3, ", "[1, 2, ", "```python\nprint(1)\n", "a < b <t", "x: "];
    let free = |case: &&Value| case["held"].is_null() && case["prompt"].is_null();
    let given = |parts: Vec<ReplyPart>| -> String {
        let text = |part: ReplyPart| match part {
            ReplyPart::Text(text) => text,
            other => panic!("{other:?}"),
        };
        parts.into_iter().map(text).collect()
    };
    for case in list(&all, "cases").iter().filter(free) {
        for text in plain {
            let mut parser = parser(case, list(&all, "tools"));
            let first: String =
                text.chars().map(|ch| given(parser.push(&ch.to_string()))).collect();
            let held = &text[first.len()..];
            assert!(held.trim().len() <= 2, "{held:?} of {text:?}");
            assert_eq!(first + &given(parser.finish()), text);
        }
    }
}

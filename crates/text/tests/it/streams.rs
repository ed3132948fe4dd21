//! Calls while they are written: in pieces, and cut anywhere.

use serde_json::{Value, json};
use text::{ReplyParser, ReplyPart};

use crate::replies::{list, parser, read};

/// What parts add up to, and the pieces of arguments that came before their calls' ends.
#[derive(Debug, Default, PartialEq)]
struct Sum {
    parts: Vec<Value>,
    pieces: Vec<String>,
}

impl Sum {
    fn add(&mut self, parts: Vec<ReplyPart>) {
        for part in parts {
            let (kind, text) = match part {
                ReplyPart::Begin { .. } => continue,
                ReplyPart::Arguments(piece) => {
                    self.pieces.push(piece);
                    continue;
                }
                ReplyPart::Call(call) => {
                    self.parts.push(json!(["call", call.name, call.arguments_text()]));
                    continue;
                }
                ReplyPart::Text(text) => ("text", text),
                ReplyPart::Reasoning(text) => ("thought", text),
            };
            match self.parts.last_mut().filter(|last| last[0] == kind) {
                Some(last) => last[1] = json!(last[1].as_str().unwrap().to_owned() + &text),
                None => self.parts.push(json!([kind, text])),
            }
        }
    }
}

fn run(mut parser: ReplyParser, reply: &[char], size: usize, is_cut: bool) -> Sum {
    let mut sum = Sum::default();
    for piece in reply.chunks(size) {
        sum.add(parser.push(&piece.iter().collect::<String>()));
    }
    sum.add(if is_cut { parser.cut() } else { parser.finish() });
    sum
}

/// The replies of the table, and one in each form.
fn replies(all: &Value) -> Vec<Value> {
    let written = list(all, "writings").iter().map(|writing| {
        let (text, mut case) = ("a \"b\"\n</x> é <y>", writing.clone());
        let reply = writing["reply"].as_str().unwrap().replace("TEXT", text);
        case["reply"] = json!(reply.replace("JSON", &json!(text).to_string()));
        case
    });
    written.chain(list(all, "cases").iter().cloned()).collect()
}

/// Wherever a reply ends, its parts do not depend on the pieces in which it comes.
#[test]
fn a_reply_that_ends_anywhere_is_the_same_in_pieces() {
    let all = read();
    let mut random = fastrand_like(7);
    for case in replies(&all) {
        let reply: Vec<char> = case["reply"].as_str().unwrap().chars().collect();
        for end in 0..=reply.len() {
            let (reply, is_cut) = (&reply[..end], end % 2 == 0);
            let parse = |size| run(parser(&case, list(&all, "tools")), reply, size, is_cut).parts;
            let size = 1 + random() % 7;
            let (whole, pieces) = (parse(usize::MAX), parse(size));
            let shown: String = reply.iter().collect();
            assert_eq!(whole, pieces, "{} in {size}, cut: {is_cut}: {shown}", case["name"]);
        }
    }
}

/// Numbers that look random.
fn fastrand_like(mut seed: u64) -> impl FnMut() -> usize {
    move || {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (seed >> 33) as usize
    }
}

/// In every form whose calls are known by their beginning, a long text comes in pieces. Calls that
/// only the end of the reply makes calls come whole.
#[test]
fn a_long_text_comes_in_pieces() {
    let all = read();
    let text = "All work and no play. ".repeat(20);
    for writing in list(&all, "writings").iter().filter(|writing| writing["held"].is_null()) {
        let name = writing["name"].as_str().unwrap();
        let reply = writing["reply"].as_str().unwrap().replace("TEXT", &text);
        let reply: Vec<char> = reply.replace("JSON", &json!(text).to_string()).chars().collect();
        let sum = run(parser(writing, list(&all, "tools")), &reply, 4, false);
        let whole = json!({"path": "a", "content": text}).to_string();
        let call = sum.parts.last().unwrap();
        assert_eq!(call[2], whole, "{name}");
        let comes_whole = name == "a fence"
            // With a line break at its start, a value may end with one that is none of it.
            || name == "MiniMax";
        let pieces = sum.pieces.len();
        assert_eq!(pieces > 60, !comes_whole, "{name}: {pieces} pieces");
        if pieces > 0 {
            assert_eq!(sum.pieces.concat(), whole, "{name}");
        }
    }
}

/// What turns out to be no call never shows a piece.
#[test]
fn what_is_no_call_shows_no_piece() {
    let all = read();
    for case in list(&all, "cases") {
        let is_call = |part: &Value| part[0] == "call";
        if list(case, "parts").iter().any(is_call) {
            continue;
        }
        let reply: Vec<char> = case["reply"].as_str().unwrap().chars().collect();
        let sum = run(parser(case, list(&all, "tools")), &reply, 1, case["cut"] == json!(true));
        assert_eq!(sum.pieces, Vec::<String>::new(), "{}", case["name"]);
    }
}

/// A grammar makes sure of calls without marks.
#[test]
fn a_call_that_is_held_comes_in_pieces_without_marks() {
    let all = read();
    let text = "All work and no play. ".repeat(20);
    let case = json!({"template": "<|python_tag|>", "held": "Calls"});
    let object = json!({"name": "write_file", "parameters": {"path": "a", "content": text}});
    let reply: Vec<char> = object.to_string().chars().collect();
    let sum = run(parser(&case, list(&all, "tools")), &reply, 4, false);
    assert!(sum.pieces.len() > 60, "{sum:?}");
    assert_eq!(sum.pieces.concat(), object["parameters"].to_string());
}

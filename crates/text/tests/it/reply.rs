//! Replies in the formats of the published families, whole and in pieces.

use proptest::prelude::*;
use serde_json::{Value, json};
use text::{ReplyFormat, ReplyParser, ReplyPart, ToolCall};

fn tools() -> Vec<Value> {
    let parameters = json!({
        "type": "object",
        "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
    });
    vec![json!({"type": "function", "function": {"name": "weather", "parameters": parameters}})]
}

fn call(id: &str, arguments: Value) -> ReplyPart {
    ReplyPart::Call(ToolCall { id: id.into(), name: "weather".into(), arguments })
}

fn text(text: &str) -> ReplyPart {
    ReplyPart::Text(text.into())
}

fn thought(text: &str) -> ReplyPart {
    ReplyPart::Reasoning(text.into())
}

/// Parses a reply cut into `pieces` and joins parts of the same kind.
fn parse(template: &str, prompt: &str, tools: &[Value], pieces: &[&str]) -> Vec<ReplyPart> {
    let mut parser = ReplyParser::new(&ReplyFormat::detect(template), prompt, tools);
    let mut parts: Vec<ReplyPart> = pieces.iter().flat_map(|piece| parser.push(piece)).collect();
    parts.extend(parser.finish());
    let mut joined: Vec<ReplyPart> = Vec::new();
    let is_piece =
        |part: &ReplyPart| matches!(part, ReplyPart::Begin { .. } | ReplyPart::Arguments(_));
    for part in parts.into_iter().filter(|part| !is_piece(part)) {
        match (joined.last_mut(), part) {
            (Some(ReplyPart::Text(all)), ReplyPart::Text(more))
            | (Some(ReplyPart::Reasoning(all)), ReplyPart::Reasoning(more)) => all.push_str(&more),
            (_, part) => joined.push(part),
        }
    }
    joined
}

const QWEN: &str = "<think></think><tool_call></tool_call>";
const LLAMA: &str = "<|python_tag|>";
const MISTRAL: &str = "[TOOL_CALLS]";
const KIMI: &str = "<|tool_calls_section_begin|>";
const DEEPSEEK: &str = "<think><｜tool▁calls▁begin｜>";
const MINIMAX: &str = "<minimax:tool_call>";
const LFM: &str = "<think><|tool_call_start|>";
const OLMO: &str = "<function_calls>";
const GEMMA: &str = "<|channel>thought <|tool_call>";
const OSS: &str = "<|start|><|channel|><|message|>";

/// (template, end of the prompt, reply, expected parts)
fn cases() -> Vec<(&'static str, &'static str, &'static str, Vec<ReplyPart>)> {
    let koeln = || json!({"city": "Köln", "days": 2});
    vec![
        ("", "", "Hello <think> you\n", vec![text("Hello <think> you\n")]),
        (QWEN, "", "<think>\nHm.\n</think>\n\nHi!", vec![thought("Hm."), text("Hi!")]),
        (QWEN, "<think>\n", "Hm.\n</think>\n\nHi!", vec![thought("Hm."), text("Hi!")]),
        (QWEN, "<think>\n\n</think>\n\n", "Hi!", vec![text("Hi!")]),
        (QWEN, "<think>", "never ends ", vec![thought("never ends ")]),
        (
            QWEN,
            "",
            "Look:\n<tool_call>\n{\"name\": \"weather\", \"arguments\": {\"city\": \"Köln\", \"days\": 2}}\n\
             </tool_call>\n<tool_call>{\"name\": \"weather\", \"arguments\": \"{}\"}</tool_call>\n",
            vec![text("Look:"), call("", koeln()), call("", json!({}))],
        ),
        (
            QWEN,
            "",
            "<tool_call>\n<function=weather>\n<parameter=city>\n12\n</parameter>\n<parameter=days>\n2\n\
             </parameter>\n</function>\n</tool_call>",
            vec![call("", json!({"city": "12", "days": 2}))],
        ),
        (
            QWEN,
            "",
            "<tool_call>weather\n<arg_key>city</arg_key>\n<arg_value>Köln</arg_value>\n\
             <arg_key>days</arg_key>\n<arg_value>2</arg_value>\n</tool_call>",
            vec![call("", koeln())],
        ),
        (QWEN, "", "<tool_call>weather</tool_call>", vec![call("", json!({}))]),
        (
            QWEN,
            "",
            "a <tool_call>{oops</tool_call> b",
            vec![text("a <tool_call>{oops</tool_call> b")],
        ),
        (QWEN, "", "<tool_call>{\"name\"", vec![text("<tool_call>{\"name\"")]),
        (QWEN, "", "1 < 2 <tool", vec![text("1 < 2 <tool")]),
        (
            LLAMA,
            "",
            "{\"name\": \"weather\", \"parameters\": {\"city\": \"Köln\", \"days\": 2}}",
            vec![call("", koeln())],
        ),
        (
            LLAMA,
            "",
            "<|python_tag|>{\"name\": \"weather\", \"parameters\": {}}; {\"name\": \"weather\"}",
            vec![call("", json!({})), call("", json!({}))],
        ),
        (
            LLAMA,
            "",
            "{\"name\": \"Ann\", \"age\": 3}",
            vec![text("{\"name\": \"Ann\", \"age\": 3}")],
        ),
        (LLAMA, "", "<|python_tag|>print(1)", vec![text("<|python_tag|>print(1)")]),
        (
            MISTRAL,
            "",
            "[TOOL_CALLS] [{\"name\": \"weather\", \"arguments\": {\"city\": \"Köln\", \"days\": 2}, \
             \"id\": \"a1\"}]",
            // An id behind the arguments comes too late.
            vec![call("", koeln())],
        ),
        (
            MISTRAL,
            "",
            "[TOOL_CALLS]weather[ARGS]{\"days\": 1}[TOOL_CALLS]weather[CALL_ID]x9[ARGS]{}",
            vec![call("", json!({"days": 1})), call("x9", json!({}))],
        ),
        (
            KIMI,
            "",
            "Ok.<|tool_calls_section_begin|><|tool_call_begin|>functions.weather:0\
             <|tool_call_argument_begin|>{\"days\": 1}<|tool_call_end|><|tool_call_begin|>\
             functions.weather:1<|tool_call_argument_begin|>{}<|tool_call_end|>\
             <|tool_calls_section_end|>",
            vec![
                text("Ok."),
                call("functions.weather:0", json!({"days": 1})),
                call("functions.weather:1", json!({})),
            ],
        ),
        (
            DEEPSEEK,
            "<think>",
            "t</think><｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>weather\n```json\n\
             {\"days\": 1}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
            vec![thought("t"), call("", json!({"days": 1}))],
        ),
        (
            DEEPSEEK,
            "",
            "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>weather<｜tool▁sep｜>{\"days\": 1}\
             <｜tool▁call▁end｜><｜tool▁calls▁end｜>",
            vec![call("", json!({"days": 1}))],
        ),
        (
            MINIMAX,
            "",
            "<minimax:tool_call>\n<invoke name=\"weather\">\n<parameter name=\"city\">Köln</parameter>\n\
             <parameter name=\"days\">2</parameter>\n</invoke>\n</minimax:tool_call>",
            vec![call("", koeln())],
        ),
        (
            OSS,
            "<|start|>assistant",
            "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>final<|message|>Hi!",
            vec![thought("Hm."), text("Hi!")],
        ),
        (
            OSS,
            "<|start|>assistant",
            "<|channel|>commentary to=functions.weather <|constrain|>json<|message|>{\"days\": 1}<|call|>",
            vec![call("", json!({"days": 1}))],
        ),
        (
            OSS,
            "<|start|>assistant",
            " to=functions.weather<|channel|>commentary json<|message|>{\"days\": 1}",
            vec![call("", json!({"days": 1}))],
        ),
        (OSS, "<|start|>assistant<|channel|>final<|message|>", "Hi!", vec![text("Hi!")]),
        (OSS, "<|start|>assistant", "Plain", vec![text("Plain")]),
    ]
}

#[test]
fn whole_replies() {
    for (template, prompt, reply, expected) in cases() {
        assert_eq!(parse(template, prompt, &tools(), &[reply]), expected, "{reply}");
    }
}

#[test]
fn without_tools_calls_are_text() {
    for (template, prompt, reply, _) in cases() {
        if template != OSS {
            let parts = parse(template, prompt, &[], &[reply]);
            assert!(!parts.iter().any(|part| matches!(part, ReplyPart::Call(_))), "{reply}");
        }
    }
}

#[test]
fn text_is_given_out_at_once() {
    let mut parser = ReplyParser::new(&ReplyFormat::detect(QWEN), "", &tools());
    assert_eq!(parser.push("Hello"), [text("Hello")]);
    assert_eq!(parser.push(" <"), []);
    assert_eq!(parser.push("b"), [text(" <b")]);
    assert_eq!(parser.push("\n<tool_c"), []);
    assert_eq!(parser.finish(), [text("\n<tool_c")]);
}

#[test]
fn an_endless_call_is_text() {
    let mut parser = ReplyParser::new(&ReplyFormat::detect(QWEN), "", &tools());
    let mut text = 0;
    for piece in
        std::iter::once("<tool_call>".to_owned()).chain((0..9).map(|_| "x".repeat(1 << 20)))
    {
        for part in parser.push(&piece) {
            let ReplyPart::Text(part) = part else { panic!("{part:?}") };
            text += part.len();
        }
    }
    assert!(text > 4 << 20, "{text}");
}

proptest! {
    // No file of past failures: proptest prints the seed of a failure, and cases belong in the tables.
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn the_cut_does_not_matter(cuts in prop::collection::vec(1usize..7, 1..40)) {
        for (template, prompt, reply, expected) in cases() {
            let mut pieces = Vec::new();
            let mut rest = reply;
            for cut in cuts.iter().cycle() {
                let end = rest.char_indices().nth(*cut).map_or(rest.len(), |(end, _)| end);
                pieces.push(&rest[..end]);
                rest = &rest[end..];
                if rest.is_empty() {
                    break;
                }
            }
            prop_assert_eq!(parse(template, prompt, &tools(), &pieces), expected, "{:?}", pieces);
        }
    }

    /// Any output of a model: no panic, and no text lost except white space and marks.
    #[test]
    fn anything_goes(pieces in prop::collection::vec(
        "(<think>|</think>|<tool_call>|</tool_call>|\\{\"name\": \"weather\"\\}|<function=|<parameter=x>|\
         <arg_key>|\\[TOOL_CALLS\\]|\\[ARGS\\]|<\\|channel\\|>|<\\|message\\|>|<\\|end\\|>|to=functions.x|\
         <invoke name=\"|</function>|</parameter>|ping|weather|city=|\\(|\\)|<function_calls>|</function_calls>|\
         <\\|tool_call_start\\|>\\[|\\]<\\|tool_call_end\\|>|<\\|tool_call>call:|<\\|\"\\|>|<tool_call\\|>|`|```|\
         <\\|tool_call_begin\\|>|<\\|tool_call_argument_begin\\|>|<arg_value>|</arg_value>|[a-z <>{}\n]{0,5})", 0..20,
    )) {
        for template in [QWEN, LLAMA, MISTRAL, KIMI, DEEPSEEK, MINIMAX, OSS, LFM, OLMO, GEMMA] {
            let pieces: Vec<&str> = pieces.iter().map(String::as_str).collect();
            let whole = pieces.concat();
            let parts = parse(template, "", &tools(), &[&whole]);
            prop_assert_eq!(&parts, &parse(template, "", &tools(), &pieces), "{} {:?}", template, pieces);
        }
    }
}

/// Text that looks like a bare call at first is emitted as soon as it cannot be one.
#[test]
fn text_that_begins_as_a_call_is_not_held_back() {
    let format = ReplyFormat::detect("<tool_call></tool_call>");
    let tools = [json!({"type": "function", "function": {"name": "ping"}})];
    let cases = [
        "[1",
        "[[",
        "{\"city\"",
        "{\"type\": \"object\"",
        "{\"name\": \"Rome\"",
        "{\"name\": \"ping\", \"age\"",
        "[{\"id\": 7, \"city\"",
        "```json\n{\"city\"",
        "```rust\n",
    ];
    for text in cases {
        let mut parser = ReplyParser::new(&format, "", &tools);
        let shown: usize = parser
            .push(&format!("{text}: and so on"))
            .iter()
            .map(|part| match part {
                ReplyPart::Text(text) => text.len(),
                other => panic!("{other:?}"),
            })
            .sum();
        assert_eq!(shown, text.len() + ": and so on".len(), "{text}");
    }
}

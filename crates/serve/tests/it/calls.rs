//! Calls while they are written, in every dialect: in pieces, and cut by a limit.

use std::sync::Arc;

use crate::support::client::{CHAT, MESSAGES, Reply, post};
use crate::support::double::{Act, Double, fixture_with_template};
use crate::support::server::Server;
use protocol::FinishReason;
use serde_json::{Value, json};

const TEMPLATE: &str = "{% for message in messages %}{{ message.role }}: {{ message.content }}\
    {% for call in message.tool_calls or [] %} <tool_call>{{ call.function.name }} \
    {{ call.function.arguments | tojson }}</tool_call>{% endfor %}\n{% endfor %}\
    {% for tool in tools or [] %}TOOL {{ tool | tojson }}\n{% endfor %}";
const CALL: &str = "Look.\n<tool_call>{\"name\": \"write\", \"arguments\": {\"path\": \"a.txt\", \
    \"text\": \"one two three four\\nfive \\\"six\\\" seven eight nine\"}}</tool_call>";
const ARGUMENTS: &str =
    "{\"path\":\"a.txt\",\"text\":\"one two three four\\nfive \\\"six\\\" seven eight nine\"}";
const CUT: &str = "<tool_call>{\"name\": \"write\", \"arguments\": {\"path\": \"a.txt\", \
    \"text\": \"one two";
const RESPONSES: &str = "/v1/responses";

fn server(script: &[Act]) -> (Arc<Double>, Server) {
    let double = Arc::new(Double::with_header(fixture_with_template(TEMPLATE), script));
    let server = Server::start(&double);
    (double, server)
}

fn schema() -> Value {
    json!({"type": "object",
        "properties": {"path": {"type": "string"}, "text": {"type": "string"}}})
}

fn ask(server: &Server, path: &str, mut body: Value, stream: bool) -> Reply {
    body["model"] = json!("tiny/qwen3");
    body["stream"] = json!(stream);
    post(server.addr, path, &[], &body)
}

fn chat() -> Value {
    let tool = json!({"type": "function",
        "function": {"name": "write", "parameters": schema()}});
    json!({"messages": [{"role": "user", "content": "go"}], "tools": [tool]})
}

fn messages() -> Value {
    let tool = json!({"name": "write", "input_schema": schema()});
    json!({"messages": [{"role": "user", "content": "go"}], "tools": [tool], "max_tokens": 99})
}

fn responses() -> Value {
    let tool = json!({"type": "function", "name": "write", "parameters": schema()});
    json!({"input": "go", "tools": [tool]})
}

/// The texts at a path of the events, in order.
fn texts(reply: &Reply, path: &str) -> Vec<String> {
    let text = |event: &Value| event.pointer(path).and_then(Value::as_str).map(str::to_owned);
    reply.events().iter().filter_map(text).filter(|text| !text.is_empty()).collect()
}

#[test]
fn arguments_come_in_pieces_that_add_up_to_the_whole() {
    let (_double, server) = server(&[Act::Say(CALL), Act::Done(FinishReason::Stop)]);

    let whole = ask(&server, CHAT, chat(), false).json();
    let message = &whole["choices"][0]["message"];
    assert_eq!(message["tool_calls"][0]["function"]["arguments"], ARGUMENTS);
    assert_eq!(message["content"], "Look.");
    let stream = ask(&server, CHAT, chat(), true);
    let pieces = texts(&stream, "/choices/0/delta/tool_calls/0/function/arguments");
    assert_eq!((pieces.concat().as_str(), pieces.len() > 10), (ARGUMENTS, true), "{pieces:?}");
    let names = texts(&stream, "/choices/0/delta/tool_calls/0/function/name");
    assert_eq!((names, stream.text().as_str()), (vec!["write".to_owned()], "Look."));

    let whole = ask(&server, RESPONSES, responses(), false).json();
    assert_eq!(whole["output"][1]["arguments"], ARGUMENTS);
    let stream = ask(&server, RESPONSES, responses(), true);
    let events = stream.events();
    let pieces =
        events.iter().filter(|event| event["type"] == "response.function_call_arguments.delta");
    let pieces: Vec<&str> = pieces.filter_map(|event| event["delta"].as_str()).collect();
    assert_eq!((pieces.concat().as_str(), pieces.len() > 10), (ARGUMENTS, true), "{pieces:?}");
    let done = events.iter().find(|one| one["type"] == "response.function_call_arguments.done");
    assert_eq!(done.unwrap()["arguments"], ARGUMENTS);

    let input: Value = serde_json::from_str(ARGUMENTS).unwrap();
    let whole = ask(&server, MESSAGES, messages(), false).json();
    assert_eq!(
        (&whole["content"][1]["input"], &whole["stop_reason"]),
        (&input, &json!("tool_use"))
    );
    let stream = ask(&server, MESSAGES, messages(), true);
    let pieces = texts(&stream, "/delta/partial_json");
    assert_eq!((pieces.concat().as_str(), pieces.len() > 10), (ARGUMENTS, true), "{pieces:?}");

    // Ollama's protocol has whole calls alone.
    for stream in [false, true] {
        let reply = ask(&server, "/api/chat", chat(), stream);
        let lines = reply.body.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
        let calls = lines.filter_map(|line| {
            let call = line.pointer("/message/tool_calls/0/function/arguments");
            call.cloned()
        });
        assert_eq!(calls.collect::<Vec<_>>(), std::slice::from_ref(&input));
    }
}

#[test]
fn a_call_that_a_limit_cuts_is_the_same_whole_and_in_pieces() {
    let (_double, server) = server(&[Act::Say(CUT), Act::Done(FinishReason::Length)]);
    const BEGUN: &str = "{\"path\":\"a.txt\",\"text\":\"one two";

    let whole = ask(&server, CHAT, chat(), false).json();
    let choice = &whole["choices"][0];
    assert_eq!(choice["message"]["tool_calls"][0]["function"]["arguments"], BEGUN);
    assert_eq!(
        (&choice["message"]["content"], &choice["finish_reason"]),
        (&Value::Null, &json!("length"))
    );
    let stream = ask(&server, CHAT, chat(), true);
    let pieces = texts(&stream, "/choices/0/delta/tool_calls/0/function/arguments");
    assert_eq!((pieces.concat().as_str(), stream.text().as_str()), (BEGUN, ""));

    let whole = ask(&server, RESPONSES, responses(), false).json();
    let call = &whole["output"][0];
    assert_eq!((&call["arguments"], &call["status"]), (&json!(BEGUN), &json!("incomplete")));
    let stream = ask(&server, RESPONSES, responses(), true);
    let last = stream.events().last().unwrap()["response"]["output"][0].clone();
    assert_eq!((&last["arguments"], &last["status"]), (&call["arguments"], &call["status"]));

    let whole = ask(&server, MESSAGES, messages(), false).json();
    assert_eq!(whole["content"][0]["input"], json!({"path": "a.txt"}), "what is whole of it");
    assert_eq!(
        texts(&ask(&server, MESSAGES, messages(), true), "/delta/partial_json").concat(),
        BEGUN
    );

    let whole = ask(&server, "/api/chat", chat(), false).json();
    assert_eq!(
        (&whole["message"]["tool_calls"], &whole["done_reason"]),
        (&Value::Null, &json!("length")),
        "half a call must not run"
    );
}

#[test]
fn a_custom_tool_is_called_with_a_text() {
    const SAID: &str = "<tool_call>{\"name\": \"apply_patch\", \"arguments\": {\"input\": \
        \"*** Begin\\n+ \\\"a\\\"\\n*** End of it all\"}}</tool_call>";
    const INPUT: &str = "*** Begin\n+ \"a\"\n*** End of it all";
    let (double, server) = server(&[Act::Say(SAID), Act::Done(FinishReason::Stop)]);
    let grammar = json!({"syntax": "lark", "definition": "start: /.+/s"});
    let flat = json!({"type": "custom", "name": "apply_patch", "format":
        {"type": "grammar", "syntax": "lark", "definition": "start: /.+/s"}});
    let nested = json!({"type": "custom", "custom": {"name": "apply_patch",
        "format": {"type": "grammar", "grammar": grammar}}});
    let tools = |custom: &Value| json!([custom, {"type": "web_search"}, {"type": "mcp", "server_label": "x"}]);

    let body = json!({"input": "go", "tools": tools(&flat)});
    let whole = ask(&server, RESPONSES, body.clone(), false).json();
    let item = &whole["output"][0];
    assert_eq!((&item["type"], &item["name"]), (&json!("custom_tool_call"), &json!("apply_patch")));
    assert_eq!((&item["input"], &whole["tools"]), (&json!(INPUT), &body["tools"]));
    assert!(double.last_prompt().contains("start: /.+/s"), "{}", double.last_prompt());
    let events = ask(&server, RESPONSES, body, true).events();
    let of = |kind: &str| events.iter().filter(|one| one["type"] == kind).collect::<Vec<_>>();
    let deltas = of("response.custom_tool_call_input.delta");
    let text: String = deltas.iter().map(|one| one["delta"].as_str().unwrap()).collect();
    assert_eq!((text.as_str(), deltas.len() > 5), (INPUT, true));
    assert_eq!(of("response.custom_tool_call_input.done")[0]["input"], INPUT);
    assert!(of("response.function_call_arguments.delta").is_empty());

    let body = json!({"messages": [{"role": "user", "content": "go"}], "tools": tools(&nested)});
    let whole = ask(&server, CHAT, body.clone(), false).json();
    let call = &whole["choices"][0]["message"]["tool_calls"][0];
    assert_eq!(
        (&call["type"], &call["custom"]),
        (&json!("custom"), &json!({"name": "apply_patch", "input": INPUT}))
    );
    let stream = ask(&server, CHAT, body, true);
    let pieces = texts(&stream, "/choices/0/delta/tool_calls/0/custom/input");
    assert_eq!((pieces.concat().as_str(), pieces.len() > 5), (INPUT, true));
}

#[test]
fn a_required_call_of_a_custom_tool_is_held_to_its_grammar() {
    let (double, server) = server(&[Act::Say("x"), Act::Done(FinishReason::Stop)]);
    let tool = |syntax: &str, definition: &str| {
        json!({"type": "custom", "name": "run", "format":
            {"type": "grammar", "syntax": syntax, "definition": definition}})
    };
    let cases = [
        ("regex", "[a-c]+", "[a-c]+"),
        ("lark", "start: WORD (\",\" WORD)*\nWORD: /[a-c]+/", "[a-c]"),
        ("lark", "start: \"a\" start? \"b\"", "r1: \\\"a\\\" ("),
    ];
    for (syntax, definition, part) in cases {
        let body =
            json!({"input": "go", "tools": [tool(syntax, definition)], "tool_choice": "required"});
        assert_eq!(ask(&server, RESPONSES, body, false).status, 200, "{definition}");
        let asked = double.asked.lock().unwrap().last().unwrap().clone();
        let grammar = format!("{:?}", asked.grammar);
        assert!(grammar.contains(part), "{definition}: {grammar}");
    }
    let body = json!({"input": "go", "tools": [tool("lark", "start: a\na: /(?=x)/")]});
    let refused = ask(&server, RESPONSES, body, false);
    let message = refused.json()["error"]["message"].as_str().unwrap_or_default().to_owned();
    assert_eq!(refused.status, 400, "{refused:?}");
    assert!(message.contains("tools[0].format.definition, line 2: /(?=x)/"), "{message}");
}

#[test]
fn calls_of_custom_tools_come_back() {
    let (double, server) = server(&[Act::Say("Done."), Act::Done(FinishReason::Stop)]);
    let input = json!([
        {"role": "user", "content": "go"},
        {"type": "custom_tool_call", "call_id": "c1", "name": "apply_patch", "input": "+ \"a\""},
        {"type": "custom_tool_call_output", "call_id": "c1", "output": "fine"},
    ]);
    let reply = ask(&server, RESPONSES, json!({"input": input}), false);
    assert_eq!(reply.status, 200, "{reply:?}");
    let of_response = double.last_prompt();
    assert!(of_response.contains("apply_patch {\"input\": \"+ \\\"a\\\"\"}"), "{of_response}");
    let custom = json!({"name": "apply_patch", "input": "+ \"a\""});
    let messages = json!([
        {"role": "user", "content": "go"},
        {"role": "assistant", "content": null,
            "tool_calls": [{"id": "c1", "type": "custom", "custom": custom}]},
        {"role": "tool", "tool_call_id": "c1", "content": "fine"},
    ]);
    assert_eq!(ask(&server, CHAT, json!({"messages": messages}), false).status, 200);
    assert_eq!(double.last_prompt(), of_response);
}

#[test]
fn no_other_tool_is_called_than_the_allowed_ones() {
    const SAID: &str = "<tool_call>{\"name\": \"search\", \"arguments\": {}}</tool_call>";
    let (_double, server) = server(&[Act::Say(SAID), Act::Done(FinishReason::Stop)]);
    let tool = |name: &str| json!({"type": "function", "function": {"name": name}});
    let allowed = json!({"type": "allowed_tools",
        "allowed_tools": {"mode": "auto", "tools": [tool("now")]}});
    let mut body = json!({"messages": [{"role": "user", "content": "go"}],
        "tools": [tool("now"), tool("search")], "tool_choice": allowed});
    for stream in [false, true] {
        let reply = ask(&server, CHAT, body.clone(), stream);
        assert!(!reply.body.contains("tool_calls"), "{}", reply.body);
    }
    body["tool_choice"] = json!("auto");
    assert!(ask(&server, CHAT, body, false).body.contains("tool_calls"));
}

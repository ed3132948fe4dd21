//! Integers of more than 64 bits keep their digits from a model to its client and back.

use crate::support;
use std::sync::Arc;

use crate::support::client::post;
use crate::support::double::{Act, Double, fixture_with_template};
use crate::support::server::Server;
use protocol::FinishReason;
use serde_json::{Value, json};

const DIGITS: &str = "12345678901234567890123";
const TEMPLATE: &str = "{% for tool in tools or [] %}TOOL {{ tool.function.name }}\n{% endfor %}\
    {% for message in messages %}{{ message.role }}: {{ message.content }}\
    {% for call in message.tool_calls or [] %} <tool_call>{{ call.function.name }} \
    {{ call.function.arguments | tojson }}</tool_call>{% endfor %}\n{% endfor %}";

fn server() -> (Arc<Double>, Server) {
    let call = "<tool_call>{\"name\": \"send\", \"arguments\": {\"to\": 12345678901234567890123}}\
                </tool_call>";
    let script = [Act::Say(call), Act::Done(FinishReason::Stop)];
    let double = Arc::new(Double::with_header(fixture_with_template(TEMPLATE), &script));
    let server = Server::start(&double);
    (double, server)
}

/// A piece of a call's arguments in an event.
fn piece(event: &Value) -> Option<String> {
    let paths = ["/choices/0/delta/tool_calls/0/function/arguments", "/delta/partial_json"];
    let of_response = event["type"] == "response.function_call_arguments.delta";
    let found = paths.iter().find_map(|path| event.pointer(path));
    found.or(event.get("delta").filter(|_| of_response))?.as_str().map(str::to_owned)
}

#[test]
fn digits_reach_clients_of_every_dialect() {
    let (_double, server) = server();
    let schema = json!({"type": "object", "properties": {"to": {"type": "integer"}}});
    let function = json!({"name": "send", "parameters": schema});
    let tool = json!({"type": "function", "function": function});
    let flat = json!({"type": "function", "name": "send", "parameters": schema});
    let own = json!({"name": "send", "input_schema": schema});
    let messages = json!([{"role": "user", "content": "hi"}]);
    let cases = [
        ("/v1/chat/completions", json!({"messages": messages, "tools": [tool]}), "{\\\"to\\\":"),
        ("/v1/responses", json!({"input": "hi", "tools": [flat]}), "{\\\"to\\\":"),
        (
            "/v1/messages",
            json!({"messages": messages, "tools": [own], "max_tokens": 9}),
            "{\"to\":",
        ),
        ("/api/chat", json!({"messages": messages, "tools": [tool]}), "{\"to\":"),
    ];
    for (path, body, before) in cases {
        for stream in [false, true] {
            let mut body = body.clone();
            body["model"] = json!("tiny/qwen3");
            body["stream"] = json!(stream);
            let reply = post(server.addr, path, &[], &body);
            assert_eq!(reply.status, 200, "{reply:?}");
            let is_text = before.contains('\\') || (stream && path == "/v1/messages");
            let before = if is_text { "{\\\"to\\\":" } else { before };
            // A stream's pieces are joined.
            let pieces = reply.events().iter().filter_map(piece).collect::<String>();
            let found = reply.body.contains(&format!("{before}{DIGITS}}}"))
                || pieces == format!("{{\"to\":{DIGITS}}}");
            assert!(found, "{path} {stream}: {}", reply.body);
        }
    }
}

#[test]
fn digits_come_back_to_the_model() {
    let (double, server) = server();
    let number: Value = text::long_number(DIGITS).unwrap();
    let arguments = text::json_text(&json!({"to": number}));
    let function = json!({"name": "send", "arguments": arguments});
    let call = json!({"id": "c1", "type": "function", "function": function});
    let chat = json!({"messages": [
        {"role": "user", "content": "hi"},
        {"role": "assistant", "content": null, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": "sent"},
    ]});
    let responses = json!({"input": [
        {"role": "user", "content": "hi"},
        {"type": "function_call", "call_id": "c1", "name": "send", "arguments": arguments},
        {"type": "function_call_output", "call_id": "c1", "output": "sent"},
    ]});
    let messages = json!({"max_tokens": 9, "messages": [
        {"role": "user", "content": "hi"},
        {"role": "assistant", "content": [
            {"type": "tool_use", "id": "c1", "name": "send", "input": {"to": number}},
        ]},
        {"role": "user", "content": [
            {"type": "tool_result", "tool_use_id": "c1", "content": "sent"},
        ]},
    ]});
    let ollama = json!({"stream": false, "messages": [
        {"role": "user", "content": "hi"},
        {"role": "assistant", "content": "", "tool_calls": [
            {"function": {"name": "send", "arguments": {"to": number}}},
        ]},
        {"role": "tool", "tool_name": "send", "content": "sent"},
    ]});
    let cases = [
        ("/v1/chat/completions", chat),
        ("/v1/responses", responses),
        ("/v1/messages", messages),
        ("/api/chat", ollama),
    ];
    for (path, mut body) in cases {
        body["model"] = json!("tiny/qwen3");
        // In the form that a client writes.
        let body = text::json_text(&body);
        let headers = [("content-type", "application/json")];
        let request = support::client::request("POST", path, server.addr, &headers, &body);
        let reply = support::client::send(server.addr, request.as_bytes());
        assert_eq!(reply.status, 200, "{path} {reply:?}");
        let prompt = double.last_prompt();
        assert!(prompt.contains(&format!("{{\"to\": {DIGITS}}}")), "{path}: {prompt}");
    }
}

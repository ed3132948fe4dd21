//! Conversations that began with another server go on here.

use std::sync::Arc;

use crate::support::client::{CHAT, MESSAGES, Reply, post};
use crate::support::double::{Act, Double, fixture_with_template};
use crate::support::server::Server;
use protocol::FinishReason;
use serde_json::{Value, json};

const TEMPLATE: &str = "{% for message in messages %}<{{ message.role }}>{{ message.content }}\
    {% for call in message.tool_calls or [] %}[call {{ call.function.name }}]{% endfor %}\
    {% endfor %}";
const UNSEEN: &str = "[a picture that this model cannot see]";
const PICTURE: &str = "iVBORw0KGgo=";

fn server() -> (Arc<Double>, Server) {
    let fine = [Act::Say("Fine."), Act::Done(FinishReason::Stop)];
    let double = Arc::new(Double::with_header(fixture_with_template(TEMPLATE), &fine));
    let server = Server::start(&double);
    (double, server)
}

fn ask(server: &Server, path: &str, mut body: Value) -> Reply {
    body["model"] = json!("tiny/qwen3");
    body["max_tokens"] = json!(9);
    post(server.addr, path, &[], &body)
}

#[test]
fn what_anthropics_servers_did_is_text() {
    let (double, server) = server();
    let found = json!([{"type": "web_search_result", "title": "Rome", "url": "https://r.example",
        "encrypted_content": "zzz", "page_age": "1 day"}]);
    let messages = json!([
        {"role": "user", "content": "Where?"},
        {"role": "assistant", "content": [
            {"type": "server_tool_use", "id": "s1", "name": "web_search", "input": {"query": "Rome"}},
            {"type": "web_search_tool_result", "tool_use_id": "s1", "content": found},
            {"type": "web_search_tool_result", "tool_use_id": "s2",
                "content": {"type": "web_search_tool_result_error", "error_code": "unavailable"}},
            {"type": "mcp_tool_use", "id": "m1", "name": "read", "server_name": "x", "input": {}},
            {"type": "mcp_tool_result", "tool_use_id": "m1", "is_error": false,
                "content": [{"type": "text", "text": "Read."}]},
            {"type": "container_upload", "file_id": "f"},
            {"type": "redacted_thinking", "data": "zzz"},
            {"type": "text", "text": "In Italy.", "citations": [{"type": "web", "url": "u"}]},
        ]},
        {"role": "user", "content": "Sure?"},
    ]);
    let tools = json!([
        {"type": "web_search_20250305", "name": "web_search", "max_uses": 5},
        {"name": "now", "input_schema": {"type": "object"}},
    ]);
    let reply = ask(&server, MESSAGES, json!({"messages": messages, "tools": tools}));
    assert_eq!(reply.status, 200, "{reply:?}");
    let prompt = double.last_prompt();
    for part in ["Rome", "https://r.example", "unavailable", "Read.", "In Italy.", "Sure?"] {
        assert!(prompt.contains(part), "{part}: {prompt}");
    }
    assert!(!prompt.contains("zzz") && !prompt.contains("s1"), "{prompt}");
}

#[test]
fn items_of_openais_tools_are_text_or_left_out() {
    let (double, server) = server();
    let input = json!([
        {"role": "user", "content": "go"},
        {"type": "web_search_call", "id": "ws_1", "status": "completed",
            "action": {"type": "search", "query": "Rome"}},
        {"type": "image_generation_call", "id": "ig_1", "status": "completed", "result": null},
        {"type": "mcp_list_tools", "id": "l1", "server_label": "x", "tools": []},
        {"type": "compaction", "id": "c", "encrypted_content": "zzz"},
        {"type": "file_search_call", "id": "f1", "status": "completed", "queries": ["q"],
            "results": [{"file_id": "zzz", "filename": "notes.txt", "text": "A note."}]},
        {"type": "local_shell_call", "id": "zzz", "call_id": "k1", "status": "completed",
            "action": {"type": "exec", "command": ["ls"]}},
        {"type": "local_shell_call_output", "call_id": "k1", "output": "a.txt"},
        {"type": "message", "role": "user", "content": "And now?"},
    ]);
    let reply = ask(&server, "/v1/responses", json!({"input": input}));
    assert_eq!(reply.status, 200, "{reply:?}");
    let prompt = double.last_prompt();
    for part in ["Rome", "A note.", "[call local_shell]", "a.txt", "And now?"] {
        assert!(prompt.contains(part), "{part}: {prompt}");
    }
    assert!(!prompt.contains("zzz"), "{prompt}");
}

#[test]
fn a_picture_in_a_tools_result_is_a_sentence_for_a_model_that_reads_text() {
    let (double, server) = server();
    let url = format!("data:image/png;base64,{PICTURE}");
    let source = json!({"type": "base64", "media_type": "image/png", "data": PICTURE});
    let image = json!({"type": "image_url", "image_url": {"url": url}});
    let arguments = json!({"name": "look", "arguments": "{}"});
    let requests = [
        (
            MESSAGES,
            json!({"messages": [
                {"role": "user", "content": "go"},
                {"role": "assistant", "content": [
                    {"type": "tool_use", "id": "t", "name": "look", "input": {}}]},
                {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t", "content": [
                    {"type": "text", "text": "seen:"}, {"type": "image", "source": source},
                    {"type": "document", "source": source}]}]},
            ]}),
        ),
        (
            CHAT,
            json!({"messages": [
                {"role": "user", "content": "go"},
                {"role": "assistant", "tool_calls": [
                    {"id": "t", "type": "function", "function": arguments}]},
                {"role": "tool", "tool_call_id": "t", "content": [image]},
            ]}),
        ),
        (
            "/v1/responses",
            json!({"input": [
                {"role": "user", "content": "go"},
                {"type": "function_call", "call_id": "t", "name": "look", "arguments": "{}"},
                {"type": "function_call_output", "call_id": "t", "output": [
                    {"type": "input_image", "image_url": url},
                    {"type": "input_file", "file_id": "f"}]},
            ]}),
        ),
        (
            "/api/chat",
            json!({"stream": false, "messages": [
                {"role": "user", "content": "go"},
                {"role": "assistant", "tool_calls": [{"function": {"name": "look", "arguments": {}}}]},
                {"role": "tool", "content": "seen", "images": [PICTURE]},
            ]}),
        ),
    ];
    for (path, body) in requests {
        let reply = ask(&server, path, body);
        assert_eq!(reply.status, 200, "{path}: {reply:?}");
        let prompt = double.last_prompt();
        assert!(prompt.contains(UNSEEN), "{path}: {prompt}");
    }
    let user =
        json!([{"role": "user", "content": [{"type": "image_url", "image_url": {"url": url}}]}]);
    let refused = ask(&server, CHAT, json!({"messages": user}));
    assert_eq!(refused.status, 400, "a user's picture is refused");
}

#[test]
fn a_part_of_a_character_is_left_out_of_an_answer_that_a_limit_cuts() {
    let (double, server) = server();
    double.play(&[Act::Begin("a😀"), Act::Done(FinishReason::Length)]);
    let message = json!([{"role": "user", "content": "go"}]);
    for stream in [false, true] {
        let reply = ask(&server, CHAT, json!({"messages": message, "stream": stream}));
        assert!(!reply.body.contains('\u{fffd}'), "{}", reply.body);
    }
    let reply = post(server.addr, "/completion", &[], &json!({"prompt": "x", "n_predict": 5}));
    assert_eq!(reply.json()["content"], "a");
}

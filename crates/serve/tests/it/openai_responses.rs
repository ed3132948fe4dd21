//! Responses: OpenAI's newer API, as a whole and as events.

use std::sync::Arc;
use std::time::Duration;

use crate::support::client::{Reply, chat_body, get, post};
use crate::support::double::{Act, Double, fixture_with_template};
use crate::support::server::Server;
use protocol::FinishReason;
use serde_json::{Value, json};

const TEMPLATE: &str = "{% for tool in tools or [] %}TOOL {{ tool.function.name }}\n{% endfor %}\
    {% for message in messages %}{{ message.role }}: {{ message.content }}\
    {% if message.reasoning_content %} <think>{{ message.reasoning_content }}</think>{% endif %}\
    {% for call in message.tool_calls or [] %} <tool_call>{{ call.function.name }} \
    {{ call.function.arguments | tojson }} {{ call.id }}</tool_call>{% endfor %}\n{% endfor %}";

const THOUGHT: &str = "<think>\nHm, well.\n</think>\n\n";
const CALL: &str =
    "<tool_call>{\"name\": \"shell\", \"arguments\": {\"command\": \"ls\"}}</tool_call>";
const DONE: Act = Act::Done(FinishReason::Stop);

fn server(script: &[Act]) -> (Arc<Double>, Server) {
    let double = Arc::new(Double::with_header(fixture_with_template(TEMPLATE), script));
    let server = Server::start(&double);
    (double, server)
}

fn respond(server: &Server, extra: Value) -> Reply {
    let mut body = json!({"model": "tiny/qwen3", "input": "Say hello"});
    for (key, value) in extra.as_object().unwrap() {
        body[key] = value.clone();
    }
    post(server.addr, "/v1/responses", &[], &body)
}

fn shell() -> Value {
    let parameters = json!({"type": "object", "properties": {"command": {"type": "string"}}});
    json!({"type": "function", "name": "shell", "strict": false, "parameters": parameters})
}

fn of_kind<'e>(events: &'e [Value], kind: &str) -> Vec<&'e Value> {
    events.iter().filter(|event| event["type"] == kind).collect()
}

/// The events of a well-formed stream: named by their types and numbered from 0.
fn events(reply: &Reply) -> Vec<Value> {
    let events = reply.events();
    let names = reply.body.lines().filter_map(|line| line.strip_prefix("event: "));
    let names: Vec<&str> = names.collect();
    assert_eq!(names.len(), events.len(), "{reply:?}");
    for (at, (event, name)) in events.iter().zip(names).enumerate() {
        assert_eq!((&event["type"], &event["sequence_number"]), (&json!(name), &json!(at)));
    }
    assert_eq!(events[0]["type"], "response.created");
    assert_eq!(events[1]["type"], "response.in_progress");
    events
}

#[test]
fn a_text_is_answered_with_a_message() {
    let (double, server) = server(&[Act::Say("Hello there."), DONE]);
    let reply = respond(&server, json!({"instructions": "Be brief.", "temperature": 0.5}));
    let body = reply.json();
    assert_eq!(reply.status, 200, "{reply:?}");
    assert_eq!((&body["object"], &body["status"]), (&json!("response"), &json!("completed")));
    assert!(body["id"].as_str().unwrap().starts_with("resp_"));
    let item = &body["output"][0];
    assert_eq!((&item["type"], &item["role"]), (&json!("message"), &json!("assistant")));
    let text =
        json!({"type": "output_text", "text": "Hello there.", "annotations": [], "logprobs": []});
    assert_eq!(item["content"], json!([text]));
    assert_eq!((&body["instructions"], &body["temperature"]), (&json!("Be brief."), &json!(0.5)));
    assert_eq!((&body["store"], &body["error"]), (&json!(false), &Value::Null));
    let usage = &body["usage"];
    assert_eq!(usage["input_tokens"], double.asked.lock().unwrap()[0].prompt.len());
    assert_eq!(usage["output_tokens_details"]["reasoning_tokens"], 0);
    assert_eq!(double.last_prompt(), "system: Be brief.user: Say hello");
}

#[test]
fn thoughts_text_and_calls_are_items_whole_and_as_events() {
    let script = [Act::Say(THOUGHT), Act::Say("Let me look."), Act::Say(CALL), DONE];
    let (_double, server) = server(&script);
    let asked = json!({"tools": [shell()], "include": ["reasoning.encrypted_content"]});
    let whole = respond(&server, asked.clone()).json();
    let kinds: Vec<&Value> =
        whole["output"].as_array().unwrap().iter().map(|item| &item["type"]).collect();
    assert_eq!(kinds, ["reasoning", "message", "function_call"]);
    let thought = &whole["output"][0];
    assert_eq!(thought["content"][0], json!({"type": "reasoning_text", "text": "Hm, well."}));
    assert!(thought["encrypted_content"].is_string() && thought["summary"] == json!([]));
    let call = &whole["output"][2];
    assert_eq!(
        (&call["name"], &call["arguments"]),
        (&json!("shell"), &json!("{\"command\":\"ls\"}"))
    );
    assert!(call["call_id"].as_str().unwrap().starts_with("call_"));
    assert_eq!(
        (&whole["tools"][0]["name"], &whole["tools"][0]["type"]),
        (&json!("shell"), &json!("function"))
    );

    let mut streamed = asked;
    streamed["stream"] = json!(true);
    let reply = respond(&server, streamed);
    assert!(reply.whole && reply.header("content-type") == Some("text/event-stream"));
    let events = events(&reply);
    for (index, kind) in [(0, "reasoning"), (1, "message"), (2, "function_call")] {
        let added = of_kind(&events, "response.output_item.added")[index];
        let done = of_kind(&events, "response.output_item.done")[index];
        for event in [added, done] {
            assert_eq!(
                (&event["output_index"], &event["item"]["type"]),
                (&json!(index), &json!(kind))
            );
        }
        assert_eq!(added["item"]["id"], done["item"]["id"]);
        assert_eq!(added["item"]["status"], "in_progress");
        assert_eq!(done["item"]["status"], "completed");
    }
    for (kind, want) in [
        ("response.reasoning_text", "Hm, well."),
        ("response.output_text", "Let me look."),
        ("response.function_call_arguments", "{\"command\":\"ls\"}"),
    ] {
        let deltas = of_kind(&events, &format!("{kind}.delta"));
        let text: String = deltas.iter().map(|event| event["delta"].as_str().unwrap()).collect();
        assert_eq!(text, want, "{kind}");
        let done = of_kind(&events, &format!("{kind}.done"))[0];
        assert_eq!(done.get("text").or(done.get("arguments")), Some(&json!(want)));
    }
    let last = events.last().unwrap();
    assert_eq!(last["type"], "response.completed");
    let mut output = last["response"]["output"].clone();
    for (streamed, whole) in
        output.as_array_mut().unwrap().iter_mut().zip(whole["output"].as_array().unwrap())
    {
        streamed["id"] = whole["id"].clone();
        if streamed.get("call_id").is_some() {
            streamed["call_id"] = whole["call_id"].clone();
        }
    }
    assert_eq!(output, whole["output"], "both ways tell the same");
    assert!(
        last["response"]["usage"]["output_tokens_details"]["reasoning_tokens"].as_u64() > Some(1)
    );
}

#[test]
fn a_turn_of_codex_reaches_the_template() {
    let (double, server) = server(&[Act::Say("Done."), DONE]);
    let thought = respond_thought(&server, &double);
    let body = json!({
        "instructions": "You are Codex.",
        "input": [
            {"type": "message", "role": "developer", "content": [{"type": "input_text", "text": "Sandbox."}]},
            {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "List files."}]},
            {"type": "reasoning", "summary": [], "encrypted_content": thought},
            {"type": "function_call", "name": "shell", "arguments": "{\"command\":\"ls\"}", "call_id": "c1"},
            {"type": "function_call_output", "call_id": "c1", "output": "a.txt"},
        ],
        "tools": [
            shell(),
            {"type": "web_search", "external_web_access": false},
            {"type": "namespace", "name": "mcp__files__", "tools": [
                {"type": "function", "name": "read", "parameters": {"type": "object"}},
            ]},
        ],
        "tool_choice": "auto", "parallel_tool_calls": false, "reasoning": null, "store": false,
        "stream": true, "include": ["reasoning.encrypted_content"], "prompt_cache_key": "k",
        "client_metadata": {"a": "b"}, "service_tier": null,
    });
    let reply = respond(&server, body);
    assert_eq!(reply.status, 200, "{reply:?}");
    assert_eq!(events(&reply).last().unwrap()["type"], "response.completed");
    let want = "TOOL shell\nTOOL mcp__files__read\nsystem: You are Codex.\n\nSandbox.user: List files.assistant:  \
        <think>Hm, well.</think> <tool_call>shell {\"command\": \"ls\"} c1</tool_call>tool: a.txt";
    assert_eq!(double.last_prompt(), want);
}

/// A thought in the form in which clients return it.
fn respond_thought(server: &Server, double: &Double) -> Value {
    double.play(&[Act::Say(THOUGHT), Act::Say("So."), DONE]);
    let body = respond(server, json!({"include": ["reasoning.encrypted_content"]})).json();
    double.play(&[Act::Say("Done."), DONE]);
    body["output"][0]["encrypted_content"].clone()
}

#[test]
fn a_limit_makes_an_incomplete_response() {
    let (double, server) = server(&[Act::Say("One two"), Act::Done(FinishReason::Length)]);
    let body = respond(&server, json!({"max_output_tokens": 7})).json();
    assert_eq!((&body["status"], &body["max_output_tokens"]), (&json!("incomplete"), &json!(7)));
    assert_eq!(body["incomplete_details"], json!({"reason": "max_output_tokens"}));
    assert_eq!(body["output"][0]["status"], "incomplete");
    assert_eq!(double.asked.lock().unwrap()[0].max_tokens, 7);
    let events = events(&respond(&server, json!({"stream": true})));
    assert_eq!(events.last().unwrap()["type"], "response.incomplete");
}

#[test]
fn a_failed_stream_ends_with_response_failed_and_is_cut() {
    let (double, server) = server(&[Act::Say("half"), Act::Failed("node b was lost")]);
    let reply = respond(&server, json!({"stream": true}));
    let events = events(&reply);
    let last = events.last().unwrap();
    assert_eq!((&last["type"], reply.whole), (&json!("response.failed"), false));
    let response = &last["response"];
    assert_eq!(
        (&response["status"], &response["error"]["code"]),
        (&json!("failed"), &json!("generation_failed"))
    );
    assert!(response["error"]["message"].as_str().unwrap().contains("node b"));
    assert!(of_kind(&events, "response.completed").is_empty());
    let reply = respond(&server, json!({}));
    assert_eq!((reply.status, reply.code().as_str()), (502, "generation_failed"));
    double.play(&[Act::Failed("node b was lost")]);
    assert_eq!(respond(&server, json!({"stream": true})).status, 502, "at once: with a status");
}

#[test]
fn a_model_that_loads_is_waited_for() {
    let script = [
        Act::Waiting("loading 10 %"),
        Act::Pause(Duration::from_millis(350)),
        Act::Say("Late."),
        DONE,
    ];
    let (_double, server) = server(&script);
    let reply = respond(&server, json!({"stream": true}));
    assert!(reply.body.contains(": loading 10 %\n\n") && reply.body.contains(": keep-alive\n\n"));
    assert_eq!(
        events(&reply).last().unwrap()["response"]["output"][0]["content"][0]["text"],
        "Late."
    );
}

#[test]
fn forms_and_choices_become_grammars() {
    let (double, server) = server(&[Act::Say("{}"), DONE]);
    let schema = json!({"type": "object", "properties": {"a": {"type": "integer"}}});
    let format = json!({"type": "json_schema", "name": "x", "strict": true, "schema": schema});
    let forms = [
        json!({"text": {"format": format}}),
        json!({"text": {"format": {"type": "json_object"}}}),
        json!({"structured_outputs": {"regex": "[0-9]+"}}),
        json!({"tools": [shell()], "tool_choice": "required"}),
        json!({"tools": [shell()], "tool_choice": {"type": "function", "name": "shell"}}),
    ];
    for body in forms {
        let reply = respond(&server, body.clone());
        assert_eq!(reply.status, 200, "{reply:?}");
        assert!(double.asked.lock().unwrap().last().unwrap().grammar.is_some(), "{body}");
    }
    let asked = json!({"text": {"format": format}, "top_logprobs": 2, "user": "me",
        "prompt_cache_key": "k"});
    let told = respond(&server, asked).json();
    assert_eq!(told["text"]["format"], format, "as it was asked");
    assert_eq!((&told["top_logprobs"], &told["user"]), (&json!(2), &json!("me")));
    assert_eq!(told["prompt_cache_key"], "k");
    assert_eq!(told["usage"]["input_tokens_details"]["cache_write_tokens"], 0);
}

#[test]
fn log_probabilities_stand_in_the_text() {
    let (_double, server) = server(&[Act::Likely("Hello you."), DONE]);
    let asked = json!({"include": ["message.output_text.logprobs"], "top_logprobs": 1});
    let body = respond(&server, asked).json();
    let found = body["output"][0]["content"][0]["logprobs"].as_array().unwrap().clone();
    let text: String = found.iter().map(|token| token["token"].as_str().unwrap()).collect();
    assert_eq!((text.as_str(), &found[0]["logprob"]), ("Hello you.", &json!(-0.5)));
}

#[test]
fn what_is_not_honoured_is_refused_by_name() {
    let (double, server) = server(&[DONE]);
    let image = json!([{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}]);
    let cases = [
        (json!({"previous_response_id": "resp_1"}), "previous_response_id", "unsupported"),
        (json!({"conversation": "c"}), "conversation", "unsupported"),
        (json!({"background": true}), "background", "unsupported"),
        (json!({"store": true}), "store", "unsupported"),
        (json!({"truncation": "auto"}), "truncation", "unsupported"),
        (json!({"prompt": {"id": "p"}}), "prompt", "unsupported"),
        (json!({"max_tool_calls": 3}), "max_tool_calls", "unsupported"),
        (json!({"include": ["file_search_call.results"]}), "include", "unsupported"),
        (json!({"tools": [{"type": "custom"}]}), "tools[0]", "invalid_value"),
        (json!({"text": {"verbosity": "low"}}), "text.verbosity", "unsupported"),
        (json!({"text": {"format": {"type": "xml"}}}), "text.format.type", "invalid_value"),
        (
            json!({"text": {"format": {"type": "json_schema"}}}),
            "text.format.schema",
            "invalid_value",
        ),
        (json!({"reasoning": {"effort": "extreme"}}), "reasoning.effort", "invalid_value"),
        (json!({"max_output_tokens": 0}), "max_output_tokens", "invalid_value"),
        (json!({"input": null}), "input", "invalid_value"),
        (json!({"input": image}), "input[0].content[0]", "unsupported"),
        (json!({"input": [{"type": "item_reference", "id": "x"}]}), "input[0].type", "unsupported"),
        (json!({"temperature": 3}), "temperature", "invalid_value"),
    ];
    for (body, param, code) in cases {
        let reply = respond(&server, body.clone());
        let error = &reply.json()["error"];
        assert_eq!(
            (reply.status, &error["param"], &error["code"]),
            (400, &json!(param), &json!(code)),
            "{body}"
        );
    }
    assert!(double.asked.lock().unwrap().is_empty());
    let fine = json!({"previous_response_id": null, "truncation": "disabled", "user": "me",
        "metadata": {"a": "b"}, "text": {"verbosity": "medium", "format": {"type": "text"}},
        "reasoning": {"effort": "low", "summary": "auto"}, "background": false});
    assert_eq!(respond(&server, fine).status, 200);
    let long = respond(&server, json!({"input": "word ".repeat(2000)}));
    assert_eq!((long.status, long.code().as_str()), (400, "context_length_exceeded"));
    assert_eq!(long.json()["error"]["param"], "input");
}

#[test]
fn tokens_are_counted_and_nothing_is_kept() {
    let (double, server) = server(&[Act::Say("ok"), DONE]);
    let body = json!({"model": "tiny/qwen3", "input": "Say hello"});
    let counted = post(server.addr, "/v1/responses/input_tokens", &[], &body).json();
    assert!(double.asked.lock().unwrap().is_empty(), "counting asks nobody");
    let asked = respond(&server, json!({})).json();
    assert_eq!(counted["object"], "response.input_tokens");
    assert_eq!(counted["input_tokens"], asked["usage"]["input_tokens"]);
    for path in ["/v1/chat/completions/input_tokens", "/chat/completions/input_tokens"] {
        let of_chat = post(server.addr, path, &[], &chat_body(json!({}))).json();
        assert_eq!(of_chat, counted, "the same conversation as a chat");
    }
    let path = format!("/v1/responses/{}", asked["id"].as_str().unwrap());
    let reply = get(server.addr, &path, &[]);
    assert_eq!((reply.status, reply.code().as_str()), (404, "response_not_found"));
}

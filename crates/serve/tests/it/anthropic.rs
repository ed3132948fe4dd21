//! Anthropic's dialect over real HTTP, in front of a scripted cluster: successful answers and
//! rejected requests.

use std::sync::Arc;
use std::time::Duration;

use crate::support::client::{self, MESSAGES, Reply, get, message, message_body, post};
use crate::support::double::{Act, Double, fixture_with_template};
use crate::support::server::{KEY, Server};
use protocol::{FinishReason, Grammar};
use serde_json::{Value, json};

const FINE: [Act; 2] = [Act::Say("Hello there, friend."), Act::Done(FinishReason::Stop)];

/// A template of a model that thinks and calls tools; the prompt shows thoughts and calls.
const THINKER: &str = "{% for t in tools or [] %}[{{ t.function.name }}]{% endfor %}\
    {% for m in messages %}<{{ m.role }}>{{ m.content }}\
    {% for c in m.tool_calls or [] %}<tool_call>{{ c.function.name }}</tool_call>{% endfor %}\n\
    {% endfor %}{% if enable_thinking is defined %}thinks={{ enable_thinking }}{% endif %}\
    {% if reasoning_effort %} effort={{ reasoning_effort }}{% endif %}{# <think></think> #}";

const WEATHER: &str = r#"{"name": "weather", "description": "d", "input_schema": {
    "type": "object", "properties": {"at": {"type": "string"}}, "required": ["at"]}}"#;

fn thinker(script: &[Act]) -> Arc<Double> {
    Arc::new(Double::with_header(fixture_with_template(THINKER), script))
}

fn weather() -> Value {
    serde_json::from_str(WEATHER).unwrap()
}

/// The names of a stream's events in order, without repeated deltas and pings.
fn shape(reply: &Reply) -> Vec<String> {
    let mut names: Vec<String> = reply
        .events()
        .iter()
        .map(|event| match event["delta"]["type"].as_str() {
            Some(delta) => delta.to_owned(),
            None => event["type"].as_str().unwrap().to_owned(),
        })
        .filter(|name| name != "ping")
        .collect();
    names.dedup();
    names
}

/// The concatenated field of a stream's deltas.
fn deltas(reply: &Reply, field: &str) -> String {
    let events = reply.events();
    events.iter().filter_map(|event| event["delta"][field].as_str()).collect()
}

#[test]
fn a_plain_answer_is_a_message() {
    let double = Double::new(&FINE);
    let server = Server::start(&double);
    let reply = message(server.addr, json!({}));
    assert_eq!(reply.status, 200, "{reply:?}");
    let body = reply.json();
    assert!(body["id"].as_str().unwrap().starts_with("msg_"));
    assert_eq!(body["content"], json!([{"type": "text", "text": "Hello there, friend."}]));
    let head = (&body["type"], &body["role"], &body["model"]);
    assert_eq!(head, (&json!("message"), &json!("assistant"), &json!("tiny/qwen3")));
    assert_eq!((&body["stop_reason"], &body["stop_sequence"]), (&json!("end_turn"), &Value::Null));
    let asked = double.asked.lock().unwrap()[0].clone();
    assert_eq!(body["usage"]["input_tokens"], asked.prompt.len());
    assert!(body["usage"]["output_tokens"].as_u64().unwrap() > 3);
    assert_eq!(asked.max_tokens, 100);
    assert!(reply.header("request-id").unwrap().starts_with("req_"));
}

#[test]
fn a_stream_has_the_events_in_their_order() {
    let server = Server::start(&Double::new(&FINE));
    let reply = post(
        server.addr,
        "/v1/messages?beta=true",
        &[("x-api-key", "sk-ant-any"), ("anthropic-version", "2026-10-21")],
        &message_body(json!({"stream": true, "context_management": {"edits": []}})),
    );
    assert_eq!((reply.status, reply.whole), (200, true), "{reply:?}");
    let want = [
        "message_start",
        "content_block_start",
        "text_delta",
        "content_block_stop",
        "message_delta",
        "message_stop",
    ];
    assert_eq!(shape(&reply), want);
    assert_eq!(deltas(&reply, "text"), "Hello there, friend.");
    for line in reply.body.split("\n\n").filter(|event| !event.is_empty()) {
        let (name, data) = line.split_once('\n').unwrap();
        let data: Value = serde_json::from_str(data.strip_prefix("data: ").unwrap()).unwrap();
        assert_eq!(data["type"], name.strip_prefix("event: ").unwrap(), "{line}");
    }
    let events = reply.events();
    let start = &events[0]["message"];
    assert_eq!((&start["content"], &start["stop_reason"]), (&json!([]), &Value::Null));
    assert!(start["usage"]["input_tokens"].as_u64().unwrap() > 0);
    let end = &events[events.len() - 2];
    assert_eq!(end["delta"], json!({"stop_reason": "end_turn", "stop_sequence": null}));
    assert_eq!(end["usage"]["input_tokens"], start["usage"]["input_tokens"]);
    assert!(end["usage"]["output_tokens"].as_u64().unwrap() > 3);
}

#[test]
fn answers_say_why_they_ended() {
    let length = [Act::Say("one two three"), Act::Done(FinishReason::Length)];
    let double = Double::new(&length);
    let server = Server::start(&double);
    let tokens = message(server.addr, json!({})).json()["usage"]["output_tokens"].clone();
    let ending = |extra: Value| {
        let whole = message(server.addr, extra.clone()).json();
        let mut streamed = extra;
        streamed["stream"] = true.into();
        let events = message(server.addr, streamed).events();
        let found = &events[events.len() - 2]["delta"];
        assert_eq!(found["stop_reason"], whole["stop_reason"]);
        assert_eq!(found["stop_sequence"], whole["stop_sequence"]);
        (whole["stop_reason"].clone(), whole["stop_sequence"].clone())
    };
    let cut = ending(json!({"max_tokens": tokens}));
    assert_eq!(cut, (json!("max_tokens"), Value::Null));
    assert_eq!(ending(json!({})).0, "model_context_window_exceeded");
    let stopped = ending(json!({"stop_sequences": ["x", " two"]}));
    assert_eq!(stopped, (json!("stop_sequence"), json!(" two")));
}

#[test]
fn calls_of_tools_are_blocks() {
    let script = [
        Act::Say(
            "Let me see.<tool_call>{\"name\": \"weather\", \"arguments\": {\"at\": \"Rome\"}}</tool_call>",
        ),
        Act::Done(FinishReason::Stop),
    ];
    let double = thinker(&script);
    let server = Server::start(&double);
    let reply = message(server.addr, json!({"tools": [weather()]}));
    let body = reply.json();
    assert_eq!(body["stop_reason"], "tool_use", "{reply:?}");
    assert_eq!(body["content"][0], json!({"type": "text", "text": "Let me see."}));
    let call = &body["content"][1];
    assert_eq!((&call["type"], &call["name"]), (&json!("tool_use"), &json!("weather")));
    assert_eq!(call["input"], json!({"at": "Rome"}));
    assert!(!call["id"].as_str().unwrap().is_empty());
    assert!(double.last_prompt().contains("[weather]"), "{}", double.last_prompt());

    let reply = message(server.addr, json!({"tools": [weather()], "stream": true}));
    let want = [
        "message_start",
        "content_block_start",
        "text_delta",
        "content_block_stop",
        "content_block_start",
        "input_json_delta",
        "content_block_stop",
        "message_delta",
        "message_stop",
    ];
    assert_eq!(shape(&reply), want);
    let input: Value = serde_json::from_str(&deltas(&reply, "partial_json")).unwrap();
    assert_eq!(input, json!({"at": "Rome"}));
    let starts: Vec<Value> =
        reply.events().into_iter().filter(|event| event["type"] == "content_block_start").collect();
    assert_eq!(
        (&starts[1]["index"], &starts[1]["content_block"]["input"]),
        (&json!(1), &json!({}))
    );

    // The round trip: the call is sent back with its result.
    let back = json!({"tools": [weather()], "messages": [
        {"role": "user", "content": "Rain in Rome?"},
        {"role": "assistant", "content": body["content"]},
        {"role": "user", "content": [{
            "type": "tool_result", "tool_use_id": call["id"], "content": "Sun.",
        }]},
    ]});
    assert_eq!(message(server.addr, back).status, 200);
    let prompt = double.last_prompt();
    assert!(prompt.contains("<assistant>Let me see.<tool_call>weather</tool_call>"), "{prompt}");
    assert!(prompt.contains("<tool>Sun."), "{prompt}");
}

#[test]
fn what_the_choice_of_tools_demands_reaches_the_sampler() {
    let double = thinker(&FINE);
    let server = Server::start(&double);
    let other = json!({"name": "other", "input_schema": {"type": "object"}});
    let ask = |choice: Value| {
        let tools = json!([weather(), other]);
        let reply = message(server.addr, json!({"tools": tools, "tool_choice": choice}));
        assert_eq!(reply.status, 200, "{reply:?}");
        double.asked.lock().unwrap().last().unwrap().grammar.clone()
    };
    let lark = |grammar: Option<Grammar>| match grammar {
        Some(Grammar::Lark(lark)) => lark,
        other => panic!("{other:?}"),
    };
    assert_eq!(ask(json!({"type": "auto"})), None);
    let any = lark(ask(json!({"type": "any"})));
    assert!(any.contains("weather") && any.contains("other"), "{any}");
    let one = lark(ask(json!({"type": "any", "disable_parallel_tool_use": true})));
    assert_ne!(one, any);
    let named = lark(ask(json!({"type": "tool", "name": "weather"})));
    assert!(named.contains("weather") && !named.contains("other"), "{named}");
    assert_eq!(ask(json!({"type": "none"})), None);
    assert!(!double.last_prompt().contains("[weather]"), "the model is not told of them");
}

#[test]
fn thoughts_come_if_they_are_wanted() {
    let script = [Act::Say("<think>Hmm.</think>Yes."), Act::Done(FinishReason::Stop)];
    let double = thinker(&script);
    let server = Server::start(&double);
    let enabled = json!({"type": "enabled", "budget_tokens": 2048});
    let body = message(server.addr, json!({"thinking": enabled})).json();
    let thinking = json!({"type": "thinking", "thinking": "Hmm.", "signature": "unsigned"});
    assert_eq!(body["content"], json!([thinking, {"type": "text", "text": "Yes."}]));
    assert!(double.last_prompt().contains("thinks=True"), "{}", double.last_prompt());

    let reply = message(server.addr, json!({"thinking": {"type": "adaptive"}, "stream": true}));
    let want = [
        "message_start",
        "content_block_start",
        "thinking_delta",
        "signature_delta",
        "content_block_stop",
        "content_block_start",
        "text_delta",
        "content_block_stop",
        "message_delta",
        "message_stop",
    ];
    assert_eq!(shape(&reply), want);
    assert_eq!(deltas(&reply, "thinking"), "Hmm.");
    assert!(!double.last_prompt().contains("thinks="), "adaptive leaves it to the model");

    let omitted = json!({"type": "adaptive", "display": "omitted"});
    let reply = message(server.addr, json!({"thinking": omitted, "stream": true}));
    assert_eq!(deltas(&reply, "thinking"), "");
    assert!(shape(&reply).contains(&"signature_delta".to_owned()));

    for thinking in [Value::Null, json!({"type": "disabled"})] {
        for stream in [false, true] {
            let reply = message(server.addr, json!({"thinking": thinking, "stream": stream}));
            let is_whole = stream || reply.body.contains("\"Yes.\"");
            assert!(is_whole && !reply.body.contains("Hmm"), "{reply:?}");
            assert!(!stream || deltas(&reply, "text") == "Yes.", "{reply:?}");
            assert!(!reply.body.contains("thinking"), "{reply:?}");
        }
        assert!(double.last_prompt().contains("thinks=False"), "{}", double.last_prompt());
    }
}

#[test]
fn what_is_asked_reaches_the_cluster() {
    let double = thinker(&FINE);
    let server = Server::start(&double);
    let schema = json!({"type": "object", "properties": {"a": {"type": "integer"}}});
    let reply = message(
        server.addr,
        json!({
            "temperature": 0.5, "top_p": 0.25, "top_k": 7, "max_tokens": 9,
            "thinking": {"type": "adaptive"},
            "output_config": {"effort": "low", "format": {"type": "json_schema", "schema": schema}},
            "metadata": {"user_id": "me"}, "service_tier": "auto", "unknown_field": [1],
            "system": [
                {"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}},
                {"type": "text", "text": "Be kind."},
            ],
        }),
    );
    assert_eq!(reply.status, 200, "{reply:?}");
    let asked = double.asked.lock().unwrap()[0].clone();
    let sampling = &asked.sampling;
    assert_eq!((sampling.temperature, sampling.top_p, sampling.top_k), (0.5, 0.25, 7));
    assert_eq!(asked.max_tokens, 9);
    assert!(format!("{:?}", asked.grammar).contains("integer"), "{:?}", asked.grammar);
    let prompt = double.last_prompt();
    assert!(prompt.contains("<system>Be brief.\nBe kind."), "{prompt}");
    assert!(prompt.contains("effort=low"), "{prompt}");
}

#[test]
fn a_last_turn_of_the_assistants_is_gone_on_with() {
    let template = "{% for m in messages %}<{{ m.role }}>{{ m.content }}<end>{% endfor %}";
    let double = Arc::new(Double::with_header(fixture_with_template(template), &FINE));
    let server = Server::start(&double);
    let messages = json!([
        {"role": "user", "content": "Greet."}, {"role": "assistant", "content": "Well,"},
    ]);
    assert_eq!(message(server.addr, json!({"messages": messages})).status, 200);
    assert!(double.last_prompt().ends_with("<assistant>Well,"), "{}", double.last_prompt());
}

#[test]
fn what_cannot_be_is_refused_by_name_in_anthropics_form() {
    let double = Double::new(&FINE);
    let server = Server::start(&double);
    let image = json!([{"role": "user", "content": [
        {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": ""}},
    ]}]);
    let mut other_weather = weather();
    other_weather["description"] = json!("of another place");
    let cases = [
        (json!({"max_tokens": 0}), "max_tokens"),
        (json!({"temperature": -1}), "temperature"),
        (json!({"top_p": 1.5}), "top_p"),
        (json!({"top_k": -2}), "top_k"),
        (json!({"messages": image}), "reads text only"),
        (json!({"messages": []}), "messages"),
        (json!({"messages": [{"role": "robot", "content": "x"}]}), "robot"),
        (json!({"messages": [{"role": "user", "content": 7}]}), "content must be a string"),
        (json!({"model": null}), "model"),
        (json!({"system": 7}), "content must be a string"),
        (json!({"thinking": {"type": "always"}}), "thinking"),
        (json!({"tools": [{"name": "f"}]}), "input_schema"),
        (json!({"tools": [weather(), other_weather]}), "tools[1] is another definition"),
        (json!({"tool_choice": {"type": "any"}}), "tool_choice"),
        (json!({"tool_choice": {"type": "tool"}}), "tool_choice"),
        (json!({"tool_choice": {"type": "maybe"}}), "maybe"),
        (
            json!({"tools": [weather()], "tool_choice": {"type": "tool", "name": "g"}}),
            "tool_choice",
        ),
        (json!({"output_config": {"format": {"type": "xml"}}}), "output_config.format"),
        (json!({"mcp_servers": [{"url": "https://example.org"}]}), "mcp_servers"),
        (json!({"container": "c1"}), "container"),
    ];
    for (extra, named) in cases {
        let reply = message(server.addr, extra.clone());
        assert_eq!(reply.status, 400, "{extra}: {reply:?}");
        let body = reply.json();
        assert_eq!(body["type"], "error");
        assert_eq!(body["error"]["type"], "invalid_request_error");
        let message = body["error"]["message"].as_str().unwrap();
        assert!(message.contains(named), "{extra}: {message}");
        assert_eq!(body["request_id"], reply.header("request-id").unwrap());
    }
    assert!(double.asked.lock().unwrap().is_empty());
}

#[test]
fn whatever_refuses_does_so_in_anthropics_form() {
    let server = Server::with(&Double::new(&FINE), |config| {
        config.api_keys = Some(serve::ApiKeys::fixed(&[KEY]));
        config.limits.body_bytes_max = 10_000;
    });
    let far = ("x-forwarded-for", "10.0.0.9");
    let long = json!({"messages": [{"role": "user", "content": "x".repeat(20_000)}]});
    let cases = [
        (
            post(server.addr, MESSAGES, &[far], &message_body(json!({}))),
            401,
            "authentication_error",
        ),
        (
            post(server.addr, MESSAGES, &[("host", "evil.example")], &message_body(json!({}))),
            403,
            "permission_error",
        ),
        (
            post(server.addr, MESSAGES, &[("content-type", "text/plain")], &json!({})),
            415,
            "invalid_request_error",
        ),
        (message(server.addr, long), 413, "request_too_large"),
        (message(server.addr, json!({"model": "claude"})), 404, "not_found_error"),
        (get(server.addr, MESSAGES, &[]), 405, "invalid_request_error"),
        (post(server.addr, "/v1/messages/batches", &[], &json!({})), 404, "not_found_error"),
        (
            get(server.addr, "/v1/models/claude", &[("anthropic-version", "2023-06-01")]),
            404,
            "not_found_error",
        ),
    ];
    for (reply, status, kind) in cases {
        assert_eq!((reply.status, reply.whole), (status, true), "{reply:?}");
        let body = reply.json();
        assert_eq!((&body["type"], &body["error"]["type"]), (&json!("error"), &json!(kind)));
        assert_eq!(body["request_id"], reply.header("request-id").unwrap());
    }
    for header in [("x-api-key", KEY), ("authorization", &*format!("Bearer {KEY}"))] {
        let reply = post(server.addr, MESSAGES, &[far, header], &message_body(json!({})));
        assert_eq!(reply.status, 200, "{reply:?}");
    }
}

#[test]
fn tokens_are_counted_as_they_would_be_read() {
    let double = thinker(&FINE);
    let server = Server::start(&double);
    let tools = json!([weather()]);
    let count = |extra: Value| {
        let mut body = message_body(extra);
        body.as_object_mut().unwrap().remove("max_tokens");
        let reply = post(server.addr, "/v1/messages/count_tokens", &[], &body);
        assert_eq!(reply.status, 200, "{reply:?}");
        reply.json()["input_tokens"].as_u64().unwrap()
    };
    for extra in [json!({}), json!({"tools": tools}), json!({"system": "Be brief."})] {
        let usage = message(server.addr, extra.clone()).json()["usage"].clone();
        assert_eq!(usage["input_tokens"], count(extra.clone()), "{extra}");
    }
    assert!(count(json!({"tools": tools})) > count(json!({})));
    let before = double.asked.lock().unwrap().len();
    count(json!({"messages": [{"role": "user", "content": "word ".repeat(5000)}]}));
    assert_eq!(double.asked.lock().unwrap().len(), before, "counting asks nobody");
    let wrong = json!({"model": "claude", "messages": [{"role": "user", "content": "hi"}]});
    assert_eq!(post(server.addr, "/v1/messages/count_tokens", &[], &wrong).status, 404);
}

#[test]
fn a_model_that_is_not_ready_is_waited_for_with_pings() {
    let script = [
        Act::Waiting("loading 10 %"),
        Act::Pause(Duration::from_millis(350)),
        Act::Say("Late but whole."),
        Act::Done(FinishReason::Stop),
    ];
    let server = Server::start(&Double::new(&script));
    let reply = message(server.addr, json!({"stream": true}));
    assert_eq!((reply.status, deltas(&reply, "text").as_str()), (200, "Late but whole."));
    assert!(reply.body.contains(": loading 10 %\n\n"), "{}", reply.body);
    let pings = reply.events().iter().filter(|event| event["type"] == "ping").count();
    assert!(pings >= 2, "one at the start, and while it waits: {}", reply.body);
}

#[test]
fn the_root_answers_a_knock() {
    let server = Server::start(&Double::new(&FINE));
    let request = client::request("HEAD", "/", server.addr, &[], "");
    assert_eq!(client::send(server.addr, request.as_bytes()).status, 200);
}

//! Failures as clients see them: a partial answer never looks complete.

use std::io::Write;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::support::client::{self, CHAT, chat, chat_body, connect};
use crate::support::double::{Act, Double, fixture_with_template};
use crate::support::server::Server;
use crate::support::wait_running;
use cluster::InstanceState;
use protocol::FinishReason;
use serde_json::{Value, json};
use serve::{Refusal, RefusalKind};

const LOST: &str = "node mac-mini was lost";

#[test]
fn a_stream_that_fails_midway_says_so_and_is_cut() {
    let endings: [(&[Act], &str); 3] = [
        (&[Act::Failed(LOST)], LOST),
        (&[Act::Vanish], "without a reason"),
        (&[Act::Done(FinishReason::Cancelled)], "cancelled"),
    ];
    for (ending, message) in endings {
        let script = [&[Act::Say("half an ans")], ending].concat();
        let server = Server::start(&Double::new(&script));
        let reply = chat(server.addr, json!({"stream": true}));
        assert_eq!((reply.status, reply.text().as_str()), (200, "half an ans"), "{reply:?}");
        let events = reply.events();
        let error = &events.last().unwrap()["error"];
        assert!(error["message"].as_str().unwrap().contains(message), "{error}");
        assert_eq!(
            (&error["code"], &error["type"]),
            (&json!("generation_failed"), &json!("server_error"))
        );
        assert!(!events.contains(&json!("[DONE]")));
        assert!(events.iter().all(|event| event["choices"][0]["finish_reason"].is_null()));
        assert!(!reply.whole, "the connection must be cut, not ended: {reply:?}");

        let reply = chat(server.addr, json!({}));
        assert_eq!((reply.status, reply.whole), (502, true), "{reply:?}");
        assert!(reply.body.contains(message) && !reply.body.contains("half an ans"), "{reply:?}");
    }
}

/// The double's answer fails by itself after the grace, as one does when its node shuts down.
#[test]
fn an_answer_that_a_stop_cuts_says_so() {
    let script = [Act::Say("half"), Act::Pause(Duration::from_millis(300)), Act::Failed(LOST)];
    let double = Double::new(&script);
    let mut server = Server::with(&double, |config| {
        // Short: the grace under test, which ends before the answer.
        config.limits.shutdown_grace = Duration::from_millis(10);
    });
    let addr = server.addr;
    let asking = std::thread::spawn(move || chat(addr, json!({"stream": true})));
    wait_running(&double, 1);
    let end_answers = async {
        while double.running.load(Ordering::SeqCst) > 0 {
            // Sleeps: between two looks, until the answer has ended.
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    server.runtime.block_on(server.running.take().unwrap().stop(end_answers));
    let reply = asking.join().unwrap();
    assert_eq!((reply.text().as_str(), reply.whole), ("half", false), "{reply:?}");
    let events = reply.events();
    assert!(events.last().unwrap()["error"]["message"].as_str().unwrap().contains(LOST));
}

#[test]
fn a_stream_that_fails_at_once_fails_with_a_status() {
    let server = Server::start(&Double::new(&[Act::Failed(LOST)]));
    for stream in [true, false] {
        let reply = chat(server.addr, json!({"stream": stream}));
        assert_eq!((reply.status, reply.code().as_str()), (502, "generation_failed"), "{stream}");
        assert!(reply.body.contains(LOST));
    }
}

#[test]
fn a_failure_after_waiting_is_an_event_in_the_stream() {
    let script =
        [Act::Waiting("recovering"), Act::Pause(Duration::from_millis(50)), Act::Failed(LOST)];
    let server = Server::start(&Double::new(&script));
    let reply = chat(server.addr, json!({"stream": true}));
    assert_eq!((reply.status, reply.whole), (200, false));
    assert!(reply.events().last().unwrap()["error"]["message"].as_str().unwrap().contains(LOST));
}

#[test]
fn refusals_have_their_status_and_say_whether_to_try_again() {
    let cases = [
        (RefusalKind::Busy, 429, "queue_full", Some(("retry-after", "2"))),
        (RefusalKind::Unavailable, 503, "unavailable", Some(("retry-after", "2"))),
        (RefusalKind::Failed, 503, "model_failed", Some(("x-should-retry", "false"))),
        (RefusalKind::Invalid, 400, "invalid_request", None),
        (RefusalKind::Conflict, 409, "conflict", Some(("x-should-retry", "false"))),
    ];
    let double = Double::new(&[Act::Done(FinishReason::Stop)]);
    let server = Server::start(&double);
    for (kind, status, code, header) in cases {
        *double.refusal.lock().unwrap() = Some(Refusal::new(kind, "because of 7"));
        for stream in [true, false] {
            let reply = chat(server.addr, json!({"stream": stream}));
            assert_eq!((reply.status, reply.code().as_str()), (status, code), "{reply:?}");
            assert_eq!(reply.json()["error"]["message"], "because of 7");
            if let Some((name, value)) = header {
                assert_eq!(reply.header(name), Some(value), "{reply:?}");
            }
        }
    }
}

#[test]
fn a_model_that_gave_up_says_why_and_is_not_tried_again() {
    let double = Double::new(&[Act::Done(FinishReason::Stop)]);
    double.set_state(InstanceState::Failed { reason: "41.2 GiB needed, 37.9 free".to_owned() });
    let server = Server::start(&double);
    let reply = chat(server.addr, json!({"stream": true}));
    assert_eq!((reply.status, reply.code().as_str()), (503, "model_failed"));
    assert_eq!(reply.header("x-should-retry"), Some("false"));
    assert!(reply.body.contains("41.2 GiB needed"));
}

#[test]
fn an_unknown_model_is_answered_with_those_that_are_served() {
    let double = Double::new(&[Act::Done(FinishReason::Stop)]);
    let server = Server::start(&double);
    let long = "x".repeat(5000);
    for name in ["gpt-4o", "../../etc/passwd", "a/../../b", "C:\\x", "\u{0}", "tïny/qwen3", &long]
    {
        let reply = chat(server.addr, json!({"model": name}));
        assert_eq!((reply.status, reply.code().as_str()), (404, "model_not_found"), "{name:?}");
        assert!(reply.body.contains("Served are: tiny/qwen3"), "{reply:?}");
    }
    double.status.lock().unwrap().instances.clear();
    let reply = chat(server.addr, json!({}));
    assert_eq!(reply.status, 404);
    assert!(reply.body.contains("sinew serve MODEL"), "{reply:?}");
    assert!(double.asked.lock().unwrap().is_empty());
}

#[test]
fn an_unknown_model_is_waited_for_while_the_node_does_not_know_what_is_served() {
    let double = Double::new(&[Act::Say("ok"), Act::Done(FinishReason::Stop)]);
    let server = Server::start(&double);
    let known = std::mem::take(&mut double.status.lock().unwrap().instances);
    double.status.lock().unwrap().unsettled = Some("it hears nobody yet".to_owned());
    let asking = [
        ("/v1/chat/completions", chat_body(json!({}))),
        ("/v1/messages", client::message_body(json!({}))),
        ("/api/chat", chat_body(json!({"stream": false}))),
        ("/api/show", json!({"model": "tiny/qwen3"})),
    ];
    let ask = |of: usize| client::post(server.addr, asking[of].0, &[], &asking[of].1);
    std::thread::scope(|scope| {
        let asked: Vec<_> = (0..asking.len()).map(|of| scope.spawn(move || ask(of))).collect();
        let shown = scope.spawn(|| client::get(server.addr, "/v1/models/tiny/qwen3", &[]));
        for (of, reply) in asked.into_iter().enumerate() {
            let reply = reply.join().unwrap();
            assert_eq!((reply.status, reply.header("retry-after")), (503, Some("2")), "{reply:?}");
            let error = &reply.json()["error"];
            let message = error["message"].as_str().or(error.as_str()).unwrap().to_owned();
            assert!(message.contains("\"tiny/qwen3\" is not known here yet"), "{message}");
            assert_eq!(error["type"] == "overloaded_error", asking[of].0 == "/v1/messages");
        }
        assert_eq!(shown.join().unwrap().status, 503);
    });
    std::thread::scope(|scope| {
        let asked = scope.spawn(move || ask(0));
        // Sleeps: the request should find nothing at first, and nobody sees that it waits.
        std::thread::sleep(Duration::from_millis(200));
        let mut status = double.status.lock().unwrap();
        (status.instances, status.unsettled) = (known, None);
        drop(status);
        assert_eq!(asked.join().unwrap().status, 200);
    });
}

#[test]
fn a_model_that_is_stopped_meanwhile_is_unknown_by_the_name_that_was_asked() {
    let double = Double::new(&[Act::Done(FinishReason::Stop)]);
    let server = Server::start(&double);
    let refusal = Refusal::new(RefusalKind::NotFound, "tiny-1 is not served here");
    *double.refusal.lock().unwrap() = Some(refusal);
    let reply = chat(server.addr, json!({}));
    assert_eq!((reply.status, reply.code().as_str()), (404, "model_not_found"));
    assert!(!reply.body.contains("tiny-1") && reply.body.contains("tiny/qwen3"), "{reply:?}");
}

#[test]
fn a_grammar_that_cannot_be_used_is_the_fault_of_the_field_that_asks_for_it() {
    let double = Double::new(&[Act::Refused("it has no end")]);
    let server = Server::start(&double);
    let schema = json!({"type": "object"});
    let tool = json!({"name": "f", "parameters": schema, "input_schema": schema});
    let function = json!({"type": "function", "function": tool});
    let json_schema = json!({"type": "json_schema", "json_schema": {"schema": schema}});
    let text = json!({"format": {"type": "json_schema", "name": "x", "schema": schema}});
    let cases = [
        (CHAT, json!({"response_format": json_schema}), "response_format"),
        (CHAT, json!({"structured_outputs": {"regex": "a"}}), "structured_outputs"),
        (CHAT, json!({"tools": [function], "tool_choice": "required"}), "tools"),
        ("/v1/responses", json!({"input": "hi", "text": text}), "text.format"),
        (
            "/v1/messages",
            json!({"output_config": {"format": {"type": "json_schema", "schema": schema}}}),
            "output_config.format",
        ),
        ("/v1/messages", json!({"tools": [tool], "tool_choice": {"type": "any"}}), "tools"),
        ("/api/chat", json!({"format": schema}), "format"),
    ];
    for (path, extra, field) in cases {
        let reply = client::post(server.addr, path, &[], &client::message_body(extra));
        let error = &reply.json()["error"];
        let message = error["message"].as_str().or(error.as_str()).unwrap().to_owned();
        assert_eq!((reply.status, message), (400, format!("{field}: it has no end")), "{path}");
        let is_openai = error.get("param").is_some();
        assert!(!is_openai || error["param"] == field, "{path}: {error}");
    }
}

#[test]
fn a_prompt_over_the_context_is_refused_with_numbers_before_any_work() {
    let double = Double::new(&[Act::Done(FinishReason::Stop)]);
    let server = Server::start(&double);
    let long = "word ".repeat(2000);
    let reply = chat(server.addr, json!({"messages": [{"role": "user", "content": long}]}));
    assert_eq!((reply.status, reply.code().as_str()), (400, "context_length_exceeded"));
    let message = reply.json()["error"]["message"].as_str().unwrap().to_owned();
    assert!(message.contains("context 1024"), "{message}");
    assert!(double.asked.lock().unwrap().is_empty());
}

#[test]
fn templates_that_refuse_or_loop_are_the_requests_fault() {
    let cases = [
        ("{{ raise_exception('roles must alternate') }}", "roles must alternate"),
        (
            "{% for a in range(99999) %}{% for b in range(99999) %}x{% endfor %}{% endfor %}",
            "stopped",
        ),
    ];
    for (template, message) in cases {
        let header = fixture_with_template(template);
        let double = Arc::new(Double::with_header(header, &[Act::Done(FinishReason::Stop)]));
        let server = Server::start(&double);
        let reply = chat(server.addr, json!({}));
        assert_eq!((reply.status, reply.code().as_str()), (400, "invalid_value"), "{reply:?}");
        assert_eq!(reply.json()["error"]["param"], "messages");
        assert!(reply.body.contains(message), "{reply:?}");
    }
}

#[test]
fn a_template_that_is_no_template_is_the_models_fault() {
    let mut double = Double::with_header(fixture_with_template("{% if"), &[]);
    double.asked = Default::default();
    let server = Server::start(&Arc::new(double));
    let reply = chat(server.addr, json!({}));
    assert_eq!((reply.status, reply.code().as_str()), (503, "model_failed"), "{reply:?}");
    assert_eq!(reply.header("x-should-retry"), Some("false"));
}

#[test]
fn a_client_that_leaves_ends_the_work() {
    let scripts: [&[Act]; 3] =
        [&[Act::Hang], &[Act::Say("some"), Act::Hang], &[Act::Waiting("loading"), Act::Hang]];
    for script in scripts {
        for stream in [true, false] {
            let double = Double::new(script);
            let server = Server::start(&double);
            let body = chat_body(json!({"stream": stream})).to_string();
            let request = client::request("POST", CHAT, server.addr, &[], &body);
            let mut connection = connect(server.addr);
            connection.write_all(request.as_bytes()).unwrap();
            wait_running(&double, 1);
            drop(connection);
            wait_running(&double, 0);
        }
    }
}

#[test]
fn more_completions_than_allowed_are_told_to_come_back() {
    let double = Double::new(&[Act::Hang]);
    let server = Server::with(&double, |config| config.limits.completions_max = 2);
    let body = chat_body(json!({"stream": true})).to_string();
    let request = client::request("POST", CHAT, server.addr, &[], &body);
    let connections = [connect(server.addr), connect(server.addr)];
    for mut connection in &connections {
        connection.write_all(request.as_bytes()).unwrap();
    }
    wait_running(&double, 2);
    let reply = chat(server.addr, json!({}));
    assert_eq!((reply.status, reply.code().as_str()), (429, "queue_full"));
    assert!(reply.header("retry-after").is_some());
    drop(connections);
    wait_running(&double, 0);
    double.play(&[Act::Say("free"), Act::Done(FinishReason::Stop)]);
    assert_eq!(chat(server.addr, json!({})).status, 200);
}

#[test]
fn an_error_body_has_all_that_clients_read() {
    let server = Server::start(&Double::new(&[Act::Done(FinishReason::Stop)]));
    let reply = chat(server.addr, json!({"temperature": -3}));
    assert_eq!(reply.status, 400);
    let want = json!({"error": {
        "message": "temperature is -3; it must be from 0 to 2",
        "type": "invalid_request_error",
        "code": "invalid_value",
        "param": "temperature",
    }});
    assert_eq!(reply.json(), want);
}

#[test]
fn hostile_bodies_are_400() {
    let server = Server::start(&Double::new(&[Act::Done(FinishReason::Stop)]));
    let deep = "[".repeat(100_000);
    let messages = format!("{{\"model\":\"tiny/qwen3\",\"messages\":{deep}");
    let unknown = format!("{{\"else\":{}", "{\"a\":".repeat(100_000));
    let bodies: [&[u8]; 12] = [
        b"",
        b"null",
        b"[]",
        b"{",
        b"{\"model\": 7}",
        b"{\"model\": \"a\", \"model\": \"b\"}",
        b"{\"model\": \"\\ud800\"}",
        b"{\"model\": \"\xc3\x28\"}",
        b"{\"temperature\": NaN}",
        b"{\"max_tokens\": 9223372036854775808}",
        deep.as_bytes(),
        messages.as_bytes(),
    ];
    for body in bodies.into_iter().chain([unknown.as_bytes()]) {
        let shown = String::from_utf8_lossy(&body[..body.len().min(60)]).into_owned();
        let length = body.len().to_string();
        let head = [("content-length", length.as_str())];
        let request = client::request("POST", CHAT, server.addr, &head, "");
        let reply = client::send(server.addr, &[request.as_bytes(), body].concat());
        assert_eq!(reply.status, 400, "{shown}: {reply:?}");
        assert_ne!(reply.json()["error"]["message"], Value::Null);
    }
}

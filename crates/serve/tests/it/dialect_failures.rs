//! Failures that clients must see in every dialect: a failed answer never looks complete, and every
//! error has its dialect's format.

use std::io::Write;
use std::time::Duration;

use crate::support::client::{self, Reply, chat_body, connect, message_body, post};
use crate::support::double::{Act, Double};
use crate::support::server::Server;
use crate::support::wait_running;
use cluster::InstanceState;
use protocol::FinishReason;
use serde_json::{Value, json};
use serve::{Refusal, RefusalKind};

const LOST: &str = "node mac-mini was lost";

/// A dialect's format, as the tests need it.
struct Dialect {
    path: &'static str,
    body: fn(Value) -> Value,
    /// The message of an error in a body, or in the data of an event.
    error: fn(&Value) -> Option<&str>,
    /// The text of one event.
    text: fn(&Value) -> Option<&str>,
    /// Whether an event marks the answer as complete.
    ends: fn(&Value) -> bool,
}

const DIALECTS: [Dialect; 6] = [
    Dialect {
        path: "/v1/chat/completions",
        body: chat_body,
        error: openai_error,
        text: |event| event.pointer("/choices/0/delta/content")?.as_str(),
        ends: openai_end,
    },
    Dialect {
        path: "/v1/completions",
        body: prompt_body,
        error: openai_error,
        text: |event| event.pointer("/choices/0/text")?.as_str(),
        ends: openai_end,
    },
    Dialect {
        path: "/v1/responses",
        body: input_body,
        error: |body| {
            let failed = body.pointer("/response/error/message").and_then(Value::as_str);
            assert!(failed.is_none() || body["type"] == "response.failed", "{body}");
            failed.or_else(|| openai_error(body))
        },
        text: |event| {
            let is_text = event["type"] == "response.output_text.delta";
            event["delta"].as_str().filter(|_| is_text)
        },
        ends: |event| {
            event["type"] == "response.completed" || event["type"] == "response.incomplete"
        },
    },
    Dialect {
        path: "/v1/messages",
        body: message_body,
        error: |body| {
            assert!(body["error"].is_null() || body["type"] == "error", "{body}");
            assert!(body["error"].is_null() || body["request_id"].is_string(), "{body}");
            body["error"]["message"].as_str()
        },
        text: |event| event["delta"]["text"].as_str(),
        ends: |event| event["type"] == "message_stop" || event["type"] == "message_delta",
    },
    Dialect {
        path: "/api/chat",
        body: chat_body,
        error: |body| body["error"].as_str(),
        text: |event| event["message"]["content"].as_str(),
        ends: |event| event["done"] == true,
    },
    Dialect {
        path: "/api/generate",
        body: prompt_body,
        error: |body| body["error"].as_str(),
        text: |event| event["response"].as_str(),
        ends: |event| event["done"] == true,
    },
];

fn prompt_body(extra: Value) -> Value {
    let mut body = json!({"model": "tiny/qwen3", "prompt": "Say hello"});
    for (key, value) in extra.as_object().unwrap() {
        body[key] = value.clone();
    }
    body
}

/// This dialect names the prompt `input`.
fn input_body(extra: Value) -> Value {
    let mut body = prompt_body(extra);
    body["input"] = body["prompt"].take();
    body
}

fn openai_error(body: &Value) -> Option<&str> {
    assert!(body["error"].is_null() || body["error"]["type"].is_string(), "{body}");
    body["error"]["message"].as_str()
}

fn openai_end(event: &Value) -> bool {
    *event == "[DONE]" || !event["choices"][0]["finish_reason"].is_null()
}

impl Dialect {
    fn ask(&self, server: &Server, extra: Value) -> Reply {
        post(server.addr, self.path, &[], &(self.body)(extra))
    }

    /// The events of a stream in any framing.
    fn events(&self, reply: &Reply) -> Vec<Value> {
        if self.path.starts_with("/api/") {
            return reply.body.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        }
        reply.events()
    }

    fn said(&self, events: &[Value]) -> String {
        events.iter().filter_map(self.text).collect()
    }

    fn message(&self, reply: &Reply) -> String {
        let body = reply.json();
        let found = (self.error)(&body).unwrap_or_else(|| panic!("{}: {reply:?}", self.path));
        found.to_owned()
    }

    /// Checks that a stream sent `text`, failed for a reason and does not look complete.
    fn check_failed(&self, reply: &Reply, text: &str, reason: &str) {
        let events = self.events(reply);
        assert_eq!((reply.status, &*self.said(&events)), (200, text), "{}: {reply:?}", self.path);
        let (last, before) = events.split_last().unwrap();
        let message = (self.error)(last).unwrap_or_else(|| panic!("{}: {last}", self.path));
        assert!(message.contains(reason), "{}: {message}", self.path);
        assert!(!events.iter().any(self.ends), "{}: {events:?}", self.path);
        assert!(before.iter().all(|event| (self.error)(event).is_none()), "{}", self.path);
        assert!(!reply.whole, "{}: the connection must be cut: {reply:?}", self.path);
    }
}

#[test]
fn an_answer_that_is_lost_midway_says_so_in_its_dialect() {
    let endings: [(&[Act], &str); 3] = [
        (&[Act::Failed(LOST)], LOST),
        (&[Act::Vanish], "without a reason"),
        (&[Act::Done(FinishReason::Cancelled)], "cancelled"),
    ];
    for (ending, reason) in endings {
        let script = [&[Act::Say("half an ans")], ending].concat();
        let server = Server::start(&Double::new(&script));
        for dialect in &DIALECTS {
            let reply = dialect.ask(&server, json!({"stream": true}));
            dialect.check_failed(&reply, "half an ans", reason);
            let reply = dialect.ask(&server, json!({"stream": false}));
            assert_eq!((reply.status, reply.whole), (502, true), "{reply:?}");
            assert!(dialect.message(&reply).contains(reason), "{reply:?}");
            assert!(!reply.body.contains("half an ans"), "{reply:?}");
        }
    }
}

#[test]
fn an_answer_that_is_whole_ends_as_such() {
    let server = Server::start(&Double::new(&[Act::Say("Hi."), Act::Done(FinishReason::Stop)]));
    for dialect in &DIALECTS {
        let reply = dialect.ask(&server, json!({"stream": true}));
        let events = dialect.events(&reply);
        assert_eq!((reply.whole, &*dialect.said(&events)), (true, "Hi."), "{reply:?}");
        assert!((dialect.ends)(events.last().unwrap()), "{reply:?}");
        assert!(events.iter().all(|event| (dialect.error)(event).is_none()), "{reply:?}");
    }
}

#[test]
fn what_fails_at_once_fails_with_a_status() {
    let server = Server::start(&Double::new(&[Act::Failed(LOST)]));
    for dialect in &DIALECTS {
        for stream in [true, false] {
            let reply = dialect.ask(&server, json!({"stream": stream}));
            assert_eq!(reply.status, 502, "{reply:?}");
            assert!(dialect.message(&reply).contains(LOST));
        }
    }
}

#[test]
fn what_fails_after_waiting_says_so_in_the_stream() {
    let script =
        [Act::Waiting("recovering"), Act::Pause(Duration::from_millis(50)), Act::Failed(LOST)];
    let server = Server::start(&Double::new(&script));
    for dialect in &DIALECTS {
        dialect.check_failed(&dialect.ask(&server, json!({"stream": true})), "", LOST);
    }
}

#[test]
fn refusals_have_their_status_and_say_whether_to_try_again() {
    let cases = [
        (RefusalKind::Busy, 429, Some(("retry-after", "2"))),
        (RefusalKind::Unavailable, 503, Some(("retry-after", "2"))),
        (RefusalKind::Failed, 503, Some(("x-should-retry", "false"))),
        (RefusalKind::NotFound, 404, None),
        (RefusalKind::Invalid, 400, None),
        (RefusalKind::Conflict, 409, Some(("x-should-retry", "false"))),
    ];
    let double = Double::new(&[Act::Done(FinishReason::Stop)]);
    let server = Server::start(&double);
    for (kind, status, header) in cases {
        *double.refusal.lock().unwrap() = Some(Refusal::new(kind, "why it is refused"));
        for dialect in &DIALECTS {
            for stream in [true, false] {
                let reply = dialect.ask(&server, json!({"stream": stream}));
                assert_eq!((reply.status, reply.whole), (status, true), "{kind:?}: {reply:?}");
                // An instance that is gone is reported as a model that is not served.
                let why = match kind {
                    RefusalKind::NotFound => "\"tiny/qwen3\" is not served here",
                    _ => "why it is refused",
                };
                assert!(dialect.message(&reply).contains(why), "{reply:?}");
                if let Some((name, value)) = header {
                    assert_eq!(reply.header(name), Some(value), "{kind:?}: {reply:?}");
                }
            }
        }
    }
}

#[test]
fn mistakes_are_told_with_numbers_and_names_before_any_work() {
    let double = Double::new(&[Act::Done(FinishReason::Stop)]);
    let server = Server::start(&double);
    let long = "word ".repeat(2000);
    let messages = json!([{"role": "user", "content": long}]);
    for dialect in &DIALECTS {
        let reply = dialect.ask(&server, json!({"messages": messages, "prompt": long}));
        assert_eq!(reply.status, 400, "{reply:?}");
        assert!(dialect.message(&reply).contains("context 1024"), "{reply:?}");
        let reply = dialect.ask(&server, json!({"model": "gpt-4o"}));
        assert_eq!(reply.status, 404, "{reply:?}");
        assert!(dialect.message(&reply).contains("Served are: tiny/qwen3"), "{reply:?}");
        let length = [("content-length", "1")];
        let broken = client::request("POST", dialect.path, server.addr, &length, "{");
        let reply = client::send(server.addr, broken.as_bytes());
        assert_eq!(reply.status, 400, "{reply:?}");
        assert!(!dialect.message(&reply).is_empty());
    }
    assert!(double.asked.lock().unwrap().is_empty());
}

#[test]
fn a_model_that_gave_up_says_why() {
    let double = Double::new(&[Act::Done(FinishReason::Stop)]);
    double.set_state(InstanceState::Failed { reason: "41.2 GiB needed, 37.9 free".to_owned() });
    let server = Server::start(&double);
    for dialect in &DIALECTS {
        let reply = dialect.ask(&server, json!({"stream": true}));
        assert_eq!((reply.status, reply.header("x-should-retry")), (503, Some("false")));
        assert!(dialect.message(&reply).contains("41.2 GiB needed"), "{reply:?}");
    }
}

#[test]
fn a_client_that_leaves_ends_the_work() {
    let double = Double::new(&[Act::Say("some"), Act::Hang]);
    let server = Server::start(&double);
    for dialect in &DIALECTS {
        for stream in [true, false] {
            let body = (dialect.body)(json!({"stream": stream})).to_string();
            let request = client::request("POST", dialect.path, server.addr, &[], &body);
            let mut connection = connect(server.addr);
            connection.write_all(request.as_bytes()).unwrap();
            wait_running(&double, 1);
            drop(connection);
            wait_running(&double, 0);
        }
    }
}

#[test]
fn more_than_there_is_room_for_is_told_to_come_back() {
    let double = Double::new(&[Act::Hang]);
    let server = Server::with(&double, |config| config.limits.completions_max = 1);
    let request = DIALECTS[0].body;
    let body = request(json!({"stream": true})).to_string();
    let request = client::request("POST", DIALECTS[0].path, server.addr, &[], &body);
    let mut connection = connect(server.addr);
    connection.write_all(request.as_bytes()).unwrap();
    wait_running(&double, 1);
    for dialect in &DIALECTS {
        let reply = dialect.ask(&server, json!({"stream": true}));
        assert_eq!(reply.status, 429, "{reply:?}");
        assert!(reply.header("retry-after").is_some() && !dialect.message(&reply).is_empty());
    }
}

#[test]
fn long_silences_show_signs_of_life() {
    let script = [
        Act::Say("a"),
        Act::Pause(Duration::from_millis(700)),
        Act::Say("b"),
        Act::Done(FinishReason::Stop),
    ];
    let server = Server::start(&Double::new(&script));
    for dialect in &DIALECTS {
        let reply = dialect.ask(&server, json!({"stream": true}));
        let events = dialect.events(&reply);
        assert_eq!(dialect.said(&events), "ab", "{reply:?}");
        let comments = reply.body.matches(": keep-alive\n\n").count();
        let pings = events.iter().filter(|event| event["type"] == "ping").count();
        let empty = events.iter().filter(|event| (dialect.text)(event) == Some("")).count();
        assert!(comments + pings + empty >= 3, "{}: {}", dialect.path, reply.body);
    }
}

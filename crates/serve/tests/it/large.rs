//! Large requests: their cost, and their effect on other requests.

use crate::support;
use std::io::Write;
use std::net::TcpStream;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::support::client::{
    CHAT, MESSAGES, Reply, chat, chat_body, connect, get, message_body, post, read_reply, request,
    send,
};
use crate::support::double::{Act, Double};
use crate::support::server::Server;
use crate::support::{PATIENCE, wait_for};
use protocol::FinishReason;
use serde_json::json;

const FINE: [Act; 2] = [Act::Say("fine"), Act::Done(FinishReason::Stop)];

/// A request without the last byte of its body.
fn almost(server: &Server, bytes: usize) -> TcpStream {
    let head = [("content-length", &*bytes.to_string())];
    let head = request("POST", CHAT, server.addr, &head, "");
    let mut stream = connect(server.addr);
    // A refused request is closed before it is complete.
    let _ = stream.write_all(&[head.as_bytes(), "{".repeat(bytes - 1).as_bytes()].concat());
    stream
}

#[test]
fn requests_fill_their_memory_and_large_ones_leave_some() {
    let server = Server::with(&Double::new(&FINE), |config| {
        config.limits.body_bytes_max = 256 << 10;
        config.limits.requests_memory_max = 0;
    });
    let large = json!({"user": "x".repeat(200 << 10)});
    assert_eq!(chat(server.addr, large.clone()).status, 200);
    let start = Instant::now();
    let mut waiting = Vec::new();
    let wait_for = |status, again: &mut dyn FnMut()| {
        while chat(server.addr, large.clone()).status != status {
            assert!(start.elapsed() < PATIENCE, "it is never {status}");
            again();
        }
    };
    // The first ones may arrive while the last question holds its share, and be refused.
    wait_for(429, &mut || waiting.push(almost(&server, 256 << 10)));
    assert_eq!(chat(server.addr, json!({})).status, 200, "a small one still fits");
    drop(waiting);
    wait_for(200, &mut || ());
}

#[test]
fn a_requests_memory_is_counted_until_its_answer_begins() {
    let script = [Act::Waiting("it loads"), Act::Pause(Duration::from_secs(600))];
    let double = Double::new(&script);
    let server = Server::with(&double, |config| {
        config.limits.body_bytes_max = 256 << 10;
        config.limits.requests_memory_max = 0;
    });
    let body = chat_body(json!({"user": "x".repeat(150 << 10)})).to_string();
    let ask = || {
        let mut stream = connect(server.addr);
        let asked = request("POST", CHAT, server.addr, &[], &body);
        stream.write_all(asked.as_bytes()).unwrap();
        stream
    };
    let waiting = [ask(), ask()];
    wait_for("two requests", || double.asked.lock().unwrap().len() == 2);
    let mut third = ask();
    assert_eq!(read_reply(&mut third).status, 429);
    drop(waiting);
}

#[test]
fn values_cost_more_than_their_bytes() {
    let server = Server::with(&Double::new(&FINE), |config| {
        config.limits.body_bytes_max = 256 << 10;
        config.limits.requests_memory_max = 0;
    });
    let values = |count: usize| chat(server.addr, json!({ "else": vec![0; count] })).status;
    assert_eq!((values(1000), values(60_000)), (200, 429));
}

#[test]
fn a_text_that_cannot_fit_is_refused_by_its_bytes() {
    // The template must not run: it would refuse every request.
    let template = "{{ raise_exception('it was asked') }}";
    let header = support::double::fixture_with_template(template);
    let server = Server::start(&Arc::new(Double::with_header(header, &FINE)));
    let text = "word ".repeat(400_000);
    let messages = json!([{"role": "user", "content": text}]);
    let check = |path: &str, body: serde_json::Value, words: &[&str]| {
        let reply: Reply = post(server.addr, path, &[], &body);
        assert_eq!(reply.status, 400, "{path} {reply:?}");
        for word in words {
            assert!(reply.body.contains(word), "{path} lacks {word}: {reply:?}");
        }
    };
    let numbers = ["bytes of text", "tokens at least", "context 1024"];
    let openai = [&numbers[..], &["context_length_exceeded"]].concat();
    check(CHAT, chat_body(json!({ "messages": messages })), &openai);
    let body = json!({"model": "tiny/qwen3", "input": text});
    check("/v1/responses", body, &openai);
    let body = json!({"model": "tiny/qwen3", "prompt": text});
    check("/v1/completions", body, &openai);
    let body = message_body(json!({ "messages": messages }));
    check(MESSAGES, body, &[&numbers[..], &["prompt is too long"]].concat());
    check("/api/chat", chat_body(json!({ "messages": messages })), &numbers);
    // A text that its length does not rule out is tokenised.
    let body = chat_body(json!({"messages": [{"role": "user", "content": "Hello"}]}));
    check(CHAT, body, &["it was asked"]);
}

#[test]
fn a_prompt_is_counted_while_somebody_may_shorten_it() {
    let server = Server::start(&Double::new(&FINE));
    let ask = |words: usize| {
        let messages = json!([{"role": "user", "content": "a b c d ".repeat(words / 4)}]);
        let reply = chat(server.addr, json!({ "messages": messages }));
        assert_eq!(reply.code(), "context_length_exceeded", "{reply:?}");
        reply.body
    };
    let near = ask(1200);
    assert!(near.contains("the prompt has") && !near.contains("at least,"), "{near}");
    let far = ask(6000);
    assert!(far.contains("4098 tokens at least"), "{far}");
}

#[test]
fn a_large_body_holds_no_other_request_up() {
    let server = Server::start(&Double::new(&FINE));
    // Hundreds of thousands of values take a while to parse.
    let values = "{\"a\":[1,2,3]},".repeat(250_000);
    let body = format!("{{\"model\":\"tiny/qwen3\",\"messages\":[{values}{{}}]}}");
    let bytes = request("POST", CHAT, server.addr, &[], &body).into_bytes();
    let addr = server.addr;
    let begun = Instant::now();
    let asking: Vec<_> = (0..4)
        .map(|_| {
            let bytes = bytes.clone();
            std::thread::spawn(move || send(addr, &bytes).status)
        })
        .collect();
    let mut longest = Duration::ZERO;
    while !asking.iter().all(|asking| asking.is_finished()) {
        let start = Instant::now();
        assert_eq!(get(addr, "/health", &[]).status, 200);
        longest = longest.max(start.elapsed());
    }
    for asked in asking {
        assert!([400, 429].contains(&asked.join().unwrap()));
    }
    // Short: on a busy machine, where it takes longer, the bodies do so too.
    let most = (begun.elapsed() / 4).max(Duration::from_millis(1000));
    assert!(longest < most, "{longest:?} of {:?}", begun.elapsed());
}

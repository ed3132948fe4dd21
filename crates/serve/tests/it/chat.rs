//! Chat completions over real HTTP, in front of a scripted cluster: successful answers.

use std::time::Duration;

use crate::support::client::chat as ask;
use crate::support::double::{Act, Double};
use crate::support::server::Server;
use protocol::FinishReason;
use serde_json::{Value, json};

const FINE: [Act; 2] = [Act::Say("Hello there, friend."), Act::Done(FinishReason::Stop)];

#[test]
fn a_plain_answer_has_the_text_the_usage_and_the_timings() {
    let double = Double::new(&FINE);
    let server = Server::start(&double);
    let reply = ask(server.addr, json!({}));
    assert_eq!(reply.status, 200, "{reply:?}");
    let body = reply.json();
    assert_eq!(body["object"], "chat.completion");
    assert_eq!(body["model"], "tiny/qwen3");
    assert!(body["id"].as_str().unwrap().starts_with("chatcmpl-"));
    assert!(body["created"].as_u64().unwrap() > 1_700_000_000);
    let choice = &body["choices"][0];
    assert_eq!(choice["message"]["role"], "assistant");
    assert_eq!(choice["message"]["content"], "Hello there, friend.");
    assert_eq!((&choice["finish_reason"], &choice["index"]), (&json!("stop"), &json!(0)));

    let asked = double.asked.lock().unwrap()[0].clone();
    let prompt_tokens = asked.prompt.len();
    let generated = body["usage"]["completion_tokens"].as_u64().unwrap() as usize;
    assert_eq!(body["usage"]["prompt_tokens"], prompt_tokens);
    assert_eq!(body["usage"]["total_tokens"], prompt_tokens + generated);
    let timings = &body["timings"];
    assert_eq!(
        (&timings["prompt_n"], &timings["prompt_ms"]),
        (&json!(prompt_tokens), &json!(250.0))
    );
    assert_eq!(timings["predicted_ms"], 500.0);
    assert_eq!(timings["predicted_per_second"], (generated - 1) as f64 * 2.0);
    assert_eq!(asked.max_tokens, 1024 - prompt_tokens, "all that the context has left");
    assert!(asked.end_tokens.contains(&511), "the fixture's end-of-sequence token");
}

#[test]
fn a_stream_has_the_same_text_in_chunks_that_end_in_done() {
    let double = Double::new(&FINE);
    let server = Server::start(&double);
    let reply = ask(server.addr, json!({"stream": true}));
    assert_eq!((reply.status, reply.whole), (200, true), "{reply:?}");
    assert_eq!(reply.header("content-type"), Some("text/event-stream"));
    assert_eq!(reply.text(), "Hello there, friend.");
    let events = reply.events();
    assert_eq!(events.last(), Some(&json!("[DONE]")));
    assert_eq!(events[0]["choices"][0]["delta"], json!({"role": "assistant", "content": ""}));
    assert!(events.len() > 5, "piece by piece: {events:?}");
    let last = &events[events.len() - 2];
    assert_eq!(last["choices"][0]["delta"], json!({}));
    assert_eq!(last["choices"][0]["finish_reason"], "stop");
    assert_eq!(last["timings"]["prompt_ms"], 250.0);
    for event in &events[..events.len() - 1] {
        assert_eq!(event["object"], "chat.completion.chunk");
        assert_eq!(event["id"], events[0]["id"]);
        assert!(event.get("usage").is_none(), "not asked for");
    }
}

#[test]
fn the_usage_comes_in_a_chunk_of_its_own_if_asked_for() {
    let double = Double::new(&FINE);
    let server = Server::start(&double);
    let reply =
        ask(server.addr, json!({"stream": true, "stream_options": {"include_usage": true}}));
    let events = reply.events();
    let usage = &events[events.len() - 2];
    assert_eq!(usage["choices"], json!([]));
    assert!(usage["usage"]["total_tokens"].as_u64().unwrap() > 5);
    assert_eq!(usage["timings"]["predicted_ms"], 500.0);
    assert_eq!(events[events.len() - 3]["choices"][0]["finish_reason"], "stop");
    for event in &events[..events.len() - 2] {
        assert_eq!(event.get("usage"), Some(&Value::Null));
    }
}

#[test]
fn stop_strings_end_the_answer_and_the_work() {
    let cases = [
        (json!("there"), "Hello ", "stop"),
        (json!(["xyz", "o th"]), "Hell", "stop"),
        (json!(["friend.and more"]), "Hello there, friend.", "stop"),
        (json!([]), "Hello there, friend.", "stop"),
    ];
    for stream in [false, true] {
        for (stop, want, reason) in &cases {
            let double = Double::new(&FINE);
            let server = Server::start(&double);
            let reply = ask(server.addr, json!({"stop": stop, "stream": stream}));
            let (text, found) = if stream {
                let events = reply.events();
                let last = events[events.len() - 2].clone();
                (reply.text(), last["choices"][0]["finish_reason"].clone())
            } else {
                let choice = reply.json()["choices"][0].clone();
                let text = choice["message"]["content"].as_str().unwrap().to_owned();
                (text, choice["finish_reason"].clone())
            };
            assert_eq!((text.as_str(), &found), (*want, &json!(reason)), "{stop} {stream}");
        }
    }
    // The script never ends, so the test shows that a stop string cancels the work.
    let double = Double::new(&[Act::Say("one two three"), Act::Hang]);
    let server = Server::start(&double);
    let reply = ask(server.addr, json!({"stop": " three", "stream": true}));
    assert_eq!((reply.text().as_str(), reply.whole), ("one two", true));
    let usage = ask(server.addr, json!({"stop": " three"})).json()["usage"].clone();
    assert!(usage["completion_tokens"].as_u64().unwrap() > 0);
}

#[test]
fn characters_come_whole_and_a_limit_shows_as_length() {
    let text = "naïve 日本語 🦀 end";
    let double = Double::new(&[Act::Say(text), Act::Done(FinishReason::Length)]);
    let server = Server::start(&double);
    let reply = ask(server.addr, json!({"stream": true, "max_tokens": 3}));
    assert_eq!(reply.text(), text);
    let events = reply.events();
    assert_eq!(events[events.len() - 2]["choices"][0]["finish_reason"], "length");
    assert_eq!(double.asked.lock().unwrap()[0].max_tokens, 3);
}

#[test]
fn what_is_asked_reaches_the_cluster() {
    let double = Double::new(&FINE);
    let server = Server::start(&double);
    let reply = ask(
        server.addr,
        json!({
            "temperature": 0, "top_p": 0.5, "top_k": 7, "min_p": 0.25, "seed": 11,
            "max_tokens": 9, "max_completion_tokens": 5,
            "messages": [
                {"role": "developer", "content": "Be brief."},
                {"role": "user", "content": [
                {"type": "text", "text": "One"}, {"type": "text", "text": "Two"},
            ]},
                {"role": "assistant", "content": "Three"},
                {"role": "user", "content": "Four"},
            ],
        }),
    );
    assert_eq!(reply.status, 200, "{reply:?}");
    let asked = double.asked.lock().unwrap()[0].clone();
    let sampling = &asked.sampling;
    assert_eq!((sampling.temperature, sampling.top_p, sampling.min_p), (0.0, 0.5, 0.25));
    assert_eq!((sampling.top_k, sampling.seed, asked.max_tokens), (7, 11, 5));
    let prompt = double.last_prompt();
    let places: Vec<usize> = ["Be brief.", "One\nTwo", "Three", "Four"]
        .iter()
        .map(|text| prompt.find(text).unwrap_or_else(|| panic!("{text} in {prompt:?}")))
        .collect();
    assert!(places.is_sorted(), "{prompt:?}");
}

#[test]
fn a_model_that_is_not_ready_is_waited_for() {
    let script = [
        Act::Waiting("loading 10 %"),
        Act::Pause(Duration::from_millis(350)),
        Act::Waiting("loading 90 %"),
        Act::Say("Late but whole."),
        Act::Done(FinishReason::Stop),
    ];
    let double = Double::new(&script);
    let server = Server::start(&double);
    let reply = ask(server.addr, json!({"stream": true}));
    assert_eq!((reply.status, reply.text().as_str()), (200, "Late but whole."));
    assert!(reply.body.contains(": loading 10 %\n\n"), "{}", reply.body);
    assert!(reply.body.contains(": keep-alive\n\n"), "{}", reply.body);
    let reply = ask(server.addr, json!({}));
    assert_eq!(reply.json()["choices"][0]["message"]["content"], "Late but whole.");
}

#[test]
fn a_silent_model_is_covered_by_comments() {
    let script = [
        Act::Say("a"),
        Act::Pause(Duration::from_secs(1)),
        Act::Say("b"),
        Act::Done(FinishReason::Stop),
    ];
    let server = Server::start(&Double::new(&script));
    let reply = ask(server.addr, json!({"stream": true}));
    assert_eq!(reply.text(), "ab");
    assert!(reply.body.matches(": keep-alive\n\n").count() >= 2, "{}", reply.body);
}

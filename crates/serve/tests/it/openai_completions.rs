//! Completions without a conversation.

use crate::support::client::{Reply, post};
use crate::support::double::{Act, Double};
use crate::support::server::Server;
use protocol::FinishReason;
use serde_json::{Value, json};

const DONE: Act = Act::Done(FinishReason::Stop);

fn complete(server: &Server, extra: Value) -> Reply {
    let mut body = json!({"model": "tiny/qwen3", "prompt": "Once upon"});
    for (key, value) in extra.as_object().unwrap() {
        body[key] = value.clone();
    }
    post(server.addr, "/v1/completions", &[], &body)
}

fn texts(reply: &Reply, index: usize) -> String {
    let events = reply.events();
    let all = events.iter().filter_map(|event| event["choices"].as_array()).flatten();
    all.filter(|one| one["index"] == index).filter_map(|one| one["text"].as_str()).collect()
}

#[test]
fn text_goes_on() {
    let double = Double::new(&[Act::Say(" a time <think> there"), DONE]);
    let server = Server::start(&double);
    let body = complete(&server, json!({})).json();
    assert_eq!(body["object"], "text_completion");
    assert!(body["id"].as_str().unwrap().starts_with("cmpl-"));
    let choice = &body["choices"][0];
    assert_eq!(choice["text"], " a time <think> there", "without a chat nothing is a thought");
    assert_eq!((&choice["finish_reason"], &choice["logprobs"]), (&json!("stop"), &Value::Null));
    assert!(body["usage"]["completion_tokens"].as_u64().unwrap() > 3);
    assert_eq!(double.last_prompt(), "Once upon");
    assert_eq!(double.asked.lock().unwrap()[0].max_tokens, 16, "OpenAI's default");

    let reply =
        complete(&server, json!({"stream": true, "stream_options": {"include_usage": true}}));
    assert_eq!(texts(&reply, 0), " a time <think> there");
    let events = reply.events();
    assert_eq!((events.last(), reply.whole), (Some(&json!("[DONE]")), true));
    assert_eq!(events[events.len() - 2]["choices"], json!([]));
    assert_eq!(events[events.len() - 3]["choices"][0]["finish_reason"], "stop");
}

#[test]
fn prompts_are_texts_or_tokens_one_or_several() {
    let double = Double::new(&[Act::Say(" end"), DONE]);
    let server = Server::start(&double);
    let cases = [
        (json!("a"), 1),
        (json!(["a", "b", "c"]), 3),
        (json!([5, 6, 7]), 1),
        (json!([[5, 6], [7]]), 2),
    ];
    for (prompt, count) in cases {
        for n in [1, 2] {
            double.asked.lock().unwrap().clear();
            let body = complete(&server, json!({"prompt": prompt, "n": n})).json();
            assert_eq!(body["choices"].as_array().unwrap().len(), count * n, "{prompt}");
            let asked = double.asked.lock().unwrap().clone();
            let tokens: usize = asked.iter().step_by(n).map(|one| one.prompt.len()).sum();
            assert_eq!(body["usage"]["prompt_tokens"], tokens, "each prompt counts once");
        }
    }
    assert_eq!(double.asked.lock().unwrap()[0].prompt, [5, 6]);
    let reply = complete(&server, json!({"prompt": ["a", "b"], "stream": true}));
    assert_eq!((texts(&reply, 0), texts(&reply, 1)), (" end".to_owned(), " end".to_owned()));
}

#[test]
fn the_prompt_is_repeated_if_asked_for() {
    let double = Double::new(&[Act::Say(" time"), DONE]);
    let server = Server::start(&double);
    for stream in [false, true] {
        let reply =
            complete(&server, json!({"echo": true, "prompt": ["One", "Two"], "stream": stream}));
        let found = if stream {
            [texts(&reply, 0), texts(&reply, 1)]
        } else {
            let body = reply.json();
            [0, 1].map(|at| body["choices"][at]["text"].as_str().unwrap().to_owned())
        };
        assert_eq!(found, ["One time", "Two time"]);
    }
    let tokens = double.asked.lock().unwrap()[0].prompt.clone();
    let body = complete(&server, json!({"echo": true, "prompt": tokens})).json();
    assert_eq!(body["choices"][0]["text"], "One time");
}

#[test]
fn log_probabilities_are_lists_beside_each_other() {
    let double = Double::new(&[Act::Likely(" naïve time"), DONE]);
    let server = Server::start(&double);
    let body = complete(&server, json!({"logprobs": 2})).json();
    let found = &body["choices"][0]["logprobs"];
    let tokens = found["tokens"].as_array().unwrap();
    for list in ["token_logprobs", "top_logprobs", "text_offset"] {
        assert_eq!(found[list].as_array().unwrap().len(), tokens.len(), "{list}");
    }
    assert_eq!((&found["token_logprobs"][0], &found["text_offset"][0]), (&json!(-0.5), &json!(0)));
    assert_eq!(double.asked.lock().unwrap()[0].logprobs, Some(2));
    let events = complete(&server, json!({"logprobs": 2, "stream": true})).events();
    let offsets: Vec<Value> = events
        .iter()
        .filter_map(|event| event["choices"][0]["logprobs"]["text_offset"].as_array())
        .flatten()
        .cloned()
        .collect();
    assert_eq!(json!(offsets), found["text_offset"], "offsets go on from chunk to chunk");
}

#[test]
fn what_is_not_honoured_is_refused_by_name() {
    let double = Double::new(&[DONE]);
    let server = Server::start(&double);
    let cases = [
        (json!({"suffix": "end"}), "suffix", "invalid_value"),
        (json!({"suffix": "end", "prompt": [5]}), "suffix", "invalid_value"),
        (json!({"model": null}), "model", "invalid_value"),
        (json!({"best_of": 3}), "best_of", "unsupported"),
        (json!({"echo": true, "logprobs": 1}), "echo", "unsupported"),
        (json!({"prompt": null}), "prompt", "invalid_value"),
        (json!({"prompt": []}), "prompt", "invalid_value"),
        (json!({"prompt": 7}), "prompt", "invalid_value"),
        (json!({"prompt": [-1]}), "prompt", "invalid_value"),
        (json!({"prompt": vec!["a"; 129]}), "prompt", "invalid_value"),
        (json!({"prompt": vec!["a"; 43], "n": 3}), "n", "invalid_value"),
        (json!({"max_tokens": 0}), "max_tokens", "invalid_value"),
        (json!({"logprobs": 21}), "logprobs", "invalid_value"),
        (json!({"logprobs": true}), "logprobs", "invalid_value"),
        (json!({"temperature": 9}), "temperature", "invalid_value"),
    ];
    for (body, param, code) in cases {
        let reply = complete(&server, body.clone());
        let error = reply.json()["error"].clone();
        assert_eq!((reply.status, &error["param"]), (400, &json!(param)), "{body}");
        assert_eq!(error["code"], code, "{body}");
    }
    let fine = json!({"suffix": "", "best_of": 1, "echo": false, "user": "me", "n": null});
    assert_eq!(complete(&server, fine).status, 200);
}

#[test]
fn prompts_that_no_model_can_read_are_named() {
    let double = Double::new(&[DONE]);
    let server = Server::start(&double);
    let reply = complete(&server, json!({"prompt": "word ".repeat(2000)}));
    assert_eq!((reply.status, reply.code().as_str()), (400, "context_length_exceeded"));
    assert_eq!(reply.json()["error"]["param"], "prompt");
    let reply = complete(&server, json!({"prompt": [4_000_000_000_u32]}));
    assert_eq!((reply.status, &reply.json()["error"]["param"]), (400, &json!("prompt")));
    assert!(reply.body.contains("4000000000"), "{reply:?}");
    let reply = complete(&server, json!({"logit_bias": {"4000000000": 1}}));
    assert_eq!((reply.status, &reply.json()["error"]["param"]), (400, &json!("logit_bias")));
    let reply = complete(&server, json!({"prompt": ""}));
    assert_eq!((reply.status, &reply.json()["error"]["param"]), (400, &json!("prompt")));
    assert_eq!(complete(&server, json!({"model": "nothing"})).status, 404);
}

#[test]
fn a_failed_stream_says_so_and_is_cut() {
    let double = Double::new(&[Act::Say("half"), Act::Failed("node b was lost")]);
    let server = Server::start(&double);
    let reply = complete(&server, json!({"stream": true}));
    let events = reply.events();
    assert!(!reply.whole && !events.contains(&json!("[DONE]")));
    assert!(events.last().unwrap()["error"]["message"].as_str().unwrap().contains("node b"));
}

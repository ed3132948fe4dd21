//! Texts as vectors, in OpenAI's and Ollama's dialects.

use crate::support::client::{Reply, post};
use crate::support::double::{Act, Double};
use crate::support::server::Server;
use protocol::{FinishReason, Pooling};
use serde_json::{Value, json};

const MODEL: &str = "tiny/qwen3";
const DONE: Act = Act::Done(FinishReason::Stop);

fn embed(server: &Server, path: &str, extra: Value) -> Reply {
    let mut body = json!({ "model": MODEL });
    for (key, value) in extra.as_object().unwrap() {
        body[key] = value.clone();
    }
    post(server.addr, path, &[], &body)
}

#[test]
fn openai_gets_a_vector_for_each_text() {
    let double = Double::new(&[DONE]);
    let server = Server::start(&double);
    let ask = |extra| embed(&server, "/v1/embeddings", extra);
    let body = ask(json!({"input": ["one", "two words"], "user": "me"})).json();
    assert_eq!((&body["object"], &body["model"]), (&json!("list"), &json!(MODEL)));
    let data = body["data"].as_array().unwrap();
    assert_eq!(data.len(), 2);
    for (index, one) in data.iter().enumerate() {
        assert_eq!((&one["object"], &one["index"]), (&json!("embedding"), &json!(index)));
        let values: Vec<f64> = serde_json::from_value(one["embedding"].clone()).unwrap();
        assert!((values[0] - 0.6).abs() < 1e-6 && (values[1] + 0.8).abs() < 1e-6, "{values:?}");
    }
    let tokens = body["usage"]["prompt_tokens"].as_u64().unwrap();
    assert!(tokens >= 3 && body["usage"]["total_tokens"] == tokens);
    let asked = double.asked.lock().unwrap().clone();
    assert!(asked.iter().all(|request| request.embedding == Some(Pooling::Last)));

    // OpenAI's client requests this by default.
    let body = ask(json!({"input": "one", "encoding_format": "base64"})).json();
    assert_eq!(body["data"][0]["embedding"], "mpkZP83MTL8=");
    let body = ask(json!({"input": [[1, 2], [3]]})).json();
    assert_eq!(body["usage"]["prompt_tokens"], 3);
}

#[test]
fn ollama_gets_them_at_both_its_paths() {
    let double = Double::new(&[DONE]);
    let server = Server::start(&double);
    let body = embed(&server, "/api/embed", json!({"input": ["a", "b"]})).json();
    assert_eq!(body["embeddings"].as_array().map(Vec::len), Some(2));
    assert!(body["prompt_eval_count"].as_u64() >= Some(2) && body["total_duration"].is_u64());
    let body = embed(&server, "/api/embeddings", json!({"prompt": "a"})).json();
    assert_eq!(body["embedding"].as_array().map(Vec::len), Some(2));
    let long = json!({"input": "word ".repeat(5000)});
    assert_eq!(embed(&server, "/api/embed", long.clone()).status, 200, "it is cut, as Ollama does");
    let mut whole = long;
    whole["truncate"] = json!(false);
    assert_eq!(embed(&server, "/api/embed", whole).status, 400);
}

#[test]
fn what_cannot_be_embedded_is_refused_by_name() {
    let double = Double::new(&[DONE]);
    let server = Server::start(&double);
    for (extra, param) in [
        (json!({}), "input"),
        (json!({"input": []}), "input"),
        (json!({"input": 7}), "input"),
        (json!({"input": "x", "dimensions": 65}), "dimensions"),
        (json!({"input": "x", "dimensions": 0}), "dimensions"),
        (json!({"input": "x", "embd_normalize": -2}), "embd_normalize"),
        (json!({"input": "x", "encoding_format": "int8"}), "encoding_format"),
        (json!({"input": vec!["x"; 2049]}), "input"),
    ] {
        let reply = embed(&server, "/v1/embeddings", extra.clone());
        assert_eq!(
            (reply.status, &reply.json()["error"]["param"]),
            (400, &json!(param)),
            "{extra}"
        );
    }
    let reply = embed(&server, "/v1/embeddings", json!({"input": ["x", "word ".repeat(5000)]}));
    assert_eq!((reply.status, reply.code().as_str()), (400, "context_length_exceeded"));
    let error = reply.json()["error"].clone();
    let tokens = error["n_prompt_tokens"].as_u64().unwrap();
    let message = error["message"].as_str().unwrap();
    assert!(tokens > 5000 && message.contains(&format!("text 2 of input has {tokens}")), "{error}");
    assert_eq!(error["param"], "input");
    let reply = embed(&server, "/v1/embeddings", json!({"input": [4_000_000]}));
    assert_eq!((reply.status, &reply.json()["error"]["param"]), (400, &json!("input")));
    let reply = embed(&server, "/v1/embeddings", json!({"input": "x", "model": "none"}));
    assert_eq!((reply.status, reply.code().as_str()), (404, "model_not_found"));
    // The fixture's rows have 64 values.
    let fine = json!({"input": "x", "options": {"seed": 1}, "dimensions": 64});
    assert_eq!(embed(&server, "/api/embed", fine.clone()).status, 200);
    assert_eq!(embed(&server, "/v1/embeddings", fine).status, 200);

    let double = Double::new(&[Act::Failed("node ben was lost")]);
    let server = Server::start(&double);
    let reply = embed(&server, "/v1/embeddings", json!({"input": "x"}));
    assert!(reply.status >= 500, "{reply:?}");
}

//! Models that are served without being loaded, and unloaded when idle: real nodes and workers.

use crate::common;
use crate::common::{Node, demo_model, stdout, wait_for};
use serde_json::{Value, json};

fn state(node: &Node, model: &str) -> Value {
    node.instance(model).map(|one| one["state"]["state"].clone()).unwrap_or_default()
}

fn until_unloaded(node: &Node, model: &str) {
    wait_for("the model to be unloaded", || (state(node, model) == "unloaded").then_some(()));
}

fn post(node: &Node, path: &str, body: &Value) -> Value {
    let mut response = common::request(&format!("{}{path}", node.api), body);
    response.body_mut().read_json().unwrap()
}

/// A request at a second node without the file; the owner loads the model for it, on both.
#[test]
fn a_model_is_loaded_by_the_first_request_and_leaves_when_nobody_asks() {
    let (a, b) = (Node::start("a"), Node::start("b"));
    a.admit(&b);
    let listen = a.listen_addr();
    let args = ["serve", &demo_model(), "--nodes", "2", "--on-request", "--keep-alive", "2s"];
    let said = a.run(&args);
    assert!(said.contains("loaded by the first request"), "{said}");
    assert_eq!(state(&b, "sinew-demo"), "unloaded");
    assert!(a.worker_pids("sinew-demo").is_empty(), "nothing runs");

    let first = b.chat("sinew-demo", "Who are you?", 40);
    let loaded = a.instance("sinew-demo").unwrap();
    assert_eq!((&loaded["state"]["state"], &loaded["keep_alive"]), (&json!("ready"), &json!(2)));
    let workers = a.worker_pids("sinew-demo");
    assert_eq!(workers.len(), 2);
    until_unloaded(&b, "sinew-demo");
    wait_for("the workers to end", || {
        workers.iter().all(|pid| !common::is_alive(*pid)).then_some(())
    });
    assert!(a.run(&["ps"]).contains("the first request loads it"));

    // It stays unloaded over a restart, and streams wait for it.
    let a = Node::start_in("a", a.kill(), &listen);
    wait_for("the model to be known", || (state(&a, "sinew-demo") == "unloaded").then_some(()));
    let streamed = b.stream("sinew-demo", "Who are you?", 40).last();
    assert_eq!(streamed.as_deref(), Some("[DONE]"));
    assert_eq!(a.chat("sinew-demo", "Who are you?", 40)["choices"], first["choices"]);
}

/// Requests of Ollama's clients for a pulled model: use it, keep it, unload it.
#[test]
fn ollamas_clients_load_what_lies_on_the_disk() {
    let a = Node::start("a");
    std::fs::create_dir_all(a.dir.path().join("models")).unwrap();
    std::fs::copy(demo_model(), a.dir.path().join("models/demo.gguf")).unwrap();
    let messages = json!([{ "role": "user", "content": "Who are you?" }]);
    let body = json!({ "model": "demo", "messages": messages, "stream": false });
    let answer = post(&a, "/api/chat", &body);
    assert!(answer["message"]["content"].as_str().is_some_and(|text| !text.is_empty()), "{answer}");
    let one = a.instance("demo").unwrap();
    assert_eq!(one["keep_alive"], 300);
    assert!(one["unloads_at_unix_s"].is_u64() || one["idle_since_unix_s"].is_null(), "{one}");

    let unload = json!({ "model": "demo", "keep_alive": 0 });
    assert_eq!(post(&a, "/api/generate", &unload)["done_reason"], "unload");
    until_unloaded(&a, "demo");
    let loaded = a.request("GET /api/ps HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n");
    assert!(loaded.contains(r#""models":[]"#), "{loaded}");
    let keep = json!({ "model": "demo", "keep_alive": "-1m" });
    assert_eq!(post(&a, "/api/generate", &keep)["done_reason"], "load");
    let one = a.instance("demo").unwrap();
    assert_eq!((&one["state"]["state"], &one["keep_alive"]), (&json!("ready"), &Value::Null));
}

/// Programs with the other dialects send no earlier request that names the model.
#[test]
fn every_dialect_loads_what_lies_on_the_disk() {
    let a = Node::start("a");
    let models = a.dir.path().join("models");
    std::fs::create_dir_all(&models).unwrap();
    // Each file differs: equal content is one model, under any name.
    let demo = std::fs::read(demo_model()).unwrap();
    let put = |name: &str| {
        let content = [&demo, name.as_bytes()].concat();
        std::fs::write(models.join(format!("{name}.gguf")), content).unwrap();
    };
    let messages = json!([{ "role": "user", "content": "Who are you?" }]);
    let chat = json!({ "messages": messages, "max_tokens": 3 });
    for (model, path, mut body) in [
        ("one", "/v1/chat/completions", chat.clone()),
        ("two", "/v1/messages", chat.clone()),
        ("three", "/v1/completions", json!({ "prompt": "Sinew is", "max_tokens": 3 })),
        ("four", "/v1/responses", json!({ "input": "Hello", "max_output_tokens": 3 })),
        ("five", "/v1/embeddings", json!({ "input": "Hello" })),
        ("six", "/v1/messages/count_tokens", json!({ "messages": messages })),
        ("eight", "/api/embed", json!({ "input": "Hello" })),
    ] {
        put(model);
        body["model"] = model.into();
        let answer = post(&a, path, &body);
        assert!(answer.get("error").is_none_or(Value::is_null), "{path}: {answer}");
        let one = a.instance(model).unwrap_or_else(|| panic!("{path}: {answer}"));
        assert_eq!(one["keep_alive"], 300, "{path}");
    }
    // For a request from elsewhere, as marked by a proxy, only served models have names.
    put("seven");
    let body = json!({ "model": "seven", "messages": messages }).to_string();
    let answer = a.request(&format!(
        "POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\nx-forwarded-for: 10.0.0.9\r\n\
         content-type: application/json\r\ncontent-length: {}\r\nconnection: close\r\n\r\n{body}",
        body.len()
    ));
    assert!(!answer.starts_with("HTTP/1.1 200"), "{answer}");
    assert!(a.instance("seven").is_none());
}

/// Two models that do not fit at once take turns; a model without `keep_alive` is never unloaded
/// for another.
#[test]
fn a_model_waits_until_the_memory_of_an_idle_one_is_free() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::create_dir_all(dir.path().join("models")).unwrap();
    for name in ["one", "two"] {
        let path = dir.path().join("models").join(name).with_extension("gguf");
        let args = ["--shape", "llama-150m", "--quant", "q4_0", "-o", path.to_str().unwrap()];
        stdout(&[&["dev", "synth"], &args[..]].concat());
    }
    // Other content of the same size.
    let two = dir.path().join("models/two.gguf");
    let mut bytes = std::fs::read(&two).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    std::fs::write(&two, bytes).unwrap();
    let a = Node::start_with("a", dir, "127.0.0.1:0", |command| {
        command.args(["--memory", "250MiB"]);
    });
    let resting = ["--ctx", "512", "--parallel", "1", "--on-request", "--keep-alive", "1h"];
    for name in ["one", "two"] {
        a.run(&[&["serve", name], &resting[..]].concat());
    }
    for name in ["one", "two", "one"] {
        assert!(a.chat(name, "go on", 4)["choices"].is_array());
        let other = if name == "one" { "two" } else { "one" };
        assert_eq!((state(&a, name), state(&a, other)), (json!("ready"), json!("unloaded")));
    }
    post(&a, "/api/generate", &json!({ "model": "one", "keep_alive": -1 }));
    let refused = post(&a, "/api/generate", &json!({ "model": "two" }));
    let error = refused["error"].as_str().unwrap_or_default();
    assert!(error.contains("MiB") || error.contains("GiB"), "{refused}");
    assert_eq!(state(&a, "one"), "ready");
}

//! Requests at a node that does not own the model, while the owner is lost or returns. They wait,
//! or get a `Retry-After`; they never get the error that there is no such model.

use std::time::{Duration, Instant};

use crate::common::{Node, demo_model, request, wait_for};
use serde_json::{Value, json};

const MODEL: &str = "sinew-demo";

fn body(extra: Value) -> Value {
    let mut body = json!({
        "model": MODEL, "max_tokens": 20, "messages": [{ "role": "user", "content": "Who are you?" }],
    });
    body.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
    body
}

/// Status, `Retry-After` and body of the answer.
fn ask(node: &Node, path: &str, body: &Value) -> (u16, Option<String>, String) {
    let mut response = request(&format!("{}{path}", node.api), body);
    let retry =
        response.headers().get("retry-after").map(|value| value.to_str().unwrap().to_owned());
    (response.status().as_u16(), retry, response.body_mut().read_to_string().unwrap_or_default())
}

fn models(node: &Node) -> Value {
    let listed =
        node.request("GET /v1/models HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n");
    serde_json::from_str(listed.split_once("\r\n\r\n").unwrap().1).unwrap()
}

#[test]
fn who_asks_a_node_whose_owner_is_away_waits_or_is_told_to_come_again() {
    let (a, b) = (Node::start("a"), Node::start("b"));
    a.admit(&b);
    a.run(&["serve", &demo_model(), "--nodes", "1"]);
    let whole = a.chat(MODEL, "Who are you?", 20);
    let created = |node: &Node| models(node)["data"][0]["created"].as_u64().unwrap();
    let since = created(&a);
    assert!(since > 1_790_000_000, "{since}");
    let id = a.instance(MODEL).unwrap()["id"].as_str().unwrap().to_owned();
    wait_for("b to know the model", || b.instance(MODEL));
    let (listen_a, listen_b) = (a.listen_addr(), b.listen_addr());
    let (dir_a, dir_b) = (a.kill(), b.kill());

    // It has never read the model's vocabulary, and the owner is gone.
    let b = Node::start_in("b", dir_b, &listen_b);
    let dialects = [
        ("/v1/chat/completions", body(json!({}))),
        ("/v1/chat/completions", body(json!({ "stream": true }))),
        ("/v1/messages", body(json!({}))),
        ("/api/chat", body(json!({ "stream": false }))),
        ("/v1/messages/count_tokens", body(json!({}))),
        ("/v1/chat/completions", body(json!({ "model": "of-another-time" }))),
    ];
    std::thread::scope(|scope| {
        let (b, id) = (&b, id.as_str());
        for (path, body) in &dialects {
            scope.spawn(move || {
                let asked = Instant::now();
                let (status, retry, said) = ask(b, path, body);
                assert_eq!((status, retry.is_some()), (503, true), "{path}: {said}");
                assert!(said.contains(body["model"].as_str().unwrap()), "{path}: {said}");
                assert!(!said.contains(id), "{path} names an internal id: {said}");
                assert!(asked.elapsed() < Duration::from_secs(30), "{path}: {:?}", asked.elapsed());
            });
        }
    });

    // A request during the owner's return gets an answer.
    let a = std::thread::scope(|scope| {
        let coming = scope.spawn(|| {
            // Sleeps: the request should find the owner away, and nobody sees that it waits.
            std::thread::sleep(Duration::from_secs(1));
            Node::start_in("a", dir_a, &listen_a)
        });
        wait_for("an answer", || {
            let (status, _, said) =
                ask(&b, "/v1/chat/completions", &body(json!({"temperature": 0})));
            assert!([200, 503].contains(&status), "{status} {said}");
            let said: Value = serde_json::from_str(&said).unwrap();
            (status == 200).then(|| assert_eq!(said["choices"], whole["choices"]))
        });
        coming.join().unwrap()
    });

    assert_eq!((created(&a), created(&b)), (since, since), "the model is no younger than it was");

    // The same during its second absence: the vocabulary is known by now.
    let dir_a = a.kill();
    let answered = std::thread::scope(|scope| {
        let asked =
            scope.spawn(|| ask(&b, "/v1/chat/completions", &body(json!({"temperature": 0}))));
        let _a = Node::start_in("a", dir_a, &listen_a);
        asked.join().unwrap()
    });
    assert_eq!(answered.0, 200, "{}", answered.2);
}

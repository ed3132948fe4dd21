//! Answers that belong to the node: a killed one has what came, and goes on with it.

use std::path::PathBuf;

use serde_json::{Value, json};

use crate::common::{Node, changed_model, demo_model, request, wait_for};

/// The demo model with a context that no answer of it fills while a test runs.
fn endless(dir: &tempfile::TempDir) -> String {
    let entries = [("qwen35.context_length", gguf::Value::U32(200_000))];
    changed_model(dir, "endless", &demo_model(), &entries)
}

fn chats(node: &Node, act: &str, body: &Value) -> Value {
    let url = format!("{}/sinew/v1/chats/{act}", node.api);
    let mut reply = request(&url, body);
    let text = reply.body_mut().read_to_string().unwrap();
    assert_eq!(reply.status(), 200, "{text}");
    serde_json::from_str(&text).unwrap()
}

fn one(node: &Node, id: &str) -> Value {
    let url = format!("{}/sinew/v1/chats/one?id={id}", node.api);
    let mut reply = ureq::get(&url).call().unwrap();
    reply.body_mut().read_json().unwrap()
}

/// The texts of a draft's pieces.
fn drafted(path: &PathBuf) -> Option<String> {
    let text = std::fs::read_to_string(path).ok()?;
    let lines = text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let pieces = lines.filter_map(|line| line["text"].as_str().map(str::to_owned));
    Some(pieces.collect()).filter(|text: &String| !text.is_empty())
}

#[test]
fn an_answer_of_a_killed_node_goes_on_when_it_is_back() {
    let files = tempfile::tempdir().unwrap();
    let node = Node::start("a");
    node.run(&["serve", &endless(&files), "--ctx", "100000"]);
    let question = json!({ "model": "endless", "content": "Tell me a story.", "system": "Be long.",
        "settings": { "min_tokens": 90_000 } });
    let id = chats(&node, "ask", &question)["id"].as_str().unwrap().to_owned();
    let draft = node.dir.path().join(format!("chats/{id}.draft"));
    wait_for("text on the disk", || drafted(&draft));
    let listen = node.listen_addr();
    let dir = node.kill();
    let before = drafted(&dir.path().join(format!("chats/{id}.draft"))).unwrap();

    let node = Node::start_in("a", dir, &listen);
    let draft = node.dir.path().join(format!("chats/{id}.draft"));
    let found = one(&node, &id);
    assert_eq!(found["conversation"]["messages"][0]["content"], "Tell me a story.");
    assert_eq!(found["running"]["after"], 1, "{found}");
    wait_for("more of the answer", || {
        drafted(&draft).filter(|text| text.len() > before.len() && text.starts_with(&before))
    });
    chats(&node, "stop", &json!({ "id": id }));
    let talk = wait_for("the end of the answer", || {
        Some(one(&node, &id)).filter(|talk| talk["running"].is_null())
    });
    let answer = &talk["conversation"]["messages"][1];
    let text = answer["content"].as_str().unwrap();
    assert!(text.len() > before.len() && text.starts_with(&before), "{text}");
    assert_eq!(answer["ended"], "stopped");
    assert!(!draft.exists());
}

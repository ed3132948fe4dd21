//! A served model can answer: a node refuses a file with an unknown tokenizer before it loads
//! anything.

use crate::common;
use crate::common::{Node, fixture, request};
use serde_json::{Value, json};
use tempfile::TempDir;

/// A copy of a small model with `old` replaced by `new`, of the same length.
fn changed(dir: &TempDir, name: &str, old: &[u8], new: &[u8]) -> String {
    let mut bytes = std::fs::read(fixture("models/qwen3.gguf")).unwrap();
    let at = bytes.windows(old.len()).position(|part| part == old).expect("it is there");
    bytes[at..at + old.len()].copy_from_slice(new);
    let path = dir.path().join(name);
    std::fs::write(&path, bytes).unwrap();
    path.to_str().unwrap().to_owned()
}

#[test]
fn an_unknown_pre_tokenizer_is_refused_before_anything_is_loaded() {
    let (files, node) = (tempfile::tempdir().unwrap(), Node::start("a"));
    let model = changed(&files, "odd.gguf", b"\0\0\0qwen2\x15", b"\0\0\0qwen9\x15");
    for command in ["serve", "plan"] {
        let why = node.refused(&[command, &model]);
        assert!(why.contains("pre-tokenizer is \"qwen9\""), "{command}: {why}");
    }
    let shown = node.json(&["show", &model]);
    assert!(shown["cannot_run"].as_str().unwrap().contains("qwen9"), "{shown}");
    let cluster = "examples/clusters/pc-pair-10g.toml";
    let cluster = common::repository().join(cluster).to_str().unwrap().to_owned();
    let why = common::refused(&["plan", &model, "--cluster", &cluster]);
    assert!(why.contains("qwen9"), "{why}");
    assert_eq!(node.instance("odd"), None);
}

#[test]
fn a_type_without_products_is_refused_before_anything_is_loaded() {
    let (files, node) = (tempfile::tempdir().unwrap(), Node::start("a"));
    let name = b"blk.0.attn_q.weight\x02\0\0\0\x40\0\0\0\0\0\0\0\x80\0\0\0\0\0\0\0";
    let typed = |ty| [&name[..], &[ty]].concat();
    let model = changed(&files, "ints.gguf", &typed(0), &typed(26));
    let why = node.refused(&["serve", &model]);
    assert!(why.contains("attn_q.weight\" has type I32"), "{why}");
}

#[test]
fn a_broken_template_is_told_and_completions_go_on() {
    let (files, node) = (tempfile::tempdir().unwrap(), Node::start("a"));
    let model = changed(&files, "mute.gguf", b"{% for m in", b"{% for ( in");
    assert!(node.run(&["plan", &model]).contains("takes no chats"));
    node.run(&["serve", &model]);
    let instance = node.instance("mute").unwrap();
    let notes = instance["notes"].to_string();
    assert!(notes.contains("takes no chats: the chat template is not valid Jinja"), "{notes}");
    for command in ["ps", "status"] {
        assert!(node.run(&[command]).contains("ready, no chats"), "{}", node.run(&[command]));
    }

    let chat = json!({"model": "mute", "messages": [{"role": "user", "content": "Hello"}]});
    let mut refused = request(&format!("{}/v1/chat/completions", node.api), &chat);
    let text = refused.body_mut().read_to_string().unwrap();
    assert_eq!(refused.status(), 503, "{text}");
    assert!(text.contains("the model takes no chats"), "{text}");

    let prompt = json!({"model": "mute", "prompt": "Hello", "max_tokens": 3, "ignore_eos": true});
    let mut answer = request(&format!("{}/v1/completions", node.api), &prompt);
    let answer: Value = answer.body_mut().read_json().unwrap();
    assert_eq!(answer["usage"]["completion_tokens"], 3, "{answer}");
}

//! Folders in Hugging Face's form, through the real program: one node, and two.

use crate::common::{Node, fixture, refused, stdout};
use crate::unmake::unmake;

const MODEL: &str = "qwen3";

/// The folder of a fixture.
fn folder() -> (tempfile::TempDir, String) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("Tiny-Qwen3");
    unmake(MODEL, &path, |tensor| vec![tensor]);
    (dir, path.to_str().unwrap().to_owned())
}

fn text(answer: &serde_json::Value) -> &serde_json::Value {
    &answer["choices"][0]["message"]["content"]
}

#[test]
fn a_folder_is_planned_tokenised_and_computed_like_its_gguf_file() {
    let (_dir, path) = folder();
    let gguf = fixture(&format!("models/{MODEL}.gguf"));
    let logits = |model: &str, more: &[&str]| {
        stdout(&[&["dev", "logits", "-m", model, "--tokens", "5,17,300,42"][..], more].concat())
    };
    let whole = logits(&gguf, &[]);
    assert_eq!(logits(&path, &[]), whole);
    assert_eq!(logits(&path, &["--split", "2,1"]), whole);
    std::fs::remove_file(format!("{path}/model-00002-of-00002.safetensors")).unwrap();
    let why = refused(&["dev", "logits", "-m", &path, "--tokens", "1"]);
    assert!(why.contains("1 of its 2 files of weights are missing"), "{why}");
}

#[test]
fn two_nodes_serve_a_folder_that_one_of_them_has() {
    let (_dir, path) = folder();
    let (a, b) = (Node::start("a"), Node::start("b"));
    a.admit(&b);
    a.run(&["serve", &fixture(&format!("models/{MODEL}.gguf")), "--nodes", "1"]);
    let whole = a.chat(MODEL, "Hello", 12);
    a.run(&["stop", MODEL]);
    a.run(&["serve", &path, "--split", "2,1"]);
    let instance = a.instance("Tiny-Qwen3").unwrap();
    assert_eq!(instance["ranks"].as_array().unwrap().len(), 2, "{instance}");
    assert_eq!(text(&a.chat("Tiny-Qwen3", "Hello", 12)), text(&whole));
    assert_eq!(text(&b.chat("Tiny-Qwen3", "Hello", 12)), text(&whole));
    let shown = a.run(&["show", &path]);
    assert!(shown.contains("qwen3"), "{shown}");
    let plan = a.run(&["plan", &path, "--nodes", "1"]);
    assert!(plan.contains("KiB of weights"), "{plan}");
}

#[test]
fn a_folder_of_the_node_s_own_goes_by_its_repository() {
    let node = Node::start("a");
    let folder = node.dir.path().join("models/org/Tiny");
    unmake(MODEL, &folder, |tensor| vec![tensor]);
    let list = node.run(&["list"]);
    assert!(list.contains("org/Tiny:safetensors"), "{list}");
    node.run(&["serve", "org/Tiny"]);
    assert!(text(&node.chat("org/Tiny", "Hello", 4)).is_string());
    node.run(&["stop", "org/Tiny"]);
    node.run(&["rm", "org/Tiny"]);
    assert!(!folder.exists());
}

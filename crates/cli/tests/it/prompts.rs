//! Prompts that outlive processes, with real ones.

use serde_json::Value;

use crate::common::{Node, demo_model, fixture, wait_for};

const MODEL: &str = "sinew-demo";

fn start(name: &str, dir: tempfile::TempDir, listen: &str) -> Node {
    Node::start_with(name, dir, listen, |command| {
        command.args(["--prompt-cache", "256MiB"]);
    })
}

/// Two members of a cluster.
fn two_nodes() -> (Node, Node) {
    let [a, b] = ["a", "b"].map(|name| start(name, tempfile::tempdir().unwrap(), "127.0.0.1:0"));
    a.admit(&b);
    (a, b)
}

/// Kills all workers, and waits until others are ready.
fn kill_workers(node: &Node) {
    let pids = node.worker_pids(MODEL);
    pids.iter().for_each(|pid| crate::common::kill_9(*pid));
    wait_for("other workers", || {
        (node.worker_pids(MODEL) != pids).then(|| is_ready(node)).flatten()
    });
}

/// Some 1,500 tokens.
fn question() -> String {
    question_of(0)
}

/// Each number's begins otherwise.
fn question_of(number: usize) -> String {
    let line = |at: usize| {
        format!("Line {at} of log {number} says that node {} was up.\n", (at + number) % 7)
    };
    (0..100).map(line).collect::<String>() + "What is Sinew?"
}

fn text(answer: &Value) -> &str {
    answer["choices"][0]["message"]["content"].as_str().unwrap_or_else(|| panic!("{answer}"))
}

fn cached(answer: &Value) -> u64 {
    answer["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap_or_default()
}

/// Bytes of prompts on the disk of a node.
fn kept_bytes(node: &Node) -> u64 {
    let stats = node.instance(MODEL).map(|instance| instance["stats"]["prompts"].clone());
    stats.and_then(|stats| stats["written_bytes"].as_u64()).unwrap_or_default()
}

fn is_ready(node: &Node) -> Option<()> {
    let instance = node.instance(MODEL)?;
    (instance["state"]["state"] == "ready").then_some(())
}

/// Asks until most of the prompt comes from disk, after `kill` each time: what a busy machine had not
/// written yet is computed, with the same answer, and written then.
fn ask_until_kept(first: &Value, mut ask_after_kill: impl FnMut() -> Value) {
    let prompt_tokens = first["usage"]["prompt_tokens"].as_u64().unwrap();
    let mut kept = 0;
    wait_for("three answers to prompts from disk", || {
        let again = ask_after_kill();
        assert_eq!(text(&again), text(first));
        kept += u32::from(cached(&again) > prompt_tokens * 8 / 10);
        (kept == 3).then_some(())
    });
}

#[test]
fn prompts_outlive_killed_workers_of_two_nodes() {
    let (a, _b) = two_nodes();
    a.run(&["serve", &demo_model(), "--nodes", "2", "--split", "1,1", "--ctx", "2048"]);
    let first = a.chat(MODEL, &question(), 40);
    assert!(cached(&first) < 8, "{first}: a node's own first request began alike");
    wait_for("something to be on disk", || (kept_bytes(&a) > 0).then_some(()));
    ask_until_kept(&first, || {
        kill_workers(&a);
        a.chat(MODEL, &question(), 40)
    });
}

/// What one of the nodes lacks then comes from the other one, also where the first rank's node has
/// nothing of the text.
#[test]
fn prompts_are_found_by_another_split_and_after_a_move() {
    let (a, b) = two_nodes();
    // The first of the nodes leads, and is asked.
    let ask = |nodes: &str, split: &str, number: usize| {
        let first = if nodes.starts_with('b') { &b } else { &a };
        first.run(&["serve", &demo_model(), "--nodes", nodes, "--split", split, "--ctx", "2048"]);
        let answer = first.chat(MODEL, &question_of(number), 40);
        // Workers that end write what waits.
        first.run(&["stop", MODEL]);
        answer
    };
    let mut number = 0;
    for (before, after) in [
        (("a,b", "1,1"), ("a", "1")),
        (("a", "1"), ("a,b", "1,2")),
        (("a", "1"), ("b", "1")),
        (("b", "1"), ("a,b", "1,1")),
    ] {
        // What a busy machine has not written is computed: then another text is tried.
        wait_for("a prompt of another split", || {
            number += 1;
            let first = ask(before.0, before.1, number);
            let again = ask(after.0, after.1, number);
            assert_eq!(text(&again), text(&first), "{before:?}, then {after:?}");
            let prompt_tokens = first["usage"]["prompt_tokens"].as_u64().unwrap();
            (cached(&again) > prompt_tokens * 8 / 10).then_some(())
        });
    }
}

#[test]
fn prompts_outlive_a_killed_node() {
    let mut node = Some(start("a", tempfile::tempdir().unwrap(), "127.0.0.1:0"));
    let now = node.as_ref().unwrap();
    now.run(&["serve", &demo_model(), "--ctx", "2048"]);
    let first = now.chat(MODEL, &question(), 40);
    wait_for("something to be on disk", || (kept_bytes(now) > 0).then_some(()));
    ask_until_kept(&first, || {
        let killed = node.take().unwrap();
        let listen = killed.listen_addr();
        let now = node.insert(start("a", killed.kill(), &listen));
        wait_for("the model to be served again", || is_ready(now));
        now.chat(MODEL, &question(), 40)
    });
    let metrics = node
        .unwrap()
        .request("GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
    assert!(metrics.contains("sinew_prompt_cache_loaded_tokens_total"), "{metrics}");
}

#[test]
fn off_keeps_nothing_and_removes_what_was_kept() {
    let node = start("a", tempfile::tempdir().unwrap(), "127.0.0.1:0");
    node.run(&["serve", &fixture("models/qwen3.gguf"), "--name", MODEL]);
    let prompts = node.dir.path().join("prompts");
    let folders = || std::fs::read_dir(&prompts).map_or(0, Iterator::count);
    assert_eq!(folders(), 1);
    let dir = node.kill();
    let node = Node::start_with("a", dir, "127.0.0.1:0", |command| {
        command.args(["--prompt-cache", "off"]);
    });
    wait_for("the model to be served again", || is_ready(&node));
    assert_eq!(std::fs::read_dir(node.dir.path().join("prompts")).map_or(0, Iterator::count), 0);
    assert!(node.instance(MODEL).unwrap()["stats"]["prompts"].is_null());
}

#[test]
fn one_command_forgets_what_all_nodes_keep_while_they_serve() {
    let (a, b) = two_nodes();
    a.run(&["serve", &demo_model(), "--nodes", "2", "--split", "1,1", "--ctx", "2048"]);
    let first = a.chat(MODEL, &question(), 40);
    wait_for("something to be on disk", || (kept_bytes(&a) > 0).then_some(()));
    let segments = |node: &Node| {
        let models = std::fs::read_dir(node.dir.path().join("prompts")).into_iter().flatten();
        let files = models.flatten().flat_map(|model| std::fs::read_dir(model.path()).unwrap());
        files.flatten().filter(|file| file.metadata().is_ok_and(|it| it.len() > 64 << 10)).count()
    };
    wait_for("files of both", || (segments(&a) > 0 && segments(&b) > 0).then_some(()));
    let told = b.run(&["rm", "--prompts"]);
    for node in ["a", "b"] {
        assert!(told.contains(&format!("removed the prompts of {node}: ")), "{told}");
    }
    // What was still being written when they forgot may be there; of this text there is nothing.
    kill_workers(&a);
    let again = a.chat(MODEL, &question(), 40);
    assert_eq!(text(&again), text(&first));
    let prompt_tokens = first["usage"]["prompt_tokens"].as_u64().unwrap();
    assert!(cached(&again) < prompt_tokens / 2, "{again}");
}

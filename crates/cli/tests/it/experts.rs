//! Experts that are read from disk, with real nodes.

use serde_json::Value;

use crate::common::{Node, fixture, kill_9, wait_for};

const MODEL: &str = "qwen3moe";

fn text(answer: &Value) -> &str {
    answer["choices"][0]["message"]["content"].as_str().unwrap_or_else(|| panic!("{answer}"))
}

fn read_bytes(node: &Node) -> Option<u64> {
    let instance = node.instance(MODEL)?;
    instance["stats"]["experts"]["read_bytes"].as_u64().filter(|bytes| *bytes > 0)
}

/// Answers are those of the model in memory, on one node and on two, after kills of workers while
/// they read, and after the loss of a node.
#[test]
fn two_nodes_answer_with_experts_on_disk_as_one_with_all_in_memory() {
    let (a, b) = (Node::start("a"), Node::start("b"));
    let ask = |node: &Node| node.chat(MODEL, "hello", 40);
    let model = fixture("models/qwen3moe.gguf");
    a.run(&["serve", &model]);
    let due = ask(&a);
    assert_eq!(read_bytes(&a), None);
    a.run(&["stop", MODEL]);
    a.admit(&b);
    let least = a.refused(&["serve", &model, "--nodes", "2", "--expert-memory", "1KB"]);
    assert!(least.contains("expert"), "{least}");
    a.run(&["serve", &model, "--nodes", "2", "--split", "1,1", "--expert-memory", "64KB"]);
    assert_eq!(text(&ask(&a)), text(&due));
    wait_for("experts to be read", || read_bytes(&a));
    for node in [&a, &b] {
        assert!(node.dir.path().join("experts").is_dir(), "slabs of {}", node.dir.path().display());
    }
    for at in 0..4 {
        let pids = a.worker_pids(MODEL);
        let asked = std::thread::scope(|scope| {
            let asked = scope.spawn(|| ask(&a));
            kill_9(pids[at % pids.len()]);
            asked.join().unwrap()
        });
        assert_eq!(text(&asked), text(&due), "after kill {at}");
        wait_for("other workers", || {
            let instance = a.instance(MODEL)?;
            let is_ready = instance["state"]["state"] == "ready";
            (is_ready && a.worker_pids(MODEL) != pids).then_some(())
        });
    }
    let shown = a.run(&["ps"]);
    assert!(shown.contains("experts on disk: "), "{shown}");
    let asked = std::thread::scope(|scope| {
        let asked = scope.spawn(|| ask(&a));
        drop(b.kill());
        asked.join().unwrap()
    });
    assert_eq!(text(&asked), text(&due), "after the loss of a node");
}

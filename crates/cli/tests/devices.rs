//! Nodes that compute on a device of ggml's libraries: here on its own engine for the CPU, which
//! every machine has.
//!
//! Needs the libraries (`scripts/gpu-libraries.sh`) in the folder that `SINEW_GPU_LIBRARIES` names;
//! without it only what goes without them is tested, and each other test says so.

mod common;

use common::{Node, demo_model, kill_9, refused, wait_for};
use serde_json::Value;

const GGML: &str = "ggml-cpu";

/// The libraries' folder, if there is one.
fn libraries() -> Option<String> {
    let dir = std::env::var("SINEW_GPU_LIBRARIES").ok().filter(|dir| !dir.is_empty());
    if dir.is_none() {
        println!("not tested: SINEW_GPU_LIBRARIES names no folder of ggml's libraries");
    }
    dir
}

fn start(name: &str, libraries: &str, device: &str) -> Node {
    let dir = tempfile::tempdir().unwrap();
    Node::start_with(name, dir, "127.0.0.1:0", |command| {
        command.args(["--gpu-libraries", libraries, "--device", device]);
    })
}

fn answer(node: &Node) -> String {
    let answer = node.chat("sinew-demo", "Who are you?", 60);
    answer["choices"][0]["message"]["content"].as_str().unwrap_or_default().to_owned()
}

/// Whether each worker has opened the libraries.
fn opened(node: &Node) -> Vec<bool> {
    let maps = |pid| std::fs::read_to_string(format!("/proc/{pid}/maps")).unwrap();
    let pids = node.worker_pids("sinew-demo").into_iter();
    pids.map(|pid| maps(pid).contains("libggml-base")).collect()
}

/// The device that `node` tells of the node with this name.
fn device(node: &Node, name: &str) -> Value {
    let nodes = node.json(&["nodes"]);
    let found = nodes.as_array().unwrap().iter().find(|node| node["name"] == name).cloned();
    found.unwrap()["device"].clone()
}

#[test]
fn a_stage_on_ggmls_device_serves_beside_one_on_the_cpu() {
    let Some(libraries) = libraries() else { return };
    let (a, b) = (start("a", &libraries, "cpu"), start("b", &libraries, GGML));
    a.admit(&b);
    assert_eq!(device(&a, "a"), Value::Null);
    let told = device(&a, "b");
    assert_eq!(told["name"], GGML);
    assert!(told["memory_bytes"].as_u64() >= told["memory_free_bytes"].as_u64(), "{told}");
    assert!(told["memory_free_bytes"].as_u64() > Some(0), "{told}");
    let table = a.run(&["nodes"]);
    assert!(table.contains("MODELS RUN ON") && table.contains(GGML), "{table}");

    // Ranks that share layers must compute alike.
    let why = a.refused(&["serve", &demo_model(), "--nodes", "2", "--strategy", "tensor"]);
    assert!(why.contains("must compute alike") && why.contains("pipeline"), "{why}");

    a.run(&["serve", &demo_model(), "--nodes", "2"]);
    let instance = a.instance("sinew-demo").unwrap();
    assert_eq!(instance["ranks"].as_array().unwrap().len(), 2, "{instance}");
    assert!(instance.to_string().contains("b computes with ggml"), "{instance}");
    let before = answer(&a);
    assert!(before.contains("Sinew"), "{before}");
    assert_eq!(opened(&a), [false, true]);

    // A worker that a driver takes down is another one's loss as any.
    let pids = a.worker_pids("sinew-demo");
    kill_9(pids[1]);
    assert_eq!(answer(&a), before, "the same split on the same devices");
    wait_for("another worker", || (a.worker_pids("sinew-demo")[1] != pids[1]).then_some(()));
}

#[test]
fn ranks_on_ggmls_devices_share_layers() {
    let Some(libraries) = libraries() else { return };
    let (a, b) = (start("a", &libraries, GGML), start("b", &libraries, GGML));
    a.admit(&b);
    a.run(&["serve", &demo_model(), "--nodes", "2", "--strategy", "tensor"]);
    let instance = a.instance("sinew-demo").unwrap();
    assert_eq!(instance["ranks"].as_array().unwrap().len(), 2, "{instance}");
    let text = answer(&a);
    assert!(text.contains("Sinew"), "{text}");
    assert_eq!(opened(&a), [true, true]);
}

#[test]
fn a_name_that_the_libraries_do_not_know_is_refused() {
    let Some(libraries) = libraries() else { return };
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path().to_str().unwrap();
    let args = ["up", "--gpu-libraries", &libraries, "--device", "CUDA99", "--data-dir", dir];
    let why = refused(&args);
    assert!(why.contains("--device CUDA99") && why.contains(GGML), "{why}");
}

#[test]
fn a_node_without_the_libraries_says_so_and_serves_on_its_cpu() {
    let dir = tempfile::tempdir().unwrap();
    let a = start("a", dir.path().to_str().unwrap(), "CUDA0");
    assert_eq!(device(&a, "a"), Value::Null);
    let get = "GET /sinew/v1/status HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n";
    let status = a.request(get);
    assert!(status.contains("run on its CPU") && status.contains("libggml-base"), "{status}");
    a.run(&["serve", &demo_model()]);
    let text = answer(&a);
    assert!(text.contains("Sinew"), "{text}");
}

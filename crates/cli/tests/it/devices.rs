//! Nodes that compute on a ggml device: the libraries' own CPU engine, which every machine has, or
//! the device in `SINEW_TEST_DEVICE`.
//!
//! Needs the libraries (`scripts/gpu-libraries.sh`) in the folder in `SINEW_GPU_LIBRARIES`. Without
//! it, only the tests that need no libraries run, and each other test prints that.

#![cfg(unix)]

use crate::common::{Node, demo_model, fixture, kill_9, refused, sinew, wait_for};
use serde_json::Value;

/// ggml's engine for the CPU.
const GGML_CPU: &str = "ggml-cpu";

/// The device of the nodes.
fn ggml() -> String {
    std::env::var("SINEW_TEST_DEVICE").unwrap_or_else(|_| GGML_CPU.to_owned())
}

/// The node of the machine's second device, which is the same as its first.
fn second() -> String {
    format!("a-{}", ggml().to_lowercase())
}

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

/// The device of the node with this name, as reported by `node`.
fn device(node: &Node, name: &str) -> Value {
    let nodes = node.json(&["nodes"]);
    let found = nodes.as_array().unwrap().iter().find(|node| node["name"] == name).cloned();
    found.unwrap()["device"].clone()
}

#[test]
fn a_stage_on_ggmls_device_serves_beside_one_on_the_cpu() {
    let Some(libraries) = libraries() else { return };
    let (a, b) = (start("a", &libraries, "cpu"), start("b", &libraries, &ggml()));
    a.admit(&b);
    assert_eq!(device(&a, "a"), Value::Null);
    let told = device(&a, "b");
    assert_eq!(told["name"], ggml());
    assert!(told["memory_bytes"].as_u64() >= told["memory_free_bytes"].as_u64(), "{told}");
    assert!(told["memory_free_bytes"].as_u64() > Some(0), "{told}");
    let table = a.run(&["nodes"]);
    assert!(table.contains("MODELS RUN ON") && table.contains(&ggml()), "{table}");

    // Ranks that share layers must use the same arithmetic.
    let why = a.refused(&["serve", &demo_model(), "--nodes", "2", "--strategy", "tensor"]);
    assert!(why.contains("must compute alike") && why.contains("pipeline"), "{why}");

    a.run(&["serve", &demo_model(), "--nodes", "2"]);
    let instance = a.instance("sinew-demo").unwrap();
    assert_eq!(instance["ranks"].as_array().unwrap().len(), 2, "{instance}");
    assert!(instance.to_string().contains("b computes with ggml"), "{instance}");
    let before = answer(&a);
    assert!(before.contains("Sinew"), "{before}");
    assert_eq!(opened(&a), [false, true]);

    // A worker killed by a driver is a loss like any other.
    let pids = a.worker_pids("sinew-demo");
    kill_9(pids[1]);
    assert_eq!(answer(&a), before, "the same split on the same devices");
    wait_for("another worker", || (a.worker_pids("sinew-demo")[1] != pids[1]).then_some(()));
}

#[test]
fn what_a_device_does_is_measured_and_predicted_beside_what_comes() {
    let Some(libraries) = libraries() else { return };
    let told = sinew(&["bench", "device", "--device", &ggml(), "--gpu-libraries", &libraries]);
    let told = String::from_utf8_lossy(&told.stdout).into_owned();
    assert!(told.contains("GB/s") && told.contains("a cut takes"), "{told}");
    let why = refused(&["bench", "device", "--device", "CUDA9", "--gpu-libraries", &libraries]);
    assert!(why.contains("no device CUDA9"), "{why}");

    let a = start_on(tempfile::tempdir().unwrap(), &libraries, &[&ggml(), "cpu"]);
    live(&a, 2);
    wait_for("each node to be measured", || {
        let nodes = a.json(&["nodes"]);
        nodes.as_array()?.iter().all(|node| node["measured"] == true).then_some(())
    });
    let plan = a.json(&["plan", &demo_model(), "--nodes", "2"]);
    let rate = plan["prediction"]["decode_tokens_per_sec"].as_f64();
    assert!(rate > Some(0.0), "{plan}");
    assert!(plan["prediction"]["token"]["cut_secs"].as_f64() >= Some(0.0), "{plan}");
    a.run(&["serve", &demo_model(), "--nodes", "2"]);
    assert!(answer(&a).contains("Sinew"));
    let table = a.run(&["ps"]);
    assert!(table.contains("predicted)"), "{table}");
}

#[test]
fn an_abort_in_mid_answer_takes_the_devices_worker_and_is_named() {
    let Some(libraries) = libraries() else { return };
    let a = start("a", &libraries, &ggml());
    a.run(&["serve", &demo_model()]);
    let before = answer(&a);
    // A client that leaves causes no leftovers.
    let mut gone = a.stream("sinew-demo", "Tell me of ships.", 500);
    gone.next().expect("an event");
    drop(gone);
    wait_for("the request to be cancelled", || {
        (a.instance("sinew-demo")?["requests_running"] == 0).then_some(())
    });

    // The effect of a failing driver or a lack of memory in ggml, simulated by a signal. The worker
    // is stopped first, so that it cannot finish its answer.
    let [pid] = a.worker_pids("sinew-demo")[..] else { panic!("one rank") };
    let mut events = a.stream("sinew-demo", "Tell me of ships.", 500);
    events.next().expect("an event");
    for signal in ["-STOP", "-ABRT", "-CONT"] {
        crate::common::signal(signal, pid);
    }
    let last = events.last().expect("the stream ends in words");
    assert!(last.contains("[DONE]"), "it goes on after the loss: {last}");
    assert_eq!(answer(&a), before, "another worker, on the same device");
    assert_ne!(a.worker_pids("sinew-demo"), [pid]);
    let told = a.run(&["events", "--problems"]);
    assert!(told.contains("signal 6"), "{told}");
}

#[test]
fn a_model_that_does_not_fit_its_device_is_refused_with_numbers() {
    let Some(libraries) = libraries() else { return };
    let a = Node::start_with("a", tempfile::tempdir().unwrap(), "127.0.0.1:0", |command| {
        command.args(["--gpu-libraries", &libraries, "--device", &ggml(), "--memory", "100MiB"]);
    });
    let why = a.refused(&["serve", &demo_model(), "--cache-tokens", "4000000"]);
    assert!(why.contains("GiB") && why.contains("has 0.10 GiB free"), "{why}");
    assert!(why.contains("node a (") && why.contains("by ggml 0.25"), "{why}");
    assert_eq!(a.instance("sinew-demo"), None);
}

#[test]
fn ranks_on_ggmls_devices_share_layers() {
    let Some(libraries) = libraries() else { return };
    let (a, b) = (start("a", &libraries, &ggml()), start("b", &libraries, &ggml()));
    a.admit(&b);
    a.run(&["serve", &demo_model(), "--nodes", "2", "--strategy", "tensor"]);
    let instance = a.instance("sinew-demo").unwrap();
    assert_eq!(instance["ranks"].as_array().unwrap().len(), 2, "{instance}");
    let text = answer(&a);
    assert!(text.contains("Sinew"), "{text}");
    assert_eq!(opened(&a), [true, true]);
    // Either rank is restarted after a loss.
    for rank in [1, 0] {
        let pids = a.worker_pids("sinew-demo");
        kill_9(pids[rank]);
        assert_eq!(answer(&a), text, "rank {rank}: the same split on the same devices");
        assert_ne!(a.worker_pids("sinew-demo")[rank], pids[rank]);
    }
}

/// A folder with ggml's base library and the CPU library for this processor.
fn build_for(libraries: &str, processor: &str) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    for name in ["libggml-base.so".to_owned(), format!("libggml-cpu-{processor}.so")] {
        let file = std::path::Path::new(libraries).join(&name);
        std::os::unix::fs::symlink(file, dir.path().join(name)).unwrap();
    }
    dir
}

/// A node on each of these devices, in one process.
fn start_on(dir: tempfile::TempDir, libraries: &str, devices: &[&str]) -> Node {
    Node::start_with("a", dir, "127.0.0.1:0", |command| {
        command.args(["--gpu-libraries", libraries]);
        command.args(devices.iter().map(|device| format!("--device={device}")));
    })
}

/// The names of `count` nodes, once all of them are live.
fn live(node: &Node, count: usize) -> Vec<String> {
    wait_for(&format!("{count} nodes to live"), || {
        let nodes = node.json(&["nodes"]);
        let nodes = nodes.as_array()?.iter().filter(|node| node["state"] == "live");
        let mut names: Vec<_> =
            nodes.map(|node| node["name"].as_str().unwrap().to_owned()).collect();
        names.sort();
        (names.len() == count).then_some(names)
    })
}

#[test]
fn two_devices_of_a_machine_are_two_ranks() {
    let Some(libraries) = libraries() else { return };
    let a = start_on(tempfile::tempdir().unwrap(), &libraries, &[&ggml(), &ggml()]);
    assert_eq!(live(&a, 2), ["a".to_owned(), second()]);
    let nodes = a.json(&["nodes"]);
    assert_eq!(nodes[0]["memory_bytes"], nodes[1]["memory_bytes"], "a half each: {nodes}");
    a.run(&["serve", &demo_model(), "--nodes", "2", "--strategy", "tensor"]);
    assert_eq!(opened(&a), [true, true]);
    let before = answer(&a);
    assert!(before.contains("Sinew"), "{before}");
    let ids = |node: &Node| {
        let nodes = node.json(&["nodes"]);
        let ids = nodes.as_array().unwrap().iter().map(|node| node["id"].to_string());
        ids.collect::<std::collections::BTreeSet<_>>()
    };
    let known = ids(&a);

    // They are the same after a restart, and follow the machine into another cluster.
    let a = start_on(a.kill(), &libraries, &[&ggml(), &ggml()]);
    live(&a, 2);
    assert_eq!(ids(&a), known);
    let b = Node::start("b");
    a.run(&["leave"]);
    let invite = b.json(&["invite"]);
    a.run(&["join", invite["code"].as_str().unwrap()]);
    assert_eq!(live(&b, 3), ["a".to_owned(), second(), "b".to_owned()]);
}

#[test]
fn a_machines_gpu_and_its_processors_are_stages_of_one_model() {
    let Some(libraries) = libraries() else { return };
    let a = start_on(tempfile::tempdir().unwrap(), &libraries, &["cpu", &ggml()]);
    live(&a, 2);
    a.run(&["serve", &demo_model(), "--nodes", "2"]);
    assert_eq!(opened(&a), [false, true]);
    assert!(answer(&a).contains("Sinew"));
}

#[test]
fn two_builds_of_ggml_share_no_layer_of_a_mixture_and_pass_it_on() {
    let Some(libraries) = libraries() else { return };
    let builds = ["x64", "sse42"].map(|processor| build_for(&libraries, processor));
    let node = |at: usize| start(["a", "b"][at], builds[at].path().to_str().unwrap(), GGML_CPU);
    let (a, b) = (node(0), node(1));
    a.admit(&b);
    let built = |name| device(&a, name)["library"].as_str().unwrap().to_owned();
    assert!(built("a").starts_with("ggml 0.25") && built("a") != built("b"), "{}", built("b"));

    let mixture = fixture("models/qwen3moe.gguf");
    let why = a.refused(&["serve", &mixture, "--nodes", "2", "--strategy", "tensor"]);
    assert!(why.contains("must compute alike") && why.contains(&built("a")), "{why}");
    assert!(why.contains(&built("b")), "{why}");
    a.run(&["serve", &mixture, "--nodes", "2"]);
    let instance = a.instance("qwen3moe").unwrap();
    assert_eq!(instance["ranks"].as_array().unwrap().len(), 2, "{instance}");
    let answer = a.chat("qwen3moe", "hello", 16);
    assert!(answer["usage"]["completion_tokens"].as_u64() > Some(0), "{answer}");
}

#[test]
fn a_name_that_the_libraries_do_not_know_is_refused() {
    let Some(libraries) = libraries() else { return };
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path().to_str().unwrap();
    let args = ["up", "--gpu-libraries", &libraries, "--device", "CUDA99", "--data-dir", dir];
    let why = refused(&args);
    assert!(why.contains("--device CUDA99") && why.contains(GGML_CPU), "{why}");
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

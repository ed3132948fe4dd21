//! Models by name, as users type them, from a hub on loopback.

mod library;
mod names;

use crate::common;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Output, Stdio};

use crate::common::{Node, SINEW, demo_model, wait_for};
use fakehub::{FakeHub, Fault};
use serde_json::{Value, json};
use tempfile::TempDir;

const REPO: &str = "org/Demo-GGUF";

struct World {
    hub: FakeHub,
    home: TempDir,
    size: u64,
}

impl World {
    fn new() -> Self {
        let (hub, bytes) = (FakeHub::start(), std::fs::read(demo_model()).unwrap());
        let size = bytes.len() as u64;
        hub.add(REPO, "demo-Q4_K_M.gguf", bytes);
        Self { hub, home: tempfile::tempdir().unwrap(), size }
    }

    /// Hides the models and settings of the machine that runs the tests.
    fn isolate<'c>(&self, command: &'c mut Command) -> &'c mut Command {
        for name in [
            "HF_HOME",
            "HF_HUB_CACHE",
            "HF_TOKEN",
            "LLAMA_CACHE",
            "OLLAMA_MODELS",
            "XDG_CACHE_HOME",
        ] {
            command.env_remove(name);
        }
        command.env("HOME", self.home.path()).env("HF_ENDPOINT", self.hub.endpoint())
    }

    fn data_dir(&self) -> std::path::PathBuf {
        self.home.path().join("data")
    }

    fn sinew(&self, args: &[&str]) -> Output {
        let mut command = Command::new(SINEW);
        command.args(args).arg("--data-dir").arg(self.data_dir()).stdin(Stdio::null());
        self.isolate(&mut command).output().unwrap()
    }

    /// Runs a command on a node, with its whole output.
    fn sinew_of(&self, node: &Node, args: &[&str]) -> Output {
        let mut command = Command::new(SINEW);
        command.args(args).arg("--data-dir").arg(node.dir.path()).stdin(Stdio::null());
        self.isolate(&mut command).output().unwrap()
    }

    fn stdout(&self, args: &[&str]) -> String {
        let output = self.sinew(args);
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{args:?}: {stderr}");
        String::from_utf8(output.stdout).unwrap()
    }

    fn refused(&self, args: &[&str]) -> String {
        let output = self.sinew(args);
        assert_eq!(output.status.code(), Some(1), "{args:?}");
        String::from_utf8(output.stderr).unwrap()
    }

    fn node(&self, name: &str) -> Node {
        let dir = tempfile::tempdir().unwrap();
        Node::start_with(name, dir, "127.0.0.1:0", |command| {
            self.isolate(command);
        })
    }
}

/// The lines of a request's answer.
fn lines(node: &Node, path: &str, body: &Value) -> Vec<Value> {
    let response = ureq::post(format!("{}{path}", node.api)).send_json(body).unwrap();
    let lines = BufReader::new(response.into_body().into_reader()).lines();
    // A connection that closes after an error's line has sent everything.
    lines.map_while(Result::ok).map(|line| serde_json::from_str(&line).unwrap()).collect()
}

#[test]
fn a_model_is_run_by_name_without_a_node_and_stays_on_the_disk() {
    let world = World::new();
    let answer = world.sinew(&["run", REPO, "Hello", "--temperature", "0", "--max-tokens", "8"]);
    let stderr = String::from_utf8_lossy(&answer.stderr);
    assert!(answer.status.success() && !answer.stdout.is_empty(), "{stderr}");
    assert!(stderr.contains("Q4_K_M") && stderr.contains("this machine has"), "{stderr}");
    assert_eq!(world.hub.bytes_sent(), world.size);
    // The second time the model is here, in a folder that is not temporary.
    let again = world.stdout(&["run", REPO, "Hello", "--temperature", "0", "--max-tokens", "8"]);
    assert_eq!(again.as_bytes(), answer.stdout);
    assert_eq!(world.hub.bytes_sent(), world.size);

    let list: Value = serde_json::from_str(&world.stdout(&["list", "--json"])).unwrap();
    assert_eq!(
        (&list[0]["name"], &list[0]["shelf"]),
        (&json!("org/Demo-GGUF:Q4_K_M"), &json!("own"))
    );
    let path = list[0]["path"].as_str().unwrap();
    assert!(Path::new(path).starts_with(world.data_dir().join("models")));
    let show: Value = serde_json::from_str(&world.stdout(&["show", REPO, "--json"])).unwrap();
    assert_eq!(show["bytes"], world.size);
    assert!(show["parameters"].as_u64().unwrap() > 1000 && show["cannot_run"].is_null());
    assert!(world.stdout(&["show", REPO]).contains("chat template"));
    assert!(world.stdout(&["rm", REPO]).contains("are free again"));
    assert_eq!(world.stdout(&["list", "--json"]).trim(), "[]");
    let gone = world.refused(&["rm", REPO]);
    assert!(gone.contains("there is no model"), "{gone}");

    // A user's folder is searched without a node as well.
    let folder = tempfile::tempdir().unwrap();
    std::fs::copy(demo_model(), folder.path().join("mine.gguf")).unwrap();
    let mut command = Command::new(SINEW);
    command.args(["run", "mine", "Hello", "--max-tokens", "3", "--data-dir"]);
    command.arg(world.data_dir()).env("SINEW_MODELS", folder.path()).stdin(Stdio::null());
    let answer = world.isolate(&mut command).output().unwrap();
    assert!(answer.status.success(), "{}", String::from_utf8_lossy(&answer.stderr));
    assert_eq!(world.hub.bytes_sent(), world.size);
}

#[test]
fn what_is_on_the_disk_is_used_where_it_lies() {
    let world = World::new();
    let studio = world.home.path().join(".lmstudio/models/org/Demo-GGUF");
    std::fs::create_dir_all(&studio).unwrap();
    std::fs::copy(demo_model(), studio.join("demo-Q4_K_M.gguf")).unwrap();
    let pulled = world.stdout(&["pull", REPO]);
    assert!(pulled.contains(".lmstudio"), "{pulled}");
    world.stdout(&["run", "org/demo-gguf", "Hello", "--max-tokens", "2"]);
    assert!(world.hub.seen().is_empty(), "nobody asked the hub");
    let refused = world.refused(&["rm", REPO]);
    assert!(refused.contains("belongs to LM Studio"), "{refused}");
    assert!(world.stdout(&["list"]).contains("LM Studio: "));
}

#[test]
fn errors_say_what_to_do() {
    let world = World::new();
    let near = world.refused(&["pull", "llama-3"]);
    assert!(near.contains("llama3.2") && near.contains("sinew list --"), "{near}");
    assert!(world.stdout(&["list", "--catalogue"]).contains("llama3.2:3b"));
    let offline = world.refused(&["pull", REPO, "--offline"]);
    assert!(offline.contains("--offline was given"), "{offline}");
    let missing = world.refused(&["run", "/no/such/file.gguf", "x"]);
    assert!(missing.contains("The models here:"), "{missing}");
    let folder = world.refused(&["run", world.home.path().to_str().unwrap(), "x"]);
    assert!(folder.contains("is a folder"), "{folder}");
    let short = world.home.path().join("short.gguf");
    std::fs::write(&short, &std::fs::read(demo_model()).unwrap()[..100]).unwrap();
    let cut = world.refused(&["run", short.to_str().unwrap(), "x"]);
    assert!(cut.contains("download is probably incomplete"), "{cut}");
    world.hub.fail(Fault::Expires { after: 0 });
    let expired = world.refused(&["pull", REPO]);
    assert!(expired.contains("403") && expired.contains("kept"), "{expired}");
}

#[test]
fn a_node_pulls_once_for_all_who_ask_and_serves_by_name() {
    let world = World::new();
    let node = world.node("a");
    world.hub.fail(Fault::Drips { bytes: 256 << 10, pause_ms: 5 });
    let pull = || lines(&node, "/api/pull", &json!({ "model": REPO }));
    let (first, second) = std::thread::scope(|scope| {
        let other = scope.spawn(pull);
        (pull(), other.join().unwrap())
    });
    for told in [&first, &second] {
        assert_eq!(told[0]["status"], "pulling manifest");
        assert_eq!(told.last().unwrap()["status"], "success");
    }
    let layer = first.iter().chain(&second).find(|line| line["completed"].is_u64()).unwrap();
    assert_eq!(layer["total"], world.size);
    assert!(layer["digest"].as_str().unwrap().starts_with("sha256:"));
    assert_eq!(world.hub.bytes_sent(), world.size, "two asked, and it was fetched once");

    let ready = node.run(&["serve", REPO]);
    assert!(ready.contains(REPO), "{ready}");
    assert!(node.chat(REPO, "Hello", 4)["choices"][0].is_object());
    let refused = node.refused(&["rm", REPO]);
    assert!(refused.contains("is served") && refused.contains("sinew stop"), "{refused}");
    node.run(&["stop", REPO]);
    node.run(&["rm", REPO]);
    // Serving fetches a missing model by itself.
    node.run(&["serve", REPO]);
    assert_eq!(world.hub.bytes_sent(), 2 * world.size);
}

#[test]
fn nodes_that_want_the_same_model_fetch_it_once_from_the_hub() {
    let world = World::new();
    let (a, b) = (world.node("a"), world.node("b"));
    a.admit(&b);
    world.hub.fail(Fault::Drips { bytes: 128 << 10, pause_ms: 10 });
    let pull = |node: &Node| lines(node, "/api/pull", &json!({ "model": REPO }));
    std::thread::scope(|scope| {
        let other = scope.spawn(|| pull(&b));
        assert_eq!(pull(&a).last().unwrap()["status"], "success");
        assert_eq!(other.join().unwrap().last().unwrap()["status"], "success");
    });
    assert_eq!(world.hub.bytes_sent(), world.size, "one copy, whatever the number of nodes");
    let c = world.node("c");
    a.admit(&c);
    assert_eq!(pull(&c).last().unwrap()["status"], "success");
    assert_eq!(world.hub.bytes_sent(), world.size);
    for node in [&a, &b, &c] {
        let path = node.dir.path().join("models/org/Demo-GGUF/demo-Q4_K_M.gguf");
        assert_eq!(std::fs::read(path).unwrap(), std::fs::read(demo_model()).unwrap());
    }
    // A flipped bit on a member's disk is detected on arrival, and the hub's bytes are used
    // instead.
    for node in [&a, &b] {
        let path = node.dir.path().join("models/org/Demo-GGUF/demo-Q4_K_M.gguf");
        let mut bytes = std::fs::read(&path).unwrap();
        let middle = bytes.len() / 2;
        bytes[middle] ^= 1;
        std::fs::write(&path, bytes).unwrap();
    }
    c.run(&["rm", REPO]);
    assert_eq!(pull(&c).last().unwrap()["status"], "success");
    let path = c.dir.path().join("models/org/Demo-GGUF/demo-Q4_K_M.gguf");
    assert_eq!(std::fs::read(path).unwrap(), std::fs::read(demo_model()).unwrap());
    assert_eq!(world.hub.bytes_sent(), 2 * world.size);
}

#[test]
fn a_download_is_seen_from_the_other_nodes() {
    let world = World::new();
    let (a, b) = (world.node("a"), world.node("b"));
    a.admit(&b);
    world.hub.fail(Fault::Drips { bytes: 16 << 10, pause_ms: 20 });
    let downloads = || {
        let status = a.json(&["status"]);
        let nodes = status["nodes"].as_array().unwrap().clone();
        let other = nodes.into_iter().find(|node| node["name"] == "b").unwrap();
        other["downloads"].as_array().unwrap().clone()
    };
    std::thread::scope(|scope| {
        scope.spawn(|| lines(&b, "/api/pull", &json!({ "model": REPO })));
        let told = wait_for("the download", || {
            downloads().into_iter().find(|one| one["stage"] == "pulling")
        });
        assert_eq!((&told["model"], &told["total_bytes"]), (&json!(REPO), &json!(world.size)));
        wait_for("its bytes", || downloads().iter().find(|one| one["done_bytes"] != 0).cloned());
        world.hub.heal();
    });
    wait_for("its end", || downloads().is_empty().then_some(()));
}

#[test]
fn ollama_s_pull_and_delete_and_who_may_not() {
    let world = World::new();
    let node = world.node("a");
    let failed = lines(&node, "/api/pull", &json!({ "model": "org/none" }));
    let error = failed.last().unwrap()["error"].as_str().unwrap();
    assert!(error.contains("was not found"), "{error}");
    let done = lines(&node, "/api/pull", &json!({ "model": REPO, "stream": false }));
    assert_eq!(done, [json!({ "status": "success" })]);
    let delete = |more: &str| {
        let body = format!("{{\"model\": \"{REPO}\"}}");
        let host = node.api.trim_start_matches("http://");
        node.request(&format!(
            "DELETE /api/delete HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\n{more}\
             content-length: {}\r\n\r\n{body}",
            body.len()
        ))
    };
    assert!(delete("").starts_with("HTTP/1.1 200"));
    assert!(delete("").starts_with("HTTP/1.1 404"));
    // A request fetches its model, in any dialect, and the answer has the requested name.
    let sent = world.hub.bytes_sent();
    assert_eq!(node.chat(REPO, "Hello", 4)["model"], REPO);
    assert_eq!(world.hub.bytes_sent(), sent + world.size);
    let message = |model| node.chat(model, "Hello", 4)["error"]["message"].to_string();
    assert!(message("org/none").contains("could not be fetched: org/none was not found"));
    assert!(message("gpt-4").contains("is not served here. Served are"), "{}", message("gpt-4"));
}

/// A model that differs from the demo in one bit of its weights.
fn another_model(path: &Path) {
    let mut bytes = std::fs::read(demo_model()).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    std::fs::write(path, bytes).unwrap();
}

#[test]
fn a_model_of_another_node_is_listed_shown_and_run_from_here() {
    let world = World::new();
    let (a, b) = (world.node("a"), world.node("b"));
    a.admit(&b);
    std::fs::copy(demo_model(), b.dir.path().join("models/theirs.gguf")).unwrap();
    let listed = a.run(&["list"]);
    assert!(listed.contains("theirs") && listed.contains("node b: "), "{listed}");
    let shown = a.json(&["show", "theirs"]);
    assert_eq!((&shown["node"], &shown["bytes"]), (&json!("b"), &json!(world.size)));
    let refused = a.refused(&["rm", "theirs"]);
    assert!(refused.contains("is on node b") && refused.contains("sinew rm"), "{refused}");
    a.run(&["plan", "theirs"]);
    a.run(&["run", "theirs", "Hello", "--max-tokens", "2"]);
    let instance = a.instance("theirs").unwrap();
    assert_eq!(instance["ranks"][0]["node_name"], "b");
    assert_eq!(instance["owner"], b.json(&["nodes"])[0]["id"]);
    assert!(a.chat("theirs", "Hello", 4)["choices"][0].is_object());
    let again = a.refused(&["serve", "theirs"]);
    assert!(again.contains("is already served"), "{again}");
    // A file of this node with the same name but other content is another model; one with the same
    // content is the same model.
    another_model(&a.dir.path().join("theirs.gguf"));
    let other = a.dir.path().join("theirs.gguf");
    let run = world.sinew_of(&a, &["run", other.to_str().unwrap(), "Hello", "--max-tokens", "2"]);
    let told = String::from_utf8(run.stderr).unwrap();
    assert!(told.contains("served as theirs-2"), "{told}");
    let same = a.dir.path().join("renamed.gguf");
    std::fs::copy(demo_model(), &same).unwrap();
    a.run(&["run", same.to_str().unwrap(), "Hello", "--max-tokens", "2"]);
    let served: Vec<Value> = a.json(&["ps"]).as_array().unwrap().clone();
    assert_eq!(served.len(), 2, "the same content is served once: {served:?}");
    // A name that no node has still gets that error; between different files of one name there is
    // no choice.
    assert!(a.refused(&["serve", "nowhere"]).contains("there is no model"));
    let c = world.node("c");
    a.admit(&c);
    std::fs::write(c.dir.path().join("models/theirs.gguf"), b"GGUF, but short").unwrap();
    let refused = a.refused(&["show", "theirs"]);
    assert!(refused.contains("different files of that name"), "{refused}");
}

/// Flips a bit in every part of a file except its header, as a failing disk does: the modification
/// time stays.
fn flip_bits(path: &Path) {
    let mut bytes = std::fs::read(path).unwrap();
    let first = bytes.len() / 4;
    bytes[first..].iter_mut().step_by(100_000).for_each(|byte| *byte ^= 1);
    let modified = std::fs::metadata(path).unwrap().modified().unwrap();
    std::fs::write(path, bytes).unwrap();
    let file = std::fs::File::options().write(true).open(path).unwrap();
    file.set_modified(modified).unwrap();
}

#[test]
fn a_damaged_copy_is_found_told_of_and_not_used() {
    let world = World::new();
    let (a, b, c) = (world.node("a"), world.node("b"), world.node("c"));
    a.admit(&b);
    a.admit(&c);
    for node in [&a, &b] {
        std::fs::copy(demo_model(), node.dir.path().join("models/m.gguf")).unwrap();
        node.run(&["pull", "m"]); // hashes it
    }
    a.run(&["serve", "m"]);
    let right = a.chat("m", "Once upon a time", 12)["choices"].clone();
    a.run(&["stop", "m"]);
    flip_bits(&b.dir.path().join("models/m.gguf"));
    a.run(&["serve", "m", "--nodes", "a,b,c"]);
    assert_eq!(a.chat("m", "Once upon a time", 12)["choices"], right);
    let told = common::wait_for("the damage to be told", || {
        let notices = b.json(&["status"])["notices"].to_string();
        notices.contains("damaged").then_some(notices)
    });
    assert!(told.contains("the copy of m on node b") && told.contains("sinew rm"), "{told}");
    // No other node has it: the damage gives an error, not an answer.
    let alone = world.node("alone");
    std::fs::copy(demo_model(), alone.dir.path().join("models/m.gguf")).unwrap();
    alone.run(&["pull", "m"]);
    flip_bits(&alone.dir.path().join("models/m.gguf"));
    let refused = alone.refused(&["serve", "m"]);
    assert!(
        refused.contains("alone is damaged there") && refused.contains("a whole copy"),
        "{refused}"
    );
}

#[test]
fn a_model_in_two_copies_outlives_the_node_that_had_its_file() {
    let world = World::new();
    let (a, b) = (world.node("a"), world.node("b"));
    a.admit(&b);
    std::fs::copy(demo_model(), a.dir.path().join("models/m.gguf")).unwrap();
    // With `--offline` nothing is fetched, by a node either.
    assert!(a.run(&["pull", "m", "--offline"]).contains("m.gguf"));
    let refused = a.refused(&["pull", REPO, "--offline"]);
    assert!(refused.contains("--offline") && world.hub.seen().is_empty(), "{refused}");
    a.run(&["serve", "m", "--copies", "2"]);
    let has = |node: &Node| {
        let found = std::fs::read(node.dir.path().join("models/m.gguf")).ok();
        found.map(|bytes| assert_eq!(bytes, std::fs::read(demo_model()).unwrap()))
    };
    common::wait_for("the other node to have a copy", || has(&b));
    let tokens = |events: Vec<String>| -> String {
        let events = events.iter().filter_map(|event| serde_json::from_str::<Value>(event).ok());
        events
            .filter_map(|e| Some(e["choices"][0]["delta"]["content"].as_str()?.to_owned()))
            .collect()
    };
    let right = tokens(b.stream("m", "Once upon a time", 60).collect());
    let mut stream = b.stream("m", "Once upon a time", 60);
    let mut events: Vec<String> = stream.by_ref().take(5).collect();
    a.kill();
    events.extend(stream);
    assert_eq!(events.last().map(String::as_str), Some("[DONE]"));
    assert_eq!(tokens(events), right, "the same stream, without the only original");
    // A new node gets the copy that is missing now.
    let c = world.node("c");
    b.admit(&c);
    common::wait_for("the new node to have a copy", || has(&c));
}

#[test]
fn a_served_model_gets_a_second_copy_by_itself_unless_one_is_asked_for() {
    let world = World::new();
    let (a, b) = (world.node("a"), world.node("b"));
    a.admit(&b);
    let models = a.dir.path().join("models");
    std::fs::copy(common::fixture("models/qwen3.gguf"), models.join("one.gguf")).unwrap();
    std::fs::copy(demo_model(), models.join("two.gguf")).unwrap();
    a.run(&["serve", "one", "--copies", "1", "--nodes", "1"]);
    let notes = a.instance("one").unwrap()["notes"].to_string();
    assert!(notes.contains("only node a has its file") && notes.contains("--copies 2"), "{notes}");
    a.run(&["serve", "two", "--nodes", "1"]);
    let copy = |name: &str| b.dir.path().join(format!("models/{name}.gguf")).is_file();
    common::wait_for("the copy that is made by itself", || copy("two").then_some(()));
    assert!(!copy("one"), "a copy that nobody asked for");
    common::wait_for("both nodes to be listed", || {
        let nodes = a.instance("two")?["file_nodes"].as_array()?.len();
        (nodes == 2).then_some(())
    });
}

#[test]
fn a_download_that_was_cut_is_listed_shown_and_removed() {
    let world = World::new();
    let folder = world.data_dir().join("models/org/Demo-GGUF");
    std::fs::create_dir_all(&folder).unwrap();
    let part = folder.join("demo-Q4_K_M.gguf.part");
    std::fs::write(&part, vec![1; 300_000]).unwrap();
    std::fs::File::options().write(true).open(&part).unwrap().set_len(world.size).unwrap();
    let note = json!({ "size": world.size, "sha256": null, "etag": "x", "have": [[0, 300_000]] });
    std::fs::write(folder.join("demo-Q4_K_M.gguf.part.json"), note.to_string()).unwrap();
    let listed = world.stdout(&["list"]);
    assert!(listed.contains("not whole: org/Demo-GGUF:Q4_K_M, 293.0 KiB of "), "{listed}");
    assert!(listed.contains(" org/Demo-GGUF:Q4_K_M; or: sinew rm"), "{listed}");
    let shown: Value = serde_json::from_str(&world.stdout(&["show", REPO, "--json"])).unwrap();
    assert_eq!(
        (&shown["done_bytes"], &shown["total_bytes"]),
        (&json!(300_000), &json!(world.size))
    );
    let removed: Value = serde_json::from_str(&world.stdout(&["rm", REPO, "--json"])).unwrap();
    let freed = removed["freed_bytes"].as_u64().unwrap();
    assert!((300_000..world.size).contains(&freed), "the holes were never taken: {freed}");
    assert!(!part.exists() && !world.stdout(&["list"]).contains("not whole"));
    assert!(world.refused(&["rm", REPO]).contains("there is no model"));
}

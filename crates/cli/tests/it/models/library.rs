//! Models that no node has yet: what there is, what it would do here, and downloads that anybody
//! may end.

use std::process::{Command, Stdio};

use fakehub::Fault;
use serde_json::{Value, json};

use super::{REPO, World, lines};
use crate::common::{Node, SINEW, wait_for};

/// The answer to an administrative request, in JSON.
fn administer(node: &Node, path: &str, body: &Value) -> Value {
    let token = std::fs::read_to_string(node.dir.path().join("admin.token")).unwrap();
    let request = ureq::post(format!("{}/sinew/v1/{path}", node.api));
    let request = request.header("Authorization", format!("Bearer {}", token.trim()));
    let request = request.config().http_status_as_error(false).build();
    request.send_json(body).unwrap().into_body().read_json().unwrap()
}

fn names(list: &Value) -> Vec<&str> {
    list.as_array().unwrap().iter().map(|one| one["name"].as_str().unwrap()).collect()
}

#[test]
fn a_model_is_planned_before_it_is_downloaded() {
    let world = World::new();
    let (a, b) = (world.node("a"), world.node("b"));
    a.admit(&b);
    world.hub.add(REPO, "demo-Q8_0.gguf", vec![0; 50 << 20]);
    let told = a.run(&["plan", REPO]);
    for words in ["no machine of the cluster has org/Demo-GGUF:Q4_K_M yet", "chosen", "sinew pull"]
    {
        assert!(told.contains(words), "{words}: {told}");
    }
    let header = world.hub.bytes_sent();
    assert!(header > 0 && header < world.size, "{header} of {} bytes", world.size);
    let planned = a.json(&["plan", REPO, "--nodes", "2"]);
    assert_eq!(planned["ranks"].as_array().unwrap().len(), 2);
    assert_eq!(planned["download"]["bytes"], world.size);
    assert_eq!(world.hub.bytes_sent(), header, "the header is fetched once");
    assert_eq!(a.json(&["list"]), json!([]), "nothing of it stays on the disk");

    // The same plan, once it is here.
    a.run(&["pull", REPO]);
    let here = a.json(&["plan", REPO, "--nodes", "2"]);
    assert!(here["download"].is_null());
    for part in ["split", "ranks"] {
        assert_eq!(here[part], planned[part], "{part}");
    }

    let refused = a.refused(&["plan", "org/none"]);
    assert!(refused.contains("org/none was not found"), "{refused}");
    let refused = a.refused(&["plan", "no-such-model"]);
    assert!(refused.contains("there is no model"), "{refused}");
    // A file that is none of a model.
    let refused = a.refused(&["plan", "org/Demo-GGUF:Q8_0"]);
    assert!(refused.contains("is no model"), "{refused}");
}

/// What `plan --cluster` prints, for a hub's names.
fn planned(world: &World, args: &[&str]) -> (bool, String) {
    let cluster = crate::common::repository().join("examples/clusters/four-pis.toml");
    let mut command = Command::new(SINEW);
    command.arg("plan").args(args).arg("--cluster").arg(cluster).stdin(Stdio::null());
    let output = world.isolate(&mut command).output().unwrap();
    let text = [output.stdout, output.stderr].concat();
    (output.status.success(), String::from_utf8(text).unwrap())
}

#[test]
fn names_of_a_hub_are_planned_for_machines_that_are_not_there() {
    let world = World::new();
    let (is_well, told) = planned(&world, &[REPO]);
    assert!(is_well && told.contains("org/Demo-GGUF:Q4_K_M") && told.contains("chosen"), "{told}");
    // A folder of safetensors, of which no weight is fetched.
    let folder = world.home.path().join("tiny");
    crate::unmake::unmake("qwen3", &folder, |tensor| vec![tensor]);
    for entry in std::fs::read_dir(&folder).unwrap().flatten() {
        let name = entry.file_name().into_string().unwrap();
        world.hub.add("org/Tiny", &name, std::fs::read(entry.path()).unwrap());
    }
    let (is_well, told) = planned(&world, &["org/Tiny"]);
    assert!(is_well && told.contains("org/Tiny:safetensors"), "{told}");
    let (_, local) = planned(&world, &[folder.to_str().unwrap()]);
    let (remote, local) = (told.split_once('\n').unwrap().1, local);
    assert_eq!(remote, local, "the same plan as from the disk");
    // A name of the catalogue asks no hub.
    let sent = world.hub.bytes_sent();
    let (is_well, told) = planned(&world, &["llama3.2:1b"]);
    assert!(is_well && told.contains("by the model's shape"), "{told}");
    assert_eq!(world.hub.bytes_sent(), sent);
    let (is_well, told) = planned(&world, &["org/none"]);
    assert!(!is_well && told.contains("org/none was not found"), "{told}");
}

#[test]
fn a_cluster_without_a_hub_plans_names_of_the_catalogue() {
    let world = World::new();
    let dir = tempfile::tempdir().unwrap();
    let node = Node::start_with("a", dir, "127.0.0.1:0", |command| {
        world.isolate(command).env("HF_HUB_OFFLINE", "1");
    });
    let told = node.run(&["plan", "qwen3:0.6b"]);
    for words in ["Qwen/Qwen3-0.6B-GGUF:Q8_0", "by the model's shape, because", "chosen"] {
        assert!(told.contains(words), "{words}: {told}");
    }
    let refused = node.refused(&["plan", REPO]);
    assert!(refused.contains("there is no model"), "{refused}");
    // A hub that is down.
    let dir = tempfile::tempdir().unwrap();
    let node = Node::start_with("b", dir, "127.0.0.1:0", |command| {
        world.isolate(command).env("HF_ENDPOINT", "http://127.0.0.1:9");
    });
    let told = node.run(&["plan", "qwen3:0.6b"]);
    assert!(told.contains("because the hub does not answer"), "{told}");
    assert!(node.refused(&["plan", REPO]).contains("cannot be reached"));
}

#[test]
fn the_hub_is_searched_by_words_and_never_for_long() {
    let world = World::new();
    world.hub.add("other/Llama-GGUF", "llama-Q4_K_M.gguf", vec![0; 1]);
    world.hub.add("org/Gated-Demo-GGUF", "x-Q4_K_M.gguf", vec![0; 1]);
    world.hub.gate("org/Gated-Demo-GGUF", fakehub::Gate::Token("secret".to_owned()));
    let ask = |args: &[&str]| {
        let mut command = Command::new(SINEW);
        command.arg("search").args(args).stdin(Stdio::null());
        command
    };
    let told = |command: &mut Command| {
        let output = world.isolate(command).output().unwrap();
        let text = [output.stdout, output.stderr].concat();
        (output.status.success(), String::from_utf8(text).unwrap())
    };
    let (is_well, found) = told(&mut ask(&["DEMO", "gguf"]));
    assert!(is_well && found.contains(REPO) && !found.contains("other/Llama"), "{found}");
    let gated = found.lines().find(|line| line.contains("Gated-Demo")).unwrap();
    assert!(gated.contains("gated") && gated.contains("1200"), "{gated}");
    let asked = world.hub.seen().pop().unwrap().path;
    assert_eq!(asked, "/api/models?search=DEMO%20gguf&filter=gguf&sort=downloads&limit=100");
    let (is_well, none) = told(&mut ask(&["no-such-thing"]));
    assert!(is_well && none.contains("no GGUF model"), "{none}");

    let before = world.hub.seen().len();
    let (is_well, offline) = told(ask(&["demo"]).env("HF_HUB_OFFLINE", "1"));
    assert!(!is_well && offline.contains("HF_HUB_OFFLINE is set"), "{offline}");
    assert_eq!(world.hub.seen().len(), before);

    // The page asks through its node.
    let node = world.node("a");
    let found = administer(&node, "library/search", &json!({ "words": "demo" }));
    assert_eq!(names(&found), ["org/Demo-GGUF", "org/Gated-Demo-GGUF"]);
    let refused = administer(&node, "library/search", &json!({ "words": " " }));
    assert!(refused["error"]["message"].is_string(), "{refused}");

    // A hub that takes connections and says nothing.
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let mut command = ask(&["demo"]);
    world
        .isolate(&mut command)
        .env("HF_ENDPOINT", format!("http://{}", silent.local_addr().unwrap()));
    let output = command.output().unwrap();
    let why = String::from_utf8(output.stderr).unwrap();
    assert!(!output.status.success() && why.contains("does not answer"), "{why}");
}

#[test]
fn the_library_has_what_is_here_what_could_be_and_its_sizes() {
    let world = World::new();
    let node = world.node("a");
    world.hub.add(REPO, "demo-Q8_0.gguf", vec![0; 20 << 20]);
    let variants = administer(&node, "library/variants", &json!({ "model": REPO }));
    assert_eq!(names(&variants), ["org/Demo-GGUF:Q4_K_M", "org/Demo-GGUF:Q8_0"]);
    let usual = (&variants[0]["quantisation"], &variants[0]["bytes"]);
    assert_eq!(usual, (&json!("Q4_K_M"), &json!(world.size)));
    assert!(variants[0]["needs_bytes"].as_u64().unwrap() > world.size);
    let none = administer(&node, "library/variants", &json!({ "model": "/a/path.gguf" }));
    assert!(none["error"]["message"].as_str().unwrap().contains("is no name of a repository"));

    node.run(&["pull", REPO]);
    // Programs of this machine see what a request would load, and that it is not loaded.
    let unloaded = |list: &Value| {
        let found = list["data"].as_array().unwrap().iter();
        found.filter(|one| one["status"]["value"] == "unloaded").cloned().collect::<Vec<_>>()
    };
    let get = |path: &str| -> Value {
        let response = ureq::get(format!("{}{path}", node.api)).call().unwrap();
        response.into_body().read_json().unwrap()
    };
    let found = unloaded(&get("/v1/models"));
    assert_eq!(names_of(&found), ["org/Demo-GGUF:Q4_K_M"]);
    assert_eq!(get("/v1/models/org/Demo-GGUF:Q4_K_M"), found[0]);
    assert_eq!(names(&get("/api/tags")["models"]), ["org/Demo-GGUF:Q4_K_M"]);
    assert!(get("/api/ps")["models"].as_array().unwrap().is_empty());
    assert!(node.chat("org/Demo-GGUF:Q4_K_M", "Hello", 4)["choices"][0].is_object());
    let all = get("/v1/models");
    assert_eq!((unloaded(&all).len(), all["data"].as_array().unwrap().len()), (0, 1));
    assert_eq!(all["data"][0]["status"]["value"], "loaded");
}

fn names_of(models: &[Value]) -> Vec<&str> {
    models.iter().map(|one| one["id"].as_str().unwrap()).collect()
}

#[test]
fn a_download_is_ended_by_another_client_and_goes_on_later() {
    let world = World::new();
    let node = world.node("a");
    world.hub.fail(Fault::Drips { bytes: 16 << 10, pause_ms: 20 });
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| lines(&node, "/api/pull", &json!({ "model": REPO })));
        wait_for("some bytes", || (world.hub.bytes_sent() > 256 << 10).then_some(()));
        let stopped = administer(&node, "pull/stop", &json!({ "model": REPO }));
        assert_eq!(stopped, json!({ "stopped": REPO }));
        let told = waiting.join().unwrap();
        let error = told.last().unwrap()["error"].as_str().unwrap();
        assert!(error.contains("it was cancelled. What was fetched is kept"), "{error}");
    });
    let none = administer(&node, "pull/stop", &json!({ "model": REPO }));
    let message = none["error"]["message"].as_str().unwrap();
    assert!(message.contains("downloads no model named org/Demo-GGUF"), "{message}");
    world.hub.heal();
    node.run(&["pull", REPO]);
    let sent = world.hub.bytes_sent();
    assert!(sent < 2 * world.size, "{sent}: the rest alone of {}", world.size);
}

#[test]
fn a_file_on_another_nodes_disk_is_deleted_from_here() {
    let world = World::new();
    let (a, b) = (world.node("a"), world.node("b"));
    a.admit(&b);
    let file = b.dir.path().join("models/far.gguf");
    std::fs::copy(crate::common::demo_model(), &file).unwrap();
    b.run(&["serve", "far", "--copies", "1", "--nodes", "b"]);
    let remove = |node: &str| {
        administer(&a, "models/remove", &json!({ "model": "far", "node": node })).to_string()
    };
    assert!(remove("b").contains("Stop it first") && file.is_file());
    assert!(remove("c").contains("node c is not here"));
    b.run(&["stop", "far"]);
    wait_for("a to know that it was stopped", || a.instance("far").is_none().then_some(()));
    // Without a node it is this one's.
    let here = administer(&a, "models/remove", &json!({ "model": "far" })).to_string();
    assert!(here.contains("is on node b, not here") && file.is_file(), "{here}");
    assert!(remove("b").contains("\"freed_bytes\":") && !file.exists());
    assert!(remove("b").contains("was not deleted on node b"));
}

/// As the page begins one: the client leaves, and the node is killed in the middle of it.
#[test]
fn a_download_goes_on_without_its_client_and_after_its_node_was_killed() {
    let world = World::new();
    world.hub.fail(Fault::Drips { bytes: 64 << 10, pause_ms: 30 });
    let node = world.node("a");
    let token = std::fs::read_to_string(node.dir.path().join("admin.token")).unwrap();
    let begun = ureq::post(format!("{}/sinew/v1/pull", node.api))
        .header("Authorization", format!("Bearer {}", token.trim()))
        .send_json(json!({ "model": REPO, "goes_on": true }));
    drop(begun.unwrap());
    wait_for("a part of the file", || (world.hub.bytes_sent() > world.size / 4).then_some(()));
    let dir = node.kill();
    let before = world.hub.bytes_sent();
    assert!(before < world.size, "it was killed in the middle");
    let node = Node::start_with("a", dir, "127.0.0.1:0", |command| {
        world.isolate(command);
    });
    wait_for("the model", || {
        let list = node.json(&["list"]);
        (names(&list) == ["org/Demo-GGUF:Q4_K_M"]).then_some(())
    });
    let twice = world.hub.bytes_sent().saturating_sub(world.size);
    assert!(twice < world.size / 2, "{twice} bytes came twice");
    // Another start begins nothing: it has ended.
    let names = node.dir.path().join("downloads.json");
    wait_for("its end", || {
        let kept = std::fs::read_to_string(&names).ok()?;
        (!kept.contains(REPO)).then_some(())
    });
}

//! Presets on real nodes: known to all, kept over restarts, used by `sinew run` and the API.

use crate::common;
use crate::common::{Node, demo_model, wait_for};
use serde_json::json;

const FILE: &str = "FROM ./model.gguf\nPARAMETER temperature 0\nPARAMETER num_predict 12\n\
                    PARAMETER num_ctx 256\nSYSTEM You are Sinew.\n";

#[test]
fn a_preset_is_known_to_all_nodes_and_outlives_them() {
    let (a, b) = (Node::start("a"), Node::start("b"));
    a.admit(&b);
    let models = a.dir.path().join("models");
    std::fs::copy(demo_model(), models.join("model.gguf")).unwrap();
    let file = models.join("Modelfile");
    std::fs::write(&file, FILE).unwrap();
    let told = a.run(&["preset", "create", "guide", "-f", file.to_str().unwrap()]);
    assert!(told.contains("guide is model with these settings, on all nodes"), "{told}");
    a.run(&["preset", "create", "short", "--from", "guide", "--set", "max_tokens=3"]);
    // The first use loads the model with the preset's context; what is asked for comes first.
    let said = a.run(&["run", "guide", "Who are you?"]);
    assert!(said.split_whitespace().count() > 3, "{said}");
    assert_eq!(a.instance("model").unwrap()["context_tokens"], 256);
    assert_eq!(a.run(&["run", "guide", "Who are you?"]), said, "temperature is 0");
    let shorter = a.run(&["run", "short", "Who are you?"]);
    assert!(said.starts_with(shorter.trim()) && shorter.len() < said.len(), "{shorter}");
    // The other node knows it, too, also after both were lost.
    wait_for("b to know it", || b.run(&["preset", "list"]).contains("guide").then_some(()));
    let tokens = b.chat("short", "Who are you?", 50)["usage"]["completion_tokens"].clone();
    assert!(tokens.as_u64().unwrap() > 3, "the request's own limit counts: {tokens}");
    let listen = b.listen_addr();
    let dir = b.kill();
    drop(a);
    let b = Node::start_in("b", dir, &listen);
    let shown = b.run(&["preset", "show", "short"]);
    let want = "FROM model\nPARAMETER temperature 0\nPARAMETER num_predict 3\n\
                PARAMETER num_ctx 256\nSYSTEM You are Sinew.\n";
    assert_eq!(shown, want);
    b.run(&["preset", "rm", "short"]);
    assert!(b.refused(&["preset", "show", "shrt"]).contains("there is no preset shrt"));
    assert_eq!(b.json(&["preset", "list"])[0]["name"], "guide");
}

#[test]
fn what_is_wrong_with_a_preset_is_told() {
    let node = Node::start("a");
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("Modelfile");
    std::fs::write(&file, "FROM m\nTEMPLATE x\n").unwrap();
    node.run(&["serve", &demo_model(), "--ctx", "256"]);
    let elsewhere = folder.path().join("other.gguf");
    std::fs::copy(common::fixture("models/qwen3.gguf"), &elsewhere).unwrap();
    let cases: [(&[&str], &str); 9] = [
        (&["x", "--from", elsewhere.to_str().unwrap()], "is in no folder where nodes look"),
        (&["x", "--from", "nothing-like-it"], "no node has nothing-like-it. Fetch it first"),
        (&["x", "--from", "sinew-dmo"], "Did you mean sinew-demo?"),
        (&["x", "--from", "sinew-demo", "--set", "temperature=9"], "expected 0 to 2"),
        (&["x", "--from", "sinew-demo", "--set", "temprature=1"], "There are: temperature, top_k"),
        (&["x", "--from", "sinew-demo", "--set", "stop"], "expected NAME=VALUE"),
        (&["x", "-f", file.to_str().unwrap()], "line 2: TEMPLATE"),
        (&["x", "-f", "/no/such/file"], "cannot read /no/such/file"),
        (&["sinew-demo", "--from", "sinew-demo"], "is the name of a served model"),
    ];
    for (args, why) in cases {
        let told = node.refused(&[&["preset", "create"], args].concat());
        assert!(told.contains(why), "{args:?}: {told}");
    }
    node.run(&["preset", "create", "taken", "--from", "sinew-demo"]);
    let told = node.refused(&["serve", &demo_model(), "--name", "taken"]);
    assert!(told.contains("taken is the name of a preset"), "{told}");
    let models =
        node.request("GET /v1/models HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n");
    assert!(models.contains("\"taken\""), "{models}");
    assert_eq!(
        node.json(&["status"])["presets"],
        json!([{ "name": "taken", "model": "sinew-demo" }])
    );
}

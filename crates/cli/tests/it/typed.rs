//! What commands make of what was typed: names that are nearly right, ports that are taken, questions
//! before something is lost.

use crate::common;
use std::process::{Command, Stdio};

use crate::common::{Node, SINEW, demo_model, fixture, sinew, stdout, wait_for};

/// Puts a model into a node's models folder.
fn give(node: &Node, name: &str) {
    let models = node.dir.path().join("models");
    std::fs::create_dir_all(&models).unwrap();
    std::fs::copy(fixture("models/qwen3.gguf"), models.join(name)).unwrap();
}

#[test]
fn a_models_name_is_understood_as_ps_shows_it_and_one_near_it_is_named() {
    let node = Node::start("a");
    give(&node, "boats.gguf");
    node.run(&["serve", &demo_model(), "--name", "ferries"]);
    node.run(&["serve", "boats", "--name", "rowing"]);
    assert!(node.run(&["show", "rowing"]).contains("boats.gguf"));
    assert!(node.run(&["plan", "rowing"]).contains("chosen"));
    let answer = node.run(&["run", "ferries", "Hello", "--max-tokens", "2"]);
    assert!(!answer.is_empty());
    for command in [&["show", "rowin"][..], &["plan", "rowin"], &["run", "rowin", "Hello"]] {
        let said = node.refused(command);
        assert!(said.contains("Did you mean rowing"), "{command:?}: {said}");
    }
}

#[test]
fn all_models_are_stopped_at_once() {
    let node = Node::start("a");
    give(&node, "boats.gguf");
    node.run(&["serve", &demo_model()]);
    node.run(&["serve", "boats"]);
    let said = node.run(&["stop", "--all"]);
    assert!(said.contains("stopped sinew-demo") && said.contains("stopped boats"), "{said}");
    wait_for("no model to be served", || node.json(&["ps"]).as_array()?.is_empty().then_some(()));
    assert!(node.run(&["stop", "--all"]).contains("no model is served"));
}

#[test]
fn a_node_with_the_only_file_is_not_removed_without_a_question() {
    let (a, b) = (Node::start("a"), Node::start("b"));
    give(&b, "boats.gguf");
    a.admit(&b);
    b.run(&["serve", "boats", "--nodes", "1"]);
    wait_for("a to know", || {
        let held = a.json(&["list"]);
        let known = held.as_array()?.iter().any(|one| one["name"] == "boats");
        (known && a.instance("boats").is_some()).then_some(())
    });
    let said = a.refused(&["remove", "b"]);
    assert!(said.contains("boats stops: its only file is on b"), "{said}");
    assert!(said.contains("sinew remove --data-dir") && said.contains("--yes b"), "{said}");
    assert_eq!(a.json(&["nodes"]).as_array().unwrap().len(), 2);
    assert!(a.run(&["remove", "--yes", "b"]).contains("removed b"));
}

#[test]
fn ctrl_c_withdraws_a_request_to_join() {
    let (a, b) = (Node::start("a"), Node::start("b"));
    let dir = b.dir.path().to_str().unwrap();
    let mut join = Command::new(SINEW)
        .args(["join", "--peer", &a.listen_addr(), "--data-dir", dir])
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let requests = || a.json(&["accept"]).as_array().map_or(0, Vec::len);
    wait_for("the request to come", || (requests() == 1).then_some(()));
    common::signal("-INT", join.id().into());
    wait_for("the request to go", || (requests() == 0).then_some(()));
    assert_eq!(join.wait().unwrap().code(), Some(1));
    let mut said = String::new();
    std::io::Read::read_to_string(&mut join.stderr.take().unwrap(), &mut said).unwrap();
    assert!(said.contains("the request is withdrawn"), "{said}");
    // The node can ask again.
    a.admit(&b);
}

#[test]
fn a_name_without_an_address_is_told_in_a_sentence() {
    let node = Node::start("a");
    let said = node.refused(&["join", "--peer", "no-such-name.invalid"]);
    let expected = "error: no machine is known by the name no-such-name.invalid. Look at the name, \
                    or give its address\n";
    assert_eq!(said, expected);
}

#[test]
fn a_port_that_is_taken_is_told_with_its_option_and_who_may_have_it() {
    let node = Node::start("a");
    let (api, listen) = (node.api.trim_start_matches("http://").to_owned(), node.listen_addr());
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path().to_str().unwrap();
    let up = |api: &str, listen: &str| {
        common::refused(&["up", "--data-dir", dir, "--api", api, "--listen", listen])
    };
    let said = up(&api, &listen);
    assert!(said.contains("(--listen)") && said.contains(&node.api), "{said}");
    let said = up(&api, "127.0.0.1:0");
    assert!(said.contains("(--api)") && said.contains("a Sinew answers at"), "{said}");
    let other = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let said = up(&other.local_addr().unwrap().to_string(), "127.0.0.1:0");
    assert!(said.contains("it is no Sinew") && said.contains("--api ADDR:PORT"), "{said}");
}

#[test]
fn the_help_has_groups_and_the_page_of_an_open_node_has_its_network_address() {
    let help = stdout(&["--help"]);
    for group in ["Cluster:", "Models:", "Use:", "Operate:", "Options:"] {
        assert!(help.contains(group), "{group}: {help}");
    }
    let dir = tempfile::tempdir().unwrap();
    let node = Node::start_with("a", dir, "127.0.0.1:0", |command| {
        command.arg("--lan");
    });
    let output = sinew(&["page", "--data-dir", node.dir.path().to_str().unwrap()]);
    let said = String::from_utf8(output.stderr).unwrap();
    let is_alone = !said.contains("On a phone or another machine: http://");
    // A machine without a network has no such address.
    assert!(!is_alone || !has_network(), "{said}");
}

fn has_network() -> bool {
    let socket = std::net::UdpSocket::bind("0.0.0.0:0").unwrap();
    // Nothing is sent: the system only says which of its addresses it would use.
    socket.connect("192.0.2.1:9").is_ok()
}

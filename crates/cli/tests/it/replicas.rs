//! A model that runs twice, on two real nodes: `sinew serve --replicas 2`.

use crate::common::{Node, demo_model, kill_9, sinew, wait_for};
use serde_json::Value;

const MODEL: &str = "sinew-demo";
/// The name of the second replica, which clients need not know.
const SECOND: &str = "sinew-demo#2";

fn two_nodes() -> (Node, Node) {
    let (a, b) = (Node::start("a"), Node::start("b"));
    a.admit(&b);
    (a, b)
}

/// Waits until both replicas work, each on one node, and both nodes know it.
fn wait_for_both(a: &Node, b: &Node) {
    for node in [a, b] {
        wait_for("both replicas to work", || {
            let ranks = |name| {
                let one = node.instance(name).filter(|one| one["has_generated"] == true)?;
                let ranks = one["ranks"].as_array()?.clone();
                (ranks.len() == 1).then(|| ranks[0]["node_name"].clone())
            };
            (ranks(MODEL)? != ranks(SECOND)?).then_some(())
        });
    }
}

fn text(events: impl Iterator<Item = String>) -> String {
    let events = events.filter(|event| event != "[DONE]");
    let deltas = events.map(|event| {
        let event: Value = serde_json::from_str(&event).expect("an event is JSON");
        assert!(event.get("error").is_none(), "{event}");
        event["choices"][0]["delta"]["content"].as_str().unwrap_or_default().to_owned()
    });
    deltas.collect()
}

/// Eight answers at once, all asked for at one node.
fn eight(node: &Node) -> Vec<String> {
    let asked: Vec<_> =
        (0..8).map(|n| node.stream(MODEL, &format!("Who are you, {n}?"), 60)).collect();
    asked.into_iter().map(text).collect()
}

fn prompt_tokens(node: &Node, name: &str) -> u64 {
    let one = node.instance(name).unwrap_or_default();
    one["stats"]["prompt_tokens"].as_u64().unwrap_or(0)
}

#[test]
fn two_replicas_share_the_requests_and_one_goes_on_without_the_other() {
    let (a, b) = two_nodes();
    let output = a.run(&["serve", &demo_model(), "--replicas", "2"]);
    assert!(output.contains(MODEL), "{output}");
    wait_for_both(&a, &b);
    let all = eight(&a);
    wait_for("both to have answered", || {
        [MODEL, SECOND].iter().all(|name| prompt_tokens(&a, name) > 0).then_some(())
    });
    let models = request_json(&a, "/v1/models");
    assert_eq!(models["data"].as_array().unwrap().len(), 1, "{models}");
    assert!(a.run(&["ps"]).contains("2 of 2 replicas are ready"), "{}", a.run(&["ps"]));

    // A worker dies, then a whole node, while answers run.
    let asked: Vec<_> =
        (0..8).map(|n| a.stream(MODEL, &format!("Who are you, {n}?"), 60)).collect();
    b.worker_pids(SECOND).into_iter().chain(b.worker_pids(MODEL)).take(1).for_each(kill_9);
    assert_eq!(asked.into_iter().map(text).collect::<Vec<_>>(), all);
    wait_for_both(&a, &b);
    let listen = b.listen_addr();
    let asked: Vec<_> =
        (0..8).map(|n| a.stream(MODEL, &format!("Who are you, {n}?"), 60)).collect();
    let dir = b.kill();
    assert_eq!(asked.into_iter().map(text).collect::<Vec<_>>(), all);
    wait_for("the loss to be seen", || {
        a.run(&["ps"]).contains("1 of 2 replicas are ready").then_some(())
    });
    assert_eq!(eight(&a), all, "one replica answers alone");
    let b = Node::start_in("b", dir, &listen);
    wait_for_both(&a, &b);
    assert_eq!(eight(&b), all);

    a.run(&["stop", MODEL]);
    for node in [&a, &b] {
        wait_for("both to end", || (node.json(&["ps"]).as_array()?.is_empty()).then_some(()));
    }
}

#[test]
fn a_drained_node_leaves_its_replica_to_the_other_and_takes_it_up_again() {
    let (a, b) = two_nodes();
    a.run(&["serve", &demo_model(), "--replicas", "2"]);
    wait_for_both(&a, &b);
    let all = eight(&b);
    let asked: Vec<_> =
        (0..8).map(|n| b.stream(MODEL, &format!("Who are you, {n}?"), 60)).collect();
    b.run(&["drain", "a"]);
    assert_eq!(asked.into_iter().map(text).collect::<Vec<_>>(), all);
    wait_for("a to be empty", || {
        let ranks = b.json(&["ps"]).to_string();
        (!ranks.contains("\"node_name\":\"a\"")).then_some(())
    });
    assert_eq!(eight(&a), all, "a drained node passes requests on");
    b.run(&["undrain", "a"]);
    wait_for_both(&a, &b);
}

#[test]
fn replicas_that_cannot_be_are_refused() {
    let node = Node::start("alone");
    let why = node.refused(&["serve", &demo_model(), "--replicas", "2"]);
    assert!(why.contains("2 replicas need 2 nodes, and there is 1"), "{why}");
    for wrong in ["0", "65", "many"] {
        let mistyped = sinew(&["serve", &demo_model(), "--replicas", wrong]);
        let why = String::from_utf8_lossy(&mistyped.stderr).into_owned();
        assert!(why.contains("give 1 to 64, or auto"), "{why}");
    }
    node.run(&["serve", &demo_model(), "--replicas", "auto"]);
    assert!(node.instance(MODEL).is_some_and(|one| one.get("replica_of").is_none()));
}

fn request_json(node: &Node, path: &str) -> Value {
    let mut response = ureq::get(format!("{}{path}", node.api)).call().unwrap();
    response.body_mut().read_json().unwrap()
}

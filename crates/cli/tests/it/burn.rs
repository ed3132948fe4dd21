//! `sinew bench cluster`: a burn-in of two real nodes.

use std::process::{Command, Stdio};

use crate::common::{Node, demo_model, wait_for};
use serde_json::Value;

const SHORT: [&str; 6] = ["bench", "cluster", "--for", "1s", "--memory", "16MiB"];
const LONG: [&str; 6] = ["bench", "cluster", "--for", "10m", "--memory", "16MiB"];

fn start(node: &Node, args: &[&str]) -> std::process::Child {
    let mut command = Command::new(env!("CARGO_BIN_EXE_sinew"));
    command.args(args).arg("--data-dir").arg(node.dir.path());
    command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
}

/// The load processes of `node`, which is their parent.
fn loads(node: &Node) -> usize {
    let output = Command::new("ps").args(["-A", "-o", "ppid=,args="]).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let parent = node.pid().to_string();
    let of_node = text.lines().filter(|line| line.split_whitespace().next() == Some(&*parent));
    of_node.filter(|line| line.contains("burn-in")).count()
}

#[test]
fn nodes_and_links_are_measured_and_wrong_bits_found() {
    let (a, b) = (Node::start("a"), Node::start("b"));
    a.admit(&b);
    let report = a.json(&SHORT);
    let names: Vec<_> = report["nodes"].as_array().unwrap().iter().map(|n| &n["name"]).collect();
    assert_eq!(names, ["a", "b"]);
    let figure = |value: &Value| assert!(value.as_f64().unwrap() > 0.0, "{report}");
    for node in report["nodes"].as_array().unwrap() {
        figure(&node["ops_per_sec_lowest"]);
        figure(&node["bytes_per_sec_lowest"]);
        assert_eq!(node["memory_bytes"], 16 << 20);
    }
    let [link] = &report["links"].as_array().unwrap()[..] else { panic!("{report}") };
    figure(&link["round_trip_us"]);
    figure(&link["bytes_per_sec_there"]);
    figure(&link["bytes_per_sec_back"]);
    assert_eq!((&report["wrong"], &report["slowest_link"][1]), (&0.into(), &"b".into()));
    // One bit of each node's memory, and one on the link.
    let found = a.refused(&[&SHORT[..], &["--flip-bits"]].concat());
    assert!(found.contains("3 bits or results were wrong"), "{found}");
}

#[test]
fn a_burn_in_asks_before_it_disturbs_and_ends_when_it_is_left() {
    let (a, b) = (Node::start("a"), Node::start("b"));
    a.admit(&b);
    let too_much = a.refused(&["bench", "cluster", "--for", "1s", "--memory", "900TiB"]);
    assert!(too_much.contains("--memory") && too_much.contains("this node"), "{too_much}");
    a.run(&["serve", &demo_model()]);
    let served = a.refused(&SHORT);
    assert!(served.contains("sinew-demo") && served.contains("--while-serving"), "{served}");
    a.run(&[&SHORT[..], &["--while-serving"]].concat());
    a.run(&["stop", "sinew-demo"]);

    let mut left = start(&a, &LONG);
    wait_for("both to be loaded", || (loads(&a) + loads(&b) == 2).then_some(()));
    let second = b.refused(&SHORT);
    assert!(second.contains("another burn-in"), "{second}");
    let pid = left.id().to_string();
    // Not Ctrl-C's signal, which background processes of a script ignore.
    assert!(Command::new("kill").args(["-TERM", &pid]).status().unwrap().success());
    left.wait().unwrap();
    wait_for("the load to end", || (loads(&a) + loads(&b) == 0).then_some(()));

    let lost = start(&a, &LONG);
    wait_for("both to be loaded", || (loads(&a) + loads(&b) == 2).then_some(()));
    drop(b.kill());
    let output = lost.wait_with_output().unwrap();
    let text = String::from_utf8(output.stderr).unwrap();
    assert!(!output.status.success() && text.contains("node b was lost"), "{text}");
    wait_for("the load to end", || (loads(&a) == 0).then_some(()));
}

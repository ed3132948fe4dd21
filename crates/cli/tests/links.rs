//! Two machines with two cables: network namespaces, as `ip netns` makes them. Without the right to
//! make them nothing is tested, and that is said.

#![cfg(target_os = "linux")]

mod common;

use std::process::{Command, Stdio};
use std::time::Instant;

use common::{SINEW, demo_model, wait_for};
use serde_json::Value;
use tempfile::TempDir;

fn ip(arguments: &str) -> bool {
    let status = Command::new("ip").args(arguments.split(' ')).stderr(Stdio::null()).status();
    status.is_ok_and(|status| status.success())
}

/// Two namespaces with a cable for each network; removed when this is dropped.
struct Machines {
    names: [String; 2],
}

impl Machines {
    /// `cables`: the addresses of both ends of each.
    fn new(tag: &str, cables: &[[&str; 2]]) -> Option<Self> {
        let id = format!("{tag}{}", std::process::id() % 100_000);
        let names = [format!("{id}a"), format!("{id}b")];
        if !ip(&format!("netns add {}", names[0])) {
            println!("not tested: this user may not make network namespaces");
            return None;
        }
        let machines = Self { names };
        let [a, b] = &machines.names;
        assert!(ip(&format!("netns add {b}")));
        for name in [a, b] {
            assert!(ip(&format!("-n {name} link set lo up")));
        }
        for (at, ends) in cables.iter().enumerate() {
            let pair = format!("link add c{at} netns {a} type veth peer name c{at} netns {b}");
            assert!(ip(&pair));
            for (name, address) in [a, b].into_iter().zip(ends) {
                if !address.is_empty() {
                    assert!(ip(&format!("-n {name} addr add {address} dev c{at}")));
                }
                assert!(ip(&format!("-n {name} link set c{at} up")));
            }
        }
        Some(machines)
    }

    fn command(&self, machine: usize, arguments: &[&str]) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.names[machine], SINEW]).args(arguments);
        command
    }

    fn cut(&self, cable: usize) {
        assert!(ip(&format!("-n {} link set c{cable} down", self.names[0])));
    }
}

impl Drop for Machines {
    fn drop(&mut self) {
        // One that cannot be removed is in nobody's way.
        let _ = self.names.iter().map(|name| ip(&format!("netns del {name}"))).count();
    }
}

/// A node in one of them.
struct Node<'a> {
    machines: &'a Machines,
    machine: usize,
    child: std::process::Child,
    dir: TempDir,
}

impl<'a> Node<'a> {
    fn start(machines: &'a Machines, machine: usize, name: &str, more: &[&str]) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().to_str().unwrap();
        let arguments = ["up", "--with-parent", "--name", name, "--threads", "1"];
        let mut command = machines.command(machine, &arguments);
        command.args(["--api", "127.0.0.1:0", "--data-dir", path]).args(more);
        let child = command.stdin(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
        let node = Self { machines, machine, child, dir };
        wait_for("the node to be up", || node.try_json(&["nodes"]));
        node
    }

    fn run(&self, arguments: &[&str]) -> Option<String> {
        let mut command = self.machines.command(self.machine, arguments);
        let output = command.arg("--data-dir").arg(self.dir.path()).output().unwrap();
        output.status.success().then(|| String::from_utf8(output.stdout).unwrap())
    }

    fn try_json(&self, arguments: &[&str]) -> Option<Value> {
        serde_json::from_str(&self.run(&[arguments, &["--json"]].concat())?).ok()
    }

    fn admit(&self, other: &Node) {
        let code = self.try_json(&["invite"]).unwrap()["code"].as_str().unwrap().to_owned();
        wait_for("the join", || other.run(&["join", &code]));
    }

    /// The addresses of its ways to the other node that answer, the best first.
    fn ways(&self) -> Option<Vec<String>> {
        let nodes = self.try_json(&["nodes"])?;
        let edges = nodes[0]["edges"].as_array()?.iter().filter(|edge| edge["is_up"] == true);
        Some(edges.map(|edge| edge["address"].as_str().unwrap().to_owned()).collect())
    }

    fn ask(&self) -> Option<String> {
        let arguments =
            ["run", "sinew-demo", "What is Sinew?", "--temperature", "0", "--max-tokens", "40"];
        self.run(&arguments)
    }

    fn instance(&self) -> Option<Value> {
        self.try_json(&["ps"])?.as_array()?.first().cloned()
    }
}

impl Drop for Node<'_> {
    fn drop(&mut self) {
        drop(self.child.stdin.take());
        let _ = self.child.wait();
    }
}

#[test]
fn a_model_goes_on_over_the_next_best_cable() {
    let cables = [["10.91.1.1/24", "10.91.1.2/24"], ["10.91.2.1/24", "10.91.2.2/24"]];
    let Some(machines) = Machines::new("sl", &cables) else { return };
    // The first cable is as slow as Wi-Fi.
    for name in &machines.names {
        let shape = "tc qdisc add dev c0 root tbf rate 20mbit burst 32kbit latency 50ms";
        if !ip(&format!("netns exec {name} {shape}")) {
            return println!("not tested: there is no traffic shaping");
        }
    }
    let (a, b) = (Node::start(&machines, 0, "a", &[]), Node::start(&machines, 1, "b", &[]));
    a.admit(&b);
    let both = wait_for("both ways to be measured", || a.ways().filter(|ways| ways.len() >= 2));
    assert_eq!(both[0], "10.91.2.2", "{both:?}");
    wait_for("the other one's figures", || {
        let nodes = a.try_json(&["nodes"])?;
        (nodes[1]["edges"].as_array()?.len() >= 2 && nodes[1]["machine"]["cores"] != 0)
            .then_some(())
    });
    let table = a.run(&["nodes", "-v"]).unwrap();
    for expected in ["CHIP", "BANDWIDTH", "10.91.1.1 -> 10.91.1.2", "10.91.2.1 -> 10.91.2.2"] {
        assert!(table.contains(expected), "{table}");
    }

    // The namespaces have one memory, which is no cable.
    a.run(&["serve", &demo_model(), "--nodes", "2", "--transport", "tcp"]).expect("it is served");
    let answer = a.ask().expect("an answer");
    let sent = || {
        let path = "/sys/class/net/c1/statistics/tx_bytes";
        let mut command = Command::new("ip");
        let output = command.args(["netns", "exec", &machines.names[0], "cat", path]).output();
        String::from_utf8(output.unwrap().stdout).unwrap().trim().parse::<u64>().unwrap()
    };
    let before = sent();
    assert_eq!(a.ask().expect("an answer"), answer);
    assert!(sent() - before > 20_000, "activations take the better cable");

    // Other ranks, or the same ones linked anew.
    let ranks_of =
        |instance: &Value| (instance["epoch"].clone(), instance["ranks"][0]["pid"].clone());
    let linked = ranks_of(&a.instance().unwrap());
    machines.cut(1);
    let cut = Instant::now();
    assert_eq!(a.ask().expect("an answer"), answer, "the same over the other cable");
    println!("answered {:.1} s after the better cable was cut", cut.elapsed().as_secs_f64());
    let instance = a.instance().unwrap();
    assert_ne!(ranks_of(&instance), linked, "{instance}");
    wait_for("the dead way to be known", || a.ways().filter(|ways| ways == &["10.91.1.2"]));
}

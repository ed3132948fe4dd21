//! Two machines with two cables: network namespaces of `ip netns`. Without the privilege to create
//! them nothing is tested, and the tests print that.

#![cfg(target_os = "linux")]

use std::os::unix::fs::PermissionsExt;
use std::process::{Command, Output, Stdio};
use std::time::Instant;

use crate::common::{SINEW, demo_model, wait_for};
use serde_json::Value;
use tempfile::TempDir;

fn ip(arguments: &str) -> bool {
    let status = Command::new("ip").args(arguments.split(' ')).stderr(Stdio::null()).status();
    status.is_ok_and(|status| status.success())
}

/// Two namespaces, and one between them with a switch for each network; removed on drop.
struct Machines {
    names: [String; 2],
    switches: String,
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
        let machines = Self { names, switches: format!("{id}s") };
        let Self { names: [a, b], switches } = &machines;
        assert!(ip(&format!("netns add {b}")) && ip(&format!("netns add {switches}")));
        for name in [a, b] {
            assert!(ip(&format!("-n {name} link set lo up")));
        }
        for (at, ends) in cables.iter().enumerate() {
            assert!(ip(&format!("-n {switches} link add s{at} type bridge mcast_snooping 0")));
            assert!(ip(&format!("-n {switches} link set s{at} up")));
            for (port, (name, address)) in ["a", "b"].iter().zip([a, b].into_iter().zip(ends)) {
                let port = format!("{port}{at}");
                let pair = format!("link add {port} netns {switches} type veth peer name c{at}");
                assert!(ip(&format!("{pair} netns {name}")));
                assert!(ip(&format!("-n {switches} link set {port} master s{at} up")));
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

    /// The switch fails: no packet passes any more, and neither system notices.
    fn cut_silently(&self, cable: usize) {
        assert!(ip(&format!("-n {} link set b{cable} nomaster", self.switches)));
    }

    /// The switch passes packets of up to `bytes` bytes and silently drops larger ones.
    fn narrow(&self, cable: usize, bytes: usize) {
        for name in &self.names {
            // Packets that the card would segment would pass a switch in one piece.
            assert!(ip(&format!("-n {name} link set c{cable} gso_max_segs 1")));
        }
        for port in ["a", "b"] {
            let switches = &self.switches;
            assert!(ip(&format!("-n {switches} link set {port}{cable} mtu {bytes}")));
        }
    }

    /// A machine accepts no calls, as behind a firewall that allows answers; false if no firewall
    /// can be set up here.
    fn close(&self, machine: usize) -> bool {
        let rules = "table inet f { chain i { type filter hook input priority 0; policy drop; \
                     iif lo accept; ct state established,related accept; udp dport 5353 accept; \
                     icmpv6 type { nd-neighbor-solicit, nd-neighbor-advert } accept; }; };";
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.names[machine], "nft", rules]);
        command.stderr(Stdio::null()).status().is_ok_and(|status| status.success())
    }

    fn open(&self, machine: usize) {
        assert!(ip(&format!("netns exec {} nft flush ruleset", self.names[machine])));
    }

    fn mend(&self, cable: usize) {
        assert!(ip(&format!("-n {} link set b{cable} master s{cable}", self.switches)));
    }
}

impl Drop for Machines {
    fn drop(&mut self) {
        // Leftover namespaces do no harm.
        let all = self.names.iter().chain([&self.switches]);
        let _ = all.map(|name| ip(&format!("netns del {name}"))).count();
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
        Self::start_in(tempfile::tempdir().unwrap(), machines, machine, name, more)
    }

    fn start_in(
        dir: TempDir,
        machines: &'a Machines,
        machine: usize,
        name: &str,
        more: &[&str],
    ) -> Self {
        let path = dir.path().to_str().unwrap();
        let arguments = ["up", "--with-parent", "--name", name, "--threads", "1"];
        let mut command = machines.command(machine, &arguments);
        command.args(["--api", "127.0.0.1:0", "--data-dir", path]).args(more);
        let child = command.stdin(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
        let node = Self { machines, machine, child, dir };
        wait_for("the node to be up", || node.try_json(&["nodes"]));
        node
    }

    fn output(&self, arguments: &[&str]) -> Output {
        let mut command = self.machines.command(self.machine, arguments);
        command.arg("--data-dir").arg(self.dir.path()).output().unwrap()
    }

    fn run(&self, arguments: &[&str]) -> Option<String> {
        let output = self.output(arguments);
        output.status.success().then(|| String::from_utf8(output.stdout).unwrap())
    }

    fn try_json(&self, arguments: &[&str]) -> Option<Value> {
        serde_json::from_str(&self.run(&[arguments, &["--json"]].concat())?).ok()
    }

    fn admit(&self, other: &Node) {
        let code = self.try_json(&["invite"]).unwrap()["code"].as_str().unwrap().to_owned();
        wait_for("the join", || other.run(&["join", &code]));
    }

    /// The working addresses of its paths to the other node, the best first.
    fn ways(&self) -> Option<Vec<String>> {
        self.ways_from(0)
    }

    /// The same for another node of its table, by that node's last report.
    fn ways_from(&self, node: usize) -> Option<Vec<String>> {
        let nodes = self.try_json(&["nodes"])?;
        let edges = nodes[node]["edges"].as_array()?.iter().filter(|edge| edge["is_up"] == true);
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
    // On a busy machine a first measurement may say anything: it is made again.
    let is_best = |ways: &Vec<String>| ways.len() >= 2 && ways[0] == "10.91.2.2";
    let both = wait_for("the better way to be first", || a.ways().filter(is_best));
    wait_for("the other one's figures", || {
        let nodes = a.try_json(&["nodes"])?;
        (nodes[1]["edges"].as_array()?.len() >= 2 && nodes[1]["machine"]["cores"] != 0)
            .then_some(())
    });
    let table = a.run(&["nodes", "-v"]).unwrap();
    for expected in ["CHIP", "BANDWIDTH", "10.91.2.1 -> 10.91.2.2"] {
        assert!(table.contains(expected), "{table}");
    }
    // Announcements have each cable's addresses of both kinds: either may be the first to answer.
    assert!(["10.91.1.1 -> 10.91.1.2", "fe80::"].iter().any(|one| table.contains(one)), "{table}");

    // TCP, because the namespaces share one memory.
    let model = demo_model();
    let serve = ["serve", &model, "--nodes", "2", "--transport", "tcp"];
    a.run(&serve).expect("it is served");
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

    // A cut that neither system notices, then one that both notice.
    for silently in [true, false] {
        let linked = ranks_of(&a.instance().unwrap());
        match silently {
            true => machines.cut_silently(1),
            false => machines.cut(1),
        }
        let cut = Instant::now();
        let goes_on = |instance: &Value| {
            ranks_of(instance) != linked && instance["state"]["state"] == "ready"
        };
        wait_for("the next epoch", || a.instance().filter(goes_on));
        let secs = cut.elapsed().as_secs_f64();
        println!("the next epoch {secs:.1} s after the better cable was cut, silently: {silently}");
        assert_eq!(a.ask().expect("an answer"), answer, "the same over the other cable");
        let is_known = |ways: &Vec<String>| !ways.is_empty() && !ways.contains(&both[0]);
        wait_for("the dead way to be known", || a.ways().filter(is_known));
        if silently {
            machines.mend(1);
            // The owner sends both ranks the addresses to call, by the measurements of both nodes.
            for (node, address) in [(0, "10.91.2.2"), (1, "10.91.2.1")] {
                let is_back = |ways: &Vec<String>| ways.iter().any(|way| way == address);
                wait_for("the better way to be back", || a.ways_from(node).filter(is_back));
            }
            a.run(&["stop", "sinew-demo"]).expect("it is stopped");
            a.run(&serve).expect("it is served");
            let before = sent();
            assert_eq!(a.ask().expect("an answer"), answer);
            assert!(sent() - before > 20_000, "activations take the better cable again");
        }
    }
}

#[test]
fn where_large_packets_vanish_smaller_ones_are_sent_and_it_is_said() {
    let cables = [["10.92.1.1/24", "10.92.1.2/24"]];
    let Some(machines) = Machines::new("sm", &cables) else { return };
    machines.narrow(0, 1280);
    let (a, b) = (Node::start(&machines, 0, "a", &[]), Node::start(&machines, 1, "b", &[]));
    a.admit(&b);
    let model = demo_model();
    a.run(&["serve", &model, "--nodes", "2", "--transport", "tcp"]).expect("it is served");
    let answer = a.ask().expect("an answer");
    let narrow = || {
        let nodes = a.try_json(&["nodes"])?;
        let found = |node: usize| {
            let mut edges = nodes[node]["edges"].as_array()?.iter();
            edges.find(|edge| edge["packet_bytes"] == 1280).cloned()
        };
        Some((found(0)?, found(1)?))
    };
    wait_for("both ways to be measured", narrow);
    assert_eq!(b.ask().expect("an answer"), answer);
    let found = String::from_utf8(a.output(&["doctor"]).stdout).unwrap();
    assert!(found.contains("packets over 1280 bytes vanish on the way to b"), "{found}");
    // No node was lost in between.
    let events = a.run(&["events"]).unwrap();
    assert!(!events.contains("lost"), "{events}");
}

#[test]
fn nothing_is_placed_on_a_machine_whose_way_breaks_again_and_again() {
    let cables = [["10.94.1.1/24", "10.94.1.2/24"]];
    let Some(machines) = Machines::new("sb", &cables) else { return };
    let (a, b) = (Node::start(&machines, 0, "a", &[]), Node::start(&machines, 1, "b", &[]));
    a.admit(&b);
    for _ in 0..3 {
        machines.cut_silently(0);
        let state = || a.try_json(&["nodes"])?[1]["state"].as_str().map(str::to_owned);
        wait_for("it to be lost", || state().filter(|state| state == "lost"));
        machines.mend(0);
        wait_for("it to be back", || state().filter(|state| state == "live"));
    }
    let model = demo_model();
    let refused = a.output(&["serve", &model, "--nodes", "2"]);
    let error = String::from_utf8(refused.stderr).unwrap();
    assert!(
        error.contains("The way to b broke ") && error.contains("in the last minute"),
        "{error}"
    );
    a.run(&["serve", &model]).expect("it is served");
    assert_eq!(a.instance().unwrap()["ranks"].as_array().unwrap().len(), 1);
    a.ask().expect("an answer");
}

#[test]
fn two_machines_made_of_one_image_say_so() {
    let cables = [["10.95.1.1/24", "10.95.1.2/24"]];
    let Some(machines) = Machines::new("st", &cables) else { return };
    let first = Node::start(&machines, 0, "image", &[]);
    let image = std::fs::read(first.dir.path().join("identity.key")).unwrap();
    let clone = tempfile::tempdir().unwrap();
    let key = clone.path().join("identity.key");
    std::fs::write(&key, image).unwrap();
    std::fs::set_permissions(&key, std::fs::Permissions::from_mode(0o600)).unwrap();
    let second = Node::start_in(clone, &machines, 1, "image", &[]);
    for (node, other) in [(&first, "10.95.1.2"), (&second, "10.95.1.1")] {
        let doctor = || String::from_utf8(node.output(&["doctor"]).stdout).ok();
        let said = wait_for("it to be said", || {
            doctor().filter(|found| found.contains("has the identity of this one"))
        });
        assert!(said.contains(other) && said.contains("identity.key"), "{said}");
    }
    drop(second);
    let is_over = || {
        let found = String::from_utf8(first.output(&["doctor"]).stdout).ok()?;
        (!found.contains("has the identity")).then_some(())
    };
    wait_for("it to be over", is_over);
}

#[test]
fn a_machine_that_cannot_be_called_is_said_with_what_to_open() {
    let cables = [["10.93.1.1/24", "10.93.1.2/24"]];
    let Some(machines) = Machines::new("sf", &cables) else { return };
    if !machines.close(0) {
        return println!("not tested: there is no nft");
    }
    let (a, b) = (Node::start(&machines, 0, "a", &[]), Node::start(&machines, 1, "b", &[]));
    b.admit(&a);
    let said = "b cannot call a at 10.93.1.1:8751: open TCP port 8751 in the firewall of a";
    for node in [&a, &b] {
        let doctor = || String::from_utf8(node.output(&["doctor"]).stdout).ok();
        wait_for("it to be said", || doctor().filter(|found| found.contains(said)));
    }
    let model = demo_model();
    let serve = ["serve", &model, "--nodes", "2", "--transport", "tcp"];
    let refused = a.output(&serve);
    let error = String::from_utf8(refused.stderr).unwrap();
    assert!(!refused.status.success() && error.contains(said), "{error}");
    assert!(a.run(&["plan", &model]).unwrap().contains(said));
    // Ranks of this node call those of the other one.
    b.run(&serve).expect("it is served");
    let answer = b.ask().expect("an answer");
    b.run(&["stop", "sinew-demo"]).expect("it is stopped");
    machines.open(0);
    wait_for("the way to be open", || a.run(&serve));
    assert_eq!(a.ask().expect("an answer"), answer);
}

/// Changes if other ranks run, or the same ones are linked again.
fn ranks_of(instance: &Value) -> (Value, Value) {
    (instance["epoch"].clone(), instance["ranks"][0]["pid"].clone())
}

//! Two real nodes in one cluster: one model split over both, which answers and survives the death
//! of workers.

use crate::common;
#[cfg(unix)]
use crate::common::signal;
use crate::common::{Node, demo_model, is_alive, kill_9, sinew, stdout, wait_for};
use serde_json::json;

#[test]
fn the_demo_answers_and_ends() {
    let text = stdout(&["demo", "--once"]);
    for expected in ["node-1 is up", "node-2 is up", "tokens/s", "on 2 nodes", "http://127.0.0.1"] {
        assert!(text.contains(expected), "{text}");
    }
    let one = stdout(&["demo", "--once", "--nodes", "1"]);
    let answer = |text: &str| {
        text.lines().skip_while(|line| !line.starts_with('>')).nth(2).map(str::to_owned)
    };
    assert_eq!(answer(&one), answer(&text), "one node and two give the same answer");
    assert!(answer(&text).is_some_and(|answer| answer.split(' ').count() > 5), "{text}");
}

#[test]
fn a_split_model_answers_like_a_whole_one() {
    let (a, b) = (Node::start("a"), Node::start("b"));
    a.admit(&b);
    let nodes = a.json(&["nodes"]);
    let names: Vec<_> = nodes.as_array().unwrap().iter().map(|node| node["name"].clone()).collect();
    assert!(names.contains(&json!("a")) && names.contains(&json!("b")), "{names:?}");
    assert!(a.run(&["nodes"]).contains("live"));

    // Only `a` has the file: `b` gets its slices from there.
    a.run(&["serve", &demo_model(), "--split", "2,1"]);
    let split = a.chat("sinew-demo", "Who are you?", 100);
    // Between the two a measurement may move a part of the weights.
    let shows_the_same = (0..20).any(|_| {
        let instance = a.instance("sinew-demo").unwrap();
        assert_eq!(instance["ranks"].as_array().unwrap().len(), 2, "{instance}");
        let part = |rank: usize| instance["ranks"][rank]["percent"].as_f64().unwrap();
        assert!((66.0..75.0).contains(&part(0)), "{instance}");
        a.run(&["ps"]).contains(&format!("a {:.0}%, b {:.0}%", part(0), part(1)))
    });
    assert!(shows_the_same, "{}", a.run(&["ps"]));
    a.run(&["stop", "sinew-demo"]);
    assert!(a.instance("sinew-demo").is_none());

    a.run(&["serve", &demo_model(), "--nodes", "1"]);
    let whole = a.chat("sinew-demo", "Who are you?", 100);
    assert_eq!(split["choices"], whole["choices"]);
    assert_eq!(split["usage"], whole["usage"]);
    let text = whole["choices"][0]["message"]["content"].as_str().unwrap();
    assert!(text.contains("Sinew"), "{text}");
}

#[cfg(target_os = "linux")]
#[test]
fn ranks_are_called_at_their_nodes_ports_alone() {
    let (a, b) = (Node::start("a"), Node::start("b"));
    a.admit(&b);
    a.run(&["serve", &demo_model(), "--nodes", "2"]);
    let workers = a.worker_pids("sinew-demo");
    assert_eq!(workers.len(), 2);
    for pid in workers {
        assert_eq!(ports_of(pid), Vec::<String>::new(), "worker {pid} listens");
    }
    assert!(!ports_of(u64::from(a.pid())).is_empty(), "a node is seen to listen");
}

#[test]
fn a_call_for_no_worker_ends_at_once_and_half_a_call_soon() {
    use std::io::{Read, Write};
    let node = Node::start("a");
    for begin in [&b"sinewlnk"[..], b"sinew", b""] {
        let mut call = std::net::TcpStream::connect(node.listen_addr()).unwrap();
        call.write_all(begin).unwrap();
        if begin.len() == 8 {
            call.write_all(&[0; 48]).unwrap();
        }
        let since = std::time::Instant::now();
        // The system may reset the connection because of unread bytes.
        assert!(!matches!(call.read(&mut [0]), Ok(1..)), "{begin:?}");
        assert!(since.elapsed().as_secs() < 20, "{begin:?}");
    }
    assert!(node.run(&["nodes"]).contains("live"));
}

/// The sockets on which a process listens, as the kernel lists them.
#[cfg(target_os = "linux")]
fn ports_of(pid: u64) -> Vec<String> {
    let files = std::fs::read_dir(format!("/proc/{pid}/fd")).unwrap().flatten();
    let links = files.filter_map(|file| std::fs::read_link(file.path()).ok());
    let own: Vec<String> = links.map(|link| link.to_string_lossy().into_owned()).collect();
    let tables = ["tcp", "tcp6"].map(|table| std::fs::read_to_string(format!("/proc/net/{table}")));
    let rows = tables.iter().flatten().flat_map(|table| table.lines());
    let listens = rows.filter(|row| {
        let fields: Vec<&str> = row.split_whitespace().collect();
        fields.get(3) == Some(&"0A")
            && fields.get(9).is_some_and(|inode| own.contains(&format!("socket:[{inode}]")))
    });
    listens.map(str::to_owned).collect()
}

/// The `choices` of each event of a streamed answer.
fn said(events: impl Iterator<Item = String>) -> Vec<serde_json::Value> {
    let said = events.filter(|event| event != "[DONE]").map(|event| {
        let event: serde_json::Value = serde_json::from_str(&event).expect("an event is JSON");
        assert!(event.get("error").is_none(), "{event}");
        event["choices"].clone()
    });
    said.collect()
}

type Events = Box<dyn Iterator<Item = String>>;

/// A plain answer, and one by Mirostat, whose state follows from the tokens that it drew.
fn ask_both(node: &Node) -> [Events; 2] {
    let mirostat = serde_json::json!({"mirostat": 2, "mirostat_tau": 3, "mirostat_eta": 0.5});
    let more = [serde_json::json!({}), mirostat];
    more.map(|more| Box::new(node.stream_with("slow", "go on", 200, &more)) as Events)
}

/// Answers of which the client already has some events.
fn begin(answers: [Events; 2]) -> [Events; 2] {
    answers.map(|mut events| {
        let first: Vec<String> = events.by_ref().take(8).collect();
        Box::new(first.into_iter().chain(events)) as Events
    })
}

/// A model that attends, and one whose layers carry a state.
const SHAPES: [&str; 2] = ["llama-150m", "qwen3.5-150m"];

#[test]
fn a_stream_goes_on_over_the_death_of_any_worker() {
    SHAPES.into_iter().for_each(check_death_of_workers);
}

fn check_death_of_workers(shape: &str) {
    let (a, b) = (Node::start("a"), Node::start("b"));
    a.admit(&b);
    let model = a.dir.path().join("models/slow.gguf");
    let model = model.to_str().unwrap();
    stdout(&["dev", "synth", "--shape", shape, "--quant", "q4_0", "-o", model]);
    a.run(&["serve", "slow", "--ctx", "1024", "--nodes", "2"]);
    let whole = ask_both(&a).map(said);
    assert!(whole[0] != whole[1] && whole.iter().all(|all| all.len() > 20), "{whole:?}");
    for (asked, rank) in [(&a, 1), (&a, 0), (&b, 0)] {
        let pids = a.worker_pids("slow");
        let begun = begin(ask_both(asked));
        kill_9(pids[rank]);
        assert_eq!(begun.map(said), whole, "rank {rank}");

        let now = a.worker_pids("slow");
        assert_ne!(now[rank], pids[rank], "the killed worker was started again");
        assert_eq!(now[1 - rank], pids[1 - rank], "the other kept its shard");
    }
}

#[cfg(unix)]
#[test]
fn a_frozen_worker_of_a_model_on_one_node_is_started_again() {
    let node = Node::start("a");
    let model = node.dir.path().join("models/slow.gguf");
    let model = model.to_str().unwrap();
    stdout(&["dev", "synth", "--shape", "llama-150m", "--quant", "q4_0", "-o", model]);
    node.run(&["serve", "slow", "--ctx", "1024"]);
    let whole = said(node.stream("slow", "go on", 200));
    let pid = node.worker_pids("slow")[0];
    let mut events = node.stream("slow", "go on", 200);
    let first: Vec<String> = events.by_ref().take(8).collect();
    signal("-STOP", pid);
    assert_eq!(said(first.into_iter().chain(events)), whole);
    assert_ne!(node.worker_pids("slow")[0], pid);
    assert!(node.run(&["events"]).contains("its worker froze: it said nothing for 10 s"));
}

#[test]
fn a_stream_goes_on_over_the_death_of_the_node_that_was_asked_to_serve() {
    SHAPES.into_iter().for_each(check_death_of_owner);
}

fn check_death_of_owner(shape: &str) {
    let (a, b, c) = (Node::start("a"), Node::start("b"), Node::start("c"));
    a.admit(&b);
    a.admit(&c);
    let model = a.dir.path().join("models/slow.gguf");
    let model = model.to_str().unwrap();
    stdout(&["dev", "synth", "--shape", shape, "--quant", "q4_0", "-o", model]);
    std::fs::copy(model, b.dir.path().join("models/slow.gguf")).unwrap();
    a.run(&["serve", "slow", "--ctx", "1024", "--nodes", "2"]);
    let whole = ask_both(&c).map(said);

    let begun = begin(ask_both(&c));
    drop(a.kill());
    assert_eq!(begun.map(said), whole);
    let owner = c.instance("slow").expect("it is served")["owner"].clone();
    let nodes = c.json(&["nodes"]);
    let is_b = |node: &&serde_json::Value| node["name"] == "b";
    assert_eq!(nodes.as_array().unwrap().iter().find(is_b).unwrap()["id"], owner);

    // All nodes end, and return with the model.
    let (listen_b, listen_c) = (b.listen_addr(), c.listen_addr());
    let (b, c) = (b.kill(), c.kill());
    let (b, _c) = (Node::start_in("b", b, &listen_b), Node::start_in("c", c, &listen_c));
    let is_ready = || (b.instance("slow")?["state"]["state"] == "ready").then_some(());
    wait_for("the model to be back", is_ready);
    assert_eq!(ask_both(&b).map(said), whole);
}

#[test]
fn a_model_borrows_a_node_that_was_not_named_and_moves_back() {
    let (a, b, c) = (Node::start("a"), Node::start("b"), Node::start("c"));
    b.admit(&a);
    b.admit(&c);
    for node in [&a, &b] {
        std::fs::create_dir_all(node.dir.path().join("models")).unwrap();
        std::fs::copy(demo_model(), node.dir.path().join("models/kept.gguf")).unwrap();
    }
    b.run(&["serve", "kept", "--nodes", "b,c"]);
    let ranks = |node: &Node| -> Option<Vec<String>> {
        let kept = node.instance("kept")?;
        let names = kept["ranks"].as_array()?.iter();
        let names = names.map(|rank| rank["node_name"].as_str().unwrap().to_owned());
        (kept["state"]["state"] == "ready").then(|| names.collect())
    };
    let answer = c.chat("kept", "What is Sinew?", 20)["choices"].clone();
    let (listen, dir) = (b.listen_addr(), b.kill());
    wait_for("a to lead", || ranks(&c).filter(|names| names == &["a", "c"] || names == &["a"]));
    let notes = || Some(c.instance("kept")?["notes"].to_string());
    let said = || {
        notes().filter(|notes| {
            notes.contains("asked for on b, c. They do not suffice, so it borrows a")
        })
    };
    wait_for("it to be said", said);
    assert_eq!(c.chat("kept", "What is Sinew?", 20)["choices"], answer);
    let _b = Node::start_in("b", dir, &listen);
    wait_for("it to be back", || ranks(&c).filter(|names| names == &["b", "c"]));
    assert_eq!(c.chat("kept", "What is Sinew?", 20)["choices"], answer);
}

#[test]
fn a_restarted_node_goes_on_with_the_shards_that_others_hold() {
    let (a, b) = (Node::start("a"), Node::start("b"));
    a.admit(&b);
    let listen = a.listen_addr();
    a.run(&["serve", &demo_model(), "--nodes", "2"]);
    let before = a.chat("sinew-demo", "Who are you?", 60);
    let workers = a.worker_pids("sinew-demo");
    let a = Node::start_in("a", a.kill(), &listen);
    let is_ready = || (a.instance("sinew-demo")?["state"]["state"] == "ready").then_some(());
    wait_for("the model to be back", is_ready);
    let now = a.worker_pids("sinew-demo");
    assert_ne!(now[0], workers[0], "its own worker ended with it");
    assert_eq!(now[1], workers[1], "the other one is taken up");
    let after = a.chat("sinew-demo", "Who are you?", 60);
    assert_eq!(before["choices"], after["choices"]);
    drop(b);
}

#[test]
fn a_machine_with_files_and_no_memory_need_not_hold_a_part() {
    let start = |name, memory| {
        Node::start_with(name, tempfile::tempdir().unwrap(), "127.0.0.1:0", |command| {
            command.args(["--memory", memory]);
        })
    };
    let (nas, big) = (start("nas", "16MiB"), start("big", "1GiB"));
    nas.admit(&big);
    std::fs::create_dir_all(nas.dir.path().join("models")).unwrap();
    std::fs::copy(demo_model(), nas.dir.path().join("models/kept.gguf")).unwrap();
    for node in [&nas, &big] {
        let refused = node.refused(&["serve", "kept"]);
        assert!(refused.contains("there: sinew pull kept && sinew serve kept"), "{refused}");
    }
    big.run(&["pull", "kept"]);
    big.run(&["serve", "kept"]);
    let ranks = big.instance("kept").unwrap()["ranks"].clone();
    assert_eq!((ranks.as_array().unwrap().len(), &ranks[0]["node_name"]), (1, &"big".into()));
    assert!(nas.run(&["run", "kept", "What is Sinew?", "--temperature", "0"]).contains("Sinew"));
    assert!(big.refused(&["pull", "nobody"]).contains("there is no model"));
}

#[test]
fn a_lost_node_is_named_and_what_is_left_goes_on() {
    let (a, b) = (Node::start("a"), Node::start("b"));
    a.admit(&b);
    let listen = b.listen_addr();
    a.run(&["serve", &demo_model(), "--nodes", "2"]);
    let before = a.chat("sinew-demo", "Who are you?", 60);
    let workers = a.worker_pids("sinew-demo");
    let dir = b.kill();
    wait_for("the loss to be seen", || {
        let nodes = a.json(&["nodes"]);
        let lost = |node: &serde_json::Value| node["name"] == "b" && node["state"] == "lost";
        nodes.as_array()?.iter().any(lost).then_some(())
    });
    wait_for("the orphaned worker to end", || (!is_alive(workers[1])).then_some(()));
    // It returns with its identity and needs no new invitation.
    let b = Node::start_in("b", dir, &listen);
    wait_for("b to be live again", || {
        let nodes = a.json(&["nodes"]);
        let live = |node: &serde_json::Value| node["name"] == "b" && node["state"] == "live";
        nodes.as_array()?.iter().any(live).then_some(())
    });
    let after = a.chat("sinew-demo", "Who are you?", 60);
    assert_eq!(before["choices"], after["choices"]);
    drop(b);
}

#[test]
fn nodes_and_workers_end_with_their_parent() {
    let a = Node::start("a");
    a.run(&["serve", &demo_model()]);
    let workers = a.worker_pids("sinew-demo");
    assert!(workers.iter().all(|pid| is_alive(*pid)));
    drop(a);
    wait_for("the worker to end", || workers.iter().all(|pid| !is_alive(*pid)).then_some(()));
}

#[test]
fn stop_node_ends_a_node_and_frees_its_ports() {
    let mut a = Node::start("a");
    a.run(&["serve", &demo_model()]);
    let ports = [a.listen_addr(), a.api.replace("http://", "")];
    a.run(&["stop", "--node"]);
    for port in ports {
        std::net::TcpListener::bind(port).unwrap();
    }
    wait_for("the node to end", || a.has_ended().then_some(()));
    assert!(a.refused(&["nodes"]).contains("sinew up"));
}

#[test]
fn run_needs_no_node_and_answers_the_same_on_any_number() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path().to_str().unwrap();
    let ask = |nodes: &str| {
        let model = demo_model();
        let prompt = "Who are you?";
        stdout(&["run", "--data-dir", dir, "--nodes", nodes, "--temperature", "0", &model, prompt])
    };
    let one = ask("1");
    assert!(one.contains("Sinew"), "{one}");
    assert_eq!(one, ask("2"));
    assert_eq!(one, ask("3"));
}

#[test]
fn bad_input_gets_a_clear_error() {
    let dir = tempfile::tempdir().unwrap();
    let empty = dir.path().to_str().unwrap();
    let broken = dir.path().join("broken.gguf");
    let bytes = std::fs::read(demo_model()).unwrap();
    std::fs::write(&broken, &bytes[..bytes.len() / 2]).unwrap();
    let broken = broken.to_str().unwrap();
    let demo = demo_model();
    let cases: &[(&[&str], &str)] = &[
        (&["nodes", "--data-dir", empty], "Start one with: sinew up"),
        (
            &["run", "--data-dir", empty, "no-such-model", "hi"],
            "there is no model \"no-such-model\"",
        ),
        (&["run", "--data-dir", empty, broken, "hi"], "download is probably incomplete"),
        (&["dev", "logits", "-m", broken, "--tokens", "1"], "outside the file"),
        (&["dev", "logits", "-m", &demo, "--tokens", "9999999"], "token 9999999"),
        (&["dev", "logits", "-m", &demo, "--tokens", "1", "--split", "0,0"], "are no split"),
        (&["dev", "logits", "-m", &demo, "--tokens", "1", "--local-nodes", "65"], "not 65"),
        (&["dev", "logits", "-m", "/dev/null", "--tokens", "1"], "not a regular file"),
        (&["dev", "synth", "--shape", "x", "--quant", "q4_0", "-o", "/dev/null"], "no shape \"x\""),
    ];
    let is_here = |args: &&[&str]| cfg!(unix) || !args.contains(&"/dev/null");
    for (args, expected) in cases.iter().filter(|(args, _)| is_here(args)) {
        let error = common::refused(args);
        assert!(error.contains(expected), "{args:?}: {error}");
    }
    for args in
        [&["frobnicate"][..], &["run"], &["up", "--memory", "-3"], &["demo", "--nodes", "0"]]
    {
        assert_eq!(sinew(args).status.code(), Some(2), "{args:?}");
    }
}

#[test]
fn a_stranger_cannot_administer_or_join() {
    let (a, b) = (Node::start("a"), Node::start("b"));
    let post = "POST /sinew/v1/invite HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\ncontent-length: 2\r\nconnection: close\r\n\r\n{}";
    let answer = a.request(post);
    assert!(answer.starts_with("HTTP/1.1 401"), "{answer}");
    let rebound = "GET /v1/models HTTP/1.1\r\nhost: evil.example\r\nconnection: close\r\n\r\n";
    assert!(a.request(rebound).starts_with("HTTP/1.1 403"));

    let code = a.json(&["invite"])["code"].as_str().unwrap().to_owned();
    let last = code.chars().last().unwrap();
    let typo = format!("{}{}", &code[..code.len() - 1], if last == 'a' { 'b' } else { 'a' });
    assert!(!b.refused(&["join", &typo]).is_empty());
    assert!(!b.refused(&["join", "sinew-nonsense"]).is_empty());
    b.run(&["join", &code]);
    assert!(b.refused(&["join", &code]).contains("used"), "a code works once");
}

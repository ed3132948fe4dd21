//! Invalid arguments and missing resources: the program fails with a clear error before it promises
//! anything.

use std::fs;
use std::io::{BufRead, BufReader};
use std::process::{Command, Output, Stdio};

use crate::common::{Node, SINEW, demo_model, refused, sinew, wait_for};

fn up(arguments: &[&str]) -> Output {
    let dir = tempfile::tempdir().unwrap();
    let mut command = Command::new(SINEW);
    command.args(["up", "--with-parent", "--data-dir"]).arg(dir.path()).args(arguments);
    for flag in ["--api", "--listen"].iter().filter(|flag| !arguments.contains(flag)) {
        command.args([flag, "127.0.0.1:0"]);
    }
    // Its input ends at once, and so does a node that should not have started.
    command.stdin(Stdio::null()).output().unwrap()
}

fn stderr(output: &Output) -> String {
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!text.contains("panicked"), "{text}");
    text
}

#[test]
fn a_node_that_cannot_be_what_it_was_asked_to_be_does_not_start() {
    let cases: &[(&[&str], i32, &str)] = &[
        (&["--threads", "0"], 1, "--threads 0: this machine lets sinew use"),
        (&["--threads", "100000"], 1, "--threads 100000: this machine lets sinew use"),
        (&["--threads", "-1"], 2, "invalid value '-1' for '--threads"),
        (&["--cpus", "99999"], 1, "--cpus 99999: sinew may use CPUs 0"),
        (&["--cpus", "0,0"], 1, "--cpus names CPU 0 twice"),
        (&["--cpus", "0", "--threads", "2"], 1, "each thread has one CPU"),
        (&["--memory", "999TiB"], 1, "--memory 999.0 TiB:"),
        (&["--allow-origin", "zork"], 2, "such as https://chat.example"),
        (&["--host-name", "http://den"], 2, "such as studio.local"),
        (&["--name", ""], 2, "visible letters"),
        (&["--name", "a\u{1b}[31m"], 2, "visible letters"),
        (&["--link-addresses", "0.0.0.0"], 1, "addresses of this machine's interfaces"),
        (&["--link-addresses", "fe80::1"], 1, "tried without being named"),
        (&["--listen", "[fe80::1]:0"], 1, "--listen [::]:0"),
        (&["--lan", "--api", "127.0.0.2:0"], 1, "others cannot reach 127.0.0.2"),
        (&["--lan", "--api", "[::1]:0"], 1, "--api 0.0.0.0:0 for all"),
        (&["--peer", "[fe80::1%absent0]:1"], 2, "no interface absent0"),
        (&["--tls-cert", "/no.pem", "--tls-key", "/no.pem"], 1, "/no.pem"),
    ];
    for (arguments, code, expected) in cases {
        let output = up(arguments);
        let text = stderr(&output);
        assert_eq!(output.status.code(), Some(*code), "{arguments:?}: {text}");
        assert!(text.contains(expected), "{arguments:?}: {text}");
        // The hint for such a number would make it a path or a name.
        assert!(!text.contains("use '-- "), "{arguments:?}: {text}");
    }
    assert!(up(&["--threads", "1"]).status.success());
}

#[test]
fn a_directory_that_cannot_hold_a_node_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("file");
    fs::write(&file, "").unwrap();
    for bad in [file.to_str().unwrap(), "/proc/sinew", ""] {
        let output = sinew(&["up", "--with-parent", "--data-dir", bad]);
        let text = stderr(&output);
        assert!(!output.status.success() && text.contains(bad), "{bad:?}: {text}");
        assert!(bad.is_empty() || text.contains("--data-dir"), "{bad:?}: {text}");
    }
    let homeless = |arguments: &[&str]| {
        let mut command = Command::new(SINEW);
        command.args(arguments).current_dir(dir.path()).stdin(Stdio::null());
        for variable in ["HOME", "XDG_DATA_HOME", "SINEW_DATA_DIR"] {
            command.env_remove(variable);
        }
        command.output().unwrap()
    };
    for arguments in [
        &["up", "--with-parent"][..],
        &["nodes"],
        &["keys", "list"],
        &["list"],
        &["run", "llama3.2", "Hello"],
    ] {
        let output = homeless(arguments);
        assert_eq!(output.status.code(), Some(1), "{arguments:?}");
        assert!(stderr(&output).contains("HOME is not set"), "{arguments:?}");
    }
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1, "nothing was left there");
}

/// A limit on the size of files simulates a full disk: setting it needs no privilege.
fn room_for_files(pid: u32, limit: &str) {
    let status = Command::new("prlimit")
        .args(["--pid", &pid.to_string(), &format!("--fsize={limit}")])
        .status();
    assert!(status.expect("util-linux has prlimit").success());
}

/// Starts a node's command through another program, in its own process.
fn run_by(starter: &[&str], command: &mut Command) {
    let program = command.get_program().to_owned();
    let arguments: Vec<_> = command.get_args().map(ToOwned::to_owned).collect();
    *command = Command::new(starter[0]);
    command.args(&starter[1..]).arg(program).args(arguments);
    command.stdin(Stdio::piped()).stdout(Stdio::null());
}

#[test]
fn who_cannot_save_a_membership_does_not_join_and_spends_no_code() {
    // A process that a full disk kills cannot report it.
    let patient = |command: &mut Command| {
        run_by(&["sh", "-c", "trap '' XFSZ; exec \"$0\" \"$@\""], command);
        command.stderr(Stdio::null());
    };
    let start = |name: &str| {
        let dir = tempfile::tempdir().unwrap();
        Node::start_with(name, dir, "127.0.0.1:0", patient)
    };
    let (a, b) = (start("a"), start("b"));
    let code = a.json(&["invite"])["code"].as_str().unwrap().to_owned();
    for full in [&b, &a] {
        room_for_files(full.pid(), "1000:unlimited");
        let text = b.refused(&["join", &code]);
        assert!(text.contains("members.json"), "{text}");
        for node in [&a, &b] {
            assert_eq!(node.json(&["nodes"]).as_array().unwrap().len(), 1);
        }
        assert!(b.refused(&["join", &code]).contains("members.json"), "the code is still good");
        room_for_files(full.pid(), "unlimited:unlimited");
    }
    b.run(&["join", &code]);

    // A served model must survive a restart, or it is not served.
    room_for_files(a.pid(), "1000:unlimited");
    let text = a.refused(&["serve", &demo_model()]);
    assert!(text.contains("desired.json"), "{text}");
    assert!(a.json(&["ps"]).as_array().unwrap().is_empty());
    room_for_files(a.pid(), "unlimited:unlimited");
}

#[test]
fn a_frozen_node_is_told_from_one_that_is_gone() {
    let node = Node::start("a");
    node.signal("-STOP");
    let text = node.refused(&["nodes"]);
    assert!(text.contains("stopped") && text.contains("kill -CONT"), "{text}");
    node.signal("-CONT");
    node.run(&["nodes"]);
}

#[test]
fn the_end_of_the_terminal_ends_a_node_well() {
    // A shell cannot reset an ignored signal, as in tests run by `nohup`.
    let hears = |command: &mut Command| run_by(&["env", "--default-signal=HUP"], command);
    let dir = tempfile::tempdir().unwrap();
    let mut node = Node::start_with("a", dir, "127.0.0.1:0", hears);
    node.signal("-HUP");
    wait_for("the node's end", || node.has_ended().then_some(()));
    assert!(!node.dir.path().join("daemon.json").exists());
    // No node runs there, and the hint has the directory.
    let text = node.refused(&["nodes"]);
    let option = format!("sinew up --data-dir {}", node.dir.path().display());
    assert!(text.contains(&option), "{text}");
}

#[test]
fn a_node_that_shall_outlive_its_terminal_does() {
    let deaf = |command: &mut Command| run_by(&["env", "--ignore-signal=HUP"], command);
    let dir = tempfile::tempdir().unwrap();
    let mut node = Node::start_with("a", dir, "127.0.0.1:0", deaf);
    node.signal("-HUP");
    node.run(&["nodes"]);
    assert!(!node.has_ended());
}

#[test]
fn a_copy_of_a_running_nodes_directory_is_no_running_node() {
    let node = Node::start("a");
    let home = tempfile::tempdir().unwrap();
    let copy = home.path().join("copy");
    let copied = Command::new("cp").arg("-r").arg(node.dir.path()).arg(&copy).status().unwrap();
    assert!(copied.success());
    let text = refused(&["nodes", "--data-dir", copy.to_str().unwrap()]);
    assert!(text.contains("no node runs"), "{text}");
}

#[test]
fn an_answer_that_cannot_be_written_is_a_failure() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path().to_str().unwrap();
    let commands = [&["--help"][..], &["list", "--data-dir", dir], &["up", "--help"]];
    for arguments in commands {
        let full = fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
        let output = Command::new(SINEW).args(arguments).stdout(full).output().unwrap();
        let text = stderr(&output);
        assert_eq!(output.status.code(), Some(1), "{arguments:?}: {text}");
        assert!(text.contains("cannot write to standard output"), "{arguments:?}: {text}");

        // A reader that stops early is no failure.
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let output = Command::new(SINEW).args(arguments).stdout(writer).output().unwrap();
        assert_eq!(output.status.code(), Some(0), "{arguments:?}: {}", stderr(&output));

        // A full device for standard error causes no panic either.
        let full = fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
        let status = Command::new(SINEW).arg("no-such-command").stderr(full).status().unwrap();
        assert!(matches!(status.code(), Some(1 | 2)), "{status}");
    }
}

#[test]
fn nodes_are_given_by_count_or_by_name() {
    let (a, b) = (Node::start("a"), Node::start("b"));
    a.admit(&b);
    let model = demo_model();
    let serve = |nodes: &'static str| ["serve", &*model.clone().leak(), "--nodes", nodes];
    for (nodes, expected) in [
        ("b", "leads: name it first"),
        ("b,a", "leads: name it first"),
        ("a,zork", "no node is called \"zork\", and no id begins so. There are: b ("),
        ("3", "3 nodes were asked for, but 2"),
    ] {
        let text = a.refused(&serve(nodes));
        assert!(text.contains(expected), "{nodes}: {text}");
    }
    for (nodes, expected) in
        [("0", "at least one"), ("a,a", "named twice"), ("a,", "a count, such")]
    {
        let output = sinew(&serve(nodes));
        assert_eq!(output.status.code(), Some(2));
        assert!(stderr(&output).contains(expected), "{nodes}: {}", stderr(&output));
    }
    for (nodes, count) in [("a,b", 2), ("a", 1), ("2", 2)] {
        a.run(&serve(nodes));
        let instance = a.instance("sinew-demo").unwrap();
        assert_eq!(instance["ranks"].as_array().unwrap().len(), count, "{nodes}");
        assert_eq!(instance["ranks"][0]["node_name"], "a");
        a.run(&["stop", "sinew-demo"]);
    }
}

#[test]
fn the_machines_own_commands_work_where_others_may_come() {
    let dir = tempfile::tempdir().unwrap();
    let printed = dir.path().join("printed");
    let file = fs::File::create(&printed).unwrap();
    let node = Node::start_with("studio", dir, "0.0.0.0:0", |command| {
        command.args(["--lan", "--host-name", "den.example"]).stdout(file);
    });
    let text = wait_for("the greeting", || {
        let text = fs::read_to_string(&printed).ok()?;
        text.contains("add a machine").then_some(text)
    });
    assert!(!text.contains("0.0.0.0"), "{text}");
    assert!(text.contains("sinew serve --data-dir"), "{text}");
    let nodes = node.run(&["nodes"]);
    assert!(!nodes.contains("0.0.0.0"), "{nodes}");
    node.run(&["invite"]);
    let host = fs::read_to_string("/proc/sys/kernel/hostname").unwrap().trim().to_owned();
    let first = host.split('.').next().unwrap();
    for (name, status) in [
        ("den.example", 200),
        (&*host, 200),
        (&*format!("{first}.local"), 200),
        ("localhost", 200),
        ("evil.example", 403),
        ("0.0.0.0", 403),
    ] {
        let request = format!("GET /health HTTP/1.1\r\nhost: {name}\r\nconnection: close\r\n\r\n");
        let answer = node.request(&request);
        assert!(answer.starts_with(&format!("HTTP/1.1 {status}")), "{name}: {answer}");
        assert_eq!(answer.contains("--host-name"), status == 403, "{name}: {answer}");
    }
}

#[test]
fn a_machine_joins_by_the_number_that_it_shows() {
    let (a, b) = (Node::start("a"), Node::start("b"));
    let at = a.listen_addr();
    let mut joining = Command::new(SINEW)
        .args(["join", "--peer", &at, "--data-dir", b.dir.path().to_str().unwrap()])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(joining.stdout.take().unwrap()).lines();
    let is_number = |line: &String| line.contains("    sinew accept ");
    let shown = lines.by_ref().map(Result::unwrap).find(is_number).unwrap();
    let number = shown.trim().strip_prefix("sinew accept ").unwrap();
    assert!(a.run(&["accept"]).contains("b"), "who asks is listed");
    assert!(a.refused(&["accept", "12"]).contains("six digits"));
    assert!(a.run(&["accept", number]).contains("b is in: the cluster has 2 nodes now"));
    assert!(joining.wait().unwrap().success());
    let said: Vec<String> = lines.map(Result::unwrap).collect();
    assert!(said.iter().any(|line| line == "joined a: the cluster has 2 nodes now"), "{said:?}");
    assert!(b.refused(&["join", "--peer", &at]).contains("sinew leave"));
}

//! What is only so on Windows: services, processes that end with their job, paths, line ends.

#![cfg(windows)]

use std::io::Write;
use std::net::TcpListener;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use crate::common::{Node, SINEW, demo_model, is_alive, kill_9, wait_for};
use tempfile::TempDir;

/// Runs a command of a user whose data lie in `home`.
fn at_home(home: &Path, args: &[&str]) -> Output {
    let mut command = Command::new(SINEW);
    command.args(args).env("LOCALAPPDATA", home).env_remove("SINEW_DATA_DIR");
    command.stdin(Stdio::null()).output().unwrap()
}

fn said(output: &Output) -> String {
    let text = [&*output.stdout, &*output.stderr].concat();
    String::from_utf8(text).unwrap().replace("\r\n", "\n")
}

fn free_port() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    listener.local_addr().unwrap().to_string()
}

/// Both kinds share one name, so one test has both.
#[test]
fn services_are_installed_start_a_node_and_go() {
    for kind in [&[][..], &["--system"]] {
        let home = TempDir::new().unwrap();
        // One that a test before has left.
        at_home(home.path(), &[&["service", "uninstall"][..], kind].concat());
        let run = |args: &[&str]| at_home(home.path(), &[args, kind].concat());
        let (api, listen) = (free_port(), free_port());
        let mut install = vec!["service", "install"];
        install.extend(kind);
        install.extend(["--", "--api", &api, "--listen", &listen, "--threads", "1"]);

        assert!(said(&run(&["service", "status"])).starts_with("not installed"), "{kind:?}");
        let refused = run(&["service", "uninstall"]);
        assert!(said(&refused).contains("no such service is installed"), "{}", said(&refused));
        let wrong = at_home(home.path(), &["service", "install", "--", "--no-such-option"]);
        assert!(said(&wrong).contains("does not take these options"), "{}", said(&wrong));

        let installed = at_home(home.path(), &install);
        assert!(installed.status.success(), "{kind:?}: {}", said(&installed));
        let status = || at_home(home.path(), &["nodes"]);
        wait_for("the service's node", || status().status.success().then_some(()));
        let text = said(&run(&["service", "status"]));
        assert!(text.starts_with("installed") && text.ends_with("running\n"), "{text}");

        // Installed again, it is replaced.
        let again = at_home(home.path(), &install);
        assert!(again.status.success(), "{kind:?}: {}", said(&again));
        wait_for("the new node", || status().status.success().then_some(()));

        let gone = run(&["service", "uninstall"]);
        assert!(said(&gone).contains("the service is gone"), "{}", said(&gone));
        wait_for("the node's end", || (!status().status.success()).then_some(()));
        assert!(home.path().join("Sinew").is_dir(), "the node's data stay");
    }
}

#[test]
fn a_killed_node_takes_its_workers_with_it() {
    let node = Node::start("killed");
    node.run(&["serve", &demo_model()]);
    let workers = node.worker_pids("sinew-demo");
    assert_eq!(workers.len(), 1);
    assert!(is_alive(workers[0]));
    let pid = node.pid();
    kill_9(pid.into());
    wait_for("the worker's end", || (!is_alive(workers[0])).then_some(()));
}

#[test]
fn paths_may_have_spaces_and_umlauts() {
    let dir = TempDir::new().unwrap();
    let folder = dir.path().join("Büro Daten ß").join("ä".repeat(100));
    std::fs::create_dir_all(&folder).unwrap();
    let model = folder.join("mein Modell.gguf");
    std::fs::copy(demo_model(), &model).unwrap();
    let data = TempDir::with_prefix_in("Daten ö ", dir.path()).unwrap();
    let node = Node::start_in("Büro", data, "127.0.0.1:0");
    node.run(&["serve", model.to_str().unwrap()]);
    let answer = node.run(&["run", "mein Modell", "What is Sinew?"]);
    assert!(!answer.trim().is_empty());
}

#[test]
fn lines_may_end_as_on_windows() {
    let node = Node::start("lines");
    node.run(&["serve", &demo_model()]);
    let answer = |question: &[u8]| {
        let dir = node.dir.path().to_str().unwrap();
        let args = ["run", "sinew-demo", "--temperature", "0", "--data-dir", dir];
        let mut command = Command::new(SINEW);
        command.args(args).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        child.stdin.take().unwrap().write_all(question).unwrap();
        let output = child.wait_with_output().unwrap();
        assert!(output.status.success());
        output.stdout
    };
    assert_eq!(answer(b"What is Sinew?\r\n"), answer(b"What is Sinew?\n"));
}

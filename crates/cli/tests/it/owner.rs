//! Permissions of other users' programs, and the first process to die when memory runs out, with
//! real processes.

#![cfg(unix)]

use std::io::ErrorKind;
use std::net::TcpListener;
use std::os::unix::process::CommandExt;
use std::process::Command;

use crate::common::{Node, demo_model, refused, wait_for};
use serde_json::Value;

/// The answer to an HTTP request from a program of this user.
fn ask_as(uid: u32, node: &Node, method: &str, path: &str, body: &str) -> String {
    let (host, port) = node.api.trim_start_matches("http://").split_once(':').unwrap();
    let head = format!(
        "{method} {path} HTTP/1.1\\r\\nHost: localhost\\r\\nConnection: close\\r\\n\
         Content-Type: application/json\\r\\nContent-Length: {}\\r\\n\\r\\n",
        body.len()
    );
    let script =
        format!("exec 3<>/dev/tcp/{host}/{port}; printf \"$0\" >&3; printf %s \"$1\" >&3; cat <&3");
    let output = Command::new("bash").args(["-c", &script, &head, body]).uid(uid).output().unwrap();
    String::from_utf8(output.stdout).unwrap()
}

#[test]
#[cfg(target_os = "linux")]
fn another_user_is_told_from_the_owner() {
    // Only root can act as another user.
    let me = rustix::process::geteuid().as_raw();
    let users: &[(u32, &str)] = if me == 0 { &[(0, "404"), (1000, "403")] } else { &[(me, "404")] };
    let node = Node::start("a");
    for (uid, status) in users {
        let body = r#"{"model": "org/no-such-model"}"#;
        let answer = ask_as(*uid, &node, "DELETE", "/api/delete", body);
        assert!(answer.starts_with(&format!("HTTP/1.1 {status}")), "{uid}: {answer}");
        let tags = ask_as(*uid, &node, "GET", "/api/tags", "");
        assert!(tags.starts_with("HTTP/1.1 200"), "{uid}: {tags}");
    }
}

/// After a crash, another user's program listens at the port, and the owner types commands.
#[test]
fn a_killed_nodes_port_gets_no_token() {
    let node = Node::start("a");
    let address = node.api.trim_start_matches("http://").to_owned();
    let dir = node.kill();
    let dir = dir.path().to_str().unwrap();
    let listener = wait_for("the port to be free", || TcpListener::bind(&address).ok());
    listener.set_nonblocking(true).unwrap();
    let commands: [&[&str]; 7] = [
        &["status"],
        &["ps"],
        &["nodes"],
        &["events"],
        &["stop", "m"],
        &["remove", "b"],
        &["page"],
    ];
    for command in commands {
        let told = refused(&[command, &["--data-dir", dir]].concat());
        assert!(told.contains("no node runs"), "{command:?}: {told}");
    }
    let asked = listener.accept().map(drop).unwrap_err();
    assert_eq!(asked.kind(), ErrorKind::WouldBlock);
}

#[test]
#[cfg(target_os = "linux")]
fn memory_that_runs_out_takes_a_worker_first() {
    let node = Node::start("a");
    node.run(&["serve", &demo_model()]);
    let status: Value = serde_json::from_str(&node.run(&["status", "--json"])).unwrap();
    let pid = status["instances"][0]["ranks"][0]["pid"].as_u64().unwrap();
    let daemon: Value =
        serde_json::from_slice(&std::fs::read(node.dir.path().join("daemon.json")).unwrap())
            .unwrap();
    let read = |pid: &Value, file: &str| std::fs::read(format!("/proc/{pid}/{file}")).unwrap();
    let score = |pid: &Value| String::from_utf8(read(pid, "oom_score_adj")).unwrap();
    assert_eq!(score(&pid.into()).trim(), "1000");
    assert!(score(&daemon["pid"]).trim().parse::<i32>().unwrap() < 1000);
    // Only the daemon returns memory at once: a worker reuses it.
    let has = |pid: &Value| {
        let name = b"MALLOC_MMAP_THRESHOLD_=";
        read(pid, "environ").split(|byte| *byte == 0).any(|entry| entry.starts_with(name))
    };
    assert_eq!((has(&daemon["pid"]), has(&pid.into())), (cfg!(target_env = "gnu"), false));
}

//! Refused starts, and their errors.

#![cfg(unix)]

use crate::common;
use std::fs;
use std::net::TcpListener;
use std::os::unix::fs::{chown, symlink};
use std::path::Path;

use crate::common::{Node, refused};

fn up(dir: &Path, api: &str) -> String {
    let dir = dir.to_str().unwrap();
    refused(&["up", "--data-dir", dir, "--api", api, "--listen", "127.0.0.1:0", "--threads", "1"])
}

fn is_told_alone(said: &str) {
    assert!(said.starts_with("error: ") && said.lines().count() == 1, "{said}");
}

/// Runs the command in a refusal: `rm A B`, where each may end in `.*`.
fn follow(said: &str) {
    let typed = said.split("rm ").nth(1).unwrap().split(',').next().unwrap();
    for pattern in typed.split(' ') {
        let (dir, name) = pattern.rsplit_once('/').unwrap();
        let stem = name.trim_end_matches('*');
        for entry in fs::read_dir(dir).unwrap().flatten() {
            if entry.file_name().to_str().unwrap().starts_with(stem) {
                fs::remove_file(entry.path()).unwrap();
            }
        }
    }
}

#[test]
fn a_node_without_its_key_does_not_start_as_another_one() {
    let node = Node::start("a");
    let before = node.json(&["nodes"])[0]["id"].clone();
    node.run(&["serve", &common::demo_model()]);
    let dir = node.kill();
    let key = dir.path().join("identity.key");
    let kept = fs::read(&key).unwrap();
    fs::remove_file(&key).unwrap();
    let said = up(dir.path(), "127.0.0.1:0");
    is_told_alone(&said);
    assert!(said.contains("identity.key is gone"), "{said}");
    // With the key back, it is the same node.
    fs::write(&key, kept).unwrap();
    let node = Node::start_in("a", dir, "127.0.0.1:0");
    assert_eq!(node.json(&["nodes"])[0]["id"], before);
    let dir = node.kill();
    // Or it starts anew, by the command in the refusal.
    fs::remove_file(&key).unwrap();
    follow(&said);
    let node = Node::start_in("a", dir, "127.0.0.1:0");
    assert_ne!(node.json(&["nodes"])[0]["id"], before);
    assert_eq!(node.json(&["ps"]).as_array().unwrap().len(), 0, "nothing of the other one's");
}

#[test]
fn a_port_that_is_taken_is_the_only_thing_told() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let dir = tempfile::tempdir().unwrap();
    let said = up(dir.path(), &taken.local_addr().unwrap().to_string());
    is_told_alone(&said);
    assert!(said.contains("cannot listen on"), "{said}");
}

#[test]
fn a_directory_with_links_or_of_another_user_is_not_used() {
    let dir = tempfile::tempdir().unwrap();
    let elsewhere = dir.path().join("elsewhere");
    for name in ["identity.key", "admin.token"] {
        symlink(&elsewhere, dir.path().join(name)).unwrap();
        let said = up(dir.path(), "127.0.0.1:0");
        is_told_alone(&said);
        assert!(said.contains(&format!("{name} is a link")), "{said}");
        follow(&said);
    }
    assert!(!elsewhere.exists());
    if rustix::process::geteuid().is_root() {
        chown(dir.path(), Some(4242), None).unwrap();
        let said = up(dir.path(), "127.0.0.1:0");
        is_told_alone(&said);
        assert!(said.contains("belongs to user 4242"), "{said}");
    }
}

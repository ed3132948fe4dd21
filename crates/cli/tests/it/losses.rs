//! Losses that the remaining nodes cannot bear, overwritten files and full disks: the errors in
//! every dialect.

use crate::common;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::Command;
use std::sync::mpsc::{Receiver, channel};

use crate::common::{Node, request, sinew, stdout, wait_for};
use serde_json::{Value, json};
use tempfile::TempDir;

/// With a context of 1024 tokens the model below needs more, and half of it needs less.
const MEMORY_OF_HALF: &str = "140MiB";

fn start(name: &str, dir: TempDir, listen: &str, memory: &str) -> Node {
    Node::start_with(name, dir, listen, |command| {
        command.args(["--memory", memory]);
    })
}

fn new_dir() -> TempDir {
    tempfile::tempdir().unwrap()
}

/// A model of 94 MiB in a node's folder.
fn put_model(node: &Node, name: &str, seed: &str) {
    let path = node.dir.path().join(format!("models/{name}.gguf"));
    let (path, shape) = (path.to_str().unwrap(), ["--shape", "llama-150m", "--quant", "q4_0"]);
    stdout(&[&["dev", "synth", "--seed", seed, "-o", path], &shape[..]].concat());
}

/// A streamed answer in each dialect, line by line.
fn ask_in_all_dialects(node: &Node) -> Vec<Receiver<String>> {
    let messages = json!([{ "role": "user", "content": "go on" }]);
    let openai = json!({
        "model": "slow", "stream": true, "max_tokens": 900, "temperature": 0, "messages": messages,
    });
    let anthropic = openai.clone();
    let options = json!({ "num_predict": 900, "temperature": 0 });
    let ollama = json!({ "model": "slow", "messages": messages, "options": options });
    let asked =
        [("/v1/chat/completions", openai), ("/v1/messages", anthropic), ("/api/chat", ollama)];
    let ask = |(path, body): (&str, Value)| {
        let response = request(&format!("{}{path}", node.api), &body);
        let (sender, lines) = channel();
        std::thread::spawn(move || {
            let body = BufReader::new(response.into_body().into_reader());
            // The connection of a failed stream is closed.
            for line in body.lines().map_while(Result::ok).filter(|line| !line.is_empty()) {
                if sender.send(line).is_err() {
                    return;
                }
            }
        });
        lines
    };
    let answers: Vec<Receiver<String>> = asked.into_iter().map(ask).collect();
    // All have begun to answer.
    for answer in &answers {
        for _ in 0..6 {
            answer.recv_timeout(common::PATIENCE).expect("a token");
        }
    }
    answers
}

/// The message of each answer's last event, which must be an error.
fn errors(answers: Vec<Receiver<String>>) -> Vec<String> {
    let mut errors = Vec::new();
    for answer in answers {
        let mut last = String::new();
        while let Ok(line) = answer.recv_timeout(common::PATIENCE) {
            last = line;
        }
        let event = last.strip_prefix("data: ").unwrap_or(&last);
        let event: Value = serde_json::from_str(event).unwrap_or_else(|_| panic!("{last}"));
        let error = &event["error"];
        let message = error["message"].as_str().or(error.as_str());
        errors.push(message.unwrap_or_else(|| panic!("no error: {last}")).to_owned());
    }
    errors
}

fn state(node: &Node) -> String {
    let instance = node.instance("slow").expect("it is served");
    instance["state"].to_string()
}

fn assert_says(text: &str, words: &[&str]) {
    for word in words {
        assert!(text.contains(word), "{word:?} is not in: {text}");
    }
}

#[test]
fn what_the_rest_cannot_bear_is_told_in_every_dialect() {
    let a = start("a", new_dir(), "127.0.0.1:0", MEMORY_OF_HALF);
    let b = start("b", new_dir(), "127.0.0.1:0", MEMORY_OF_HALF);
    a.admit(&b);
    put_model(&a, "slow", "1");
    a.run(&["serve", "slow", "--ctx", "1024", "--copies", "1"]);
    let listen = b.listen_addr();

    // Memory: half of the model is lost, and the whole does not fit on the other node.
    let answers = ask_in_all_dialects(&a);
    let dir = b.kill();
    let memory = ["node b (rank 1) was lost", " too little", "smaller context", "bring b back"];
    for error in errors(answers) {
        assert_says(&error, &memory);
    }
    assert_says(&state(&a), &memory);
    assert_says(&a.run(&["ps"]), &["b"]);

    // The node returns, and so does the model.
    let b = start("b", dir, &listen, MEMORY_OF_HALF);
    wait_for("the model to be back", || state(&a).contains("ready").then_some(()));
    let knows = || Some(b.instance("slow")?["state"].to_string().contains("ready"));
    wait_for("b to know of it", || knows()?.then_some(()));

    // The file: its owner is lost, and no other node has it.
    let answers = ask_in_all_dialects(&b);
    drop(a.kill());
    let file = ["node a", "no other node has its file", "GiB", "Bring a back", "--copies 2"];
    for error in errors(answers) {
        assert_says(&error, &file);
    }
    assert_says(&state(&b), &file);
}

#[test]
fn an_overwritten_file_is_named_and_gives_no_other_bits() {
    let (a, b) = (Node::start("a"), Node::start("b"));
    a.admit(&b);
    put_model(&a, "slow", "1");
    a.run(&["serve", "slow", "--ctx", "1024", "--nodes", "2"]);
    let before = a.chat("slow", "go on", 40);
    // The node reads the vocabulary from the owner, and keeps it.
    assert_eq!(before["choices"], b.chat("slow", "go on", 40)["choices"]);

    // Overwritten as by `cp`: the same file with other bytes.
    put_model(&b, "other", "2");
    let (other, path) =
        (b.dir.path().join("models/other.gguf"), a.dir.path().join("models/slow.gguf"));
    std::fs::copy(&other, &path).unwrap();
    let whole = a.chat("slow", "go on", 40);
    if whole.get("choices").is_some() {
        assert_eq!(before["choices"], whole["choices"], "what is in memory goes on");
    }

    // The wrong bytes are detected, before or during an answer.
    let messages = json!([{ "role": "user", "content": "say something else" }]);
    let body = json!({
        "model": "slow", "stream": true, "max_tokens": 600, "temperature": 0, "messages": messages,
    });
    let mut answer = request(&format!("{}/v1/chat/completions", b.api), &body);
    let mut text = String::new();
    // The connection of a failed stream is closed.
    let _ = std::io::Read::read_to_string(&mut answer.body_mut().as_reader(), &mut text);
    let last = text.lines().rfind(|line| !line.is_empty()).unwrap_or_default();
    assert_says(last, &["error", "node a (rank 0)", "overwritten", "serve it again"]);
    assert!(!last.contains("os error") && !last.contains("reset by peer"), "{last}");
    // Node b, which was asked, may know of it first.
    wait_for("node a to know of it", || state(&a).contains("overwritten").then_some(()));
}

/// A folder on a separate disk of this size; `None` without the necessary privileges.
struct SmallDisk(TempDir);

impl SmallDisk {
    fn new(size: &str) -> Option<Self> {
        let dir = new_dir();
        let path = dir.path().to_str().unwrap();
        let options = format!("size={size},mode=700");
        let mount = ["-t", "tmpfs", "-o", &options, "sinew-test", path];
        let mounted = Command::new("mount").args(mount).output();
        let is_there = mounted.is_ok_and(|output| output.status.success());
        if !is_there {
            eprintln!("skipped: mounting a small disk needs root");
        }
        is_there.then_some(Self(dir))
    }

    /// Writes until the disk is full.
    fn fill(&self) {
        let mut file = std::fs::File::create(self.0.path().join("filler")).unwrap();
        let zeros = [0; 4096];
        while std::io::Write::write_all(&mut file, &zeros).is_ok() {}
        while std::io::Write::write_all(&mut file, &zeros[..1]).is_ok() {}
    }

    fn free(&self) {
        std::fs::remove_file(self.0.path().join("filler")).unwrap();
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        // If it fails, nothing else can be done.
        let _ = Command::new("umount").arg("-l").arg(self.0.path()).output();
    }
}

fn halves(folder: &Path) -> Vec<String> {
    let files = std::fs::read_dir(folder).unwrap();
    let names = files.map(|file| file.unwrap().file_name().to_string_lossy().into_owned());
    names.filter(|name| name.ends_with(".new")).collect()
}

#[test]
fn a_full_disk_is_told_by_the_name_of_the_file_and_keeps_no_halves() {
    let Some(disk) = SmallDisk::new("4m") else { return };
    let (a, home) = (Node::start("a"), TempDir::new_in(disk.0.path()).unwrap());
    let folder = home.path().to_owned();
    let b = Node::start_in("b", home, "127.0.0.1:0");
    let dir = folder.to_str().unwrap();
    let invite = a.json(&["invite"]);
    let code = invite["code"].as_str().unwrap();

    disk.fill();
    let model = common::demo_model();
    let refusals =
        [(vec!["join", code], "members.json"), (vec!["serve", &model[..]], "desired.json")];
    for (words, file) in refusals {
        let output = sinew(&[&words[..], &["--data-dir", dir]].concat());
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success(), "{words:?}: {said}");
        assert_says(&said, &[file, "No space left on device"]);
        assert!(!said.contains(".new"), "{said}");
        assert_eq!(halves(&folder), Vec::<String>::new());
    }
    disk.free();
    b.run(&["join", code]);
    b.run(&["serve", &model, "--nodes", "1"]);
    b.chat("sinew-demo", "Who are you?", 5);
}

#[test]
fn a_node_starts_on_a_full_disk_and_says_what_that_costs() {
    let Some(disk) = SmallDisk::new("4m") else { return };
    let home = TempDir::new_in(disk.0.path()).unwrap();
    let node = Node::start_in("a", home, "127.0.0.1:0");
    node.run(&["serve", &common::demo_model()]);
    let home = node.kill();
    let left = home.path().join("desired.room-0123456789abcdef");
    std::fs::write(&left, b"0").unwrap();
    disk.fill();
    let node = Node::start_in("a", home, "127.0.0.1:0");
    assert!(!left.exists(), "what a kill left is swept");
    let status = node.json(&["status"]);
    assert_says(&status.to_string(), &["there was no room for", "members.json", "Make room"]);
    wait_for("the model", || {
        (node.instance("sinew-demo")?["state"]["state"] == "ready").then_some(())
    });
    node.chat("sinew-demo", "Who are you?", 5);
}

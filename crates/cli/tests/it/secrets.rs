//! Prompts, answers and secrets appear in no log at any level, in no metric and in no status: real
//! nodes with full logging, and words that appear nowhere else.

use crate::common;
use std::fs::File;
use std::path::PathBuf;

use crate::common::{Node, demo_model, kill_9, stdout};
use serde_json::{Value, json};

/// A node that writes its full log into a file.
struct Talkative {
    node: Node,
    log: PathBuf,
}

impl Talkative {
    fn start(name: &str) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let log = dir.path().join("log");
        let file = File::create(&log).unwrap();
        let node = Node::start_with(name, dir, "127.0.0.1:0", |command| {
            command.arg("--lan").env("SINEW_LOG", "trace").stderr(file);
        });
        Self { node, log }
    }

    fn log(&self) -> String {
        String::from_utf8_lossy(&std::fs::read(&self.log).unwrap()).into_owned()
    }

    /// Sends a raw request; the answer does not matter here.
    fn post(&self, path: &str, headers: &str, body: &str) {
        let length = body.len();
        self.node.request(&format!(
            "POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n\
             content-length: {length}\r\n{headers}connection: close\r\n\r\n{body}"
        ));
    }

    fn get(&self, path: &str, headers: &str) -> String {
        self.node.request(&format!(
            "GET {path} HTTP/1.1\r\nhost: localhost\r\n{headers}connection: close\r\n\r\n"
        ))
    }
}

fn chat(change: impl FnOnce(&mut Value)) -> String {
    let mut body = json!({
        "model": "sinew-demo", "max_tokens": 4, "temperature": 0, "stop": ["canary-stop"],
        "messages": [
            {"role": "system", "content": "canary-system"},
            {"role": "user", "content": "canary-prompt"},
        ],
    });
    change(&mut body);
    body.to_string()
}

#[test]
fn no_prompt_and_no_secret_is_in_a_log_or_a_metric() {
    let (a, b) = (Talkative::start("a"), Talkative::start("b"));
    a.node.admit(&b.node);
    a.node.run(&["serve", &demo_model(), "--nodes", "2"]);
    common::wait_for("b to know the model", || b.node.instance("sinew-demo"));
    let key = a.node.run(&["keys", "create", "laptop"]).trim().to_owned();
    let code = a.node.json(&["invite"])["code"].as_str().unwrap().to_owned();
    let proxied = "x-forwarded-for: 203.0.113.9\r\n";
    // `b` passes its requests on to `a`.
    for node in [&a, &b] {
        for stream in [false, true] {
            node.post("/v1/chat/completions", "", &chat(|body| body["stream"] = stream.into()));
        }
        let mistakes = [
            chat(|body| body["model"] = "canary-model".into()),
            chat(|body| body["temperature"] = "canary-type".into()),
            chat(|body| body["max_tokens"] = (-1).into()),
            chat(|body| body["messages"][0]["role"] = "canary-role".into()),
            chat(|body| body["messages"][1]["content"] = "canary-long ".repeat(5000).into()),
            chat(|body| {
                body["tools"] = json!([{"type": "function", "function": {
                    "name": "canary_tool", "description": "canary-tool", "parameters": {}
                }}])
            }),
            "{\"messages\": canary-broken".to_owned(),
            "canary-garbage".to_owned(),
        ];
        for body in &mistakes {
            node.post("/v1/chat/completions", "", body);
        }
        for header in ["authorization: Bearer", "x-api-key:", "api-key:"] {
            for key in ["canary-wrong-key", key.as_str()] {
                let headers = format!("{proxied}{header} {key}\r\n");
                node.post("/v1/chat/completions", &headers, &chat(|_| {}));
            }
        }
        node.post("/sinew/v1/join", "authorization: Bearer canary-admin\r\n", "{}");
        node.get("/v1/models/canary-path?api_key=canary-query", "");
        node.get("/canary-path?key=canary-query", "referer: http://canary-referer/\r\n");
        node.get("/", "host: canary-host\r\ncookie: canary-cookie\r\n");
        assert!(!node.node.refused(&["join", &format!("{code}x")]).is_empty());
    }
    // An answer that continues after a loss and finally fails is logged, without its words.
    let model = a.node.dir.path().join("models/slow.gguf");
    let model = model.to_str().unwrap();
    stdout(&["dev", "synth", "--shape", "llama-150m", "--quant", "q4_0", "-o", model]);
    a.node.run(&["serve", "slow", "--ctx", "1024", "--nodes", "2"]);
    let mut events = a.node.stream("slow", "canary-lost", 900);
    events.nth(1).expect("an answer begins");
    kill_9(a.node.worker_pids("slow")[0]);
    a.node.run(&["stop", "slow"]);
    assert!(events.last().unwrap().contains("error"));

    let secrets: Vec<String> = [&a, &b]
        .iter()
        .map(|node| std::fs::read_to_string(node.node.dir.path().join("admin.token")).unwrap())
        .chain([key, code])
        .collect();
    for (name, node) in [("a", &a), ("b", &b)] {
        let log = node.log();
        assert!(log.contains("DEBUG answered"), "it logs everything: {log}");
        assert!(name == "b" || log.contains("answer lost"), "the loss is told: {log}");
        let seen = [log, node.get("/metrics", ""), node.get("/sinew/v1/status", "")];
        for text in &seen {
            let found = text.lines().find(|line| line.contains("canary"));
            assert_eq!(found, None, "a line of node {name}");
            let found = text.lines().find(|line| secrets.iter().any(|s| line.contains(s.trim())));
            assert_eq!(found, None, "a secret in a line of node {name}");
        }
    }
}

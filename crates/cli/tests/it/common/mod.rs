//! Real nodes of the built binary, each in its own directory, on loopback.
#![allow(dead_code)] // Each test binary uses a part of this.

pub mod terminal;

use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Output, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tempfile::TempDir;

pub const SINEW: &str = env!("CARGO_BIN_EXE_sinew");
/// Long enough for a machine that is busy with other tests; a working program never needs this
/// long.
pub const PATIENCE: Duration = Duration::from_secs(60);

pub fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

pub fn fixture(name: &str) -> String {
    fixtures::path(name).to_string_lossy().into_owned()
}

pub fn demo_model() -> String {
    repository().join("demo-model/sinew-demo.gguf").to_string_lossy().into_owned()
}

/// A copy of a model with other metadata, under a name. Returns the path of the copy.
pub fn changed_model(
    dir: &TempDir,
    name: &str,
    model: &str,
    entries: &[(&str, gguf::Value)],
) -> String {
    let bytes = std::fs::read(model).unwrap();
    let header = gguf::Directory::parse(&bytes, bytes.len() as u64).unwrap();
    let mut writer = gguf::Writer::new();
    let is_kept = |key: &str| entries.iter().all(|(changed, _)| *changed != key);
    for (key, value) in header.metadata().filter(|(key, _)| is_kept(key)) {
        writer.set(key, value.clone());
    }
    for (key, value) in entries {
        writer.set(key, value.clone());
    }
    for tensor in header.tensors() {
        writer.declare(&tensor.name, &tensor.dims, tensor.ty);
    }
    let mut written = Vec::new();
    let fill = |name: &str, _, _, out: &mut Vec<u8>| {
        let range = &header.tensor(name).unwrap().range;
        out.extend_from_slice(&bytes[range.start as usize..range.end as usize]);
        Ok(())
    };
    writer.write(&mut written, fill).unwrap();
    let path = dir.path().join(format!("{name}.gguf"));
    std::fs::write(&path, written).unwrap();
    path.to_str().unwrap().to_owned()
}

/// Runs a command of the binary to its end.
pub fn sinew(args: &[&str]) -> Output {
    let command = Command::new(SINEW).args(args).stdin(Stdio::null()).output();
    command.expect("the binary was built")
}

/// The standard output of a command that must succeed.
pub fn stdout(args: &[&str]) -> String {
    let output = sinew(args);
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{args:?}: {stderr}");
    String::from_utf8(output.stdout).unwrap()
}

/// The error text of a command that must fail with exit code 1.
pub fn refused(args: &[&str]) -> String {
    let output = sinew(args);
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{args:?}: {stderr}");
    assert!(!stderr.contains("panicked"), "{args:?}: {stderr}");
    stderr
}

/// A running node. Dropping it ends it, as the end of its parent would.
pub struct Node {
    child: Child,
    input: Option<ChildStdin>,
    pub dir: TempDir,
    pub api: String,
}

impl Node {
    pub fn start(name: &str) -> Self {
        Self::start_in(name, tempfile::tempdir().unwrap(), "127.0.0.1:0")
    }

    /// Starts a node on an existing data directory.
    pub fn start_in(name: &str, dir: TempDir, listen: &str) -> Self {
        Self::start_with(name, dir, listen, |_| {})
    }

    /// The same, with a changed command.
    pub fn start_with(
        name: &str,
        dir: TempDir,
        listen: &str,
        change: impl FnOnce(&mut Command),
    ) -> Self {
        let mut command = Command::new(SINEW);
        command
            .args(["up", "--with-parent", "--name", name, "--threads", "1"])
            .args(["--api", "127.0.0.1:0", "--listen", listen, "--data-dir"])
            .arg(dir.path())
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::inherit());
        change(&mut command);
        let mut child = command.spawn().expect("the binary was built");
        let input = child.stdin.take();
        let mut node = Self { child, input, dir, api: String::new() };
        wait_for("the node to be up", || node.announced());
        node
    }

    fn announced(&mut self) -> Option<()> {
        let text = std::fs::read(self.dir.path().join("daemon.json")).ok()?;
        let daemon: Value = serde_json::from_slice(&text).ok()?;
        // An older process's announcement does not count.
        (daemon["pid"] == json!(self.child.id())).then_some(())?;
        self.api = format!("http://{}", daemon["api"].as_str()?);
        Some(())
    }

    pub fn listen_addr(&self) -> String {
        let text = std::fs::read(self.dir.path().join("daemon.json")).unwrap();
        let daemon: Value = serde_json::from_slice(&text).unwrap();
        daemon["listen"].as_str().unwrap().to_owned()
    }

    /// Runs a command on this node.
    pub fn run(&self, args: &[&str]) -> String {
        stdout(&self.with_dir(args))
    }

    pub fn refused(&self, args: &[&str]) -> String {
        refused(&self.with_dir(args))
    }

    fn with_dir<'a>(&'a self, args: &[&'a str]) -> Vec<&'a str> {
        let dir = self.dir.path().to_str().unwrap();
        [args, &["--data-dir", dir]].concat()
    }

    pub fn json(&self, args: &[&str]) -> Value {
        serde_json::from_str(&self.run(&[args, &["--json"]].concat())).unwrap()
    }

    /// Admits `other` to this node's cluster, and waits until both list both as live.
    pub fn admit(&self, other: &Node) {
        let invite = self.json(&["invite"]);
        other.run(&["join", invite["code"].as_str().unwrap()]);
        for node in [self, other] {
            wait_for("both nodes to be live", || {
                let nodes = node.json(&["nodes"]);
                let live = nodes.as_array()?.iter().filter(|node| node["state"] == "live").count();
                (live >= 2).then_some(())
            });
        }
    }

    /// The process of each rank of a served model.
    pub fn worker_pids(&self, model: &str) -> Vec<u64> {
        let instance = self.instance(model).expect("the model is served");
        let ranks = instance["ranks"].as_array().unwrap().clone();
        ranks.iter().filter_map(|rank| rank["pid"].as_u64()).collect()
    }

    pub fn instance(&self, model: &str) -> Option<Value> {
        let instances = self.json(&["ps"]);
        instances.as_array()?.iter().find(|instance| instance["model"] == model).cloned()
    }

    pub fn kill(mut self) -> TempDir {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
        std::mem::replace(&mut self.dir, tempfile::tempdir().unwrap())
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    pub fn signal(&self, signal: &str) {
        self::signal(signal, self.child.id().into());
    }

    pub fn has_ended(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(Some(_)))
    }

    /// A plain chat completion at temperature 0.
    pub fn chat(&self, model: &str, prompt: &str, max_tokens: usize) -> Value {
        let body = json!({
            "model": model, "temperature": 0, "max_tokens": max_tokens,
            "messages": [{ "role": "user", "content": prompt }],
        });
        let url = format!("{}/v1/chat/completions", self.api);
        let mut response = agent().post(&url).send_json(&body).expect("the node answers");
        response.body_mut().read_json().unwrap()
    }

    /// The events of a streamed chat completion, as they arrive.
    pub fn stream(
        &self,
        model: &str,
        prompt: &str,
        max_tokens: usize,
    ) -> impl Iterator<Item = String> + use<> {
        self.stream_with(model, prompt, max_tokens, &json!({}))
    }

    /// The same, with more fields in the request.
    pub fn stream_with(
        &self,
        model: &str,
        prompt: &str,
        max_tokens: usize,
        more: &Value,
    ) -> impl Iterator<Item = String> + use<> {
        let mut body = json!({
            "model": model, "temperature": 1, "seed": 1, "max_tokens": max_tokens, "stream": true,
            "messages": [{ "role": "user", "content": prompt }],
        });
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        let url = format!("{}/v1/chat/completions", self.api);
        let response = agent().post(&url).send_json(&body).expect("the node answers");
        let lines = BufReader::new(response.into_body().into_reader()).lines();
        lines.map_while(Result::ok).filter_map(|line| Some(line.strip_prefix("data: ")?.to_owned()))
    }

    /// Sends a raw request; returns status line and body.
    pub fn request(&self, request: &str) -> String {
        use std::io::Write;
        let mut stream =
            std::net::TcpStream::connect(self.api.trim_start_matches("http://")).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.write_all(request.as_bytes()).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        drop(self.input.take());
        let deadline = Instant::now() + PATIENCE;
        while !self.has_ended() && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(10));
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Sends any JSON request, and returns any response.
pub fn request(url: &str, body: &Value) -> ureq::http::Response<ureq::Body> {
    agent().post(url).send_json(body).expect("the node answers")
}

fn agent() -> ureq::Agent {
    let config = ureq::Agent::config_builder().http_status_as_error(false);
    config.timeout_global(Some(PATIENCE)).build().into()
}

/// Repeats `look` until it returns a value.
pub fn wait_for<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + PATIENCE;
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(Instant::now() < deadline, "waited {} s for {what}", PATIENCE.as_secs());
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[cfg(windows)]
pub fn is_alive(pid: u64) -> bool {
    win32::process::is_alive(pid as u32)
}

#[cfg(unix)]
pub fn is_alive(pid: u64) -> bool {
    // A zombie has ended; its parent has not waited for it yet.
    !matches!(state(pid), None | Some('Z'))
}

/// What the system does with a process: R, S and D run or wait, T is stopped, Z has ended.
#[cfg(unix)]
fn state(pid: u64) -> Option<char> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.rsplit(')').next()?.trim_start().chars().next()
}

pub fn kill_9(pid: u64) {
    signal("-9", pid);
}

/// Sends a signal. After "-STOP" the process stands still: until then it would still take others, and
/// go on for a moment on a busy machine.
#[cfg(unix)]
pub fn signal(signal: &str, pid: u64) {
    let status = Command::new("kill").args([signal, &pid.to_string()]).status().unwrap();
    assert!(status.success());
    if signal == "-STOP" {
        wait_for("the process to stop", || (state(pid) == Some('T')).then_some(()));
    }
}

/// Windows can only end a process.
#[cfg(windows)]
pub fn signal(signal: &str, pid: u64) {
    assert!(["-9", "-KILL"].contains(&signal), "there is no {signal} on Windows");
    let status = Command::new("taskkill").args(["/F", "/PID", &pid.to_string()]).status().unwrap();
    assert!(status.success());
}

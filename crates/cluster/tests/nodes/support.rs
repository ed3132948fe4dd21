//! Shared parts of the tests: nodes in this process and in others, a model file, and a time limit.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use cluster::{
    ClusterStatus, GenerateEvent, GenerateRequest, GenerateStream, InstanceSpec, InstanceStatus,
    Node, NodeConfig, NodeState, NodeStatus, Rates, Speed, WorkerDevice,
};
use gguf::{Source, Value, Writer};
use tempfile::TempDir;
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::Child;
use tokio::time::timeout;

use crate::worker::MODE_WELL;

pub const LOOPBACK: &str = "127.0.0.1:0";
/// Longer than any wait that should end, on a machine that is busy with other tests.
pub const TIMEOUT: Duration = MINUTE;
pub const MINUTE: Duration = Duration::from_secs(60);

/// So slow that a model of a few kilobytes is worth all nodes.
fn slow(_threads: usize, _device: Option<&WorkerDevice>) -> Option<Speed> {
    let rates =
        Rates { read_bytes_per_sec: 1e4, quantised_ops_per_sec: 1e6, float_ops_per_sec: 1e6 };
    let machine =
        Rates { read_bytes_per_sec: 1e6, quantised_ops_per_sec: 1e8, float_ops_per_sec: 1e8 };
    Some(Speed { machine, ..Speed::alone(rates, 0.0) })
}

pub fn program() -> String {
    std::env::current_exe().expect("this program").display().to_string()
}

pub fn config(data_dir: &Path, name: &str, listen: SocketAddr) -> NodeConfig {
    NodeConfig {
        prompts: cluster::PromptsConfig::off(),
        data_dir: data_dir.to_path_buf(),
        name: name.to_owned(),
        listen,
        link_addresses: Vec::new(),
        peers: Vec::new(),
        device_nodes: Vec::new(),
        worker_command: vec![program(), "worker".to_owned(), MODE_WELL.to_owned()],
        memory_bytes: 1 << 30,
        threads: 1,
        fleet_key: None,
        announce: false,
        cpus: Vec::new(),
        device: Default::default(),
        measure: slow,
        check_text: |_| Ok(Vec::new()),
        places: Default::default(),
        hub: Default::default(),
    }
}

/// A node of this process with its own directory.
pub struct Home {
    pub dir: TempDir,
    pub node: Node,
    name: String,
}

impl Home {
    pub async fn new(name: &str) -> Self {
        Self::with(name, |_| {}).await
    }

    pub async fn with(name: &str, change: impl FnOnce(&mut NodeConfig)) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let mut config = config(dir.path(), name, LOOPBACK.parse().unwrap());
        change(&mut config);
        let name = config.name.clone();
        Self { node: Node::start(config).await.unwrap(), dir, name }
    }

    /// Starts the node again at its address, after a shutdown.
    pub async fn start(&mut self) {
        // Shutting down twice does nothing.
        self.node.shutdown().await;
        let config = config(self.dir.path(), &self.name, self.node.listen_addr());
        self.node = started(config).await;
    }

    pub async fn join(&self, other: &Node) {
        let invite = other.invite(MINUTE).await.unwrap();
        self.node.join(&invite.code).await.unwrap();
        // A node that has joined can take work; the other end publishes it in the same turn.
        let me = self.node.id();
        let takes_work =
            |node: &NodeStatus| node.id == me && (node.state, node.threads) == (NodeState::Live, 1);
        until(other, "joining", |status| status.nodes.iter().any(takes_work)).await;
    }
}

/// Starts a node in a directory that another one has just left.
pub async fn started(config: NodeConfig) -> Node {
    // A worker that another test is just starting holds this program's open files.
    poll("the directory to be free", async || match Node::start(config.clone()).await {
        Err(cluster::Error::DataDirInUse { .. }) => None,
        started => Some(started.unwrap()),
    })
    .await
}

/// Repeats `look` until it returns a value.
pub async fn poll<T>(what: &str, mut look: impl AsyncFnMut() -> Option<T>) -> T {
    let looking = async {
        loop {
            if let Some(found) = look().await {
                return found;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    let found = timeout(TIMEOUT, looking).await;
    found.unwrap_or_else(|_| panic!("waited {} s for {what}", TIMEOUT.as_secs()))
}

/// A cluster of nodes of this process; the first one issues the codes.
pub async fn cluster(names: &[&str]) -> Vec<Home> {
    let mut homes: Vec<Home> = Vec::new();
    for name in names {
        let home = Home::new(name).await;
        if let Some(first) = homes.first() {
            home.join(&first.node).await;
        }
        homes.push(home);
    }
    for home in &homes {
        live(&home.node, names.len()).await;
    }
    homes
}

/// A node in its own process, which can be killed.
pub struct Elsewhere {
    pub child: Child,
}

impl Elsewhere {
    pub async fn start(data_dir: &Path, listen: SocketAddr, code: &str) -> Self {
        let mut child = tokio::process::Command::new(program())
            .args(["node", data_dir.to_str().unwrap(), &listen.to_string(), code])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let line = timeout(TIMEOUT, lines.next_line()).await.unwrap().unwrap();
        assert_eq!(line.as_deref(), Some("ready"));
        Self { child }
    }

    pub async fn kill(&mut self) {
        self.child.kill().await.unwrap();
    }
}

/// The main function of such a process, which ends with its input.
pub async fn node_main(data_dir: &str, listen: &str, code: &str) {
    let node = Node::start(config(Path::new(data_dir), "elsewhere", listen.parse().unwrap()));
    let node = node.await.unwrap();
    if !code.is_empty() {
        node.join(code).await.unwrap();
    }
    println!("ready");
    let input =
        tokio::task::spawn_blocking(|| std::io::stdin().lines().map_while(Result::ok).last());
    input.await.unwrap();
    node.shutdown().await;
}

/// A model file whose weights are zeros.
pub fn model(dir: &Path, name: &str) -> PathBuf {
    let like = gguf::File::open(fixtures::path("models/llama3-tied.gguf")).expect("a fixture");
    let mut writer = Writer::new();
    writer.set("general.name", Value::String(name.to_owned()));
    writer.set("llama.context_length", Value::U32(4096));
    let ours = ["general.name", "llama.context_length"];
    for (key, value) in like.directory().metadata().filter(|(key, _)| !ours.contains(key)) {
        writer.set(key, value.clone());
    }
    for tensor in like.directory().tensors() {
        writer.declare(&tensor.name, &tensor.dims, tensor.ty);
    }
    let mut bytes = Vec::new();
    let fill = |_: &str, _, bytes: u64, out: &mut Vec<u8>| {
        out.resize(out.len() + bytes as usize, 0);
        Ok(())
    };
    writer.write(&mut bytes, fill).unwrap();
    let path = dir.join(format!("{name}.gguf"));
    std::fs::write(&path, bytes).unwrap();
    path
}

pub fn serve(path: &Path) -> InstanceSpec {
    InstanceSpec {
        model: path.display().to_string(),
        context_tokens: Some(1024),
        sequences_max: Some(2),
        ..InstanceSpec::default()
    }
}

pub fn prompt(first: u32, max_tokens: usize) -> GenerateRequest {
    GenerateRequest { prompt: vec![first, 1, 2], max_tokens, ..GenerateRequest::default() }
}

/// Serves a model on all nodes of a cluster and waits until it is ready.
pub async fn ready(home: &Home) -> String {
    let path = model(home.dir.path(), "counter");
    let id = home.node.serve(serve(&path)).await.unwrap();
    timeout(TIMEOUT, home.node.wait_ready(&id)).await.unwrap().unwrap();
    id
}

/// The end of a stream.
#[derive(Debug)]
pub enum Ended {
    Done(cluster::GenerateDone),
    Failed(String),
    /// Neither: a defect.
    Silently,
}

pub async fn collect(mut stream: GenerateStream) -> (Vec<u32>, Ended) {
    let mut tokens = Vec::new();
    loop {
        match timeout(TIMEOUT, stream.recv()).await.expect("an event in time") {
            Some(GenerateEvent::Waiting { .. } | GenerateEvent::Began(_)) => {}
            Some(GenerateEvent::Tokens(more)) => {
                tokens.extend(more.iter().map(|answer| answer.token))
            }
            Some(GenerateEvent::Done(done)) => return (tokens, Ended::Done(done)),
            Some(GenerateEvent::Failed { reason, .. }) => return (tokens, Ended::Failed(reason)),
            None => return (tokens, Ended::Silently),
        }
    }
}

/// Sends a request and expects the complete answer.
pub async fn ask(node: &Node, name: &str, first: u32) {
    let (tokens, ended) = collect(node.generate(name, prompt(first, 10)).await.unwrap()).await;
    assert!(matches!(ended, Ended::Done(_)), "{ended:?}");
    assert_eq!(tokens, (first..first + 10).collect::<Vec<_>>());
}

/// An answer in progress, whose tokens must be consecutive.
pub struct Streaming {
    stream: GenerateStream,
    first: u32,
    /// The tokens so far.
    pub tokens: u32,
}

impl Streaming {
    /// Requests `max_tokens` tokens, and waits for the first one.
    pub async fn start(node: &Node, name: &str, first: u32, max_tokens: usize) -> Self {
        let stream = node.generate(name, prompt(first, max_tokens)).await.unwrap();
        let mut streaming = Self { stream, first, tokens: 0 };
        streaming.go_on().await;
        streaming
    }

    async fn event(&mut self) -> GenerateEvent {
        let event = timeout(TIMEOUT, self.stream.recv()).await.expect("an event in time");
        let event = event.expect("no stream ends in silence");
        if let GenerateEvent::Tokens(tokens) = &event {
            for answer in tokens {
                assert_eq!(answer.token, self.first + self.tokens);
                self.tokens += 1;
            }
        }
        event
    }

    /// Waits for the next token.
    pub async fn go_on(&mut self) {
        loop {
            match self.event().await {
                GenerateEvent::Tokens(_) => return,
                GenerateEvent::Waiting { .. } | GenerateEvent::Began(_) => {}
                ended => panic!("{ended:?}"),
            }
        }
    }

    /// Waits until the stream pauses; returns the reason.
    pub async fn pause(&mut self) -> String {
        loop {
            match self.event().await {
                GenerateEvent::Waiting { reason } => return reason,
                GenerateEvent::Began(_) | GenerateEvent::Tokens(_) => {}
                ended => panic!("{ended:?}"),
            }
        }
    }

    pub async fn end(mut self) -> Ended {
        loop {
            match self.event().await {
                GenerateEvent::Done(done) => {
                    assert_eq!(done.generated_tokens, self.tokens as usize);
                    return Ended::Done(done);
                }
                GenerateEvent::Failed { reason, .. } => return Ended::Failed(reason),
                _ => {}
            }
        }
    }
}

/// Waits until tokens flow, of an answer as long as the context allows.
pub async fn streaming(node: &Node, name: &str) -> Streaming {
    Streaming::start(node, name, 100, 1_000_000).await
}

/// Waits until the status satisfies `wanted`; fails with the last status if it never does.
pub async fn until(node: &Node, what: &str, wanted: impl Fn(&ClusterStatus) -> bool) {
    let mut watch = node.watch();
    let waiting = async { drop(watch.wait_for(|status| wanted(status)).await.unwrap()) };
    if timeout(TIMEOUT, waiting).await.is_err() {
        panic!("{what} did not come about: {:#?}", node.status());
    }
}

/// Waits until `count` nodes are live and can take work.
pub async fn live(node: &Node, count: usize) {
    until(node, &format!("{count} live nodes"), |status| {
        let is_live = |n: &&cluster::NodeStatus| n.state == NodeState::Live && n.threads > 0;
        status.nodes.iter().filter(is_live).count() == count
    })
    .await;
}

pub fn instance(node: &Node, id: &str) -> InstanceStatus {
    node.status().instances.into_iter().find(|instance| instance.id == id).unwrap()
}

pub fn pid(node: &Node, id: &str, rank: usize) -> u32 {
    instance(node, id).ranks[rank].pid.expect("the worker runs")
}

/// Kills a rank's worker and waits until the node has noticed: a request before that would be lost.
pub async fn kill_worker(node: &Node, id: &str, rank: usize) {
    let victim = pid(node, id, rank);
    kill(victim, "-KILL");
    let has_it = |i: &InstanceStatus| i.ranks.iter().any(|rank| rank.pid == Some(victim));
    until(node, "the loss of a worker", |s| !s.instances.iter().any(has_it)).await;
}

pub fn kill(pid: u32, signal: &str) {
    let status = std::process::Command::new("kill").args([signal, &pid.to_string()]).status();
    assert!(status.unwrap().success(), "kill {signal} {pid}");
    // A signal takes effect later on a busy machine.
    while signal == "-STOP" && !state(pid).starts_with('T') {
        std::thread::yield_now();
    }
}

/// Whether a process runs; one that has ended but was not waited for does not.
pub fn is_alive(pid: u32) -> bool {
    !matches!(state(pid).chars().next(), None | Some('Z'))
}

/// What the system does with a process: `T` is stopped, `Z` has ended, nothing is gone.
fn state(pid: u32) -> String {
    let mut ps = std::process::Command::new("ps");
    let state = ps.args(["-o", "stat=", "-p", &pid.to_string()]).output().unwrap().stdout;
    String::from_utf8(state).unwrap()
}

//! Several nodes on this machine, each a process with its own data directory and identity, for
//! `sinew demo`, and for `sinew run` without a running node.

use std::fs::File;
use std::io::{self, BufRead, BufReader};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use tempfile::TempDir;

use crate::client::Client;
use crate::data_dir::DataDir;
use crate::error::{CliError, Doing};

/// A node needs well under a second; a machine that is busy compiling may need many.
const START_TIMEOUT: Duration = Duration::from_secs(30);
const STOP_TIMEOUT: Duration = Duration::from_secs(5);
const POLL: Duration = Duration::from_millis(10);
/// Lines of a dead node's log in the error.
const LOG_LINES: usize = 5;
const API_PORT: u16 = 8750;

/// One node's process.
struct LocalNode {
    name: String,
    child: Child,
    data_dir: DataDir,
}

/// Nodes that have joined each other. They end when this is dropped, or when this process ends in
/// any way: they read its end of a pipe.
pub struct LocalCluster {
    nodes: Vec<LocalNode>,
    /// Removed last, when no node uses it any more.
    dir: TempDir,
}

impl LocalCluster {
    /// Starts `count` nodes and joins them. The first one's API listens on `api`, the others' on
    /// any free port.
    ///
    /// # Errors
    /// A node does not start or the others cannot join the first.
    pub fn start(count: usize, api: SocketAddr) -> Result<Self, CliError> {
        let dir = tempfile::Builder::new().prefix("sinew-").tempdir();
        let dir = dir.doing("cannot make a temporary directory")?;
        let mut cluster = Self { nodes: Vec::new(), dir };
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let threads = (cores / count).max(1);
        for number in 1..=count {
            let api = if number == 1 { api } else { any_api_address() };
            cluster.spawn(number, api, threads, &engine::own_cpus(number - 1, count, threads))?;
        }
        for node in &mut cluster.nodes {
            node.wait_until_up()?;
        }
        let first = cluster.client()?;
        for node in &cluster.nodes[1..] {
            let code = first.invite(60)?.code;
            Client::here(&node.data_dir)?.join(&code)?;
        }
        Ok(cluster)
    }

    /// The first node's API.
    pub fn client(&self) -> Result<Client, CliError> {
        Client::here(&self.nodes[0].data_dir)
    }

    /// The first node's data directory.
    pub fn data_dir(&self) -> &DataDir {
        &self.nodes[0].data_dir
    }

    /// Name and process id of each node.
    pub fn processes(&self) -> impl Iterator<Item = (&str, u32)> {
        self.nodes.iter().map(|node| (node.name.as_str(), node.child.id()))
    }

    /// Each node gets its own CPUs if there are enough: threads spin while they wait for each
    /// other, and two that share a CPU would delay each other.
    fn spawn(
        &mut self,
        number: usize,
        api: SocketAddr,
        threads: usize,
        cpus: &[usize],
    ) -> Result<(), CliError> {
        let name = format!("node-{number}");
        let data_dir = DataDir::at(self.dir.path().join(&name));
        data_dir.create()?;
        let program = std::env::current_exe().doing("cannot find this program's own file")?;
        let log = data_dir.path().join("log");
        let log = File::create(&log).doing(format!("cannot write {}", log.display()))?;
        let mut command = Command::new(program);
        if !cpus.is_empty() {
            let cpus: Vec<String> = cpus.iter().map(usize::to_string).collect();
            command.args(["up", "--cpus", &cpus.join(",")]);
        } else {
            command.arg("up");
        }
        let child = command
            .args(["--with-parent", "--name", &name])
            .args(["--listen", &loopback(0).to_string(), "--api", &api.to_string()])
            .args(["--threads", &threads.to_string()])
            .arg("--data-dir")
            .arg(data_dir.path())
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .doing("cannot start a node")?;
        self.nodes.push(LocalNode { name, child, data_dir });
        Ok(())
    }
}

impl Drop for LocalCluster {
    fn drop(&mut self) {
        for node in &mut self.nodes {
            drop(node.child.stdin.take()); // Closing it ends the node.
        }
        let deadline = Instant::now() + STOP_TIMEOUT;
        for node in &mut self.nodes {
            while matches!(node.child.try_wait(), Ok(None)) && Instant::now() < deadline {
                std::thread::sleep(POLL);
            }
            // Errors mean that it has exited already.
            let _ = node.child.kill();
            let _ = node.child.wait();
        }
    }
}

impl LocalNode {
    fn wait_until_up(&mut self) -> Result<(), CliError> {
        let deadline = Instant::now() + START_TIMEOUT;
        while Client::here(&self.data_dir).is_err() {
            let ended = self.child.try_wait().doing("cannot watch a node")?;
            let reason = match ended {
                Some(status) => format!("{status}: {}", self.last_log_lines()),
                None if Instant::now() > deadline => {
                    format!("it was not up after {} s", START_TIMEOUT.as_secs())
                }
                None => {
                    std::thread::sleep(POLL);
                    continue;
                }
            };
            return Err(CliError::NodeDied { name: self.name.clone(), reason });
        }
        Ok(())
    }

    fn last_log_lines(&self) -> String {
        let lines: io::Result<Vec<String>> = File::open(self.data_dir.path().join("log"))
            .and_then(|log| BufReader::new(log).lines().collect());
        let lines = lines.unwrap_or_default();
        lines[lines.len().saturating_sub(LOG_LINES)..].join(" | ")
    }
}

fn loopback(port: u16) -> SocketAddr {
    SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), port)
}

/// A free API address.
pub fn any_api_address() -> SocketAddr {
    loopback(0)
}

/// The usual API address if it is free, so that copied commands keep working.
pub fn usual_api_address() -> SocketAddr {
    let usual = loopback(API_PORT);
    if TcpListener::bind(usual).is_ok() { usual } else { any_api_address() }
}

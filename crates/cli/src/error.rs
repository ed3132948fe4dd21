use std::net::SocketAddr;
use std::path::PathBuf;

use crate::signals::Status;

/// Why a command failed: what happened, why, and what to do next.
#[derive(Debug, thiserror::Error)]
pub enum CliError {
    #[error("no node runs on this machine (looked in {path}). Start one with: sinew up", path = .data_dir.display())]
    NoNode { data_dir: PathBuf },
    #[error(
        "a node already runs on this machine with this data directory (process {pid}, {api}). Stop it with: sinew stop --node"
    )]
    Running { pid: u32, api: String },
    #[error(
        "the node at {api} does not answer: {source}. It has too many connections, has just ended, \
         or another program has its port; look at what it does with: sinew logs"
    )]
    Unreachable { api: String, source: Box<ureq::Error> },
    #[error(
        "the node at {api} (process {pid}) has taken the call and said nothing for {secs} s: it is \
         stopped, or its machine is overloaded. If it was stopped (ps -o stat= -p {pid} shows T), \
         let it go on with: kill -CONT {pid}"
    )]
    Frozen { api: String, pid: u32, secs: u64 },
    #[error(
        "the node at {api} does not answer: {source}. Check that it is up, that it lets other \
         machines use its API (sinew up --lan), and that SINEW_HOST or --url is its address"
    )]
    Elsewhere { api: String, source: Box<ureq::Error> },
    #[error(
        "the node was told to stop {secs} s ago and has not ended yet; look at what it does with: sinew logs"
    )]
    NotEnded { secs: u64 },
    #[error(
        "there is no place for the node's data: {} is not set, or not absolute. Name a directory with --data-dir \
         DIR, or in SINEW_DATA_DIR",
        crate::data_dir::HOME
    )]
    NoHome,
    /// The node refused, in its own words.
    #[error("{0}")]
    Refused(String),
    /// A question did not fit the model's context, in the node's words.
    #[error("{0}")]
    ContextFull(String),
    /// The user waits no longer, by a signal; what goes on all the same.
    #[error("{what}")]
    Left { what: String, status: Status },
    #[error("{what}: {source}")]
    Io { what: String, source: std::io::Error },
    #[error(
        "cannot listen on {address} ({option}): {who}",
        who = who(.option, .sinew.as_deref())
    )]
    PortTaken { option: &'static str, address: SocketAddr, sinew: Option<String> },
    #[error("node {name} did not start: {reason}")]
    NodeDied { name: String, reason: String },
    #[error(transparent)]
    Start(#[from] serve::StartError),
    #[error(transparent)]
    Cluster(#[from] cluster::Error),
    #[error(transparent)]
    Bench(#[from] bench::Error),
    #[error(transparent)]
    Engine(#[from] engine::EngineError),
    #[error(transparent)]
    Text(#[from] text::TextError),
    #[error(transparent)]
    File(#[from] gguf::Error),
    #[error(transparent)]
    Model(#[from] layout::Error),
    #[error(transparent)]
    Store(#[from] store::StoreError),
    #[error(transparent)]
    Hub(#[from] hub::HubError),
    /// This machine lacks something; the report above names it.
    #[error("{0}")]
    Unfit(&'static str),
    #[error("{0}")]
    Usage(String),
    #[error("the answer was cut short: {0}")]
    Cut(String),
}

/// Who has a port, and what to do about it.
fn who(option: &str, sinew: Option<&str>) -> String {
    match sinew {
        Some(api) => format!(
            "the port is taken, and a Sinew answers at {api}. Use that one, or start this one \
             beside it, with ports and a directory of its own: --listen [::]:PORT, --api \
             127.0.0.1:PORT and --data-dir DIR"
        ),
        None => format!(
            "another program has the port, and it is no Sinew. Stop that program, or choose \
             another port with {option} ADDR:PORT"
        ),
    }
}

/// Adds the failed action to an I/O error.
pub trait Doing<T> {
    fn doing(self, what: impl Into<String>) -> Result<T, CliError>;
}

impl<T> Doing<T> for std::io::Result<T> {
    fn doing(self, what: impl Into<String>) -> Result<T, CliError> {
        self.map_err(|source| CliError::Io { what: what.into(), source })
    }
}

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::{
    AnswerToken, EngineStats, FailureKind, GenerateRequest, Generation, InstanceSpec, RankStats,
    RequestId, Secret, Split,
};

/// What a daemon tells its worker.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WorkerCommand {
    /// The first command: load this shard and listen for the other ranks.
    Open(Box<WorkerSpec>),
    /// Build the links of a new epoch. Any older epoch has ended.
    Connect {
        epoch: u64,
        /// Where each rank listens, by rank, at one address or several; of the worker's own entry
        /// only their number counts.
        endpoints: Vec<Vec<SocketAddr>>,
        /// Not every two ranks can link: only those of [`crate::ring_pairs`] do.
        #[serde(default)]
        ring: bool,
        /// From which this epoch's links are keyed: whoever owns the instance now has drawn it.
        secret: Secret,
        /// The largest TCP segment on the way to an address, where larger ones vanish; each daemon
        /// says what it has found itself.
        #[serde(default)]
        segments: Vec<(IpAddr, u16)>,
    },
    /// End the current epoch: running requests are dropped, weights are kept.
    Disconnect,
    Generate {
        request: RequestId,
        generate: GenerateRequest,
    },
    Cancel {
        request: RequestId,
    },
    /// Another rank has called this one at the node's port: the connection comes beside the first
    /// byte of this command.
    Called,
}

/// What a worker tells its daemon.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WorkerEvent {
    /// The data-plane listener is open.
    Listening {
        /// On the address it was told to bind; 0 if it is called at the node's port, which the
        /// daemon puts in its place.
        port: u16,
        /// Further addresses that it was told to bind.
        #[serde(default)]
        more: Vec<SocketAddr>,
    },
    /// Progress of loading this rank's shard.
    Loading {
        done_bytes: u64,
        total_bytes: u64,
    },
    /// The shard is in memory.
    Loaded {
        weight_bytes: u64,
        kv_bytes: u64,
        /// Of the activations of a step.
        #[serde(default)]
        buffer_bytes: u64,
        load_us: u64,
    },
    /// All links of this epoch are up; rank 0 now takes requests.
    Linked {
        epoch: u64,
        /// What of them is not as it was asked for, for a person to read.
        #[serde(default)]
        notes: Vec<String>,
    },
    /// A request's first token is about to come: its account until there.
    Began(Generation),
    /// The next generated token of one request.
    Token {
        request: RequestId,
        answer: AnswerToken,
    },
    Done(Generation),
    /// This request cannot be done (too long, say); the instance is well.
    Rejected {
        request: RequestId,
        kind: FailureKind,
        reason: String,
    },
    /// Rank 0: what it does, at most once a second and only if something has changed.
    Stats(Box<EngineStats>),
    /// Any rank: where its time went, at most once a second and only if it ran a step since.
    RankStats(Box<RankStats>),
    /// The epoch has ended because of another rank; all its requests are lost, the shard is kept.
    Lost {
        epoch: u64,
        rank: Option<usize>,
        reason: String,
        /// If links were being built: the ranks that this one has none with.
        #[serde(default)]
        unreached: Vec<usize>,
    },
    /// Once a second, for the daemon of its own machine: it lives, and no step hangs.
    Alive,
    /// The worker cannot go on and exits (no memory, unreadable model, ...).
    Failed {
        reason: String,
    },
}

/// One rank of one model instance.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct WorkerSpec {
    /// Names the instance on all its nodes.
    pub instance: String,
    pub rank: usize,
    pub spec: InstanceSpec,
    pub split: Split,
    pub model: ModelSource,
    /// Threads that compute, this rank's share of the machine.
    pub threads: usize,
    /// CPUs to pin those threads to, one a thread; empty leaves it to the system.
    #[serde(default)]
    pub cpus: Vec<usize>,
    /// Where it computes; absent: on this machine's processors, with Sinew's own engine.
    #[serde(default)]
    pub device: Option<WorkerDevice>,
    /// Added to every message of the data plane, microseconds: a slower wire, to measure with.
    #[serde(default)]
    pub link_latency_us: u64,
    /// The address on which to listen for the other ranks, unless they call at the node's port.
    #[serde(default)]
    pub bind: Option<IpAddr>,
    /// Further addresses on which to listen, as of faster cables: the others try them first.
    #[serde(default)]
    pub bind_more: Vec<IpAddr>,
}

/// A device of ggml's.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct WorkerDevice {
    /// The folder of the libraries that drive it.
    pub libraries: PathBuf,
    /// As the libraries know it, such as `CUDA0`.
    pub name: String,
}

/// Where a worker reads its slices of the model from.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "from", rename_all = "snake_case")]
pub enum ModelSource {
    /// This machine's file. It is checked as it is read, unless its hashes could not be kept.
    File { path: PathBuf, check: Option<Box<FileCheck>> },
    /// A peer's file, through this machine's daemon, which listens on a loopback address and
    /// knows the caller by the token.
    Peer { relay: SocketAddr, token: Secret },
}

/// By what a worker knows that a file of this machine is still what it was when it was hashed, and
/// where it reads what is not.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct FileCheck {
    /// BLAKE3 of all parts, in hexadecimal digits.
    pub digest: String,
    /// The file with the hashes of its groups.
    pub tree: PathBuf,
    /// As in [`ModelSource::Peer`].
    pub relay: SocketAddr,
    pub token: Secret,
}

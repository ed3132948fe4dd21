use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::{
    AnswerToken, EngineStats, FailureKind, GenerateRequest, Generation, InstanceSpec, RankStats,
    RecordsRelay, RequestId, Secret, Split,
};

/// A message from a daemon to its worker.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WorkerCommand {
    /// The first command: load this shard and listen for the other ranks.
    Open(Box<WorkerSpec>),
    /// Build the links of a new epoch. Any older epoch has ended.
    Connect {
        epoch: u64,
        /// The listening addresses of each rank, by rank; of the worker's own entry only the number
        /// of addresses counts.
        endpoints: Vec<Vec<SocketAddr>>,
        /// Some ranks cannot link: only the pairs in [`crate::ring_pairs`] do.
        #[serde(default)]
        ring: bool,
        /// The source of this epoch's link keys, drawn by the present owner of the instance.
        secret: Secret,
        /// The largest TCP segment towards an address, for paths that drop larger ones; each daemon
        /// adds its own findings.
        #[serde(default)]
        segments: Vec<(IpAddr, u16)>,
    },
    /// End the current epoch: running requests are dropped, weights are kept.
    Disconnect,
    Generate {
        request: RequestId,
        generate: Box<GenerateRequest>,
    },
    Cancel {
        request: RequestId,
    },
    /// Another rank has called this one at the node's port: its connection comes with the first
    /// byte of this command.
    Called,
    /// The same where no connection passes beside bytes (Windows): what this process needs to open
    /// it.
    CalledBy {
        connection: Vec<u8>,
    },
}

/// A message from a worker to its daemon.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WorkerEvent {
    /// The data-plane listener is open.
    Listening {
        /// The port of the address in `bind`; 0 if the rank is called at the node's port, which the
        /// daemon fills in.
        port: u16,
        /// The addresses of `bind_more`.
        #[serde(default)]
        more: Vec<SocketAddr>,
    },
    /// Progress of loading this rank's shard.
    Loading {
        done_bytes: u64,
        total_bytes: u64,
        /// Bytes that have come from other machines, also of parts that are not complete.
        #[serde(default)]
        arrived_bytes: u64,
    },
    /// The shard is in memory.
    Loaded {
        weight_bytes: u64,
        kv_bytes: u64,
        /// Bytes of a step's activations.
        #[serde(default)]
        buffer_bytes: u64,
        load_us: u64,
    },
    /// All links of this epoch are up; rank 0 now takes requests.
    Linked {
        epoch: u64,
        /// Deviations of the links from the request, in words for a user.
        #[serde(default)]
        notes: Vec<String>,
    },
    /// A request's first token is about to come; its account so far.
    Began(Generation),
    /// The next generated token of one request.
    Token {
        request: RequestId,
        answer: AnswerToken,
    },
    Done(Generation),
    /// This request is impossible (too long, for example); the instance is well.
    Rejected {
        request: RequestId,
        kind: FailureKind,
        reason: String,
    },
    /// Rank 0: which texts of whole pages its cache has gained and lost, see
    /// [`page_keys`](crate::page_keys).
    Cached {
        came: Vec<u64>,
        gone: Vec<u64>,
    },
    /// Rank 0: its work, at most once a second and only after a change.
    Stats(Box<EngineStats>),
    /// Any rank: its times, at most once a second and only after a step.
    RankStats(Box<RankStats>),
    /// The epoch has ended because of another rank; all its requests are lost, the shard is kept.
    Lost {
        epoch: u64,
        rank: Option<usize>,
        reason: String,
        /// If links were being built: the ranks without a link to this one.
        #[serde(default)]
        unreached: Vec<usize>,
    },
    /// Once a second, for the local daemon: the worker lives, and no step hangs.
    Alive,
    /// The worker cannot continue and exits (no memory, unreadable model, ...).
    Failed {
        reason: String,
    },
}

/// One rank of one model instance.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct WorkerSpec {
    /// The id of the instance, the same on all its nodes.
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
    /// The compute device; absent: this machine's processors, with Sinew's own engine.
    #[serde(default)]
    pub device: Option<WorkerDevice>,
    /// Added to every message of the data plane, microseconds: simulates a slower wire for
    /// measurements.
    #[serde(default)]
    pub link_latency_us: u64,
    /// The address to listen on for the other ranks, unless they call at the node's port.
    #[serde(default)]
    pub bind: Option<IpAddr>,
    /// Further addresses to listen on, such as those of faster cables: the others try them first.
    #[serde(default)]
    pub bind_more: Vec<IpAddr>,
    /// Where prompts are kept over restarts; absent: nowhere.
    #[serde(default)]
    pub prompts: Option<PromptCache>,
    /// Where experts lie that are not in memory; absent: all of them are.
    #[serde(default)]
    pub experts: Option<ExpertCache>,
}

/// A folder of this rank alone, in which it keeps its experts as slabs, and what it keeps of them
/// in memory.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExpertCache {
    pub folder: PathBuf,
    /// Identifies the bytes of the model's files.
    pub model: String,
    /// What experts may take of memory.
    pub budget_bytes: u64,
    /// What the disk must have left beside the slabs.
    pub reserve_bytes: u64,
    /// A ceiling for reads, to measure with.
    #[serde(default)]
    pub bytes_per_sec_max: Option<u64>,
}

/// A folder of this rank alone, in which it keeps what it has computed of prompts.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PromptCache {
    pub folder: PathBuf,
    pub sealing_key: Secret,
    /// Identifies the bytes of the model's files.
    pub model: String,
    /// What the folder may take of the disk, and what the disk must have left.
    pub budget_bytes: u64,
    pub reserve_bytes: u64,
    /// Where to ask for what other members have; absent: nowhere.
    #[serde(default)]
    pub members: Option<RecordsRelay>,
}

/// A ggml device.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct WorkerDevice {
    /// The folder of its driver libraries.
    pub libraries: PathBuf,
    /// Its name in those libraries, such as `CUDA0`.
    pub name: String,
}

/// The source of a worker's slices of the model.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "from", rename_all = "snake_case")]
pub enum ModelSource {
    /// This machine's file. The worker checks it while reading, unless its hashes could not be
    /// kept.
    File { path: PathBuf, check: Option<Box<FileCheck>> },
    /// A peer's file, through this machine's daemon, which listens on a loopback address and
    /// authenticates the worker by the token.
    Peer { relay: SocketAddr, token: Secret },
}

/// The hashes of a file on this machine, for checking what a worker reads, and the source of parts
/// that fail the check.
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

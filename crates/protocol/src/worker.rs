use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::{Generate, Generation, RequestId, Secret, Token};

/// What a daemon tells its worker.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(tag = "command", rename_all = "snake_case")]
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
    },
    /// End the current epoch: running requests are dropped, weights are kept.
    Disconnect,
    Generate(Generate),
    Cancel {
        request: RequestId,
    },
}

/// What a worker tells its daemon.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum WorkerEvent {
    /// The data-plane listener is open; its port, on the address it was told to bind.
    Listening {
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
        load_us: u64,
    },
    /// All links of this epoch are up; rank 0 now takes requests.
    Linked {
        epoch: u64,
        /// What of them is not as it was asked for, for a person to read.
        #[serde(default)]
        notes: Vec<String>,
    },
    /// The next generated token of one request.
    Token {
        request: RequestId,
        token: Token,
    },
    Done(Generation),
    /// This request cannot be done (too long, say); the instance is well.
    Rejected {
        request: RequestId,
        reason: String,
    },
    /// The epoch has ended because of another rank; all its requests are lost, the shard is kept.
    Lost {
        epoch: u64,
        rank: Option<usize>,
        reason: String,
        /// If links were being built: the ranks that this one has none with.
        #[serde(default)]
        unreached: Vec<usize>,
    },
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
    /// The share of each rank in every layer, in any unit; its length is the number of ranks.
    pub shares: Vec<u32>,
    /// How ranks and layers are cut into stages; empty for one stage of all.
    #[serde(default)]
    pub stages: Vec<StageSize>,
    /// Whether ranks have whole experts instead of columns of each.
    #[serde(default)]
    pub whole_experts: bool,
    #[serde(default)]
    pub cache_type: CacheType,
    #[serde(default)]
    pub wire_type: WireType,
    pub model: ModelSource,
    /// Positions that one sequence may have: prompt plus answer.
    pub context_tokens: usize,
    /// Sequences that may run at once.
    pub sequences_max: usize,
    /// Threads that compute, this rank's share of the machine.
    pub threads: usize,
    /// CPUs to pin those threads to, one a thread; empty leaves it to the system.
    #[serde(default)]
    pub cpus: Vec<usize>,
    pub transport: Transport,
    /// Added to every message of the data plane, microseconds: a slower wire, to measure with.
    #[serde(default)]
    pub link_latency_us: u64,
    /// The address on which to listen for the other ranks.
    pub bind: IpAddr,
    /// Further addresses on which to listen, as of faster cables: the others try them first.
    #[serde(default)]
    pub bind_more: Vec<IpAddr>,
    pub secret: Secret,
}

/// Consecutive layers, and the consecutive ranks that share them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct StageSize {
    pub ranks: usize,
    pub layers: usize,
}

/// How a model is split over ranks.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Strategy {
    /// As is predicted to be fastest for one request; tensor where nothing was measured.
    #[default]
    Auto,
    /// Every layer over all ranks: fastest where links are fast.
    Tensor,
    /// A run of layers to each rank: one message a rank and token.
    Pipeline,
    /// Pairs of ranks, or as many as are asked for, share a run of layers.
    Hybrid,
}

/// How a layer of experts is split over ranks.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ExpertSplit {
    /// By the model's file: columns, unless the experts are too narrow.
    #[default]
    Auto,
    /// Columns of every expert to each rank: all ranks have the same work.
    Columns,
    /// Whole experts to each rank: more ranks than an expert has parts.
    Whole,
}

/// How keys and values are cached.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CacheType {
    /// By the model's file: F32 where its weights are floats, else I16.
    #[default]
    Auto,
    /// Integers of 16 bits, and an f32 scale for each key and each value.
    I16,
    F16,
    /// Eight bits each, and a half-precision scale for each 32 of a head.
    Q8_0,
    F32,
}

/// What the sums that ranks exchange are on the wire.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WireType {
    /// As they are: every split gives the bits of one node.
    #[default]
    F32,
    /// Eight bits each, and a scale for each 32: the same on all ranks, but not those bits.
    Q8,
}

/// Where a worker reads its slices of the model from.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "from", rename_all = "snake_case")]
pub enum ModelSource {
    /// This machine's file.
    File { path: PathBuf },
    /// A peer's file, through this machine's daemon, which listens on a loopback address and
    /// knows the caller by the token.
    Peer { relay: SocketAddr, token: Secret },
}

/// How the ranks of an instance reach each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Transport {
    /// Shared memory on one machine; between machines RDMA where it works, else TCP.
    #[default]
    Auto,
    Shm,
    Tcp,
    Rdma,
}

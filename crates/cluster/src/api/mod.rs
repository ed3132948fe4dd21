//! What a [`crate::Node`] is asked and what it answers: plain data, ready for JSON.

pub(crate) mod peer;
pub(crate) mod pull;

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use hub::Settings;
use placement::Prediction;
use protocol::{
    AnswerToken, EngineStats, FailureKind, FinishReason, KeepAlive, RankStats, Transport,
    WorkerDevice,
};
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize};
use store::{Digest, Listed, Places};

use crate::{
    DeviceConfig, Edge, FleetKey, Machine, NodeDevice, NodeId, Peer, PullStatus, Sensors,
    parse_address,
};

/// Reads a model's tokenizer and chat template from its file's header: what is odd about them, a
/// sentence each, or why the model cannot be used.
pub type CheckText = fn(&gguf::Directory) -> std::result::Result<Vec<String>, String>;

/// How to start a node.
#[derive(Debug, Clone)]
pub struct NodeConfig {
    /// Identity, members and models live here; made with mode 0700 if it is missing.
    pub data_dir: PathBuf,
    /// What people call this machine; its host name by default.
    pub name: String,
    /// Where other nodes reach this one. Port 0 takes a free one.
    pub listen: SocketAddr,
    /// Further addresses of this machine at which ranks of other machines try to reach its ranks
    /// first, as of faster cables: at most [`LINK_ADDRESSES_MAX`].
    pub link_addresses: Vec<IpAddr>,
    /// Whether it announces itself on its networks, and looks for others there.
    pub announce: bool,
    /// Nodes with the same key become one cluster by themselves.
    pub fleet_key: Option<FleetKey>,
    /// Where else members may be than where they were last.
    pub peers: Vec<Peer>,
    /// Nodes of this machine that go where this one goes: with them alone it is in no cluster yet.
    pub device_nodes: Vec<NodeId>,
    /// Program and first arguments that start a worker.
    pub worker_command: Vec<String>,
    /// Memory that workers may use in all, bytes.
    pub memory_bytes: u64,
    /// Threads that workers may use in all.
    pub threads: usize,
    /// CPUs the workers' threads are pinned to; empty leaves it to the system.
    pub cpus: Vec<usize>,
    /// Where workers compute; `memory_bytes` is that device's.
    pub device: DeviceConfig,
    /// Measures what so many threads of this machine do, or that device, in a second or so: by
    /// this, splits are planned. Called once, on a thread of its own.
    pub measure: fn(usize, Option<&WorkerDevice>) -> Option<placement::Speed>,
    /// Called on threads for work that may take a while.
    pub check_text: CheckText,
    /// Where other programs keep models on this machine.
    pub places: Places,
    /// From where models are fetched that are not on this machine.
    pub hub: Settings,
}

/// Of a node, beside the one at which others reach it: a rank has at most eight addresses.
pub const LINK_ADDRESSES_MAX: usize = 7;

/// Everything a person or a program can see of the cluster, from memory, at once.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct ClusterStatus {
    /// The node that was asked.
    pub node: NodeId,
    pub nodes: Vec<NodeStatus>,
    pub instances: Vec<InstanceStatus>,
    /// What a person should know and act on, in words; empty when all is well.
    #[serde(default)]
    pub notices: Vec<String>,
    /// Why the node may not know yet all that is served; absent once it has heard its members.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unsettled: Option<String>,
    /// Nodes that announce themselves nearby and are no members. Anybody on the network can
    /// announce anything.
    #[serde(default)]
    pub nearby: Vec<NearbyNode>,
    /// Machines that ask a member to let them in, whichever it is.
    #[serde(default)]
    pub requests: Vec<PairRequest>,
}

/// A machine that asks to be let in by a number, which it shows.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PairRequest {
    pub id: NodeId,
    /// As it calls itself.
    pub name: String,
    pub address: IpAddr,
    pub expires_in_secs: u64,
    /// The name of the member that it has asked.
    #[serde(default)]
    pub at: String,
}

/// Whom to ask to be let in: by default the one cluster that is near.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct PairWith {
    /// The name of a node nearby, or at least four digits with which its id begins.
    pub node: Option<String>,
    /// Where a node listens; in text also as `[fe80::1%eth0]:8751`.
    #[serde(deserialize_with = "typed_address")]
    pub peer: Option<SocketAddr>,
}

fn typed_address<'de, D: Deserializer<'de>>(input: D) -> Result<Option<SocketAddr>, D::Error> {
    let typed = Option::<String>::deserialize(input)?;
    typed.map(|text| parse_address(&text).map_err(D::Error::custom)).transpose()
}

/// This node's own request to be let in.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PairAsking {
    /// This node, as it is listed at the other one.
    pub me: NodeId,
    /// Six digits to be typed at the other node. Whoever knows them can stand in for it.
    pub number: String,
    /// The other node, once it has answered.
    pub node: Option<NodeId>,
    /// What it calls itself, or its address until then.
    pub name: String,
    pub state: PairState,
    pub expires_in_secs: u64,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PairState {
    Waiting,
    Joined(Joined),
    Failed { reason: String },
}

/// All of pairing at one node: for its owner alone, since it has the number.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pairing {
    pub asking: Option<PairAsking>,
    pub requests: Vec<PairRequest>,
}

/// A node was let in by its number.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Paired {
    pub node: NodeId,
    pub name: String,
    /// Members now, both ends included.
    pub members: usize,
}

/// What a node that is no member announces of itself.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NearbyNode {
    pub id: NodeId,
    pub name: String,
    pub address: SocketAddr,
    /// Members of its cluster, itself included.
    pub nodes: usize,
    /// The same for all nodes of one cluster.
    pub cluster: String,
}

impl ClusterStatus {
    /// Of a node that knows nothing yet.
    pub(crate) fn empty(node: NodeId) -> Self {
        Self {
            node,
            nodes: Vec::new(),
            instances: Vec::new(),
            notices: Vec::new(),
            unsettled: None,
            nearby: Vec::new(),
            requests: Vec::new(),
        }
    }
}

#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct NodeStatus {
    pub id: NodeId,
    pub name: String,
    pub address: SocketAddr,
    pub state: NodeState,
    /// Whether it is to be empty: it gets no ranks and owns nothing new.
    #[serde(default)]
    pub drained: bool,
    pub version: String,
    pub memory_bytes: u64,
    /// Taken by the shards of placed instances.
    pub memory_used_bytes: u64,
    pub threads: usize,
    /// Where its ranks compute, and whose memory is told above; absent: its CPU.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub device: Option<NodeDevice>,
    /// Median round trip of the control plane to the node that was asked; absent for itself.
    pub round_trip_us: Option<u64>,
    /// Whether its memory and the way to it were measured, so that speeds can be predicted.
    #[serde(default)]
    pub measured: bool,
    #[serde(default)]
    pub machine: Machine,
    #[serde(default)]
    pub sensors: Sensors,
    /// Its ways to other nodes as it measured them, the best to each first.
    #[serde(default)]
    pub edges: Vec<Edge>,
    /// The members that it cannot call, although they may call it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub uncalled: Vec<NodeId>,
    /// The models that it is fetching.
    #[serde(default)]
    pub downloads: Vec<PullStatus>,
    /// By how much its clock is ahead of the asked node's; absent for that one itself.
    #[serde(default)]
    pub clock_ahead_ms: Option<i64>,
}

impl NodeStatus {
    /// In words, when other programs use at least half a processor of those that its threads need.
    pub fn crowded(&self) -> Option<String> {
        let (cores, threads) = (self.machine.cores, self.threads);
        let others = self.sensors.others_processors?.min(cores as f64);
        let is_crowded = others >= cores.saturating_sub(threads) as f64 + 0.5;
        let threads = match threads {
            1 => "its one thread runs".to_owned(),
            _ => format!("its {threads} threads run"),
        };
        is_crowded.then(|| {
            format!(
                "other programs on {} use {others:.1} of its {cores} processors: {threads} slower, \
                 and so does every model that they take part in",
                self.name
            )
        })
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum NodeState {
    Live,
    /// Silent for longer than it should be.
    Suspect,
    Lost,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct InstanceStatus {
    pub id: String,
    /// The name under which clients ask for it.
    pub model: String,
    /// The content of its file, which tells it from others of the same name.
    #[serde(default)]
    pub digest: Option<Digest>,
    #[serde(default)]
    pub model_bytes: u64,
    /// The node that placed it, drives it and answers for it.
    pub owner: NodeId,
    pub state: InstanceState,
    /// Counts the times its ranks were linked anew.
    pub epoch: u64,
    pub context_tokens: usize,
    /// When it was first served under this name, seconds since 1970.
    #[serde(default)]
    pub created_unix_s: u64,
    pub transport: Transport,
    pub ranks: Vec<RankStatus>,
    pub requests_running: usize,
    /// Requests that its owner holds back until rank 0 has room for them.
    #[serde(default)]
    pub requests_waiting: usize,
    /// Whether it has generated a token since its ranks were linked.
    #[serde(default)]
    pub has_generated: bool,
    /// Over the last finished request; absent before the first.
    pub last_decode_tokens_per_sec: Option<f64>,
    /// What rank 0 told last, in this epoch; absent before it did.
    #[serde(default)]
    pub stats: Option<EngineStats>,
    /// Why it is placed as it is, with what was predicted; told by its owner alone.
    #[serde(default)]
    pub placement: Vec<String>,
    /// What was predicted of it, if nodes and links were measured; told by its owner alone.
    #[serde(default)]
    pub prediction: Option<Prediction>,
    /// What is not as it was asked for, though it works: addresses that do not answer.
    #[serde(default)]
    pub notes: Vec<String>,
    /// For how long it stays loaded while nobody asks for anything; absent: for good.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub keep_alive: Option<KeepAlive>,
    /// Since when nobody asks for anything, seconds since 1970 by its owner's clock.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub idle_since_unix_s: Option<u64>,
    /// When it is unloaded if nobody asks for anything until then, by the same clock.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unloads_at_unix_s: Option<u64>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "state", rename_all = "snake_case")]
pub enum InstanceState {
    /// Its ranks are loading their shards.
    Loading,
    Ready,
    /// In no node's memory; the first request loads it.
    Unloaded,
    /// A rank was lost; the others keep their shards while it comes back.
    Recovering {
        reason: String,
    },
    /// It gave up; `reason` says why and what to do.
    Failed {
        reason: String,
    },
}

#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct RankStatus {
    pub rank: usize,
    pub node: NodeId,
    pub node_name: String,
    /// The worker's process id on its node, while it runs.
    pub pid: Option<u32>,
    pub share: u32,
    /// What is set aside for it on its node.
    #[serde(default)]
    pub memory_bytes: u64,
    /// Bytes of this rank's shard that are in memory, and that there will be.
    pub loaded_bytes: u64,
    pub total_bytes: u64,
    pub kv_bytes: u64,
    /// Of the activations of a step.
    #[serde(default)]
    pub buffer_bytes: u64,
    /// What it told last, in this epoch; absent before it did.
    #[serde(default)]
    pub stats: Option<RankStats>,
}

/// What comes back for a prompt. A stream ends after `Done` or `Failed`; one that ends without
/// either has failed as well.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum GenerateEvent {
    /// The instance is loading or recovering; the request waits. Repeated every few seconds.
    Waiting {
        reason: String,
    },
    /// The first token is about to come: the account so far, for whoever ends the answer by itself.
    Began(GenerateDone),
    Tokens(Vec<AnswerToken>),
    Done(GenerateDone),
    Failed {
        kind: FailureKind,
        reason: String,
    },
}

#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct GenerateDone {
    pub reason: FinishReason,
    pub prompt_tokens: usize,
    pub generated_tokens: usize,
    /// Tokens of the prompt whose keys and values were in the cache already.
    #[serde(default)]
    pub cached_tokens: usize,
    /// From its arrival in the worker to its first step.
    #[serde(default)]
    pub queue: Duration,
    pub prefill: Duration,
    pub decode: Duration,
    /// For how long rank 0 waited for each rank, by rank, from the first step on; empty where
    /// there is no other, or where the request ran in several pieces.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub waits: Vec<Duration>,
    /// If one was asked for: `[width]`, of length one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub embedding: Option<Vec<f32>>,
}

/// A model on the disk of a node.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Held {
    #[serde(flatten)]
    pub listed: Listed,
    /// The node's name, if it is another one than was asked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node: Option<String>,
}

/// What is known of a model that somebody is about to ask for.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Identified {
    /// The name of the instance that serves this very content.
    pub served_as: Option<String>,
    /// What it would be called if it was served now.
    pub name: Option<String>,
}

/// A one-time code that lets one machine join.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Invite {
    pub code: String,
    pub expires_in_secs: u64,
}

/// What taking a node out of the cluster led to.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Parted {
    /// The node that is a member no more.
    pub node: NodeId,
    pub name: String,
    /// Members that were told at once; the others hear of it when they are back.
    pub told: usize,
    /// Members that were not.
    pub untold: usize,
}

/// What joining led to.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Joined {
    /// The node whose code it was.
    pub by: NodeId,
    pub by_name: String,
    /// All members now, this node included.
    pub members: usize,
}

//! The data types of [`crate::Node`]'s calls: plain data, ready for JSON.

pub(crate) mod library;
pub(crate) mod machine;
pub(crate) mod peer;
pub(crate) mod prompts;
pub(crate) mod pull;
mod replicas;

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use hub::Settings;
use placement::Prediction;
use protocol::{
    AnswerToken, EngineStats, FailureKind, FinishReason, Guesses, KeepAlive, Preset, RankStats,
    Transport, WorkerDevice,
};
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize};
use store::{Digest, Places};

use crate::{
    DeviceConfig, Edge, FleetKey, Machine, NodeDevice, NodeId, Peer, PromptsConfig, PullStatus,
    Sensors, parse_address,
};

/// Checks a model's tokenizer and chat template by its file's header. Returns remarks, a sentence
/// each, or the reason why the model is unusable.
pub type CheckText = fn(&gguf::Directory) -> std::result::Result<Vec<String>, String>;

/// The configuration of a node.
#[derive(Debug, Clone)]
pub struct NodeConfig {
    /// Holds identity, members and models. Created with mode 0700 if missing.
    pub data_dir: PathBuf,
    /// Name of this machine for users; its host name by default.
    pub name: String,
    /// Address at which other nodes reach this one. Port 0 takes a free one.
    pub listen: SocketAddr,
    /// Further addresses of this machine, such as those of faster cables: at most
    /// [`LINK_ADDRESSES_MAX`]. Ranks of other machines try them first.
    pub link_addresses: Vec<IpAddr>,
    /// Whether it announces itself on its networks, and looks for others there.
    pub announce: bool,
    /// Nodes with the same key form one cluster by themselves.
    pub fleet_key: Option<FleetKey>,
    /// Further addresses of members, beside the remembered ones.
    pub peers: Vec<Peer>,
    /// Nodes of this machine that join and leave with this one. They do not count as a cluster of
    /// their own.
    pub device_nodes: Vec<NodeId>,
    /// Program and first arguments of a worker.
    pub worker_command: Vec<String>,
    /// Memory of all workers together, in bytes.
    pub memory_bytes: u64,
    /// Threads of all workers together.
    pub threads: usize,
    /// CPUs the workers' threads are pinned to; empty leaves it to the system.
    pub cpus: Vec<usize>,
    /// The device that workers compute on; `memory_bytes` is that device's.
    pub device: DeviceConfig,
    /// Measures the speed of a number of this machine's threads, or of the device, in about a
    /// second. Splits are planned with the result. Called on its own thread.
    pub measure: fn(usize, Option<&WorkerDevice>) -> Option<placement::Speed>,
    /// Called on threads for blocking work.
    pub check_text: CheckText,
    /// Folders in which other programs keep models on this machine.
    pub places: Places,
    /// The hub from which missing models are fetched.
    pub hub: Settings,
    pub prompts: PromptsConfig,
}

/// Limit of a node's link addresses: a rank has at most eight addresses, including the one for
/// other nodes.
pub const LINK_ADDRESSES_MAX: usize = 7;

/// The state of the cluster, as known to one node; read from memory.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct ClusterStatus {
    /// The node that reports.
    pub node: NodeId,
    pub nodes: Vec<NodeStatus>,
    pub instances: Vec<InstanceStatus>,
    /// Notices that need a user's attention; empty when all is well.
    #[serde(default)]
    pub notices: Vec<String>,
    /// Why the node may not know all served models yet; absent once it has the documents of its
    /// members.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unsettled: Option<String>,
    /// Nodes nearby that announce themselves and are not members. Any machine on the network can
    /// announce anything.
    #[serde(default)]
    pub nearby: Vec<NearbyNode>,
    /// Machines that wait for admission at any member.
    #[serde(default)]
    pub requests: Vec<PairRequest>,
    /// The presets of the cluster, by name. As JSON each has its model's name alone.
    #[serde(default, with = "named")]
    pub presets: Arc<[Preset]>,
}

/// Presets without their settings, which may be long and are not for every reader of a status.
mod named {
    use super::{Arc, Deserialize, Deserializer, Preset};

    pub(super) fn serialize<S: serde::Serializer>(
        presets: &[Preset],
        to: S,
    ) -> Result<S::Ok, S::Error> {
        let named = |Preset { name, model, .. }: &Preset| Preset {
            name: name.clone(),
            model: model.clone(),
            ..Preset::default()
        };
        to.collect_seq(presets.iter().map(named))
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(
        from: D,
    ) -> Result<Arc<[Preset]>, D::Error> {
        Vec::deserialize(from).map(Arc::from)
    }
}

/// A machine that waits for admission by a number, which it shows.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PairRequest {
    pub id: NodeId,
    /// Its own name.
    pub name: String,
    pub address: IpAddr,
    pub expires_in_secs: u64,
    /// The name of the member where it waits.
    #[serde(default)]
    pub at: String,
}

/// The target of a request for admission: by default the only cluster nearby.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct PairWith {
    /// The name of a node nearby, or at least four digits with which its id begins.
    pub node: Option<String>,
    /// A node's listen address; in text also as `[fe80::1%eth0]:8751`.
    #[serde(deserialize_with = "typed_address")]
    pub peer: Option<SocketAddr>,
}

fn typed_address<'de, D: Deserializer<'de>>(input: D) -> Result<Option<SocketAddr>, D::Error> {
    let typed = Option::<String>::deserialize(input)?;
    typed.map(|text| parse_address(&text).map_err(D::Error::custom)).transpose()
}

/// This node's own request for admission.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PairAsking {
    /// This node, as it is listed at the other one.
    pub me: NodeId,
    /// Six digits to be typed at the other node. It is a secret: another machine that knows it
    /// could take this one's place.
    pub number: String,
    /// The other node, once it has answered.
    pub node: Option<NodeId>,
    /// Its name, or its address until then.
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

/// The state of pairing at one node. It contains the number, so only the node's user may see it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pairing {
    pub asking: Option<PairAsking>,
    pub requests: Vec<PairRequest>,
}

/// A node was admitted by its number.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Paired {
    pub node: NodeId,
    pub name: String,
    /// Members now, including both ends.
    pub members: usize,
}

/// The announcement of a node that is not a member.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NearbyNode {
    pub id: NodeId,
    pub name: String,
    pub address: SocketAddr,
    /// Members of its cluster, including itself.
    pub nodes: usize,
    /// The same for all nodes of one cluster.
    pub cluster: String,
}

impl ClusterStatus {
    /// The status of a node that has just started.
    pub(crate) fn empty(node: NodeId) -> Self {
        Self {
            node,
            nodes: Vec::new(),
            instances: Vec::new(),
            notices: Vec::new(),
            unsettled: None,
            nearby: Vec::new(),
            requests: Vec::new(),
            presets: Arc::default(),
        }
    }
}

#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct NodeStatus {
    pub id: NodeId,
    pub name: String,
    pub address: SocketAddr,
    pub state: NodeState,
    /// Whether it is drained: it gets no ranks and no new instances.
    #[serde(default)]
    pub drained: bool,
    pub version: String,
    pub memory_bytes: u64,
    /// Memory of the placed instances' shards.
    pub memory_used_bytes: u64,
    pub threads: usize,
    /// The device of its ranks, to which the memory above belongs; absent: its CPU.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub device: Option<NodeDevice>,
    /// Round trip to the reporting node, by the way that ranks would use; until that is measured,
    /// by the control plane. Absent for the node itself and for lost ones.
    pub round_trip_us: Option<u64>,
    /// Whether its memory and the path to it were measured, so that speeds can be predicted.
    #[serde(default)]
    pub measured: bool,
    #[serde(default)]
    pub machine: Machine,
    #[serde(default)]
    pub sensors: Sensors,
    /// Its paths to other nodes by its own measurements, the best to each first.
    #[serde(default)]
    pub edges: Vec<Edge>,
    /// The members that it cannot call, although they may call it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub uncalled: Vec<NodeId>,
    /// Its downloads.
    #[serde(default)]
    pub downloads: Vec<PullStatus>,
    /// By how much its clock is ahead of the reporting node's; absent for that node itself.
    #[serde(default)]
    pub clock_ahead_ms: Option<i64>,
}

impl NodeStatus {
    /// A warning if other programs use at least half a processor of those that its threads need.
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
    /// The name in clients' requests.
    pub model: String,
    /// Hash of the model's content, which distinguishes models of one name.
    #[serde(default)]
    pub digest: Option<Digest>,
    #[serde(default)]
    pub model_bytes: u64,
    /// The reachable nodes with its file: one of them must drive it.
    #[serde(default)]
    pub file_nodes: Vec<String>,
    /// The node that placed it, drives it and answers for it.
    pub owner: NodeId,
    pub state: InstanceState,
    /// Counts how often its ranks were linked.
    pub epoch: u64,
    pub context_tokens: usize,
    /// Time when it was first served under this name, in seconds since 1970.
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
    /// Of the last finished request; absent before the first.
    pub last_decode_tokens_per_sec: Option<f64>,
    /// Rank 0's last report in this epoch.
    #[serde(default)]
    pub stats: Option<EngineStats>,
    /// The reasons for its placement, with the prediction; only from its owner.
    #[serde(default)]
    pub placement: Vec<String>,
    /// The prediction, if nodes and links were measured; only from its owner.
    #[serde(default)]
    pub prediction: Option<Prediction>,
    /// Deviations from its request that do not stop it, such as addresses that do not answer.
    #[serde(default)]
    pub notes: Vec<String>,
    /// The name of the instance that this one is a further replica of.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replica_of: Option<String>,
    /// How many replicas its model shall have; absent: one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replicas_wanted: Option<usize>,
    /// How long it stays loaded without requests; absent: no limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub keep_alive: Option<KeepAlive>,
    /// Since when it has no requests, in seconds since 1970 by its owner's clock.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub idle_since_unix_s: Option<u64>,
    /// When it is unloaded if no request comes until then, by the same clock.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unloads_at_unix_s: Option<u64>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "state", rename_all = "snake_case")]
pub enum InstanceState {
    /// Its ranks are loading their shards.
    Loading,
    Ready,
    /// Not in memory; the first request loads it.
    Unloaded,
    /// A rank was lost; the others keep their shards until it returns.
    Recovering {
        reason: String,
    },
    /// It gave up; `reason` has the cause and a remedy.
    Failed {
        reason: String,
    },
}

impl InstanceState {
    /// How the reason of a recovery begins that is no problem: a better place was found.
    pub(crate) const MOVES: &str = "it moves to ";
}

#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct RankStatus {
    pub rank: usize,
    pub node: NodeId,
    pub node_name: String,
    /// The worker's process id on its node, while it runs.
    pub pid: Option<u32>,
    pub share: u32,
    /// Its part of the weights of all ranks, in per cent.
    #[serde(default)]
    pub percent: f64,
    /// Its planned memory on its node.
    #[serde(default)]
    pub memory_bytes: u64,
    /// Bytes of this rank's shard in memory, and in total.
    pub loaded_bytes: u64,
    pub total_bytes: u64,
    pub kv_bytes: u64,
    /// Of the activations of a step.
    #[serde(default)]
    pub buffer_bytes: u64,
    /// Its last report in this epoch.
    #[serde(default)]
    pub stats: Option<RankStats>,
}

/// The events of a request. A stream ends after `Done` or `Failed`; one that ends without either
/// has failed as well.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum GenerateEvent {
    /// The instance is loading or recovering; the request waits. Repeated every few seconds.
    Waiting {
        reason: String,
    },
    /// The first token is about to come. Carries the report so far, for callers that end the answer
    /// themselves.
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
    /// Tokens of the prompt that were in the cache already.
    #[serde(default)]
    pub cached_tokens: usize,
    #[serde(default)]
    pub guesses: Guesses,
    /// From its arrival in the worker to its first step.
    #[serde(default)]
    pub queue: Duration,
    pub prefill: Duration,
    pub decode: Duration,
    /// How long rank 0 waited for each rank, by rank, from the first step on; empty with one rank,
    /// or if the request ran in several pieces.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub waits: Vec<Duration>,
    /// The embedding, if requested: `[width]`, of length one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub embedding: Option<Vec<f32>>,
}

/// A model's names, as found before a request for it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Identified {
    /// The name of the instance that serves this content.
    pub served_as: Option<String>,
    /// The name under which it would be served.
    pub name: Option<String>,
}

/// A one-time code that lets one machine join.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Invite {
    pub code: String,
    pub expires_in_secs: u64,
}

/// The result of a node's removal or departure.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Parted {
    /// The node that is no longer a member.
    pub node: NodeId,
    pub name: String,
    /// Members that were notified at once; the others receive the removal when they return.
    pub told: usize,
    /// Members that were not.
    pub untold: usize,
}

/// The result of a join.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Joined {
    /// The node that made the code.
    pub by: NodeId,
    pub by_name: String,
    /// All members now, including this node.
    pub members: usize,
}

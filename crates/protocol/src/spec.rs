//! The description of an instance: its specification, and the decided split.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::{ByteSize, KeepAlive, Nodes, Replicas};

/// What is wanted of an instance. Absent fields are left to the plan.
///
/// Nodes tell it to each other and keep it, so it may be older or newer than the program that reads
/// it: missing fields have defaults, unknown ones are ignored, and a new version number refuses
/// readers that would do something else than what is meant. As JSON it is flat.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "clap", derive(clap::Args))]
pub struct InstanceSpec {
    #[serde(default)]
    #[cfg_attr(feature = "clap", arg(skip))]
    pub version: SpecVersion,
    /// A path to a GGUF file on the node that owns the instance, or the name of a file in its
    /// store.
    #[cfg_attr(feature = "clap", arg(skip))]
    pub model: String,
    /// The model's vision tower, an mmproj file on this node [default: the one beside the model]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "clap", arg(long, value_name = "FILE"))]
    pub mmproj: Option<PathBuf>,
    /// The model name in clients' requests; the file's name if absent.
    #[serde(default)]
    #[cfg_attr(feature = "clap", arg(skip))]
    pub name: Option<String>,
    /// Nodes to split the model over: how many, or their names [default: those that pay]
    #[serde(default)]
    #[cfg_attr(feature = "clap", arg(long, value_name = "COUNT|NAME,NAME"))]
    pub nodes: Option<Nodes>,
    #[serde(flatten)]
    #[cfg_attr(feature = "clap", command(flatten))]
    pub options: SplitOptions,
    /// Most tokens of one conversation [default: 8192, or as many as the model was trained to read]
    #[serde(default)]
    #[cfg_attr(feature = "clap", arg(long = "ctx", value_name = "TOKENS"))]
    pub context_tokens: Option<usize>,
    /// The most sequences at once.
    #[serde(default)]
    #[cfg_attr(feature = "clap", arg(skip))]
    pub sequences_max: Option<usize>,
    /// Tokens of all conversations together that are kept in memory [default: a whole --ctx for
    /// each of --parallel, or for 4, or what memory allows]
    #[serde(default)]
    #[cfg_attr(feature = "clap", arg(long, value_name = "TOKENS"))]
    pub cache_tokens: Option<usize>,
    /// What the plan is to be good at
    #[serde(default)]
    #[cfg_attr(feature = "clap", arg(long, value_enum, default_value_t))]
    pub mix: Mix,
    /// How often the model runs, each time on nodes of its own: a number, or auto, which adds
    /// replicas while several answers are asked for at once [default: once]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "clap", arg(long, value_name = "N|auto"))]
    pub replicas: Option<Replicas>,
    /// The id of the instance that this one is a further replica of.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "clap", arg(skip))]
    pub replica_of: Option<String>,
    /// Nodes to copy the whole file to, so that the model outlives any one of them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "clap", arg(skip))]
    pub copies: Option<usize>,
    /// Whether copies are made only where a disk has ample room, and missing ones are no fault.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    #[cfg_attr(feature = "clap", arg(skip))]
    pub copies_if_room: bool,
    /// Whether the instance starts unloaded: the first request loads it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    #[cfg_attr(feature = "clap", arg(skip))]
    pub on_request: bool,
    /// How long an idle instance stays loaded; for good if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "clap", arg(skip))]
    pub keep_alive: Option<KeepAlive>,
}

/// How a model is split over ranks, be they nodes or threads of one process, and what all of them
/// share.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
#[cfg_attr(feature = "clap", derive(clap::Args))]
pub struct SplitOptions {
    /// The share of each node, such as 3,2,1 [default: by their speed and memory]
    #[cfg_attr(
        feature = "clap",
        arg(long = "split", value_name = "SHARES", value_delimiter = ',')
    )]
    pub shares: Option<Vec<u32>>,
    /// How to split the model
    #[cfg_attr(feature = "clap", arg(long, value_enum, default_value_t))]
    pub strategy: Strategy,
    /// The nodes of each stage of a pipeline or hybrid, such as 2,2 [default: 1 or 2 each]
    #[cfg_attr(feature = "clap", arg(long, value_name = "NODES", value_delimiter = ','))]
    pub stages: Option<Vec<usize>>,
    /// The layers of each stage, such as 10,6 [default: by weight and share]
    #[cfg_attr(feature = "clap", arg(long, value_name = "LAYERS", value_delimiter = ','))]
    pub stage_layers: Option<Vec<usize>>,
    /// How to split layers of experts; the choice changes the last bits of a result
    #[cfg_attr(feature = "clap", arg(long, value_enum, default_value_t))]
    pub experts: ExpertSplit,
    /// How keys and values are cached
    #[cfg_attr(feature = "clap", arg(long, value_enum, default_value_t))]
    pub cache_type: CacheType,
    /// What each node keeps of a mixture's experts in memory, such as 8GiB; it reads the others
    /// from its disk [default: all, or what is left beside the cache if not all fit]
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "clap", arg(long, value_name = "SIZE"))]
    pub expert_memory: Option<ByteSize>,
    /// What the sums that nodes exchange are on the wire
    #[cfg_attr(feature = "clap", arg(long, value_enum, default_value_t))]
    pub wire_type: WireType,
    /// How the nodes exchange activations
    #[cfg_attr(feature = "clap", arg(long, value_enum, default_value_t))]
    pub transport: Transport,
    /// Whether next tokens are guessed ahead and verified together
    #[cfg_attr(feature = "clap", arg(long, value_enum, default_value_t))]
    pub speculation: Speculation,
    /// What guesses next tokens, a file on the first node: a small model with the same vocabulary,
    /// an EAGLE-3 head, an MTP block or an assistant
    #[cfg_attr(feature = "clap", arg(long, value_name = "FILE"))]
    pub draft: Option<PathBuf>,
    /// Places in conversations from which they can go on, in models whose layers carry a state
    /// [default: 8]
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "clap", arg(long, value_name = "COUNT"))]
    pub checkpoints: Option<usize>,
}

impl SplitOptions {
    /// States to keep beside those of running sequences: a conversation leaves two behind, at the
    /// end of its prompt and of its answer.
    pub fn checkpoints(&self) -> usize {
        const DEFAULT: usize = 8;
        self.checkpoints.unwrap_or(DEFAULT)
    }
}

/// The version of an [`InstanceSpec`]. A version newer than this program is a read error.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(into = "u32", try_from = "u32")]
pub struct SpecVersion(u32);

impl SpecVersion {
    /// Counts changes that are not safe to ignore.
    pub const CURRENT: Self = Self(1);
}

impl Default for SpecVersion {
    fn default() -> Self {
        Self::CURRENT
    }
}

impl From<SpecVersion> for u32 {
    fn from(version: SpecVersion) -> Self {
        version.0
    }
}

impl TryFrom<u32> for SpecVersion {
    type Error = String;

    fn try_from(version: u32) -> Result<Self, String> {
        let known = Self::CURRENT.0;
        if version <= known {
            return Ok(Self(version));
        }
        Err(format!(
            "the description of the instance has version {version}, and this program reads \
             versions up to {known}. Update sinew on this node"
        ))
    }
}

/// The decided split of an instance: how it is cut, and its limits.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Split {
    /// The share of each rank in every layer, in any unit; its length is the number of ranks.
    pub shares: Vec<u32>,
    /// The stages of ranks and layers; empty for one stage of all.
    #[serde(default)]
    pub stages: Vec<StageSize>,
    /// Whether each rank has whole experts instead of columns of every expert.
    #[serde(default)]
    pub whole_experts: bool,
    /// The most positions of one sequence: prompt plus answer.
    pub context_tokens: usize,
    /// The most sequences at once.
    pub sequences_max: usize,
    /// The capacity of the cache, in positions of all sequences together.
    pub cache_tokens: usize,
    /// Whether rank 0 loads the model's MTP block to speculate next tokens.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub mtp: bool,
    /// What each rank keeps of its experts in memory, in bytes; it reads the others from its disk.
    /// Empty: all of them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub expert_bytes: Vec<u64>,
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
#[cfg_attr(feature = "clap", derive(clap::ValueEnum))]
pub enum Strategy {
    /// As is predicted to be fastest for one request, by what nodes and links were measured to do
    #[default]
    Auto,
    /// Every layer over all nodes
    Tensor,
    /// A run of layers to each node
    Pipeline,
    /// Groups of nodes share a run of layers
    Hybrid,
}

/// What requests are expected: by their time the plan chooses.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[cfg_attr(feature = "clap", derive(clap::ValueEnum))]
pub enum Mix {
    /// One user, with a prompt of 512 tokens and an answer of 256
    #[default]
    One,
    /// As many users at once as --parallel, or 8
    Many,
    /// One user, with a prompt of 8192 tokens
    Long,
}

/// How a layer of experts is split over ranks.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[cfg_attr(feature = "clap", derive(clap::ValueEnum))]
pub enum ExpertSplit {
    /// Columns, unless the model's experts are too narrow
    #[default]
    Auto,
    /// Columns of every expert to each node
    Columns,
    /// Whole experts to each node
    Whole,
}

/// How keys and values are cached.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[cfg_attr(feature = "clap", derive(clap::ValueEnum))]
pub enum CacheType {
    /// F32 if the model's weights are floats, else i16
    #[default]
    Auto,
    /// Integers of 16 bits: the fastest
    I16,
    F16,
    /// Half the memory of f16
    #[cfg_attr(feature = "clap", value(name = "q8_0"))]
    Q8_0,
    F32,
}

/// Whether next tokens are guessed ahead and verified together. Answers are the same.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[cfg_attr(feature = "clap", derive(clap::ValueEnum))]
pub enum Speculation {
    /// Where an answer says what its prompt or itself has said before, for as long as it pays
    #[default]
    Prompt,
    Off,
}

/// What the sums that ranks exchange are on the wire.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[cfg_attr(feature = "clap", derive(clap::ValueEnum))]
pub enum WireType {
    /// As they are: every split gives the bits of one node
    #[default]
    F32,
    /// Eight bits: 3.6 times fewer bytes, for slow wires. Results are no longer those of one node,
    /// or of another split, to the last bit: a near tie may fall otherwise
    Q8,
}

/// How the ranks of an instance reach each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[cfg_attr(feature = "clap", derive(clap::ValueEnum))]
pub enum Transport {
    /// Shared memory on one machine; between machines RDMA where it works, else TCP
    #[default]
    Auto,
    Shm,
    Tcp,
    /// RDMA, or an error that says why not; see `sinew doctor rdma`
    Rdma,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_older_and_newer_programs_wrote_is_read() {
        let least: InstanceSpec = serde_json::from_str(r#"{ "model": "m" }"#).unwrap();
        assert_eq!(least, InstanceSpec { model: "m".to_owned(), ..InstanceSpec::default() });
        // The first form of version 1, with an unknown field.
        let full = r#"{
            "version": 1, "model": "m", "nodes": 2, "shares": [3, 1], "strategy": "tensor",
            "stages": null, "stage_layers": null, "experts": "auto", "cache_type": "q8_0",
            "wire_type": "q8", "transport": "tcp", "context_tokens": 4096, "sequences_max": null,
            "of_the_future": { "any": "thing" }
        }"#;
        let options = SplitOptions {
            shares: Some(vec![3, 1]),
            strategy: Strategy::Tensor,
            cache_type: CacheType::Q8_0,
            wire_type: WireType::Q8,
            transport: Transport::Tcp,
            ..SplitOptions::default()
        };
        let expected = InstanceSpec {
            nodes: Some(Nodes::Count(2)),
            options,
            context_tokens: Some(4096),
            ..least
        };
        assert_eq!(serde_json::from_str::<InstanceSpec>(full).unwrap(), expected);
        let again = serde_json::to_string(&expected).unwrap();
        assert_eq!(serde_json::from_str::<InstanceSpec>(&again).unwrap(), expected);
    }

    #[test]
    fn a_newer_version_and_a_missing_model_are_refused() {
        let refused = |json| serde_json::from_str::<InstanceSpec>(json).unwrap_err().to_string();
        let newer = refused(r#"{ "version": 2, "model": "m" }"#);
        assert!(newer.contains("has version 2") && newer.contains("up to 1"), "{newer}");
        assert!(refused("{}").contains("missing field `model`"));
    }
}

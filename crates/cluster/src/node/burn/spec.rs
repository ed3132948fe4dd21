//! What a burn-in is asked for, and what it finds.

use serde::{Deserialize, Serialize};

use crate::NodeId;

/// A weekend.
pub const BURN_SECS: std::ops::RangeInclusive<u64> = 1..=3 * 86_400;

/// What is asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BurnSpec {
    /// For how long: [`BURN_SECS`].
    pub seconds: u64,
    /// Memory that each node fills; half of what models may still have there unless given.
    #[serde(default)]
    pub memory_bytes: Option<u64>,
    /// Also where a model is served, whose answers become slow.
    #[serde(default)]
    pub while_serving: bool,
    /// Turns one bit over in each node's memory and one on each link, to see that it is found.
    #[serde(default)]
    pub flip_bits: bool,
}

/// What was found.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct BurnReport {
    pub seconds: u64,
    pub nodes: Vec<NodeBurn>,
    pub links: Vec<LinkBurn>,
    /// By arithmetic.
    pub slowest_node: Option<String>,
    /// Its two ends, by the slower direction.
    pub slowest_link: Option<[String; 2]>,
    /// Wrong bits and results, of nodes and links together.
    pub wrong: u64,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct NodeBurn {
    pub name: String,
    pub threads: usize,
    #[serde(flatten)]
    pub loaded: Loaded,
}

/// Of one link, under the load of all others.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct LinkBurn {
    pub from: String,
    pub to: String,
    /// The median, microseconds.
    pub round_trip_us: f64,
    /// Bytes per second while both ends send.
    pub bytes_per_sec_there: f64,
    pub bytes_per_sec_back: f64,
    pub wrong_bits: u64,
    /// Why it was not measured to the end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failure: Option<String>,
}

/// One node's part, as the asked node orders it.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct BurnOrder {
    pub spec: BurnSpec,
    /// The members whose links the receiver loads.
    pub to: Vec<NodeId>,
}

/// One node's part, once it is done.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Part {
    pub node: NodeBurn,
    pub links: Vec<LinkBurn>,
}

/// What one node did, as its process says it in one line of JSON.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Loaded {
    pub memory_bytes: u64,
    /// Multiplications and additions of products in 8 bits, with a model's kernels, a second.
    pub ops_per_sec: f64,
    /// Of the slowest round.
    pub ops_per_sec_lowest: f64,
    /// Read and written.
    pub bytes_per_sec: f64,
    pub bytes_per_sec_lowest: f64,
    /// Bits of memory that were not what had been written.
    pub wrong_bits: u64,
    /// Products that differed from the same product before.
    pub wrong_results: u64,
}

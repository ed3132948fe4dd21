//! Requests and reports of burn-ins.

use serde::{Deserialize, Serialize};

use crate::NodeId;

/// Up to a weekend.
pub const BURN_SECS: std::ops::RangeInclusive<u64> = 1..=3 * 86_400;

/// The request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BurnSpec {
    /// Duration, within [`BURN_SECS`].
    pub seconds: u64,
    /// Memory that each node fills; by default half of the memory that is free for models.
    #[serde(default)]
    pub memory_bytes: Option<u64>,
    /// Run even if a model is served; its answers become slow.
    #[serde(default)]
    pub while_serving: bool,
    /// Flips one bit in each node's memory and one on each link, to test their detection.
    #[serde(default)]
    pub flip_bits: bool,
}

/// The report.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct BurnReport {
    pub seconds: u64,
    pub nodes: Vec<NodeBurn>,
    pub links: Vec<LinkBurn>,
    /// By arithmetic.
    pub slowest_node: Option<String>,
    /// Its two ends, by the slower direction.
    pub slowest_link: Option<[String; 2]>,
    /// Wrong bits and results of all nodes and links.
    pub wrong: u64,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct NodeBurn {
    pub name: String,
    pub threads: usize,
    #[serde(flatten)]
    pub loaded: Loaded,
}

/// Results of one link, measured while all others are under load.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct LinkBurn {
    pub from: String,
    pub to: String,
    /// The median, in microseconds.
    pub round_trip_us: f64,
    /// Bytes per second while both ends send.
    pub bytes_per_sec_there: f64,
    pub bytes_per_sec_back: f64,
    pub wrong_bits: u64,
    /// Why the measurement is incomplete.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failure: Option<String>,
}

/// The order for one node's part.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct BurnOrder {
    pub spec: BurnSpec,
    /// The members whose links the receiver loads.
    pub to: Vec<NodeId>,
}

/// The result of one node's part.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Part {
    pub node: NodeBurn,
    pub links: Vec<LinkBurn>,
}

/// One node's figures, which its process prints as one line of JSON.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Loaded {
    pub memory_bytes: u64,
    /// Multiplications and additions per second, in 8-bit products with a model's kernels.
    pub ops_per_sec: f64,
    /// Of the slowest round.
    pub ops_per_sec_lowest: f64,
    /// Read and written.
    pub bytes_per_sec: f64,
    pub bytes_per_sec_lowest: f64,
    /// Bits of memory that differ from what was written.
    pub wrong_bits: u64,
    /// Products that differ from an earlier run of the same product.
    pub wrong_results: u64,
}

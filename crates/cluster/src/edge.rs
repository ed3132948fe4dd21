//! The figures of one path between two nodes.

use std::net::IpAddr;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::NodeId;

/// The latest measurement of a path to another node.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Edge {
    pub peer: NodeId,
    /// The other node's address, and this node's address on that path.
    pub address: IpAddr,
    pub local: IpAddr,
    pub round_trip_us: f64,
    pub bytes_per_sec: f64,
    /// Since the last look.
    pub age_secs: u64,
    /// Whether the last look was answered.
    pub is_up: bool,
    /// Measured by ranks over RDMA, which has no addresses of its own.
    #[serde(default)]
    pub is_rdma: bool,
    /// The largest packets that pass, if the system would send larger ones.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub packet_bytes: Option<u16>,
}

/// The kind of a measurement.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Depth {
    Look,
    Full,
}

/// The result of a measurement.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Measurement {
    pub local: IpAddr,
    pub round_trip: Duration,
    /// Of a full measurement.
    pub bytes_per_sec: Option<f64>,
    /// As in [`Edge`].
    pub packet_bytes: Option<u16>,
}

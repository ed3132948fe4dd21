//! The inputs of a plan: nodes, and the links between them.

use layout::Device;
use serde::{Deserialize, Serialize};

use crate::classes::Classes;

/// A candidate for a rank.
#[derive(Debug, Clone, PartialEq)]
pub struct Node {
    /// The caller's identifier.
    pub id: usize,
    /// The name shown to users.
    pub name: String,
    pub device: Device,
    /// The compute device and build, as text. Nodes with different classes share no layer, because
    /// rounding differs and each could choose other experts.
    pub class: String,
    pub memory_free_bytes: u64,
    /// Offered threads. Without measured speeds, shares are in proportion to them.
    pub threads: usize,
    /// The measured speed, if there is one.
    pub speed: Option<Speed>,
    /// Nodes with the same number share a machine and its memory; `None` is a separate machine. A
    /// GPU with its own memory counts as one.
    pub machine: Option<usize>,
    /// The measured links to the nodes before it in the list. A missing link between two nodes is
    /// assumed to be no worse than their links to the first node.
    pub links: Vec<Option<LinkSpeed>>,
    /// The nodes of the list, by index, that this one cannot call, as behind a firewall that lets
    /// only outgoing calls pass.
    pub uncalled: Vec<usize>,
}

/// The measured speed of a link between two nodes.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct LinkSpeed {
    /// The time of a short message from rank to rank, seconds.
    pub message_secs: f64,
    /// In each direction.
    pub bytes_per_sec: f64,
}

impl LinkSpeed {
    /// Ranks of one machine, roughly as measured by `sinew bench net`.
    pub const SHARED_MEMORY: Self = Self { message_secs: 1.5e-6, bytes_per_sec: 8e9 };
    /// The same over TCP.
    pub const LOOPBACK: Self = Self { message_secs: 9e-6, bytes_per_sec: 2e9 };
    /// An unmeasured link: it costs nothing, and there is no prediction.
    pub(crate) const UNKNOWN: Self = Self { message_secs: 0.0, bytes_per_sec: 1e12 };

    /// A link no better than either.
    pub fn worse(self, other: Self) -> Self {
        Self {
            message_secs: self.message_secs.max(other.message_secs),
            bytes_per_sec: self.bytes_per_sec.min(other.bytes_per_sec),
        }
    }

    /// The seconds of a message of `bytes` bytes.
    pub(crate) fn secs(&self, bytes: f64) -> f64 {
        self.message_secs + bytes / self.bytes_per_sec
    }
}

/// The speed of a node's device, measured or stated.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Speed {
    /// The rates of the node's offered threads.
    pub rates: Rates,
    /// The rates of the whole machine, shared by its nodes; equal to `rates` for the only node of a
    /// machine.
    pub machine: Rates,
    /// The cost of one device operation of any size, seconds: each layer has a few dozen.
    pub operation_secs: f64,
    /// The cost of one transfer of values out of the device and back, seconds: at each sum of ranks
    /// that share layers.
    #[serde(default)]
    pub cut_secs: f64,
    /// Rates by weight class, if they differ much.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub classes: Option<Classes>,
    /// Bytes a second that the node's disk gives to many reads at once; absent if the node cannot
    /// read experts from it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub disk_bytes_per_sec: Option<f64>,
}

/// A device's throughput over weights.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Rates {
    /// Bytes a second that are read from memory.
    pub read_bytes_per_sec: f64,
    /// Multiplications and additions a second of many rows with quantised weights,
    pub quantised_ops_per_sec: f64,
    /// and with floats.
    pub float_ops_per_sec: f64,
}

impl Speed {
    /// The speed of the only node of a machine.
    pub fn alone(rates: Rates, operation_secs: f64) -> Self {
        Self {
            rates,
            machine: rates,
            operation_secs,
            cut_secs: 0.0,
            classes: None,
            disk_bytes_per_sec: None,
        }
    }

    /// Rates in proportion to threads, for nodes without measurements.
    pub(crate) fn of_threads(threads: usize) -> Self {
        let threads = threads.clamp(1, 1024) as f64;
        let rates = Rates {
            read_bytes_per_sec: threads * 1e10,
            quantised_ops_per_sec: threads * 1e11,
            float_ops_per_sec: threads * 1e11,
        };
        Self::alone(rates, 0.0)
    }

    /// Whether all rates are usable.
    pub(crate) fn is_sane(&self) -> bool {
        let positive = |rates: &Rates| {
            [rates.read_bytes_per_sec, rates.quantised_ops_per_sec, rates.float_ops_per_sec]
                .into_iter()
                .all(|rate| rate.is_finite() && rate > 0.0)
        };
        let fixed = |secs: f64| secs.is_finite() && secs >= 0.0;
        positive(&self.rates)
            && positive(&self.machine)
            && fixed(self.operation_secs)
            && fixed(self.cut_secs)
            && self.classes.is_none_or(|classes| classes.is_sane())
            && self.disk_bytes_per_sec.is_none_or(|rate| rate.is_finite() && rate > 0.0)
    }
}

/// The link between two nodes of a list, by index.
pub(crate) fn link(nodes: &[Node], a: usize, b: usize) -> Option<LinkSpeed> {
    let (low, high) = (a.min(b), a.max(b));
    let known = |low: usize, high: usize| nodes[high].links.get(low).copied().flatten();
    match known(low, high) {
        None if low > 0 => Some(known(0, low)?.worse(known(0, high)?)),
        found => found,
    }
}

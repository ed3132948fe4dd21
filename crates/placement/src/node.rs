//! What is known of the nodes and of the ways between them.

use layout::Device;
use serde::{Deserialize, Serialize};

use crate::classes::Classes;

/// A node that could take a rank.
#[derive(Debug, Clone, PartialEq)]
pub struct Node {
    /// The caller's own number for it.
    pub id: usize,
    /// What people call it.
    pub name: String,
    pub device: Device,
    /// What computes there and in which build, for a person to read: nodes whose words differ share
    /// no layer, because each of them chooses experts by numbers of its own.
    pub class: String,
    pub memory_free_bytes: u64,
    /// Threads that it offers. Where speeds are not known, shares are in proportion to them.
    pub threads: usize,
    /// What it can do, if that was measured.
    pub speed: Option<Speed>,
    /// Nodes with the same number are on one machine and share its memory; `None` is a machine of
    /// its own. A GPU with memory of its own is one, too.
    pub machine: Option<usize>,
    /// The ways to the nodes before it in the list, as far as they were measured. A missing one
    /// between two others than the first node is taken to be no worse than theirs to the first.
    pub links: Vec<Option<LinkSpeed>>,
}

/// What was measured of the way between two nodes.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct LinkSpeed {
    /// A short message from one rank's hands to another's, seconds.
    pub message_secs: f64,
    /// In each direction.
    pub bytes_per_sec: f64,
}

impl LinkSpeed {
    /// Ranks of one machine, roughly as `sinew bench net` measures them.
    pub const SHARED_MEMORY: Self = Self { message_secs: 1.5e-6, bytes_per_sec: 8e9 };
    /// The same over TCP.
    pub const LOOPBACK: Self = Self { message_secs: 9e-6, bytes_per_sec: 2e9 };
    /// Where nothing was measured: it costs nothing, and nothing is predicted.
    pub(crate) const UNKNOWN: Self = Self { message_secs: 0.0, bytes_per_sec: 1e12 };

    /// No better than either.
    pub fn worse(self, other: Self) -> Self {
        Self {
            message_secs: self.message_secs.max(other.message_secs),
            bytes_per_sec: self.bytes_per_sec.min(other.bytes_per_sec),
        }
    }

    /// The seconds of a message of so many bytes.
    pub(crate) fn secs(&self, bytes: f64) -> f64 {
        self.message_secs + bytes / self.bytes_per_sec
    }
}

/// What the device of a node does, as measured or stated.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Speed {
    /// The threads that the node offers.
    pub rates: Rates,
    /// All of its machine together: what the nodes that run there share. The same as `rates` for a
    /// node that has its machine for itself.
    pub machine: Rates,
    /// Giving the device an operation, whatever its size, seconds: each layer has a few dozen.
    pub operation_secs: f64,
    /// What the device takes, seconds, each time that its numbers are wanted outside and others
    /// come back: at each sum of ranks that share layers.
    #[serde(default)]
    pub cut_secs: f64,
    /// Where `rates` depend much on the type of the weights.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub classes: Option<Classes>,
}

/// How fast a device goes through weights.
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
    /// A node that has its machine for itself.
    pub fn alone(rates: Rates, operation_secs: f64) -> Self {
        Self { rates, machine: rates, operation_secs, cut_secs: 0.0, classes: None }
    }

    /// In proportion to threads, where nothing was measured.
    pub(crate) fn of_threads(threads: usize) -> Self {
        let threads = threads.clamp(1, 1024) as f64;
        let rates = Rates {
            read_bytes_per_sec: threads * 1e10,
            quantised_ops_per_sec: threads * 1e11,
            float_ops_per_sec: threads * 1e11,
        };
        Self::alone(rates, 0.0)
    }

    /// Whether something can be computed with it.
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
    }
}

/// The way between two nodes of a list, by their places in it.
pub(crate) fn link(nodes: &[Node], a: usize, b: usize) -> Option<LinkSpeed> {
    let (low, high) = (a.min(b), a.max(b));
    let known = |low: usize, high: usize| nodes[high].links.get(low).copied().flatten();
    match known(low, high) {
        None if low > 0 => Some(known(0, low)?.worse(known(0, high)?)),
        found => found,
    }
}

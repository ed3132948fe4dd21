//! The chosen split, rank by rank: the memory of each, and what it keeps of experts.

use layout::{Capacity, Device, Footprint, Holding, Layout, Outline};
use serde::{Deserialize, Serialize};

use crate::group::WORKER_BYTES;
use crate::node::Node;
use crate::streaming::Streaming;

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlannedRank {
    /// [`Node::id`] of the node, and its name.
    pub node: usize,
    pub name: String,
    pub share: u32,
    /// The memory of this rank's part of the model, with the experts that it keeps there.
    pub footprint: Footprint,
    /// The total memory: that and the worker itself.
    pub memory_bytes: u64,
    /// What it keeps of its experts in memory, if it reads others from disk; else 0.
    #[serde(default)]
    pub expert_bytes: u64,
}

pub(crate) struct Placing<'a> {
    ranks: Vec<Placed<'a>>,
    experts: usize,
    streaming: Option<Streaming>,
}

struct Placed<'a> {
    node: &'a Node,
    share: u32,
    held: Holding<'a>,
    weight_bytes: u64,
    /// All its experts, if some of them may be read from disk; else 0.
    expert_bytes: u64,
}

impl<'a> Placing<'a> {
    /// `places`: the node of each rank.
    pub fn new(
        model: &'a Outline,
        nodes: &'a [Node],
        places: impl Iterator<Item = usize>,
        shares: &[u32],
        layout: &Layout,
        streaming: Option<Streaming>,
    ) -> Self {
        let rank = |(rank, (node, share)): (usize, (usize, &u32))| {
            let (node, held) = (&nodes[node], Holding::new(model, layout, rank));
            let weight_bytes = held.weight_bytes(node.device);
            let is_streamed = streaming.is_some() && Streaming::is_on(node.device);
            let expert_bytes = if is_streamed { held.expert_bytes(Device::Cpu).0 } else { 0 };
            Placed { node, share: *share, held, weight_bytes, expert_bytes }
        };
        let ranks = places.zip(shares).enumerate().map(rank).collect();
        let experts = model.config.experts.map_or(0, |experts| experts.count);
        Self { ranks, experts, streaming }
    }

    pub fn ranks(&self, capacity: &Capacity) -> Vec<PlannedRank> {
        let rank = |placed: &Placed<'_>| {
            let Placed { node, share, held, weight_bytes, expert_bytes } = placed;
            let resident = weight_bytes.saturating_sub(*expert_bytes);
            let rest = held.footprint_with(resident, capacity, node.device);
            let taken = rest.bytes().saturating_add(WORKER_BYTES);
            let left = node.memory_free_bytes.saturating_sub(taken);
            let (_, least) = held.expert_bytes(Device::Cpu);
            let kept = self.streaming.map_or(0, |own| own.kept_bytes(*expert_bytes, left));
            let kept = kept.max(least.min(*expert_bytes));
            let weight_bytes = resident.saturating_add(kept);
            let footprint = Footprint { weight_bytes, ..rest };
            PlannedRank {
                node: node.id,
                name: node.name.clone(),
                share: *share,
                footprint,
                memory_bytes: footprint.bytes().saturating_add(WORKER_BYTES),
                expert_bytes: kept,
            }
        };
        self.ranks.iter().map(rank).collect()
    }

    pub fn fits(&self, capacity: &Capacity) -> bool {
        let ranks = self.ranks(capacity).into_iter().zip(&self.ranks);
        ranks.into_iter().all(|(rank, placed)| rank.memory_bytes <= placed.node.memory_free_bytes)
    }

    /// What each rank keeps of its experts, if any reads some from disk.
    pub fn expert_bytes(&self, ranks: &[PlannedRank]) -> Vec<u64> {
        match self.streaming {
            Some(_) => ranks.iter().map(|rank| rank.expert_bytes).collect(),
            None => Vec::new(),
        }
    }

    /// What each node keeps of its experts, if some are read from disk.
    pub fn kept(&self, ranks: &[PlannedRank]) -> Vec<Kept> {
        let of = |(rank, placed): (&PlannedRank, &Placed<'_>)| Kept {
            name: rank.name.clone(),
            bytes: rank.expert_bytes,
            all_bytes: placed.expert_bytes,
            experts: self.experts,
            disk_bytes_per_sec: placed.node.speed.and_then(|speed| speed.disk_bytes_per_sec),
        };
        ranks.iter().zip(&self.ranks).map(of).filter(|kept| kept.all_bytes > 0).collect()
    }

    /// A node with experts that does not read them from disk.
    pub fn without_disk(&self) -> Option<&Node> {
        let found = self.ranks.iter().find(|rank| !Streaming::is_on(rank.node.device));
        found.map(|rank| rank.node)
    }

    /// The node with the largest expert, and its bytes.
    pub fn largest_expert(&self) -> Option<(&Node, u64)> {
        let all = self.ranks.iter().map(|rank| (rank.node, rank.held.expert_bytes(Device::Cpu).1));
        all.max_by_key(|(_, bytes)| *bytes)
    }
}

/// What a node keeps of its experts in memory.
pub(crate) struct Kept {
    pub name: String,
    pub bytes: u64,
    pub all_bytes: u64,
    /// Of a layer.
    pub experts: usize,
    /// As measured.
    pub disk_bytes_per_sec: Option<f64>,
}

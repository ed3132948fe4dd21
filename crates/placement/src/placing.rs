//! The chosen split, rank by rank: the memory of each, and what it keeps of experts.

use layout::{Capacity, Device, Footprint, Holding, Layout, Outline};
use serde::{Deserialize, Serialize};

use crate::choice::{gib, rough};
use crate::cost::Prediction;
use crate::error::Error;
use crate::group::WORKER_BYTES;
use crate::node::Node;
use crate::streaming::{DISK_BYTES_PER_SEC, Streaming, hits};
use crate::trial::Fit;

/// Below this rate of answers a plan says that it is hardly worth a download.
const WORTH_TOKENS_PER_SEC: f64 = 1.0;

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
    /// # Errors
    /// The shares are none, or experts cannot be read from disk as was asked.
    pub fn new(
        model: &'a Outline,
        nodes: &'a [Node],
        chosen: &Fit,
        (whole_experts, streaming): (bool, Option<Streaming>),
    ) -> Result<Self, Error> {
        let stages = chosen.stages();
        let sizes: Vec<_> = stages.iter().map(|stage| (stage.ranks, stage.layers)).collect();
        let sizes = if sizes.len() > 1 { sizes } else { Vec::new() };
        let layout = Layout::new(&chosen.shares, &sizes, model.config.layers);
        let layout = layout.map_err(|_| Error::NoShares { shares: chosen.shares.clone() })?;
        let layout = layout.with_whole_experts(whole_experts);
        let asked_bytes = streaming.and_then(|streaming| streaming.asked_bytes);
        let rank = |(rank, (node, share)): (usize, (usize, &u32))| {
            let (node, held) = (&nodes[node], Holding::new(model, &layout, rank));
            let weight_bytes = held.weight_bytes(node.device);
            let (all, least_bytes) = held.expert_bytes(Device::Cpu);
            let expert_bytes = if streaming.is_some() { all } else { 0 };
            if let Some(asked_bytes) = asked_bytes.filter(|_| all > 0) {
                if !Streaming::is_on(node.device) {
                    let (node, class) = (node.name.clone(), node.class.clone());
                    return Err(Error::ExpertDevice { node, class });
                }
                if asked_bytes < least_bytes {
                    let node = node.name.clone();
                    return Err(Error::ExpertMemory { node, asked_bytes, least_bytes });
                }
            }
            let expert_bytes = if Streaming::is_on(node.device) { expert_bytes } else { 0 };
            Ok(Placed { node, share: *share, held, weight_bytes, expert_bytes })
        };
        let ranks = chosen.nodes().zip(&chosen.shares).enumerate().map(rank);
        let experts = model.config.experts.map_or(0, |experts| experts.count);
        Ok(Self { ranks: ranks.collect::<Result<_, _>>()?, experts, streaming })
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

    /// How many experts stay in memory on each node, what is read from which disk, and whether
    /// that is worth it.
    pub fn words(&self, ranks: &[PlannedRank], prediction: Option<&Prediction>) -> Vec<String> {
        let one = |(rank, placed): (&PlannedRank, &Placed<'_>)| {
            let (kept, all) = (rank.expert_bytes, placed.expert_bytes);
            let part = kept as f64 / all.max(1) as f64;
            let rate = placed.node.speed.and_then(|speed| speed.disk_bytes_per_sec);
            let from = if rate.is_some() { "measured" } else { "assumed" };
            let rate = rate.unwrap_or(DISK_BYTES_PER_SEC) / 1e6;
            (all > 0).then(|| {
                format!(
                    "{}: {:.0} of {} experts of a layer stay in memory ({} of {}), the others are \
                     read from its disk ({} MB/s {from}): about {:.0} % hits",
                    rank.name,
                    part * self.experts as f64,
                    self.experts,
                    gib(kept),
                    gib(all),
                    rough(rate),
                    hits(part) * 100.0
                )
            })
        };
        let mut words: Vec<String> = ranks.iter().zip(&self.ranks).filter_map(one).collect();
        let rate = prediction.map(|prediction| prediction.decode_tokens_per_sec);
        words.extend(rate.filter(|_| !words.is_empty()).map(|rate| match rate {
            rate if rate >= WORTH_TOKENS_PER_SEC => {
                "with experts on disk it is slow, and it works; memory or nodes more make it \
                 faster"
                    .to_owned()
            }
            rate => format!(
                "{} tokens/s are hardly worth a download: add memory or nodes, or take a smaller \
                 model",
                rough(rate)
            ),
        }));
        words
    }
}

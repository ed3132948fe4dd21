//! Workers that have outlived their owner, and who goes on with them.
//!
//! An owner whose daemon has ended or cannot be reached leaves workers on other nodes, with their
//! shards in memory. They end their epoch and obey it no more. Whoever owns the instance next, most
//! often the same node after a restart, learns of them from heartbeats, plans with them
//! if it can, and orders the same ranks: then nothing is loaded again.

use std::time::Duration;

use protocol::{SplitOptions, Strategy, WorkerCommand};
use tracing::{info, warn};

use super::hosting::WorkerKey;
use super::placing::{Candidate, plan};
use super::{Daemon, Prepared};
use crate::wire::{KeptRank, WorkerOrder};
use crate::{InstanceSpec, NodeId};

/// How long a worker outlives the connection to its owner: a short cut of the network should not
/// cost minutes of loading.
const ORPHAN_MAX: Duration = Duration::from_secs(30);

impl Daemon {
    /// The connection to an owner is gone: its workers end the epoch and keep their shards.
    pub(super) fn owner_left(&mut self, owner: NodeId) {
        let its = self.workers.keys().filter(|key| key.owner == owner);
        for key in its.copied().collect::<Vec<_>>() {
            self.orphan(key);
        }
    }

    fn orphan(&mut self, key: WorkerKey) {
        let now = self.now();
        let Some(hosted) = self.workers.get_mut(&key).filter(|hosted| !hosted.ending) else {
            return;
        };
        // Several losses in a row are one absence, until the owner claims the worker.
        hosted.orphaned_at.get_or_insert(now);
        self.outside.command(hosted.process, WorkerCommand::Disconnect);
    }

    /// Lets go of workers of former owners, and ends those of what is not to be served any more.
    pub(super) fn leave_former_owners(&mut self) {
        let me = self.me;
        let theirs = self.workers.iter().filter(|(key, hosted)| key.owner != me && !hosted.ending);
        let mut over = Vec::new();
        for (key, hosted) in theirs {
            match self.desired.find(&hosted.order.instance) {
                None => over.push((*key, true)),
                Some((entry, _)) if entry.claim > hosted.order.claim => over.push((*key, false)),
                Some(_) => {}
            }
        }
        for (key, is_stopped) in over {
            let is_loaded = self.workers.get(&key).is_some_and(|hosted| hosted.loaded.is_some());
            if is_stopped || !is_loaded {
                info!(worker = key.worker, "a worker's owner is no longer the owner; it is ended");
                self.end(key, true);
            } else if self.workers.get(&key).is_some_and(|hosted| hosted.orphaned_at.is_none()) {
                info!(worker = key.worker, "a worker's owner is no longer the owner");
                self.orphan(key);
            }
        }
    }

    /// Goes on with a worker that a former owner has left, if it holds what is ordered.
    pub(super) fn adopt(&mut self, key: WorkerKey, order: &WorkerOrder) -> bool {
        let mut orphans = self.workers.iter().filter(|(_, hosted)| hosted.is_orphan());
        let found = orphans.find(|(_, o)| o.loaded.is_some() && o.order.is_of_one_rank(order));
        let Some(was) = found.map(|(was, _)| *was).filter(|_| key.owner != self.me) else {
            return false;
        };
        let Some(mut hosted) = self.workers.remove(&was) else { return false };
        info!(worker = key.worker, was = was.worker, "a worker goes on for another owner");
        hosted.order = order.clone();
        self.workers.insert(key, hosted);
        true
    }

    /// Ends orphans in whose place something else is ordered: those of the same instance, and as
    /// many others as its memory takes, the oldest first.
    pub(super) fn make_room(&mut self, order: &WorkerOrder) {
        let orphans = self.workers.iter().filter(|(_, hosted)| hosted.is_orphan());
        let mut all: Vec<_> = orphans
            .map(|(key, o)| (o.order.instance != order.instance, o.orphaned_at, *key))
            .collect();
        all.sort();
        for (is_other, _, key) in all {
            let staying = self.workers.values().filter(|hosted| !hosted.ending);
            let taken: u64 =
                staying.map(|hosted| hosted.order.memory_bytes).fold(0, u64::saturating_add);
            if is_other && taken.saturating_add(order.memory_bytes) <= self.config.memory_bytes {
                return;
            }
            self.end(key, true);
        }
    }

    /// Ends workers that nobody has claimed for a while, or that their instance's owner, which is
    /// here and has placed it, does without.
    pub(super) fn end_orphans(&mut self) {
        let now = self.now();
        let orphans = self.workers.iter().filter(|(_, hosted)| hosted.is_orphan());
        let is_over = |(key, hosted): &(&WorkerKey, &super::hosting::Hosted)| {
            hosted.orphaned_at.is_some_and(|at| now.saturating_sub(at) >= ORPHAN_MAX)
                || self.is_done_without(key, &hosted.order)
        };
        for key in orphans.filter(is_over).map(|(key, _)| *key).collect::<Vec<_>>() {
            warn!(
                worker = key.worker,
                "nobody goes on with a worker whose owner left; it is ended"
            );
            self.end(key, false);
        }
    }

    fn is_done_without(&self, key: &WorkerKey, order: &WorkerOrder) -> bool {
        let Some((entry, _)) = self.desired.find(&order.instance) else { return true };
        let owner = entry.owner();
        if owner == self.me {
            return self.owned.contains_key(&order.instance);
        }
        // The one that ordered it will take it up again, if it is the same.
        let is_former = key.owner != owner || self.boot_of(owner) != Some(key.boot);
        let told = self.views.get(&owner).filter(|_| self.membership.conn(owner).is_some());
        let heartbeat = told.and_then(|view| view.heartbeat.as_ref());
        let runs = heartbeat.is_some_and(|h| h.instances.iter().any(|i| i.id == order.instance));
        is_former && runs
    }

    /// The ranks whose owner is gone, for others to know.
    pub(super) fn kept_ranks(&self) -> Vec<KeptRank> {
        let orphans = self.workers.values().filter(|o| o.is_orphan() && o.loaded.is_some());
        let kept = |hosted: &super::hosting::Hosted| KeptRank {
            instance: hosted.order.instance.clone(),
            rank: hosted.order.rank,
            split: hosted.order.split.clone(),
        };
        orphans.map(kept).collect()
    }

    /// A plan in which every other rank is one that a node has kept; none if some are missing.
    pub(super) fn plan_with_kept(
        &self,
        id: &str,
        prepared: &Prepared,
        candidates: &[Candidate],
    ) -> Option<(placement::Plan, Vec<Candidate>)> {
        let kept = |candidate: &Candidate| {
            let heartbeat = self.views.get(&candidate.node)?.heartbeat.as_ref()?;
            let kept = heartbeat.kept.iter().find(|kept| kept.instance == id)?;
            Some((candidate.clone(), kept.clone()))
        };
        let kept: Vec<(Candidate, KeptRank)> = candidates.iter().filter_map(kept).collect();
        kept.iter().find_map(|(_, one)| {
            let split = &one.split;
            let holder = |rank| {
                let mut holders = kept.iter().filter(|(_, kept)| kept.split == *split);
                holders.find(|(_, kept)| kept.rank == rank).map(|(node, _)| node.clone())
            };
            let first = candidates.iter().find(|candidate| candidate.node == self.me).cloned();
            let others = (1..split.shares.len()).map(holder);
            let nodes: Vec<Candidate> =
                std::iter::once(first).chain(others).collect::<Option<_>>()?;
            let plan = plan(prepared, &nodes, &spec_of(&prepared.spec, split), false).ok()?;
            let in_order = plan.ranks.iter().enumerate().all(|(at, rank)| rank.node == at);
            (in_order && plan.split == *split).then_some((plan, nodes))
        })
    }
}

/// What to ask for to get just this split.
fn spec_of(wanted: &InstanceSpec, split: &protocol::Split) -> InstanceSpec {
    let stages = Some(&split.stages).filter(|stages| !stages.is_empty());
    let options = SplitOptions {
        shares: Some(split.shares.clone()),
        strategy: Strategy::Tensor,
        stages: stages.map(|stages| stages.iter().map(|stage| stage.ranks).collect()),
        stage_layers: stages.map(|stages| stages.iter().map(|stage| stage.layers).collect()),
        ..wanted.options.clone()
    };
    InstanceSpec {
        nodes: Some(split.shares.len().into()),
        options,
        context_tokens: Some(split.context_tokens),
        sequences_max: Some(split.sequences_max),
        cache_tokens: Some(split.cache_tokens),
        ..wanted.clone()
    }
}

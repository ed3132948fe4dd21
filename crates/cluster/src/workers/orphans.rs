//! Workers that have outlived their owner.
//!
//! An owner whose daemon has ended or is unreachable leaves workers on other nodes, with their
//! shards in memory. They end their epoch and take no commands. The next owner of the instance,
//! usually the same node after a restart, learns of them from heartbeats, plans with them if it
//! can, and orders the same ranks: nothing is loaded again then.

use std::time::Duration;

use protocol::WorkerCommand;
use tracing::{info, warn};

use super::{Hosted, WorkerKey, Workers};
use crate::NodeId;
use crate::context::Context;
use crate::wire::{KeptRank, WorkerOrder};

/// How long a worker outlives the connection to its owner: a short network failure should not cost
/// minutes of loading.
const ORPHAN_MAX: Duration = Duration::from_secs(30);

impl Workers {
    /// The connection to an owner is gone: its workers end the epoch and keep their shards.
    pub(crate) fn owner_left(&mut self, ctx: &mut Context, owner: NodeId) {
        let its = self.hosted.keys().filter(|key| key.owner == owner);
        for key in its.copied().collect::<Vec<_>>() {
            self.orphan(ctx, key);
        }
    }

    fn orphan(&mut self, ctx: &mut Context, key: WorkerKey) {
        let now = ctx.now();
        let Some(hosted) = self.hosted.get_mut(&key).filter(|hosted| !hosted.ending) else {
            return;
        };
        // Several losses in a row are one absence, until the owner claims the worker.
        hosted.orphaned_at.get_or_insert(now);
        ctx.outside.command(hosted.process, WorkerCommand::Disconnect);
    }

    /// Orphans the workers of former owners, and ends those of stopped instances.
    pub(crate) fn leave_former_owners(&mut self, ctx: &mut Context) {
        let me = ctx.me;
        let theirs = self.hosted.iter().filter(|(key, hosted)| key.owner != me && !hosted.ending);
        let mut over = Vec::new();
        for (key, hosted) in theirs {
            match ctx.desired.find(&hosted.order.instance) {
                None => over.push((*key, true)),
                Some((entry, _)) if entry.claim > hosted.order.claim => over.push((*key, false)),
                Some(_) => {}
            }
        }
        for (key, is_stopped) in over {
            let is_loaded = self.hosted.get(&key).is_some_and(|hosted| hosted.loaded.is_some());
            if is_stopped || !is_loaded {
                info!(worker = key.worker, "a worker of a former owner is ended");
                self.end_one(ctx, key, true);
            } else if self.hosted.get(&key).is_some_and(|hosted| hosted.orphaned_at.is_none()) {
                info!(worker = key.worker, "a worker has lost its owner");
                self.orphan(ctx, key);
            }
        }
    }

    /// Takes over a worker that a former owner has left, if it holds the ordered rank.
    pub(super) fn adopt(&mut self, ctx: &Context, key: WorkerKey, order: &WorkerOrder) -> bool {
        let mut orphans = self.hosted.iter().filter(|(_, hosted)| hosted.is_orphan());
        let found = orphans.find(|(_, o)| o.loaded.is_some() && o.order.is_of_one_rank(order));
        let Some(was) = found.map(|(was, _)| *was).filter(|_| key.owner != ctx.me) else {
            return false;
        };
        let Some(mut hosted) = self.hosted.remove(&was) else { return false };
        info!(worker = key.worker, was = was.worker, "a worker goes on for another owner");
        hosted.order = order.clone();
        self.hosted.insert(key, hosted);
        true
    }

    /// Ends orphans in the way of a new worker: those of the same instance, and others, the oldest
    /// first, until its memory is free.
    pub(super) fn make_room(&mut self, ctx: &mut Context, order: &WorkerOrder) {
        let orphans = self.hosted.iter().filter(|(_, hosted)| hosted.is_orphan());
        let mut all: Vec<_> = orphans
            .map(|(key, o)| (o.order.instance != order.instance, o.orphaned_at, *key))
            .collect();
        all.sort();
        for (is_other, _, key) in all {
            let staying = self.hosted.values().filter(|hosted| !hosted.ending);
            let taken: u64 =
                staying.map(|hosted| hosted.order.memory_bytes).fold(0, u64::saturating_add);
            if is_other && taken.saturating_add(order.memory_bytes) <= ctx.config.memory_bytes {
                return;
            }
            self.end_one(ctx, key, true);
        }
    }

    /// Ends orphans that no owner has claimed for [`ORPHAN_MAX`], or whose instance's present owner
    /// has placed it without them. `runs_here`: whether this node runs an instance.
    pub(crate) fn end_orphans(&mut self, ctx: &mut Context, runs_here: impl Fn(&str) -> bool) {
        let now = ctx.now();
        let orphans = self.hosted.iter().filter(|(_, hosted)| hosted.is_orphan());
        let is_over = |(key, hosted): &(&WorkerKey, &Hosted)| {
            hosted.orphaned_at.is_some_and(|at| now.saturating_sub(at) >= ORPHAN_MAX)
                || is_done_without(ctx, key, &hosted.order, &runs_here)
        };
        for key in orphans.filter(is_over).map(|(key, _)| *key).collect::<Vec<_>>() {
            warn!(worker = key.worker, "no owner goes on with an orphaned worker; it is ended");
            self.end_one(ctx, key, false);
        }
    }

    /// The loaded ranks without an owner, for heartbeats.
    pub(crate) fn kept_ranks(&self) -> Vec<KeptRank> {
        let orphans = self.hosted.values().filter(|o| o.is_orphan() && o.loaded.is_some());
        let kept = |hosted: &Hosted| KeptRank {
            instance: hosted.order.instance.clone(),
            rank: hosted.order.rank,
            split: hosted.order.split.clone(),
        };
        orphans.map(kept).collect()
    }
}

fn is_done_without(
    ctx: &Context,
    key: &WorkerKey,
    order: &WorkerOrder,
    runs_here: &impl Fn(&str) -> bool,
) -> bool {
    let Some((entry, _)) = ctx.desired.find(&order.instance) else { return true };
    let owner = entry.owner();
    if owner == ctx.me {
        return runs_here(&order.instance);
    }
    // The process that ordered the worker will take it up again.
    let is_former = key.owner != owner || ctx.boot_of(owner) != Some(key.boot);
    let heartbeat = ctx.live_heartbeat_of(owner);
    let runs = heartbeat.is_some_and(|h| h.instances.iter().any(|i| i.id == order.instance));
    is_former && runs
}

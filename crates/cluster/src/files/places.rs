//! The places of served models' files: this node's disk, and members' disks.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use store::Digest;

use crate::context::{Context, News};
use crate::desired::{Seen, Service};
use crate::{InstanceState, InstanceStatus, NodeId};

use crate::context::sources::{Source, Sources};

pub(crate) use crate::desired::Files as Holdings;

/// Pause before a missing file is searched again.
pub(crate) const LOOK_AGAIN: Duration = Duration::from_secs(10);

#[derive(Debug, Clone, PartialEq)]
enum Place {
    Looking,
    Here(PathBuf),
    /// Missing at the last search.
    Missing(Duration),
}

#[derive(Debug, Default)]
pub(crate) struct Places {
    places: BTreeMap<Digest, Place>,
}

impl Places {
    /// Searches for the files of served models.
    pub(crate) fn look(&mut self, ctx: &mut Context) {
        let now = ctx.now();
        let wanted: BTreeMap<Digest, Service> =
            ctx.desired.wanted().map(|(_, wanted)| (wanted.digest, wanted.clone())).collect();
        self.places.retain(|digest, _| wanted.contains_key(digest));
        for (digest, wanted) in wanted {
            let is_due = match self.places.get(&digest) {
                None => true,
                Some(Place::Missing(since)) => now.saturating_sub(*since) >= LOOK_AGAIN,
                Some(Place::Looking | Place::Here(_)) => false,
            };
            if !is_due {
                continue;
            }
            // A missing file stays missing until it is found.
            self.places.entry(digest).or_insert(Place::Looking);
            ctx.outside.locate(digest, wanted);
        }
    }

    /// Records the result of a search on this node's disk.
    pub(crate) fn located(&mut self, ctx: &mut Context, digest: Digest, path: Option<PathBuf>) {
        let before = self.holdings();
        let place = path.map_or(Place::Missing(ctx.now()), Place::Here);
        self.places.insert(digest, place);
        if self.holdings() != before {
            ctx.post(News::Heartbeats);
        }
    }

    /// The path of a file on this node's disk.
    pub(crate) fn here(&self, digest: &Digest) -> Option<&PathBuf> {
        match self.places.get(digest)? {
            Place::Here(path) => Some(path),
            Place::Looking | Place::Missing(_) => None,
        }
    }

    /// Whether each file is on this node's disk, without those still being searched.
    pub(crate) fn holdings(&self) -> Holdings {
        let known = self.places.iter().filter(|(_, place)| **place != Place::Looking);
        known.map(|(digest, place)| (*digest, matches!(place, Place::Here(_)))).collect()
    }

    /// The nodes with the file of a model: this node, and the members that it reaches.
    pub(crate) fn holders(&self, ctx: &Context, digest: &Digest) -> impl Iterator<Item = NodeId> {
        let digest = *digest;
        let me = self.here(&digest).map(|_| ctx.me);
        let has_it = move |id: &NodeId| says(ctx, *id, &digest, true);
        me.into_iter().chain(ctx.membership.reachable().filter(has_it))
    }

    /// Whether a node has the file and may own the instance.
    pub(crate) fn has_heir(&self, ctx: &Context, wanted: &Service) -> bool {
        self.holders(ctx, &wanted.digest).any(|node| !ctx.desired.is_drained(node))
    }
}

/// Whether a member reports that it has a file, or that it lacks it.
pub(crate) fn says(ctx: &Context, id: NodeId, digest: &Digest, has: bool) -> bool {
    ctx.heartbeat_of(id).is_some_and(|heartbeat| heartbeat.files.contains(&(*digest, has)))
}

/// The reachable members, by their last heartbeats.
pub(crate) fn seen(ctx: &Context) -> Vec<Seen> {
    let reachable = ctx.membership.members().filter_map(|member| {
        let heartbeat = ctx.live_heartbeat_of(member.id)?;
        let (sees, files) = (heartbeat.sees.clone(), heartbeat.files.clone());
        let has_run = |one: &&InstanceStatus| match one.state {
            InstanceState::Ready | InstanceState::Recovering { .. } => true,
            InstanceState::Loading | InstanceState::Unloaded | InstanceState::Failed { .. } => {
                false
            }
        };
        let runs = heartbeat.instances.iter().filter(has_run).map(|one| one.id.clone()).collect();
        Some(Seen { node: member.id, name: member.name.clone(), sees, files, runs })
    });
    reachable.collect()
}

/// The nodes to read a file from: the owner, which holds it open, and all members that have it.
pub(crate) fn sources(ctx: &Context, owner: Option<NodeId>, digest: Digest, bytes: u64) -> Sources {
    let reachable = ctx.membership.reachable();
    let others = reachable.filter(|id| Some(*id) != owner && says(ctx, *id, &digest, true));
    let source = |node| Source { node, name: ctx.name_of(node), addresses: ctx.addresses_of(node) };
    let sources = owner.into_iter().chain(others).map(source).collect();
    Sources { digest, bytes, sources }
}

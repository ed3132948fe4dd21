//! The model files of what is to be served: which of them are on this node's disk, which members
//! have them, and which copies are damaged.

mod copying;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use store::Digest;
use tracing::warn;

use crate::NodeId;
use crate::core::{Context, News};
use crate::desired::{Seen, Wanted};
use crate::relay::Source;
use crate::swarm;
use copying::Copying;

pub(crate) use crate::desired::Files as Holdings;

/// How often a missing file is looked for again.
pub(crate) const LOOK_AGAIN: Duration = Duration::from_secs(10);
/// At most so many damaged copies are shown: more would only hide the first.
const DAMAGE_MAX: usize = 16;

#[derive(Debug, Clone, PartialEq)]
enum Place {
    Looking,
    Here(PathBuf),
    /// Not here when it was last looked for.
    Missing(Duration),
}

#[derive(Debug, Default)]
pub(crate) struct Files {
    places: BTreeMap<Digest, Place>,
    /// Copies of files that too few nodes have.
    copying: BTreeMap<Digest, Copying>,
    /// Models whose bytes were found damaged, on which node, and which MiB, from 0.
    damage: BTreeMap<(NodeId, Digest), Option<u64>>,
}

impl Files {
    /// Looks for the files of what is to be served.
    pub(crate) fn look(&mut self, ctx: &mut Context) {
        let now = ctx.now();
        let wanted: BTreeMap<Digest, Wanted> =
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

    /// A file was found on this node's disk, or not.
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

    /// Which files are on this node's disk, of those that were looked for.
    pub(crate) fn holdings(&self) -> Holdings {
        let known = self.places.iter().filter(|(_, place)| **place != Place::Looking);
        known.map(|(digest, place)| (*digest, matches!(place, Place::Here(_)))).collect()
    }

    /// This node and the members that it reaches, as far as they have the file of a model.
    pub(crate) fn holders(&self, ctx: &Context, digest: &Digest) -> impl Iterator<Item = NodeId> {
        let digest = *digest;
        let me = self.here(&digest).map(|_| ctx.me);
        let has_it = move |id: &NodeId| says(ctx, *id, &digest, true);
        me.into_iter().chain(ctx.membership.reachable().filter(has_it))
    }

    /// Whether a node has the file and may own the instance.
    pub(crate) fn has_heir(&self, ctx: &Context, wanted: &Wanted) -> bool {
        self.holders(ctx, &wanted.digest).any(|node| !ctx.desired.is_drained(node))
    }

    /// Bytes of a node's copy of a model are wrong. They were taken from another copy, or the worker
    /// that needs them fails.
    pub(crate) fn damaged(
        &mut self,
        ctx: &mut Context,
        node: NodeId,
        digest: Digest,
        group: Option<u64>,
    ) {
        if self.damage.len() >= DAMAGE_MAX && !self.damage.contains_key(&(node, digest)) {
            return;
        }
        if self.damage.insert((node, digest), group).is_none() {
            let name = ctx.name_of(node);
            warn!(node = name, %digest, ?group, "a copy of a model is damaged");
            ctx.changed();
        }
        if node == ctx.me {
            // It is looked for again, and hashed anew.
            self.located(ctx, digest, None);
        }
    }

    /// For a person: the damaged copies, and what to do about them.
    pub(crate) fn damage_notices(&self, ctx: &Context) -> impl Iterator<Item = String> {
        self.damage.iter().map(|((node, digest), group)| {
            let name = ctx.name_of(*node);
            let mut wanted = ctx.desired.wanted().filter(|(_, wanted)| wanted.digest == *digest);
            let short = || digest.to_string()[..12].to_owned();
            let model = wanted.next().map_or_else(short, |(_, wanted)| wanted.spec.model.clone());
            let what = group.map_or("some of it".to_owned(), |group| format!("MiB {}", group + 1));
            format!(
                "the copy of {model} on node {name} is damaged: {what} is not what it was when it was \
                 hashed. What is wrong there is taken from other nodes as long as they have it. On \
                 {name}: put a whole file in its place (of one that was pulled: sinew rm and sinew \
                 pull), and check that disk"
            )
        })
    }
}

/// Whether a member reports that it has a file, or that it lacks it.
fn says(ctx: &Context, id: NodeId, digest: &Digest, has: bool) -> bool {
    ctx.heartbeat_of(id).is_some_and(|heartbeat| heartbeat.files.contains(&(*digest, has)))
}

/// The members that can be reached, as they last reported.
pub(crate) fn seen(ctx: &Context) -> Vec<Seen> {
    let reachable = ctx.membership.members().filter_map(|member| {
        let heartbeat = ctx.live_heartbeat_of(member.id)?;
        let (sees, files) = (heartbeat.sees.clone(), heartbeat.files.clone());
        Some(Seen { node: member.id, name: member.name.clone(), sees, files })
    });
    reachable.collect()
}

/// The nodes to read a file from: the owner, which holds it open, and all members that have it.
pub(crate) fn sources(
    ctx: &Context,
    owner: Option<NodeId>,
    digest: Digest,
    bytes: u64,
) -> swarm::Wanted {
    let reachable = ctx.membership.reachable();
    let others = reachable.filter(|id| Some(*id) != owner && says(ctx, *id, &digest, true));
    let source =
        |node| Source { node, name: ctx.name_of(node), addresses: ctx.addresses_of(node), digest };
    let sources = owner.into_iter().chain(others).map(source).collect();
    swarm::Wanted { digest, bytes, sources }
}

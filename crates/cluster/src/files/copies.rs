//! Keeps the files of served models on the number of nodes that `--copies` requests; by itself on
//! two, where disks have room.
//!
//! Every node decides for itself: of the nodes that lack a file with too few holders, those with
//! the lowest ids copy it, one for each missing copy. A node that fails reports that in its
//! heartbeats, and the next one takes its turn.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::PathBuf;
use std::time::Duration;

use store::Digest;
use tracing::{info, warn};

use super::places::{Places, says, sources};
use crate::NodeId;
use crate::context::{Context, News};
use crate::desired::Service;

/// A restarting node is back within this time, which saves a copy of gigabytes.
const SHORT_MAX: Duration = Duration::from_secs(10);
/// Pause before a failed copy is retried.
const TRY_AGAIN: Duration = Duration::from_secs(60);
/// The same, for a copy that is made only where a disk has room, and found none.
const LOOK_FOR_ROOM: Duration = Duration::from_secs(600);

/// A copy of a file that this node makes.
#[derive(Debug, Clone, PartialEq)]
enum Copying {
    /// Too few nodes have had the file since then.
    Short(Duration),
    Running,
    Failed(Failure),
}

#[derive(Debug, Clone, PartialEq)]
struct Failure {
    why: String,
    at: Duration,
    /// Before it is tried again.
    pause: Duration,
}

/// Copies of files with too few holders.
#[derive(Debug, Default)]
pub(crate) struct Copies {
    all: BTreeMap<Digest, Copying>,
    /// Files that had enough holders: a node that restarts is waited for.
    were_whole: BTreeSet<Digest>,
}

impl Copies {
    /// Starts the copies that are this node's turn.
    pub(crate) fn keep(&mut self, ctx: &mut Context, places: &Places) {
        let now = ctx.now();
        let short: Vec<(Service, usize)> =
            ctx.desired.wanted().filter_map(|(_, wanted)| shortage(ctx, places, wanted)).collect();
        self.all.retain(|digest, copying| {
            *copying == Copying::Running || short.iter().any(|(it, _)| it.digest == *digest)
        });
        self.were_whole.retain(|digest| ctx.desired.wanted().any(|(_, it)| it.digest == *digest));
        let has_enough = |wanted: &Service| {
            let holders = places.holders(ctx, &wanted.digest).count();
            wanted.spec.copies.is_some_and(|copies| holders >= copies)
        };
        let whole = ctx.desired.wanted().filter(|(_, wanted)| has_enough(wanted));
        self.were_whole.extend(whole.map(|(_, wanted)| wanted.digest));
        for (wanted, missing) in short {
            let digest = wanted.digest;
            // A node that has just started does not know yet who was there before.
            let is_new = !self.were_whole.contains(&digest) && now >= SHORT_MAX;
            let since = self.all.entry(digest).or_insert(Copying::Short(now));
            let is_due = match since {
                Copying::Short(since) => is_new || now.saturating_sub(*since) >= SHORT_MAX,
                Copying::Running => false,
                Copying::Failed(Failure { at, pause, .. }) => now.saturating_sub(*at) >= *pause,
            };
            let turn = takers(ctx, places, &digest).iter().position(|node| *node == ctx.me);
            if is_due && turn.is_some_and(|turn| turn < missing) {
                info!(model = wanted.spec.model, "this node copies a model's file");
                self.all.insert(digest, Copying::Running);
                let sources = sources(ctx, None, digest, wanted.bytes);
                ctx.outside.copy(wanted, sources);
            }
        }
    }

    /// The files that this node failed to copy.
    pub(crate) fn failed(&self) -> Vec<Digest> {
        let failed = |(_, copying): &(&Digest, &Copying)| matches!(copying, Copying::Failed(..));
        self.all.iter().filter(failed).map(|(digest, _)| *digest).collect()
    }

    pub(crate) fn ended(
        &mut self,
        ctx: &mut Context,
        places: &mut Places,
        digest: Digest,
        copied: io::Result<PathBuf>,
    ) {
        ctx.changed();
        let error = match copied {
            Ok(path) => {
                info!(path = %path.display(), "a model's file was copied to this node");
                self.all.remove(&digest);
                return places.located(ctx, digest, Some(path));
            }
            Err(error) => error,
        };
        let (why, at, is_optional) = (error.to_string(), ctx.now(), is_optional(ctx, &digest));
        match is_optional {
            true => info!(why, "a model's file is not copied to this node"),
            false => warn!(why, "a model's file cannot be copied to this node"),
        }
        let lacks_room = error.kind() == io::ErrorKind::StorageFull;
        let pause = if is_optional && lacks_room { LOOK_FOR_ROOM } else { TRY_AGAIN };
        self.all.insert(digest, Copying::Failed(Failure { why, at, pause }));
        ctx.post(News::Heartbeats);
    }

    /// Notices for the user: the files with fewer holders than `--copies` requests.
    pub(crate) fn notices(&self, ctx: &Context) -> Vec<String> {
        let mut notices = Vec::new();
        for (entry, wanted) in ctx.desired.wanted() {
            let (name, here) = (&entry.name, &ctx.config.name);
            let is_optional = wanted.spec.copies_if_room;
            if let Some(Copying::Failed(Failure { why, .. })) = self.all.get(&wanted.digest) {
                let is_not = if is_optional { "is not" } else { "cannot be" };
                notices.push(format!("the file of {name} {is_not} copied to node {here}: {why}"));
            }
            let asked = wanted.spec.copies.unwrap_or(0);
            let nodes = ctx.membership.members().count() + 1;
            if entry.owner() == ctx.me && asked > nodes && !is_optional {
                notices.push(format!(
                    "{asked} nodes were asked to have the file of {name}, and the cluster has \
                     {nodes}. Let more nodes join (sinew invite)"
                ));
            }
        }
        notices
    }
}

/// Whether copies of this file are made only where a disk has room.
fn is_optional(ctx: &Context, digest: &Digest) -> bool {
    let of_file = ctx.desired.wanted().filter(|(_, wanted)| wanted.digest == *digest);
    of_file.into_iter().all(|(_, wanted)| wanted.spec.copies_if_room)
}

/// Whether a node will copy this file, or does so.
pub(crate) fn can_follow(ctx: &Context, places: &Places, wanted: &Service) -> bool {
    shortage(ctx, places, wanted).is_some() && !takers(ctx, places, &wanted.digest).is_empty()
}

/// Why no node copies this file now, for the user.
pub(crate) fn why_no_copy(ctx: &Context, digest: &Digest) -> String {
    let members = || ctx.membership.members();
    let names = |ids: Vec<NodeId>| {
        let names: Vec<String> = ids.into_iter().map(|id| ctx.name_of(id)).collect();
        names.join(", ")
    };
    let away = members().filter(|member| ctx.membership.conn(member.id).is_none());
    let away: Vec<NodeId> = away.map(|member| member.id).collect();
    let failed = |id: &NodeId| {
        ctx.live_heartbeat_of(*id).is_some_and(|told| told.cannot_copy.contains(digest))
    };
    let failed: Vec<NodeId> = members().map(|member| member.id).filter(failed).collect();
    if !failed.is_empty() {
        let names = names(failed);
        return format!(
            "The copy to {names} failed, and is tried again: sinew status there says why"
        );
    }
    if !away.is_empty() {
        return format!("{} cannot be reached now, and can copy it once that ends", names(away));
    }
    "No other node that is here can copy it".to_owned()
}

/// The number of missing copies, if too few reachable nodes have the file.
fn shortage(ctx: &Context, places: &Places, wanted: &Service) -> Option<(Service, usize)> {
    let holders = places.holders(ctx, &wanted.digest).count();
    let missing = wanted.spec.copies?.saturating_sub(holders);
    (holders > 0 && missing > 0).then(|| (wanted.clone(), missing))
}

/// The nodes that lack a file and could copy it, in the order of their turns.
fn takers(ctx: &Context, places: &Places, digest: &Digest) -> Vec<NodeId> {
    let is_mine = places.holdings().contains(&(*digest, false));
    let mine = is_mine.then_some(ctx.me);
    let has_failed = |id: NodeId| {
        ctx.heartbeat_of(id).is_some_and(|heartbeat| heartbeat.cannot_copy.contains(digest))
    };
    let others = ctx.membership.reachable();
    let others = others.filter(|id| says(ctx, *id, digest, false) && !has_failed(*id));
    let mut takers: Vec<NodeId> = mine.into_iter().chain(others).collect();
    takers.sort();
    takers
}

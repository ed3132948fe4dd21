//! Replicas: a model that runs several times, each time on nodes of its own.
//!
//! Each replica is an instance with an entry of its own in the document, so that ownership, moves
//! and losses are those of any instance. Here is what concerns several: where they are, which nodes
//! each may use, and who starts the next one. [`super::replicating`] starts and ends them.

use std::collections::BTreeSet;

use protocol::{InstanceSpec, Replicas};

use super::host::Host;
use super::place::Candidate;
use super::reported::reported;
use super::table::Table;
use crate::context::Context;
use crate::desired::{Entry, Service};
use crate::files::{says, seen};
use crate::peers::conn_to_owner;
use crate::{InstanceState, InstanceStatus, NodeId};

/// The status of a replica, by its owner.
pub(super) fn status(
    host: &Host,
    table: &Table,
    entry: &Entry,
    wanted: &Service,
) -> InstanceStatus {
    match table.get(&wanted.id) {
        Some(owned) => owned.told(),
        None => reported(host, table, entry, wanted),
    }
}

/// The nodes of a replica that loads or works, and the owner of an unloaded one.
pub(super) fn nodes_of(
    host: &Host,
    table: &Table,
    entry: &Entry,
    wanted: &Service,
) -> BTreeSet<NodeId> {
    let status = status(host, table, entry, wanted);
    match status.state {
        InstanceState::Loading | InstanceState::Ready => {
            status.ranks.iter().map(|rank| rank.node).collect()
        }
        InstanceState::Unloaded => BTreeSet::from([status.owner]),
        InstanceState::Recovering { .. } | InstanceState::Failed { .. } => BTreeSet::new(),
    }
}

/// Whether a replica works.
pub(super) fn works(host: &Host, table: &Table, entry: &Entry, wanted: &Service) -> bool {
    let status = status(host, table, entry, wanted);
    status.state == InstanceState::Ready && status.has_generated
}

/// Whether another replica of an instance works.
pub(super) fn another_works(host: &Host, table: &Table, id: &str) -> bool {
    let others = host.ctx.desired.other_replicas(id);
    others.into_iter().any(|(entry, wanted)| works(host, table, entry, wanted))
}

/// A replica of this model that this node runs, or whose owner it reaches.
pub(super) fn nearest(host: &Host, table: &Table, name: &str) -> Option<String> {
    let (_, wanted) = host.ctx.desired.find(name)?;
    let all = host.ctx.desired.replicas(&wanted.id);
    let is_near = |(entry, one): &&(&Entry, &Service)| {
        table.get(&one.id).is_some() || conn_to_owner(&host.ctx, entry, one).is_some()
    };
    all.iter().find(is_near).map(|(_, one)| one.id.clone())
}

/// The nodes of the other replicas of an instance that work.
pub(super) fn nodes_of_others(host: &Host, table: &Table, id: &str) -> BTreeSet<NodeId> {
    let others = host.ctx.desired.other_replicas(id).into_iter();
    let working = others.filter(|(entry, wanted)| works(host, table, entry, wanted));
    working.flat_map(|(entry, wanted)| nodes_of(host, table, entry, wanted)).collect()
}

/// How many replicas a model shall have: as many as were asked for, or as the first one's owner
/// reports, or as there are.
pub(super) fn count_wanted(host: &Host, table: &Table, all: &[(&Entry, &Service)]) -> usize {
    let Some((entry, first)) = all.first() else { return 1 };
    let counted = || match table.get(&first.id) {
        Some(owned) => Some(owned.replicas_wanted).filter(|count| *count > 0),
        None => reported(host, table, entry, first).replicas_wanted,
    };
    first.replicas_asked().or_else(counted).unwrap_or(all.len())
}

/// The candidates for one replica: without the nodes of others, and without its part of the rest
/// if others are still to be placed.
pub(super) fn share(
    host: &Host,
    table: &Table,
    id: &str,
    mut all: Vec<Candidate>,
) -> Vec<Candidate> {
    let replicas = host.ctx.desired.replicas(id);
    let wanted = count_wanted(host, table, &replicas);
    if replicas.len().max(wanted) < 2 {
        return all;
    }
    let me = host.ctx.me;
    let (mut taken, mut leaders, mut placed) = (BTreeSet::new(), Vec::new(), 0);
    for (entry, wanted) in replicas.iter().filter(|(_, one)| one.id != id) {
        let nodes = nodes_of(host, table, entry, wanted);
        match nodes.is_empty() {
            true => leaders.push(entry.owner()),
            false => placed += 1,
        }
        taken.extend(nodes);
    }
    all.retain(|one| one.node == me || !taken.contains(&one.node));
    deal(all, wanted.saturating_sub(placed + 1), &leaders)
}

/// Asks for as many copies of the file as replicas: each owner needs one.
///
/// # Errors
/// There are fewer nodes than replicas.
pub(super) fn check(spec: &mut InstanceSpec, nodes: usize) -> Result<(), String> {
    let Some(Replicas::Count(count)) = spec.replicas else { return Ok(()) };
    if count == 1 {
        spec.replicas = None;
        return Ok(());
    }
    if nodes < count {
        let are = if nodes == 1 { "is" } else { "are" };
        return Err(format!(
            "{count} replicas need {count} nodes, and there {are} {nodes}. Join more nodes, or ask \
             for --replicas auto, which adds replicas where there are nodes for them"
        ));
    }
    if spec.copies.is_none_or(|copies| copies < count || spec.copies_if_room) {
        (spec.copies, spec.copies_if_room) = (Some(spec.copies.unwrap_or(0).max(count)), false);
    }
    Ok(())
}

/// The candidates for the first replica of a new instance.
pub(super) fn share_of_new(spec: &InstanceSpec, all: Vec<Candidate>) -> Vec<Candidate> {
    match spec.replicas {
        Some(Replicas::Count(count)) => deal(all, count - 1, &[]),
        Some(Replicas::Auto) | None => all,
    }
}

/// The part of the first candidate, if `others` more replicas need nodes.
fn deal(all: Vec<Candidate>, others: usize, leaders: &[NodeId]) -> Vec<Candidate> {
    match others == 0 || all.len() < 2 {
        true => all,
        false => parts(all, others, leaders).swap_remove(0),
    }
}

/// The nodes of each replica: that of the first candidate, then `others` more. Each of these gets
/// one node that leads it: `leaders` if they are here, else those with the most memory. The rest is
/// dealt out, to whoever has the least memory so far.
pub(super) fn parts(
    mut all: Vec<Candidate>,
    others: usize,
    leaders: &[NodeId],
) -> Vec<Vec<Candidate>> {
    let first = all.remove(0);
    let is_leader = |one: &Candidate| leaders.contains(&one.node);
    let memory = |one: &Candidate| std::cmp::Reverse(one.memory_free_bytes);
    all.sort_by_key(|one| (!is_leader(one), memory(one), one.node));
    let mut groups: Vec<Vec<Candidate>> = vec![vec![first]];
    for one in all {
        if groups.len() <= others {
            groups.push(vec![one]);
            continue;
        }
        let bytes = |group: &Vec<Candidate>| -> u64 {
            group.iter().fold(0, |sum: u64, one| sum.saturating_add(one.memory_free_bytes))
        };
        let poorest = groups.iter_mut().min_by_key(|group| bytes(group));
        poorest.into_iter().for_each(|group| group.push(one.clone()));
    }
    groups
}

/// The node that starts the next replica: with the file, not drained, without a replica, and of
/// these the lowest. If as many as pay are asked for, the first one makes room.
pub(super) fn next_owner(host: &Host, table: &Table, all: &[(&Entry, &Service)]) -> Option<NodeId> {
    let ctx = &host.ctx;
    let first = all.first()?.1;
    let (digest, makes_room) = (first.digest, first.replicas_asked().is_none());
    let (mut taken, mut shared) = (BTreeSet::new(), BTreeSet::new());
    for (entry, wanted) in all {
        let nodes = nodes_of(host, table, entry, wanted);
        match makes_room && wanted.id == first.id {
            true => shared = nodes,
            false => taken.extend(nodes),
        }
        taken.insert(entry.owner());
    }
    let here = host.files.places.here(&digest).map(|_| ctx.me);
    let live = ctx.membership.members().map(|member| member.id);
    let there = live.filter(|id| {
        ctx.live_heartbeat_of(*id)
            .is_some_and(|heartbeat| heartbeat.numerics == ctx.versions.numerics)
            && says(ctx, *id, &digest, true)
    });
    let able = here.into_iter().chain(there);
    let able = able.filter(|id| !taken.contains(id) && !ctx.desired.is_drained(*id));
    able.min_by_key(|id| (shared.contains(id), *id))
}

/// Whether an instance of this node rests: the node is to be empty, nobody else can take the
/// instance, and another replica works.
pub(super) fn rests(host: &Host, table: &Table, wanted: &Service) -> bool {
    let ctx = &host.ctx;
    ctx.desired.is_drained(ctx.me)
        && another_works(host, table, &wanted.id)
        && ctx.desired.successor(wanted, &host.files.places.holdings(), &seen(ctx)).is_none()
}

/// The name of the instance that this one is a replica of, and how many are wanted of a first one.
pub(super) fn group(ctx: &Context, wanted: &Service) -> (Option<String>, Option<usize>) {
    let first = wanted.spec.replica_of.as_ref();
    let name = first.and_then(|first| ctx.desired.find(first)).map(|(entry, _)| entry.name.clone());
    let asked = wanted.spec.replicas.and_then(|_| wanted.replicas_asked());
    (name.or_else(|| first.cloned()), asked)
}

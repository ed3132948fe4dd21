//! The nodes that instances of this node can be placed on: present, stable, of the same numerics
//! version, and connected to the others.

use std::collections::BTreeSet;

use protocol::{InstanceSpec, Transport};

use super::growth::Growth;
use super::host::Host;
use super::owned::Owned;
use super::partition::Partition;
use super::place::Candidate;
use super::replicas;
use super::reported::reported;
use super::table::Table;
use crate::context::Context;
use crate::device::{class_of, kind_of, own_memory};
use crate::instance::{Apart, Path};
use crate::members::Member;
use crate::wire::VERSION;
use crate::{NodeId, NodeState};

/// A node with this many returns within a minute, in the same process, has an unstable path.
const RETURNS_MAX: usize = 3;

#[derive(Default)]
pub(crate) struct Pool {
    /// The stability of nodes, and the times of moves.
    pub growth: Growth,
    /// The pairs of nodes that do not reach each other.
    pub partition: Partition,
}

impl Pool {
    /// The nodes that could take a rank now, this one first. Drained nodes are left out, except
    /// this node, which has a rank of every instance that it owns. The memory of `leaving` counts
    /// as free.
    pub(super) fn candidates(
        &self,
        host: &Host,
        table: &Table,
        leaving: Option<&str>,
        transport: Transport,
    ) -> Vec<Candidate> {
        let ctx = &host.ctx;
        let device = ctx.config.device.told();
        let me = Candidate {
            node: ctx.me,
            name: ctx.config.name.clone(),
            path: Path::LOOPBACK,
            memory_free_bytes: ctx.config.memory_bytes,
            threads: ctx.config.threads,
            speed: host.paths.speed,
            device: kind_of(device.as_ref()),
            class: class_of(device.as_ref()),
            own_memory: own_memory(device.as_ref()),
            link: None,
            uncalled: host.paths.uncalled_by(ctx, ctx.me),
        };
        let live = ctx.membership.members().filter(|member| {
            ctx.membership.state(member.id) == NodeState::Live && !ctx.desired.is_drained(member.id)
        });
        let peers = live.filter_map(|member| self.peer(host, member, transport));
        let mut candidates: Vec<Candidate> = std::iter::once(me).chain(peers).collect();
        for candidate in &mut candidates {
            let used = memory_used_on(host, table, candidate.node, leaving);
            candidate.memory_free_bytes = candidate.memory_free_bytes.saturating_sub(used);
        }
        candidates
    }

    fn peer(&self, host: &Host, member: &Member, transport: Transport) -> Option<Candidate> {
        let ctx = &host.ctx;
        let heartbeat = ctx.heartbeat_of(member.id)?;
        if heartbeat.numerics != ctx.versions.numerics || self.flaps(ctx, member.id) {
            return None;
        }
        let uncalled = host.paths.uncalled_by(ctx, member.id);
        // Its rank would have to call the first one.
        if uncalled.contains(&ctx.me) {
            return None;
        }
        let path = ctx.conn(member.id)?.path;
        Some(Candidate {
            node: member.id,
            name: member.name.clone(),
            path,
            memory_free_bytes: heartbeat.memory_bytes,
            threads: heartbeat.threads,
            speed: heartbeat.speed,
            device: kind_of(heartbeat.device.as_ref()),
            class: class_of(heartbeat.device.as_ref()),
            own_memory: own_memory(heartbeat.device.as_ref()),
            link: host.paths.speed_to(ctx, member.id, path, transport),
            uncalled,
        })
    }

    /// The candidates that all reach each other, as far as known.
    pub(super) fn together(
        &self,
        host: &Host,
        table: &Table,
        leaving: Option<&str>,
        transport: Transport,
    ) -> Vec<Candidate> {
        let all = self.candidates(host, table, leaving, transport);
        without_apart(host.ctx.me, all, &self.partition.pairs())
    }

    /// The candidates for a user's request.
    pub(super) fn asked(&self, host: &Host, table: &Table, spec: &InstanceSpec) -> Vec<Candidate> {
        let all = self.candidates(host, table, None, spec.options.transport);
        // A user who names nodes, or their number, gets an error about them.
        if spec.nodes.is_some() {
            return all;
        }
        without_apart(host.ctx.me, all, &self.partition.lasting())
    }

    /// The candidates of the near future for an instance, whose own memory counts as free: its
    /// present nodes, and those that have stayed for long enough. If it must move, new nodes count
    /// too.
    pub(super) fn future(
        &self,
        host: &Host,
        table: &Table,
        (id, owned): (&str, &Owned),
        must: bool,
    ) -> Vec<Candidate> {
        let now = host.ctx.now();
        let transport = owned.machine.fixed().spec.options.transport;
        let candidates = self.together(host, table, Some(id), transport);
        let mut candidates = replicas::share(host, table, id, candidates);
        let is_on = |node: NodeId| owned.machine.nodes().any(|on| on == node);
        let stays = |node| must || is_on(node) || self.growth.is_steady(node, now);
        candidates.retain(|one| one.node == host.ctx.me || stays(one.node));
        candidates
    }

    /// Descriptions of the connected members that are not candidates.
    pub(crate) fn absent(&self, host: &Host) -> Vec<String> {
        let others = other_versions(&host.ctx).into_iter();
        others.chain(self.flapping(&host.ctx)).chain(host.paths.one_way(&host.ctx)).collect()
    }

    /// Adds those members to the reason why no placement is possible.
    pub(super) fn with_absent(&self, host: &Host, why: String) -> String {
        self.absent(host).into_iter().fold(why, |why, absent| format!("{why}. {absent}"))
    }

    fn flaps(&self, ctx: &Context, node: NodeId) -> bool {
        self.growth.returns(node, ctx.now()) >= RETURNS_MAX
    }

    fn flapping(&self, ctx: &Context) -> Vec<String> {
        let words = |member: &Member| {
            let returns = self.growth.returns(member.id, ctx.now());
            (returns >= RETURNS_MAX).then(|| {
                format!(
                    "The way to {} broke {returns} times in the last minute, so no model is placed \
                     on it until it holds for a minute. Look at the cable, the Wi-Fi or the VPN \
                     between the two: sinew nodes -v",
                    member.name
                )
            })
        };
        ctx.membership.members().filter_map(words).collect()
    }
}

/// Description of the members with another numerics version.
fn other_versions(ctx: &Context) -> Option<String> {
    let others = ctx.membership.members().filter_map(|member| {
        let heartbeat = ctx.live_heartbeat_of(member.id)?;
        let differs = heartbeat.numerics != ctx.versions.numerics;
        differs.then(|| format!("{} (sinew {})", member.name, heartbeat.version))
    });
    let others: Vec<String> = others.collect();
    (!others.is_empty()).then(|| {
        format!(
            "Models of this node (sinew {VERSION}) wait for {}: they compute in another version, \
             and a model runs on nodes of one. Update the older ones",
            others.join(", ")
        )
    })
}

/// The memory in use on a node: its own report, but at least this node's placements there.
fn memory_used_on(host: &Host, table: &Table, node: NodeId, leaving: Option<&str>) -> u64 {
    let planned = |owned: &Owned| owned.machine.memory_bytes_on(node);
    let mine: u64 = table.running().map(|(_, owned)| planned(owned)).sum();
    let leaving = leaving.map_or(0, |id| match table.get(id) {
        Some(owned) => planned(owned),
        None => memory_reported(host, table, id, node),
    });
    let used = if node == host.ctx.me {
        host.workers.memory_used_bytes()
    } else {
        host.ctx.heartbeat_of(node).map_or(0, |heartbeat| heartbeat.memory_used_bytes)
    };
    used.max(mine).saturating_sub(leaving)
}

/// The memory of another node's instance on a node, by its owner's report.
fn memory_reported(host: &Host, table: &Table, id: &str, node: NodeId) -> u64 {
    let Some((entry, wanted)) = host.ctx.desired.find(id) else { return 0 };
    let ranks = reported(host, table, entry, wanted).ranks;
    let there = ranks.iter().filter(|rank| rank.node == node).map(|rank| rank.memory_bytes);
    there.fold(0, u64::saturating_add)
}

/// Removes candidates until none lacks a link to another.
fn without_apart(
    me: NodeId,
    mut candidates: Vec<Candidate>,
    apart: &BTreeSet<(NodeId, NodeId)>,
) -> Vec<Candidate> {
    while let Some(node) = most_apart(me, &candidates, apart) {
        candidates.retain(|one| one.node != node);
    }
    candidates
}

/// The node that lacks the most links; of several, the one with the least memory. Never this node,
/// which leads.
fn most_apart(
    me: NodeId,
    candidates: &[Candidate],
    apart: &BTreeSet<(NodeId, NodeId)>,
) -> Option<NodeId> {
    let here: BTreeSet<NodeId> = candidates.iter().map(|one| one.node).collect();
    let links_missing = |node: NodeId| {
        let both = apart.iter().filter(|(a, b)| here.contains(a) && here.contains(b));
        both.filter(|(a, b)| *a == node || *b == node).count()
    };
    let others = candidates.iter().filter(|one| one.node != me);
    let worst = others.max_by_key(|one| {
        (links_missing(one.node), std::cmp::Reverse(one.memory_free_bytes), one.node)
    })?;
    (links_missing(worst.node) > 0).then_some(worst.node)
}

/// The pairs of an instance's ranks whose nodes report that they do not reach each other.
pub(super) fn apart_on(ctx: &Context, owned: &Owned) -> Vec<Apart> {
    let others: Vec<NodeId> = owned.machine.nodes().filter(|on| *on != ctx.me).collect();
    let pairs = others.iter().enumerate().flat_map(|(at, a)| {
        let later = others[at + 1..].iter();
        later.filter_map(|b| Some((*a, *b, super::partition::why_apart(ctx, *a, *b)?)))
    });
    pairs.collect()
}

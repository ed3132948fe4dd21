//! Nodes with the same fleet key become one cluster by themselves.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

use tokio::sync::oneshot;
use tracing::info;

use super::Admission;
use crate::NodeId;
use crate::core::Context;
use crate::link_local::unscoped;
use crate::members::{MEMBERS_MAX, Members};
use crate::membership::Input;
use crate::peers::Peers;
use crate::wire::JoinAnswer;

/// Of two nodes the lower id calls at once, the higher one if nothing came of it.
const SECOND_CALLER_AFTER: Duration = Duration::from_secs(2);
/// How soon a node that is no member yet is called again, and how rarely in the end.
const CALL_AGAIN_MIN: Duration = Duration::from_secs(2);
const CALL_AGAIN_MAX: Duration = Duration::from_secs(30);

/// The nodes to call, and when.
#[derive(Debug, Default)]
pub(super) struct Fleets {
    calls: BTreeMap<Target, Turn>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Target {
    /// It announces the same key.
    Node(NodeId),
    /// A person has named this address; the node there proves who it is.
    Address(SocketAddr),
}

#[derive(Debug)]
struct Turn {
    due: Duration,
    wait: Duration,
}

impl Admission {
    /// Calls the nodes that announce the same key, and the given addresses that are no member's.
    pub(super) fn call_fleet(&mut self, ctx: &mut Context, given: &[SocketAddr]) {
        if ctx.config.fleet_key.is_none() {
            return;
        }
        let (now, targets) = (ctx.now(), self.fleet_targets(ctx, given));
        self.fleets.calls.retain(|target, _| targets.contains_key(target));
        for (target, addresses) in targets {
            let waits = matches!(target, Target::Node(id) if id < ctx.me);
            let due = now + if waits { SECOND_CALLER_AFTER } else { Duration::ZERO };
            let first = Turn { due, wait: CALL_AGAIN_MIN };
            let turn = self.fleets.calls.entry(target).or_insert(first);
            if now >= turn.due {
                *turn = Turn { due: now + turn.wait, wait: CALL_AGAIN_MAX.min(2 * turn.wait) };
                let peer = match target {
                    Target::Node(id) => Some(id),
                    Target::Address(_) => None,
                };
                ctx.outside.unite(peer, addresses, ctx.all_members());
            }
        }
    }

    fn fleet_targets(
        &self,
        ctx: &Context,
        given: &[SocketAddr],
    ) -> BTreeMap<Target, Vec<SocketAddr>> {
        let Some(key) = &ctx.config.fleet_key else { return BTreeMap::new() };
        let (membership, me) = (&ctx.membership, ctx.me);
        let is_out = |id| id == me || membership.is_member(id) || membership.was_removed(id);
        let near = self.nearby.of_fleet(&key.tag(), is_out);
        let is_known = |address: &SocketAddr| {
            let (ours, address) = (ctx.outside.addresses(), unscoped(*address));
            let mut members = membership.members();
            ours.contains(&address) || members.any(|member| member.addresses.contains(&address))
        };
        let given = given.iter().filter(|address| !is_known(address));
        let near = near.into_iter().map(|(id, addresses)| (Target::Node(id), addresses));
        near.chain(given.map(|at| (Target::Address(*at), vec![*at]))).collect()
    }

    /// A node has proved that it has this node's fleet key.
    pub(crate) fn fleet_asked(
        &mut self,
        ctx: &mut Context,
        peers: &mut Peers,
        (peer, members): (NodeId, Members),
        reply: oneshot::Sender<JoinAnswer>,
    ) {
        let refused = |reason: String| JoinAnswer::Refused { reason };
        let full = ctx.membership.members().count() + 1 >= MEMBERS_MAX;
        let answer = if peer == ctx.me {
            refused("it is this node itself".to_owned())
        } else if ctx.membership.was_removed(peer) {
            refused("it was removed from this cluster, and needs a code: sinew invite".to_owned())
        } else if full && !ctx.membership.is_member(peer) {
            refused(format!("this cluster has {MEMBERS_MAX} nodes already"))
        } else {
            self.united(ctx, peers, peer, members);
            JoinAnswer::Accepted(ctx.all_members())
        };
        // A visitor that has hung up keeps nothing waiting.
        let _ = reply.send(answer);
    }

    /// Both ends have proved that they have the same key.
    pub(crate) fn united(
        &mut self,
        ctx: &mut Context,
        peers: &mut Peers,
        peer: NodeId,
        members: Members,
    ) {
        if !ctx.membership.is_member(peer) {
            info!(peer = %peer.short(), "a node of the fleet is a member now");
        }
        self.own.withdraw();
        self.parted = None;
        peers.step(ctx, Input::Learned { members: members.sanitized(), by: Some(peer) });
    }
}

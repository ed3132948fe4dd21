//! Nodes with the same fleet key form one cluster without codes or people.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

use super::nearby::Nearby;
use crate::NodeId;
use crate::context::Context;
use crate::link_local::unscoped;

/// Of two nodes the lower id calls at once; the higher one waits this long first.
const SECOND_CALLER_AFTER: Duration = Duration::from_secs(2);
/// Limits of the pause before a repeated call to a node that is not yet a member.
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
    /// An address from `--peer`; the node there must prove the key.
    Address(SocketAddr),
}

#[derive(Debug)]
struct Turn {
    due: Duration,
    wait: Duration,
}

impl Fleets {
    /// Calls the nodes that announce the same key, and the given addresses that are not a member's.
    pub(super) fn call(&mut self, ctx: &mut Context, nearby: &Nearby, given: &[SocketAddr]) {
        if ctx.config.fleet_key.is_none() {
            return;
        }
        let (now, targets) = (ctx.now(), targets(ctx, nearby, given));
        self.calls.retain(|target, _| targets.contains_key(target));
        for (target, addresses) in targets {
            let waits = matches!(target, Target::Node(id) if id < ctx.me);
            let due = now + if waits { SECOND_CALLER_AFTER } else { Duration::ZERO };
            let first = Turn { due, wait: CALL_AGAIN_MIN };
            let turn = self.calls.entry(target).or_insert(first);
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
}

fn targets(
    ctx: &Context,
    nearby: &Nearby,
    given: &[SocketAddr],
) -> BTreeMap<Target, Vec<SocketAddr>> {
    let Some(key) = &ctx.config.fleet_key else { return BTreeMap::new() };
    let (membership, me) = (&ctx.membership, ctx.me);
    let is_out = |id| id == me || membership.is_member(id) || membership.was_removed(id);
    let near = nearby.of_fleet(&key.tag(), is_out);
    let is_known = |address: &SocketAddr| {
        let (ours, address) = (ctx.outside.addresses(), unscoped(*address));
        let mut members = membership.members();
        ours.contains(&address) || members.any(|member| member.addresses.contains(&address))
    };
    let given = given.iter().filter(|address| !is_known(address));
    let near = near.into_iter().map(|(id, addresses)| (Target::Node(id), addresses));
    near.chain(given.map(|at| (Target::Address(*at), vec![*at]))).collect()
}

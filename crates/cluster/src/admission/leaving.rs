//! Nodes that leave the cluster or are removed from it.

use tokio::sync::oneshot;
use tracing::info;

use crate::context::{Context, Reply};
use crate::members::Member;
use crate::membership::Input;
use crate::peers::Peers;
use crate::{Error, NodeId, Parted, Result, find_node};

/// Removes a member.
pub(crate) fn remove(ctx: &mut Context, peers: &mut Peers, name: &str) -> Result<Parted> {
    let member = member_named(ctx, name)?;
    info!(node = %member.id.short(), name = member.name, "a node is taken out of the cluster");
    let reached = ctx.membership.reachable().filter(|id| *id != member.id).count();
    peers.step(ctx, Input::Remove(member.id));
    if ctx.membership.is_member(member.id) {
        return Err(Error::Unusable(format!("{name} could not be removed, and is a member still")));
    }
    let left = ctx.membership.members().count();
    let (told, untold) = (reached, left.saturating_sub(reached));
    Ok(Parted { node: member.id, name: member.name, told, untold })
}

/// Removes the members that a removed node has told of and that no other member has met: they may
/// be made up.
pub(crate) fn forget_unmet(ctx: &mut Context, peers: &mut Peers) {
    let is_seen = |node: &NodeId| {
        let mut told = ctx.membership.reachable().filter_map(|peer| ctx.heartbeat_of(peer));
        told.any(|heartbeat| heartbeat.sees.contains(node))
    };
    let unmet = ctx.membership.told_by_removed().into_iter();
    for node in unmet.filter(|node| !is_seen(node)).collect::<Vec<_>>() {
        info!(node = %node.short(), "a member that only a removed node told of is removed too");
        peers.step(ctx, Input::Remove(node));
    }
}

/// Answers once the list of members is on this node's disk.
pub(crate) fn answer_when_parted(ctx: &mut Context, reply: Reply<Parted>, parted: Parted) {
    // The caller may have stopped waiting.
    ctx.outside.when_members_kept(Box::new(|kept| {
        drop(reply.send(kept.map(|()| parted)));
    }));
}

/// A node announces that it leaves. The reply states whether it was a member.
pub(crate) fn leave_asked(
    ctx: &mut Context,
    peers: &mut Peers,
    peer: NodeId,
    reply: oneshot::Sender<bool>,
) {
    let is_member = ctx.membership.is_member(peer);
    if is_member {
        info!(node = %peer.short(), name = ctx.name_of(peer), "a node leaves the cluster");
        peers.step(ctx, Input::Remove(peer));
    }
    // The node may have hung up.
    let _ = reply.send(is_member);
}

/// Finds another member by its name or the beginning of its id.
fn member_named(ctx: &Context, name: &str) -> Result<Member> {
    let me = (ctx.me, ctx.config.name.as_str());
    let others = ctx.membership.members().map(|member| (member.id, member.name.as_str()));
    let id = find_node(name, others.chain([me]))?;
    let own_name = || Error::OwnName { name: name.to_owned() };
    ctx.membership.members().find(|member| member.id == id).cloned().ok_or_else(own_name)
}

//! Handles members whose connection falls silent: a node tries the member's other addresses. If the
//! daemon answers there, the connection's path is cut, and a new connection is made over the other
//! path, long before the silence counts as a loss. A frozen daemon answers nowhere.

use std::net::SocketAddr;
use std::time::Duration;

use tracing::info;

use super::Paths;
use crate::NodeId;
use crate::context::Context;
use crate::edge::Depth;

/// A daemon that takes longer may have been frozen until now, so its answer proves nothing.
const ANSWER_MAX: Duration = Duration::from_millis(300);
/// Pause between attempts at the other addresses of a silent member.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// Tries the other addresses of silent members.
pub(crate) fn look_elsewhere(ctx: &mut Context) {
    let now = ctx.now();
    for peer in ctx.membership.quiet(now) {
        let addresses = ctx.addresses_of(peer);
        let Some(used) = ctx.conn(peer).map(|conn| conn.path.theirs) else { continue };
        let Some(view) = ctx.views.get_mut(&peer) else { continue };
        if view.looked_elsewhere.is_some_and(|at| now < at + LOOK_EVERY) {
            continue;
        }
        view.looked_elsewhere = Some(now);
        for address in addresses.into_iter().filter(|address| address.ip() != used) {
            ctx.outside.measure_way(peer, address, Depth::Look);
        }
    }
}

impl Paths {
    /// A member's daemon has answered at one of its addresses. Returns whether to make a new
    /// connection there.
    pub(crate) fn answered_at(
        &mut self,
        ctx: &mut Context,
        peer: NodeId,
        address: SocketAddr,
    ) -> bool {
        let (me, now) = (ctx.me, ctx.now());
        let looked = ctx.views.get(&peer).and_then(|view| view.looked_elsewhere);
        let is_prompt = looked.is_some_and(|at| now.saturating_sub(at) <= ANSWER_MAX);
        let Some(used) = ctx.conn(peer).map(|conn| conn.path.theirs) else { return false };
        if !is_prompt || address.ip() == used || !ctx.membership.quiet(now).contains(&peer) {
            return false;
        }
        let name = ctx.name_of(peer);
        info!(name, cut = %used, %address, "the way to a member is cut; it answers at another one");
        let cut = ctx.addresses_of(peer).into_iter().filter(|address| address.ip() == used);
        for address in cut {
            self.ways.measured(peer, address, None, now);
        }
        // The peer detects the cut too, but maybe only after the next epoch has begun.
        let report = ctx.views.get_mut(&peer).and_then(|view| view.report.as_mut());
        let its = report.into_iter().flat_map(|report| &mut report.edges);
        its.filter(|edge| edge.peer == me && edge.local == used)
            .for_each(|edge| edge.is_up = false);
        self.has_news = true;
        true
    }
}

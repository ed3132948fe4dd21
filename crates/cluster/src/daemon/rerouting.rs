//! What a node does when nothing comes from a member any more: it looks at the member's other
//! addresses. If its daemon answers there, it lives, and it is the way of their connection that is
//! cut; then the connection is made anew over the other way, long before silence counts as a loss.
//! A frozen daemon answers nowhere.

use std::net::SocketAddr;
use std::time::Duration;

use tracing::info;

use super::Daemon;
use crate::NodeId;
use crate::membership::Input;
use crate::ways::Depth;
use crate::wire::Message;

/// A daemon that takes longer to answer may have been frozen until now, and proves nothing.
const ANSWER_MAX: Duration = Duration::from_millis(300);
/// Between two looks at a silent member's other addresses.
const LOOK_EVERY: Duration = Duration::from_secs(1);

impl Daemon {
    /// Says something to all between two heartbeats, so that silence is noticed in half the time.
    pub(super) fn send_signs_of_life(&mut self) {
        let conns: Vec<_> = self.conns.iter().map(|(id, conn)| (*id, conn.peer)).collect();
        for (conn, peer) in conns {
            let heartbeat = self.views.get(&peer).and_then(|view| view.heartbeat.as_ref());
            // It was seen before; whoever hears that twice learns that this node lives.
            if let Some(seq) = heartbeat.map(|heartbeat| heartbeat.seq) {
                self.send(conn, Message::HeartbeatSeen { seq });
            }
        }
    }

    /// Looks at the other addresses of those who have fallen silent.
    pub(super) fn look_elsewhere(&mut self) {
        let now = self.now();
        for peer in self.membership.quiet(now) {
            let addresses = self.addresses_of(peer);
            let Some(used) = self.conn(peer).map(|conn| conn.path.theirs) else { continue };
            let Some(view) = self.views.get_mut(&peer) else { continue };
            if view.looked_elsewhere.is_some_and(|at| now < at + LOOK_EVERY) {
                continue;
            }
            view.looked_elsewhere = Some(now);
            for address in addresses.into_iter().filter(|address| address.ip() != used) {
                self.outside.measure_way(peer, address, Depth::Look);
            }
        }
    }

    /// A member's daemon has answered at one of its addresses.
    pub(super) fn answered_at(&mut self, peer: NodeId, address: SocketAddr) {
        let now = self.now();
        let looked = self.views.get(&peer).and_then(|view| view.looked_elsewhere);
        let is_prompt = looked.is_some_and(|at| now.saturating_sub(at) <= ANSWER_MAX);
        let Some(used) = self.conn(peer).map(|conn| conn.path.theirs) else { return };
        if !is_prompt || address.ip() == used || !self.membership.quiet(now).contains(&peer) {
            return;
        }
        let name = self.node_name(peer);
        info!(name, cut = %used, %address, "the way to a member is cut; it answers at another one");
        let cut = self.addresses_of(peer).into_iter().filter(|address| address.ip() == used);
        for address in cut {
            self.ways.measured(peer, address, None, now);
        }
        // The other one finds the same out, which may take longer than the next epoch.
        let report = self.views.get_mut(&peer).and_then(|view| view.report.as_mut());
        let its = report.into_iter().flat_map(|report| &mut report.edges);
        its.filter(|edge| edge.peer == self.me && edge.local == used)
            .for_each(|edge| edge.is_up = false);
        self.has_news = true;
        self.route_instances();
        self.step_membership(Input::OtherWay { peer, address });
    }
}

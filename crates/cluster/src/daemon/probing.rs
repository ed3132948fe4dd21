use std::net::SocketAddr;

use protocol::Transport;
use tracing::info;

use super::Daemon;
use crate::NodeId;
use crate::instance::Path;

impl Daemon {
    pub(super) fn speed_measured(&mut self, speed: placement::Speed) {
        info!(?speed, "this node measured");
        self.speed = Some(speed);
        self.dirty = true;
        self.send_heartbeats();
    }

    /// Measures the way to a peer that has just been connected, by the network that the control
    /// connection takes.
    pub(super) fn measure_way(&mut self, peer: NodeId, path: Path) {
        let known = self.addresses_of(peer);
        let same: Vec<SocketAddr> =
            known.iter().copied().filter(|address| address.ip() == path.theirs).collect();
        self.outside.measure_way(peer, if same.is_empty() { known } else { same });
    }

    pub(super) fn probed(&mut self, peer: NodeId, link: placement::LinkSpeed) {
        let (message_us, bytes_per_sec) = (link.message_secs * 1e6, link.bytes_per_sec);
        info!(peer = %peer.short(), message_us, bytes_per_sec, "link measured");
        self.dirty = true;
        if let Some(view) = self.views.get_mut(&peer) {
            view.way = Some(link);
        }
    }

    /// What ranks here and on a peer can exchange: memory if they share it, else what was measured
    /// of the network, which RDMA may exceed.
    pub(super) fn way_to(
        &self,
        peer: NodeId,
        path: Path,
        transport: Transport,
    ) -> Option<placement::LinkSpeed> {
        let same_machine = path.ours == path.theirs;
        if same_machine && matches!(transport, Transport::Auto | Transport::Shm) {
            return Some(placement::LinkSpeed::SHARED_MEMORY);
        }
        self.views.get(&peer)?.way
    }
}

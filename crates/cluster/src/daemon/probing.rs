use std::net::SocketAddr;

use protocol::Transport;
use tracing::{debug, info};

use super::{Daemon, Event};
use crate::instance::Path;
use crate::tls::Pin;
use crate::wire::Purpose;
use crate::{NodeId, probe};

impl Daemon {
    /// Measures what this node's threads read from memory, beside everything else.
    pub(super) fn measure_reading(&self) {
        let (threads, inputs) = (self.config.threads, self.inputs.clone());
        self.spawn(async move {
            let measured = tokio::task::spawn_blocking(move || probe::read_speed(threads)).await;
            if let Ok(bytes_per_sec) = measured {
                // The driver is gone only if the whole node is.
                let _ = inputs.send(Event::ReadSpeed(bytes_per_sec)).await;
            }
        });
    }

    pub(super) fn reading_measured(&mut self, bytes_per_sec: f64) {
        info!(bytes_per_sec, "memory measured");
        self.read_bytes_per_sec = Some(bytes_per_sec);
        self.dirty = true;
        self.send_heartbeats();
    }

    /// Measures the way to a peer that has just been connected, by the network that the control
    /// connection takes.
    pub(super) fn measure_way(&self, peer: NodeId, path: Path) {
        let known = self.addresses_of(peer);
        let same: Vec<SocketAddr> =
            known.iter().copied().filter(|address| address.ip() == path.theirs).collect();
        let addresses = if same.is_empty() { known } else { same };
        let (net, inputs) = (self.net.clone(), self.inputs.clone());
        self.spawn(async move {
            let mut connection = match net.dial(addresses, Pin::Node(peer), Purpose::Probe).await {
                Ok(connection) => connection,
                Err(error) => return debug!(peer = %peer.short(), %error, "no probe"),
            };
            match probe::measure(&mut connection.stream).await {
                Ok(link) => drop(inputs.send(Event::Probed { peer, link }).await),
                Err(error) => debug!(peer = %peer.short(), %error, "a probe was cut short"),
            }
        });
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

//! What nodes tell each other of themselves and of the ways between them, beside heartbeats:
//! seldom, because it changes slowly.

use std::net::SocketAddr;

use protocol::Transport;
use tracing::{debug, info};

use super::{Daemon, Owned};
use crate::NodeId;
use crate::instance::{Path, Routes};
use crate::machine::{Machine, Sensors};
use crate::members::MEMBERS_MAX;
use crate::membership::ConnId;
use crate::pulls;
use crate::ways::{Edge, Found};
use crate::wire::{Message, Report};

/// Of ticks: 5 s.
const REPORT_EVERY: u64 = 20;
/// Of ticks: how often others hear how far a download is.
const DOWNLOADS_EVERY: u64 = 4;
/// Edges of a node at most: eight addresses of each other one.
const EDGES_MAX: usize = 512;

impl Daemon {
    pub(super) fn speed_measured(&mut self, found: placement::Speed) {
        let now = self.now();
        let Some(speed) = self.remeasuring.found(found, self.config.threads, now) else { return };
        info!(?speed, "this node measured");
        self.speed = Some(speed);
        self.dirty = true;
        self.send_heartbeats();
    }

    /// What the machine says of itself was read.
    pub(super) fn sensed(&mut self, machine: Machine, sensors: Sensors) {
        self.dirty |= (&machine, &sensors) != (&self.machine, &self.sensors);
        (self.machine, self.sensors) = (machine, sensors);
    }

    /// Measures what is due, and tells others what has become of it.
    pub(super) fn tick_ways(&mut self) {
        let now = self.now();
        // A device is opened once for that: some drivers do not bear it again and again.
        let may_again = self.workers.is_empty() && self.config.device.device.is_none();
        if self.remeasuring.tick(may_again, now) {
            self.outside.measure_reading();
        }
        for (peer, address, depth) in self.ways.due(now) {
            self.outside.measure_way(peer, address, depth);
        }
        let is_time = self.ticks.is_multiple_of(REPORT_EVERY);
        if is_time {
            self.outside.sense();
            let ranks = self.instance_statuses().into_iter().map(|instance| instance.ranks);
            self.dirty |= self.rdma_ways.note(&ranks.collect::<Vec<_>>(), now);
            self.doubt_ways();
            self.note_links();
            self.look_at_twin();
        }
        if self.ticks.is_multiple_of(DOWNLOADS_EVERY) {
            self.look_at_downloads();
        }
        if is_time || std::mem::take(&mut self.has_news) {
            let conns: Vec<_> = self.conns.keys().copied().collect();
            conns.into_iter().for_each(|conn| self.send_report(conn));
        }
    }

    /// Measures the ways of instances anew whose answers say that a link has become slow.
    fn doubt_ways(&mut self) {
        let now = self.now();
        let is_slow = |owned: &&Owned| {
            owned.prediction.is_some_and(|found| owned.machine.waits_for_links(&found))
        };
        for owned in self.owned.values().filter(is_slow) {
            owned.machine.nodes().for_each(|node| self.ways.doubt(node, now));
        }
    }

    fn look_at_downloads(&mut self) {
        let downloads = self.outside.downloads();
        if downloads != self.downloads {
            self.downloads = downloads;
            (self.has_news, self.dirty) = (true, true);
        }
    }

    /// Where a peer may be called has changed, or the connection to it.
    pub(super) fn look_at_ways(&mut self, peer: NodeId) {
        let now = self.now();
        let addresses = self.addresses_of(peer);
        self.ways.set(peer, &addresses, now);
        self.ways.changed(peer, now);
    }

    /// A measurement has ended.
    pub(super) fn measured(&mut self, peer: NodeId, address: SocketAddr, found: Option<Found>) {
        let now = self.now();
        debug!(peer = %peer.short(), %address, ?found, "a way was measured");
        if peer == self.me {
            return self.twin_answered(address, found.is_some());
        }
        if found.is_some() {
            self.answered_at(peer, address);
        }
        if self.ways.measured(peer, address, found, now) {
            self.has_news = true;
            self.dirty = true;
            self.route_instances();
        }
    }

    pub(super) fn send_report(&mut self, conn: ConnId) {
        let Some(to) = self.conns.get(&conn).filter(|to| Report::is_known_in(to.protocol)) else {
            return;
        };
        debug!(peer = %to.peer.short(), "reports");
        let (machine, sensors) = (self.machine.clone(), self.sensors);
        let edges = self.ways.edges(self.now());
        let uncalled = self.ways.unanswered();
        let (downloads, unix_ms) = (self.downloads.clone(), Some(self.outside.unix_ms()));
        let report = Report { machine, sensors, edges, uncalled, downloads, unix_ms };
        self.send(conn, Message::Report(Box::new(report)));
    }

    /// What a peer says of itself.
    pub(super) fn reported(&mut self, peer: NodeId, mut report: Report) {
        report.machine = report.machine.within_limits();
        report.edges.truncate(EDGES_MAX);
        report.uncalled.truncate(MEMBERS_MAX);
        report.downloads = pulls::within_limits(report.downloads);
        let (now, now_ms) = (self.now(), self.outside.unix_ms());
        let Some(view) = self.views.get_mut(&peer) else { return };
        view.clock_ahead_ms = report.unix_ms.map(|theirs| {
            let way_ms = view.round_trip_us().unwrap_or_default() / 2000;
            signed(theirs.saturating_add(way_ms)).saturating_sub(signed(now_ms))
        });
        let looked_at = |edge: &&Edge| edge.peer == self.me && edge.is_up && edge.age_secs == 0;
        for edge in report.edges.iter().filter(looked_at) {
            self.ways.came_from(peer, edge.local, now);
        }
        view.report = Some(report);
        self.dirty = true;
        self.route_instances();
    }

    /// Which addresses ranks should try in which order, by what all nodes have measured.
    pub(super) fn route_instances(&mut self) {
        let mut routes = Routes::new();
        let mut add = |from: NodeId, edges: &[Edge]| {
            // They come in the order of speed.
            for edge in edges.iter().filter(|edge| edge.is_up) {
                routes.entry((from, edge.peer)).or_default().push(edge.address);
            }
        };
        add(self.me, &self.ways.edges(self.now()));
        for (peer, view) in &self.views {
            add(*peer, view.report.as_ref().map_or(&[], |report| &report.edges));
        }
        for owned in self.owned.values_mut() {
            owned.machine.set_routes(routes.clone());
        }
    }

    /// What ranks here and on a peer can exchange: memory if they share it, RDMA as it was when
    /// they last used it, else what was measured of the best way.
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
        let rdma = self.rdma_ways.speed(self.me, peer);
        let may_be_rdma = matches!(transport, Transport::Auto | Transport::Rdma);
        rdma.filter(|_| may_be_rdma).or_else(|| self.ways.best(peer, self.now()))
    }

    /// Further addresses at which a worker of this node is called.
    pub(super) fn worker_addresses(&self, port: u16) -> Vec<SocketAddr> {
        if !self.config.listen.ip().is_unspecified() {
            return Vec::new();
        }
        let all = self.outside.addresses();
        all.into_iter().map(|address| SocketAddr::new(address.ip(), port)).collect()
    }
}

/// A clock may say anything.
fn signed(ms: u64) -> i64 {
    i64::try_from(ms).unwrap_or(i64::MAX)
}

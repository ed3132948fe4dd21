//! The network paths between this node and the others: measurements, reports of them, and the
//! machine's own speed. Heartbeats carry none of it, because it changes slowly.

pub(crate) mod measurements;
mod rdma;
pub(crate) mod remeasuring;
pub(crate) mod rerouting;
mod twin;

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use protocol::Transport;
use tracing::{debug, info};

use crate::api::machine::{Machine, Sensors};
use crate::context::Context;
use crate::edge::{Edge, Measurement};
use crate::instance::{Path, Routes};
use crate::link_local;
use crate::membership::ConnId;
use crate::wire::{Message, Report};
use crate::{NodeId, PullStatus, RankStatus};
use measurements::Measurements;
use rdma::RdmaLinks;
use remeasuring::Remeasuring;
use twin::Twin;

/// In ticks: 5 s.
const REPORT_EVERY: u64 = 20;
/// In ticks: the progress of downloads.
const DOWNLOADS_EVERY: u64 = 4;

pub(crate) struct Paths {
    /// Of all this node's threads together, once measured.
    pub speed: Option<placement::Speed>,
    remeasuring: Remeasuring,
    pub machine: Machine,
    pub sensors: Sensors,
    /// The downloads of this node, as its last report has them.
    pub downloads: Vec<PullStatus>,
    pub(super) ways: Measurements,
    rdma: RdmaLinks,
    /// Another machine with this node's identity.
    pub twin: Twin,
    /// The next tick sends a report.
    has_news: bool,
}

impl Paths {
    pub(crate) fn new(me: NodeId, is_fleet: bool) -> Self {
        Self {
            speed: None,
            remeasuring: Remeasuring::new(me, is_fleet),
            machine: Machine::default(),
            sensors: Sensors::default(),
            downloads: Vec::new(),
            ways: Measurements::default(),
            rdma: RdmaLinks::default(),
            twin: Twin::default(),
            has_news: false,
        }
    }

    /// Records the speed of this node's threads; returns whether other members need it.
    pub(crate) fn speed_measured(&mut self, ctx: &mut Context, found: placement::Speed) -> bool {
        let now = ctx.now();
        let Some(speed) = self.remeasuring.found(found, ctx.config.threads, now) else {
            return false;
        };
        info!(?speed, "this node measured");
        self.speed = Some(speed);
        ctx.changed();
        true
    }

    pub(crate) fn sensed(&mut self, ctx: &mut Context, machine: Machine, sensors: Sensors) {
        ctx.changed_if((&machine, &sensors) != (&self.machine, &self.sensors));
        (self.machine, self.sensors) = (machine, sensors);
    }

    /// Starts the measurements that are due. `is_at_rest`: this node runs no worker.
    pub(crate) fn measure(&mut self, ctx: &mut Context, is_at_rest: bool) {
        let now = ctx.now();
        // A device is measured once: repeated opening crashes some drivers.
        let may_again = is_at_rest && ctx.config.device.device.is_none();
        if self.remeasuring.tick(may_again, now) {
            ctx.outside.measure_reading();
        }
        for (peer, address, depth) in self.ways.due(now) {
            ctx.outside.measure_way(peer, address, depth);
        }
    }

    /// Whether a report is due at this tick, and with it a read of its contents.
    pub(crate) fn is_report_due(ticks: u64) -> bool {
        ticks.is_multiple_of(REPORT_EVERY)
    }

    /// Reads the sensors, and records the RDMA links of all instances.
    pub(crate) fn look(&mut self, ctx: &mut Context, ranks: &[Vec<RankStatus>]) {
        ctx.outside.sense();
        let now = ctx.now();
        ctx.changed_if(self.rdma.note(ranks, now));
    }

    /// Sends reports that are due.
    pub(crate) fn report(&mut self, ctx: &mut Context, ticks: u64) {
        if ticks.is_multiple_of(DOWNLOADS_EVERY) {
            self.look_at_downloads(ctx);
        }
        if Self::is_report_due(ticks) || std::mem::take(&mut self.has_news) {
            let conns: Vec<_> = ctx.conns.keys().copied().collect();
            conns.into_iter().for_each(|conn| self.send_report(ctx, conn));
        }
    }

    fn look_at_downloads(&mut self, ctx: &mut Context) {
        let downloads = ctx.outside.downloads();
        if downloads != self.downloads {
            self.downloads = downloads;
            self.has_news = true;
            ctx.changed();
        }
    }

    /// Measures the paths to a peer again: they may have become slow, or drop large packets.
    pub(crate) fn doubt(&mut self, ctx: &Context, peer: NodeId) {
        self.ways.doubt(peer, ctx.now());
    }

    /// Updates the paths after a change of a peer's addresses or connection; `was_here`: it was
    /// connected until then.
    pub(crate) fn look_at(&mut self, ctx: &Context, peer: NodeId, was_here: bool) {
        let now = ctx.now();
        self.ways.set(peer, &ctx.addresses_of(peer), now);
        self.ways.changed(peer, was_here, now);
    }

    /// Updates the paths after a change of the list of members.
    pub(crate) fn look_at_all(&mut self, ctx: &Context) {
        ctx.membership.reachable().for_each(|peer| self.look_at(ctx, peer, true));
        self.ways.retain(|id| ctx.membership.is_member(id));
    }

    /// Records a measurement; returns whether ranks may prefer other addresses now.
    pub(crate) fn measured(
        &mut self,
        ctx: &mut Context,
        peer: NodeId,
        address: SocketAddr,
        found: Option<Measurement>,
    ) -> bool {
        let now = ctx.now();
        debug!(peer = %peer.short(), %address, ?found, "a way was measured");
        let is_news = self.ways.measured(peer, address, found, now);
        self.has_news |= is_news;
        ctx.changed_if(is_news);
        is_news
    }

    pub(crate) fn send_report(&self, ctx: &mut Context, conn: ConnId) {
        let Some(to) = ctx.conns.get(&conn).filter(|to| Report::is_known_in(to.protocol)) else {
            return;
        };
        debug!(peer = %to.peer.short(), "reports");
        let report = Report {
            machine: self.machine.clone(),
            sensors: self.sensors,
            edges: self.ways.edges(ctx.now()),
            uncalled: self.ways.unanswered(ctx.now()),
            downloads: self.downloads.clone(),
            unix_ms: Some(ctx.outside.unix_ms()),
        };
        ctx.send(conn, Message::Report(Box::new(report)));
    }

    /// Records a peer's report.
    pub(crate) fn reported(&mut self, ctx: &mut Context, peer: NodeId, report: Report) {
        let (me, now, now_ms) = (ctx.me, ctx.now(), ctx.outside.unix_ms());
        let Some(view) = ctx.views.get_mut(&peer) else { return };
        view.clock_ahead_ms = report.unix_ms.map(|theirs| {
            let way_ms = view.round_trip_us().unwrap_or_default() / 2000;
            signed(theirs.saturating_add(way_ms)).saturating_sub(signed(now_ms))
        });
        let looked_at = |edge: &&Edge| edge.peer == me && edge.is_up && edge.age_secs == 0;
        for edge in report.edges.iter().filter(looked_at) {
            self.ways.came_from(peer, edge.local, now);
        }
        view.report = Some(report);
        ctx.changed();
    }

    /// The addresses that ranks try for each pair of nodes, the fastest first, by the measurements
    /// of all nodes.
    pub(crate) fn routes(&self, ctx: &Context) -> Routes {
        let mut routes = Routes::new();
        let mut add = |from: NodeId, edges: &[Edge]| {
            // Edges are sorted by speed.
            for edge in edges.iter().filter(|edge| edge.is_up) {
                routes.entry((from, edge.peer)).or_default().push(edge.address);
            }
        };
        add(ctx.me, &self.ways.edges(ctx.now()));
        for (peer, view) in &ctx.views {
            add(*peer, view.report.as_ref().map_or(&[], |report| &report.edges));
        }
        routes
    }

    /// The measured speed of the best path to a peer.
    pub(crate) fn best(&self, ctx: &Context, peer: NodeId) -> Option<placement::LinkSpeed> {
        self.ways.best(peer, ctx.now())
    }

    /// The link speed between ranks here and on a peer: of shared memory on one machine, of RDMA by
    /// its last use, else of the best path.
    pub(crate) fn speed_to(
        &self,
        ctx: &Context,
        peer: NodeId,
        path: Path,
        transport: Transport,
    ) -> Option<placement::LinkSpeed> {
        let same_machine = path.ours == path.theirs;
        if same_machine && matches!(transport, Transport::Auto | Transport::Shm) {
            return Some(placement::LinkSpeed::SHARED_MEMORY);
        }
        let rdma = self.rdma.speed(ctx.me, peer);
        let may_be_rdma = matches!(transport, Transport::Auto | Transport::Rdma);
        rdma.filter(|_| may_be_rdma).or_else(|| self.best(ctx, peer))
    }

    /// The paths of a node, including those that only ranks can measure.
    pub(crate) fn edges_of(&self, ctx: &Context, node: NodeId) -> Vec<Edge> {
        let now = ctx.now();
        let mut edges = if node == ctx.me {
            self.ways.edges(now)
        } else {
            let report = ctx.views.get(&node).and_then(|view| view.report.as_ref());
            report.map(|report| report.edges.clone()).unwrap_or_default()
        };
        let first = |id| ctx.addresses_of(id).first().map(SocketAddr::ip);
        let address = |id| first(id).unwrap_or(IpAddr::V4(Ipv4Addr::UNSPECIFIED));
        edges.extend(self.rdma.edges(node, now, address));
        edges
    }

    /// The members that a node is connected to but cannot call: their firewalls allow only outgoing
    /// calls.
    pub(crate) fn uncalled_by(&self, ctx: &Context, node: NodeId) -> Vec<NodeId> {
        let is_me = node == ctx.me;
        let uncalled = if is_me {
            self.ways.unanswered(ctx.now())
        } else {
            let report = ctx.views.get(&node).and_then(|view| view.report.as_ref());
            report.map_or_else(Vec::new, |report| report.uncalled.clone())
        };
        let sees = |other: NodeId| match is_me {
            true => ctx.membership.conn(other).is_some(),
            false => ctx.heartbeat_of(node).is_some_and(|told| told.sees.contains(&other)),
        };
        let is_here = is_me || ctx.membership.conn(node).is_some();
        uncalled.into_iter().filter(|other| is_here && sees(*other)).collect()
    }

    /// Descriptions of the pairs of nodes in which only one can call the other.
    pub(crate) fn one_way(&self, ctx: &Context) -> Vec<String> {
        let members = ctx.membership.members().map(|member| member.id);
        let all = std::iter::once(ctx.me).chain(members);
        let words = |caller: NodeId| {
            let called = self.uncalled_by(ctx, caller).into_iter();
            called.map(move |called| {
                let addresses = ctx.addresses_of(called);
                cannot_call(&ctx.name_of(caller), &ctx.name_of(called), &addresses)
            })
        };
        all.flat_map(words).collect()
    }
}

/// Converts without overflow: a wrong clock may have any value.
fn signed(ms: u64) -> i64 {
    i64::try_from(ms).unwrap_or(i64::MAX)
}

/// The text for a node that cannot be called at any address; names the port to open.
pub(crate) fn cannot_call(caller: &str, called: &str, addresses: &[SocketAddr]) -> String {
    let Some(address) = link_local::first(addresses) else {
        return format!("{caller} knows no address of {called}");
    };
    let port = address.port();
    format!(
        "{caller} cannot call {called} at {address}: open TCP port {port} in the firewall of {called}"
    )
}

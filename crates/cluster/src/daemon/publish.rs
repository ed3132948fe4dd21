use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use protocol::FailureKind;
use tokio::sync::watch;

use super::Daemon;
use super::peers::{REFUSALS_MIN, View};
use crate::desired::{Entry, Wanted};
use crate::device::NodeDevice;
use crate::link_local;
use crate::members::Member;
use crate::ways::Edge;
use crate::wire::VERSION;
use crate::{ClusterStatus, History, InstanceStatus, NodeId, NodeState, NodeStatus};

/// Members that start, end or join are away for a moment; later somebody should know.
const ALONE_MAX: Duration = Duration::from_secs(10);

impl Daemon {
    /// Lets everybody see the present state, if it has changed.
    pub(crate) fn publish(&mut self) {
        if !std::mem::take(&mut self.dirty) {
            return;
        }
        let me = NodeStatus {
            id: self.me,
            name: self.config.name.clone(),
            address: self.outside.addresses().first().copied().unwrap_or(self.listen),
            state: NodeState::Live,
            drained: self.desired.is_drained(self.me),
            version: VERSION.to_owned(),
            memory_bytes: self.config.memory_bytes,
            memory_used_bytes: self.memory_used_bytes(),
            threads: self.config.threads,
            device: self.config.device.told(),
            round_trip_us: None,
            measured: self.speed.is_some(),
            machine: self.machine.clone(),
            sensors: self.sensors,
            edges: self.with_rdma(self.me, self.ways.edges(self.now())),
            uncalled: self.uncalled_by(self.me),
            downloads: self.downloads.clone(),
            clock_ahead_ms: None,
        };
        let peers = self.membership.members().map(|member| self.peer_status(member));
        let status = ClusterStatus {
            node: self.me,
            nodes: std::iter::once(me).chain(peers).collect(),
            instances: self.instance_statuses(),
            notices: self.notices(),
            unsettled: self.unsettled(),
            requests: self.requests().into_iter().map(|(request, _)| request).collect(),
            nearby: self.nearby.strangers(|id| id == self.me || self.membership.is_member(id)),
        };
        let status = Arc::new(status);
        self.journal.observe(&status, self.outside.unix_ms());
        self.status.send_replace(status);
    }

    /// What has happened, for handles of this node.
    pub(crate) fn events(&self) -> watch::Receiver<History> {
        self.journal.watch()
    }

    /// A request of this node's clients ends without an answer.
    pub(super) fn note_failure(&mut self, instance: &str, kind: FailureKind, reason: &str) {
        // What the client did wrong, and what it may ask again, is between it and this node.
        if kind == FailureKind::Lost {
            let found = self.desired.find(instance);
            let model = found.map_or(instance, |(entry, _)| &entry.name);
            self.journal.request_failed(model, reason, self.outside.unix_ms());
        }
    }

    fn notices(&self) -> Vec<String> {
        let repeated = self.refusals.values().filter(|refusal| refusal.times >= REFUSALS_MIN);
        let refused = repeated.map(|refusal| refusal.reason.clone());
        let told = self.told.iter().chain(&self.parted).cloned();
        let mut notices: Vec<String> = told.chain(refused).collect();
        let liars = self.views.iter().filter_map(|(peer, view)| Some((peer, view.spoke_of?)));
        notices.extend(liars.map(|(peer, of)| {
            format!(
                "node {} ({}) spoke of {of}, which was not believed. It is damaged or attacked: \
                 look at it, or take it out of the cluster",
                self.node_name(*peer),
                peer.short()
            )
        }));
        notices.extend(self.config.device.problem.clone());
        notices.extend(self.pair_notices());
        notices.extend(self.twin_notice());
        notices.extend(self.absent());
        notices.extend(self.damage_notices());
        notices.extend(self.copy_notices());
        let others = self.membership.members().count();
        let is_long = |member: &Member| self.gone_for(member.id) > ALONE_MAX;
        let is_cut_off = self.is_cut_off() && self.membership.members().all(is_long);
        if is_cut_off && notices.is_empty() {
            let nobody = match others {
                1 => "the other member cannot be reached".to_owned(),
                _ => format!("none of the {others} other members can be reached"),
            };
            notices.push(format!(
                "{nobody}. Check that all are on, that they are on one network, and that no \
                 firewall blocks port {}",
                self.listen.port()
            ));
        }
        notices
    }

    /// Whether this node reaches none of the other members.
    fn is_cut_off(&self) -> bool {
        let mut others = self.membership.members().peekable();
        others.peek().is_some() && others.all(|other| self.membership.conn(other.id).is_none())
    }

    /// Why this node may not know all that is served.
    fn unsettled(&self) -> Option<String> {
        if !self.duties.has_settled() {
            return Some("this node has just started and has not heard its members yet".to_owned());
        }
        self.is_cut_off().then(|| "this node reaches none of its members".to_owned())
    }

    /// Everything that is to be served: this node's instances, and the others' as their owners last
    /// told.
    pub(super) fn instance_statuses(&self) -> Vec<InstanceStatus> {
        let status = |(entry, wanted): (&Entry, &Wanted)| self.status_now(entry, wanted);
        self.desired.wanted().map(status).collect()
    }

    pub(super) fn status_now(&self, entry: &Entry, wanted: &Wanted) -> InstanceStatus {
        let mut status = match self.owned.get(&wanted.id) {
            Some(owned) => {
                let (placement, prediction) = (owned.why.clone(), owned.prediction);
                let mut status = owned.told();
                let pace = prediction.and_then(|found| owned.machine.pace_warning(&found));
                status.notes.extend(pace.into_iter().chain(self.link_notes(owned)));
                status.notes.extend(owned.prepared.remarks.iter().cloned());
                InstanceStatus { placement, prediction, ..status }
            }
            None => self.status_of(entry, wanted),
        };
        status.created_unix_s = wanted.created_unix_s;
        status.notes.extend(self.move_note(&wanted.id));
        let borrowed = super::moving::borrowed(wanted, &status);
        status.notes.extend(borrowed);
        status.notes.extend(self.apart_notes(&wanted.id));
        status
    }

    /// A node's ways, with those that only ranks can measure.
    fn with_rdma(&self, node: NodeId, mut edges: Vec<Edge>) -> Vec<Edge> {
        let first = |id| self.addresses_of(id).first().map(SocketAddr::ip);
        let address = |id| first(id).unwrap_or(Ipv4Addr::UNSPECIFIED.into());
        edges.extend(self.rdma_ways.edges(node, self.now(), address));
        edges
    }

    fn peer_status(&self, member: &Member) -> NodeStatus {
        let view = self.views.get(&member.id);
        let heartbeat = view.and_then(|view| view.heartbeat.as_ref());
        let report = view.and_then(|view| view.report.clone()).unwrap_or_default();
        // Where it is called now, if it is; else where it should be.
        let used = self.conn(member.id).map(|conn| conn.path.theirs);
        let used = member.addresses.iter().find(|address| Some(address.ip()) == used).copied();
        let listed = used.or_else(|| link_local::first(&member.addresses));
        NodeStatus {
            id: member.id,
            name: member.name.clone(),
            address: listed.unwrap_or_else(|| ([0, 0, 0, 0], 0).into()),
            state: self.membership.state(member.id),
            drained: self.desired.is_drained(member.id),
            version: heartbeat.map(|h| h.version.clone()).unwrap_or_default(),
            memory_bytes: heartbeat.map_or(0, |h| h.memory_bytes),
            memory_used_bytes: heartbeat.map_or(0, |h| h.memory_used_bytes),
            threads: heartbeat.map_or(0, |h| h.threads),
            device: heartbeat.and_then(|h| h.device.clone()).map(NodeDevice::within_limits),
            round_trip_us: view.and_then(View::round_trip_us),
            measured: self.ways.best(member.id, self.now()).is_some()
                && heartbeat.is_some_and(|h| h.speed.is_some()),
            machine: report.machine,
            sensors: report.sensors,
            edges: self.with_rdma(member.id, report.edges),
            uncalled: self.uncalled_by(member.id),
            downloads: report.downloads,
            clock_ahead_ms: view.and_then(|view| view.clock_ahead_ms),
        }
    }
}

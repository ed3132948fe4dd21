//! The status of this node, for the API, the page and the command line.

use std::net::SocketAddr;
use std::time::Duration;

use crate::admission::Admission;
use crate::device::NodeDevice;
use crate::instances::{Host, Instances, status};
use crate::link_local;
use crate::members::Member;
use crate::peers::{Peers, gone_for};
use crate::wire::VERSION;
use crate::{ClusterStatus, NodeId, NodeState, NodeStatus};

/// Members that start, end or join are unreachable for a moment; after this time the user should
/// know.
const ALONE_MAX: Duration = Duration::from_secs(10);

/// What a status tells of.
pub(super) struct Seen<'a> {
    pub host: &'a Host,
    pub peers: &'a Peers,
    pub admission: &'a Admission,
    pub instances: &'a Instances,
    /// Notices for the user about files that were damaged at the start.
    pub told: &'a [String],
    /// Whether this node has received the others' documents since it started.
    pub is_settled: bool,
}

/// The present status.
pub(super) fn of(seen: &Seen<'_>) -> ClusterStatus {
    let Seen { host, admission, instances, .. } = seen;
    let ctx = &host.ctx;
    let me = own_status(host);
    let peers = ctx.membership.members().map(|member| peer_status(host, member));
    let requests = admission.approvals.requests(ctx).into_iter().map(|(request, _)| request);
    let is_known = |id| id == ctx.me || ctx.membership.is_member(id);
    ClusterStatus {
        node: ctx.me,
        nodes: std::iter::once(me).chain(peers).collect(),
        instances: status::all(instances, host),
        notices: notices(seen),
        unsettled: unsettled(seen),
        requests: requests.collect(),
        nearby: admission.nearby.strangers(is_known),
        presets: ctx.desired.presets.all(),
    }
}

fn notices(seen: &Seen<'_>) -> Vec<String> {
    let Host { ctx, paths, files, .. } = seen.host;
    let mut notices: Vec<String> =
        seen.told.iter().chain(&seen.admission.parted).cloned().collect();
    notices.extend(seen.peers.refusals());
    let liars = ctx.views.iter().filter_map(|(peer, view)| Some((peer, view.spoke_of?)));
    notices.extend(liars.map(|(peer, of)| {
        format!(
            "node {} ({}) spoke of {of}, which was not believed. It is damaged or attacked: \
             look at it, or take it out of the cluster",
            ctx.name_of(*peer),
            peer.short()
        )
    }));
    notices.extend(ctx.config.device.problem.clone());
    notices.extend(ctx.membership.unmet(ctx.now()).map(|member| {
        let name = &member.name;
        format!(
            "{name} was let in and has not connected since. If it knows of no cluster (there: sinew \
             status), let it join again: sinew invite. To forget it: sinew remove {name}"
        )
    }));
    notices.extend(seen.admission.approvals.notices(ctx));
    notices.extend(paths.twin.notice(ctx));
    notices.extend(seen.instances.pool.absent(seen.host));
    notices.extend(files.damage.notices(ctx));
    notices.extend(files.copies.notices(ctx));
    let others = ctx.membership.members().count();
    let is_long = |member: &Member| gone_for(ctx, member.id) > ALONE_MAX;
    let is_cut_off = is_cut_off(seen) && ctx.membership.members().all(is_long);
    if is_cut_off && notices.is_empty() {
        let nobody = match others {
            1 => "the other member cannot be reached".to_owned(),
            _ => format!("none of the {others} other members can be reached"),
        };
        notices.push(format!(
            "{nobody}. Check that all are on, that they are on one network, and that no \
             firewall blocks port {}",
            ctx.listen.port()
        ));
    }
    notices
}

/// Whether this node reaches none of the other members.
fn is_cut_off(seen: &Seen<'_>) -> bool {
    let membership = &seen.host.ctx.membership;
    let mut others = membership.members().peekable();
    others.peek().is_some() && others.all(|other| membership.conn(other.id).is_none())
}

/// Why this node may not know all served instances.
fn unsettled(seen: &Seen<'_>) -> Option<String> {
    if !seen.is_settled {
        return Some("this node has just started and has not heard its members yet".to_owned());
    }
    is_cut_off(seen).then(|| "this node reaches none of its members".to_owned())
}

fn own_status(host: &Host) -> NodeStatus {
    let Host { ctx, paths, workers, .. } = host;
    NodeStatus {
        id: ctx.me,
        name: ctx.config.name.clone(),
        address: ctx.outside.addresses().first().copied().unwrap_or(ctx.listen),
        state: NodeState::Live,
        drained: ctx.desired.is_drained(ctx.me),
        version: VERSION.to_owned(),
        memory_bytes: ctx.config.memory_bytes,
        memory_used_bytes: workers.memory_used_bytes(),
        threads: ctx.config.threads,
        device: ctx.config.device.told(),
        round_trip_us: None,
        measured: paths.speed.is_some(),
        machine: paths.machine.clone(),
        sensors: paths.sensors,
        edges: paths.edges_of(ctx, ctx.me),
        uncalled: paths.uncalled_by(ctx, ctx.me),
        downloads: paths.downloads.clone(),
        clock_ahead_ms: None,
    }
}

/// The round trip to a member: of the measured way that ranks would use, or until then that of the
/// control plane, which takes longer.
fn round_trip_us(host: &Host, member: NodeId) -> Option<u64> {
    let ctx = &host.ctx;
    if ctx.membership.state(member) == NodeState::Lost {
        return None;
    }
    let way = host.paths.best(ctx, member);
    let measured = way.map(|way| (way.message_secs * 2e6).round() as u64);
    measured.or_else(|| ctx.views.get(&member)?.round_trip_us())
}

fn peer_status(host: &Host, member: &Member) -> NodeStatus {
    let Host { ctx, paths, .. } = host;
    let view = ctx.views.get(&member.id);
    let heartbeat = ctx.heartbeat_of(member.id);
    let report = view.and_then(|view| view.report.clone()).unwrap_or_default();
    // The address of its connection, if it has one; else the first one that a user can use.
    let used = ctx.conn(member.id).map(|conn| conn.path.theirs);
    let used = member.addresses.iter().find(|address| Some(address.ip()) == used).copied();
    let listed: Option<SocketAddr> = used.or_else(|| link_local::first(&member.addresses));
    NodeStatus {
        id: member.id,
        name: member.name.clone(),
        address: listed.unwrap_or_else(|| ([0, 0, 0, 0], 0).into()),
        state: ctx.membership.state(member.id),
        drained: ctx.desired.is_drained(member.id),
        version: heartbeat.map(|h| h.version.clone()).unwrap_or_default(),
        memory_bytes: heartbeat.map_or(0, |h| h.memory_bytes),
        memory_used_bytes: heartbeat.map_or(0, |h| h.memory_used_bytes),
        threads: heartbeat.map_or(0, |h| h.threads),
        device: heartbeat.and_then(|h| h.device.clone()).map(NodeDevice::within_limits),
        round_trip_us: round_trip_us(host, member.id),
        measured: paths.best(ctx, member.id).is_some()
            && heartbeat.is_some_and(|h| h.speed.is_some()),
        machine: report.machine,
        sensors: report.sensors,
        edges: paths.edges_of(ctx, member.id),
        uncalled: paths.uncalled_by(ctx, member.id),
        downloads: report.downloads,
        clock_ahead_ms: view.and_then(|view| view.clock_ahead_ms),
    }
}

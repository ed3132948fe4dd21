use std::collections::VecDeque;
use std::net::SocketAddr;
use std::time::Duration;

use tracing::{debug, error, info, warn};

use super::Daemon;
use super::outside::Opened;
use crate::NodeId;
use crate::instance;
use crate::members::{Member, Members};
use crate::membership::{self, CloseReason, ConnId, Effect};
use crate::nearby::{Announcement, Sighting};
use crate::net::DialError;
use crate::wire::{Heartbeat, Message, Report, VERSION, Verdict};

/// Round trips of which the median is shown: the last eight seconds.
const ROUND_TRIPS: usize = 16;
/// A new member may be refused once, by those who have not heard of it yet.
pub(super) const REFUSALS_MIN: u32 = 2;

/// How often in a row a member has refused this node, and its last reason.
#[derive(Default)]
pub(super) struct Refusal {
    pub times: u32,
    pub reason: String,
}

/// A control connection.
pub(super) struct PeerConn {
    pub peer: NodeId,
    pub path: instance::Path,
    /// The version of the protocol that both ends speak.
    pub protocol: u32,
}

/// What a peer last said of itself.
#[derive(Default)]
pub(super) struct View {
    pub heartbeat: Option<Heartbeat>,
    pub boot: u64,
    asked: Option<(u64, Duration)>,
    round_trips: VecDeque<Duration>,
    /// When the connection to it ended.
    gone_at: Option<Duration>,
    /// When its other addresses were looked at, because nothing came any more.
    pub(super) looked_elsewhere: Option<Duration>,
    /// What it last told of its machine and of its ways to others.
    pub(super) report: Option<Report>,
    /// By how much its clock was ahead of this node's when it told that.
    pub(super) clock_ahead_ms: Option<i64>,
    /// Of what it has told lately that is another's to tell.
    pub(super) spoke_of: Option<&'static str>,
}

impl View {
    /// Whether the peer has heard from this node over the present connection.
    pub(super) fn has_heard_us(&self) -> bool {
        !self.round_trips.is_empty()
    }

    pub(super) fn round_trip_us(&self) -> Option<u64> {
        let mut sorted: Vec<_> = self.round_trips.iter().collect();
        sorted.sort();
        sorted.get(sorted.len() / 2).map(|median| median.as_micros() as u64)
    }
}

impl Daemon {
    pub(super) fn step_membership(&mut self, event: membership::Input) {
        let now = self.now();
        let effects = self.membership.step(event, now);
        self.run_membership(effects);
    }

    fn run_membership(&mut self, effects: Vec<Effect>) {
        self.dirty = true;
        for effect in effects {
            match effect {
                Effect::Dial { peer, addresses } => self.dial(peer, addresses),
                Effect::Close { conn, .. } => {
                    self.conns.remove(&conn);
                    self.outside.close(conn);
                }
                Effect::Up { peer, conn, boot } => self.peer_up(peer, conn, boot),
                Effect::Down { peer, conn, reason } => self.peer_down(peer, conn, reason),
                Effect::MembersChanged => self.members_changed(),
                Effect::Parted => self.leave_behind(),
            }
        }
    }

    fn dial(&mut self, peer: NodeId, mut addresses: Vec<SocketAddr>) {
        // Nobody knows whose the given addresses are: the pinned key tells.
        addresses.extend(self.given.iter().copied());
        self.outside.dial(peer, addresses);
    }

    pub(super) fn dial_failed(&mut self, peer: NodeId, error: &DialError) {
        let connected = self.membership.conn(peer).is_some();
        if let DialError::Refused { verdict: Some(verdict), .. } = error {
            let Verdict { removed, alone } = *verdict;
            self.step_membership(membership::Input::Disowned { by: peer, removed, alone });
        }
        match error {
            DialError::Refused { reason, .. } | DialError::Version(reason) if !connected => {
                let told = format!("{}: {reason}", self.node_name(peer));
                let refusal = self.refusals.entry(peer).or_default();
                *refusal = Refusal { times: refusal.times + 1, reason: told };
                if refusal.times == REFUSALS_MIN {
                    let reason = &refusal.reason;
                    error!(peer = %peer.short(), reason, "a member does not let this node in");
                }
            }
            error => debug!(peer = %peer.short(), %error, "a member does not answer"),
        }
        self.step_membership(membership::Input::DialFailed { peer });
    }

    /// A connection has passed its handshake; the membership decides whether it is kept.
    pub(super) fn connected(&mut self, opened: Opened) {
        let Opened { conn, dialed, peer, boot, name, addresses, path, protocol } = opened;
        self.conns.insert(conn, PeerConn { peer, path, protocol });
        let member = Member { id: peer, name, addresses, admitted: 0 };
        let now = self.now();
        let effects =
            self.membership.step(membership::Input::Opened { conn, dialed, boot, member }, now);
        let closed = effects.iter().find_map(|effect| match effect {
            Effect::Close { conn: closed, why } if *closed == conn => Some(*why),
            _ => None,
        });
        match closed {
            None => self.outside.keep(conn),
            Some(_) if dialed => {}
            Some(why) => {
                let reason = self.explain(peer, why);
                info!(peer = %peer.short(), reason, "a connection was refused");
                let alone = self.membership.is_alone();
                let verdict = match why {
                    CloseReason::Removed { version } => {
                        Some(Verdict { removed: Some(version), alone })
                    }
                    CloseReason::NoMember => Some(Verdict { removed: None, alone }),
                    _ => None,
                };
                self.outside.refuse(conn, reason, verdict);
            }
        }
        self.run_membership(effects);
    }

    /// Why a connection is not kept, for a person at its other end.
    fn explain(&self, peer: NodeId, why: CloseReason) -> String {
        match why {
            CloseReason::NoMember => {
                "this node is no member of the cluster. Ask a member for a join code".to_owned()
            }
            CloseReason::Removed { .. } => {
                "this node was removed from the cluster. To come back it \
                 needs a new join code of a member"
                    .to_owned()
            }
            CloseReason::Duplicate => {
                let address = self.conn(peer).map(|conn| conn.path.theirs.to_string());
                format!(
                    "another machine with the same identity is connected from {}. If this data \
                     directory was copied from it, stop sinew here, delete identity.key, \
                     members.* and desired.* in the data directory, start it and join again",
                    address.as_deref().unwrap_or("elsewhere")
                )
            }
            CloseReason::Redundant | CloseReason::Silent | CloseReason::Parted => {
                "the other connection between these two nodes is used".to_owned()
            }
        }
    }

    pub(super) fn view_boot(&self, peer: NodeId) -> Option<u64> {
        self.views.get(&peer).map(|view| view.boot)
    }

    fn peer_up(&mut self, peer: NodeId, conn: ConnId, boot: u64) {
        info!(peer = %peer.short(), name = self.node_name(peer), "a member is here");
        self.refusals.remove(&peer);
        let before = self.views.insert(peer, View { boot, ..View::default() });
        if before.is_some_and(|view| view.boot == boot && view.gone_at.is_some()) {
            self.growth.came_back(peer, self.now());
        }
        self.send(conn, Message::Members(self.all_members()));
        self.send_heartbeat(peer, conn);
    }

    /// What a peer says of itself; with its first word it can be given work.
    fn heartbeat(&mut self, peer: NodeId, conn: ConnId, heartbeat: Heartbeat) {
        self.dirty = true;
        let (seq, document, numerics) = (heartbeat.seq, heartbeat.document, heartbeat.numerics);
        if let (Some(view), Some(at)) = (self.views.get_mut(&peer), self.conns.get(&conn)) {
            let path = at.path;
            if view.heartbeat.replace(heartbeat).is_none() {
                self.growth.node_up(peer, self.outside.now());
                self.forget_apart_of(peer);
                if numerics == self.versions.numerics {
                    self.step_instances(|| instance::Input::NodeUp { node: peer, path });
                }
                // Now the peer knows this node as a member and lets it measure.
                self.look_at_ways(peer);
                self.send_report(conn);
                // Whoever hears that it was seen relies on being listed.
                self.publish();
            }
        }
        self.send(conn, Message::HeartbeatSeen { seq });
        self.compare_documents(conn, document);
    }

    fn peer_down(&mut self, peer: NodeId, conn: ConnId, reason: String) {
        warn!(peer = %peer.short(), name = self.node_name(peer), reason, "a member is gone");
        self.conns.remove(&conn);
        let now = self.now();
        self.growth.node_down(peer, now);
        if let Some(view) = self.views.get_mut(&peer) {
            view.gone_at = Some(now);
        }
        self.owner_left(peer);
        self.look_at_ways(peer);
        // Large packets may have begun to vanish.
        self.ways.doubt(peer, now);
        let owner_lost =
            format!("node {}, which owns the model, was lost: {reason}", self.node_name(peer));
        self.lose_streams(conn, &owner_lost);
        self.cancel_all_for(conn);
        self.let_go_of_decisions(Some(peer));
        self.step_instances(|| instance::Input::NodeDown { node: peer, reason: reason.clone() });
        // The others may have to know that nobody sees it any more.
        self.send_heartbeats();
    }

    /// For how long a member that cannot be reached could not be: since this node started, at most.
    pub(super) fn gone_for(&self, peer: NodeId) -> Duration {
        let gone_at = self.views.get(&peer).and_then(|view| view.gone_at);
        self.now().saturating_sub(gone_at.unwrap_or_default())
    }

    fn members_changed(&mut self) {
        let reached: Vec<NodeId> = self.membership.reachable().collect();
        reached.into_iter().for_each(|peer| self.look_at_ways(peer));
        self.keep_members();
        self.tell_all(&Message::Members(self.all_members()));
    }

    /// Saves who belongs to the cluster, and lets go of what was known of others.
    pub(super) fn keep_members(&mut self) {
        self.outside.keep_members(self.all_members());
        self.announce();
        let membership = &self.membership;
        self.views.retain(|id, _| membership.is_member(*id));
        self.refusals.retain(|id, _| membership.is_member(*id));
        self.ways.retain(|id| membership.is_member(id));
    }

    pub(super) fn announce(&mut self) {
        let members = self.all_members().members;
        let announcement =
            Announcement::of(self.me, &self.config.name, &members, self.config.fleet_key.as_ref());
        self.outside.announce(announcement);
    }

    /// Where a member is said to be it is called; who is none is shown.
    pub(super) fn sighted(&mut self, sighting: Sighting) {
        let peer = sighting.announced.id;
        if peer == self.me {
            return self.sighted_myself(&sighting.addresses);
        }
        let addresses = sighting.addresses.clone();
        self.dirty |= self.nearby.see(sighting);
        self.step_membership(membership::Input::Sighted { peer, addresses });
    }

    pub(super) fn tell_all(&mut self, message: &Message) {
        for conn in self.conns.keys().copied().collect::<Vec<_>>() {
            self.send(conn, message.clone());
        }
    }

    pub(super) fn received(&mut self, conn: ConnId, message: Message) {
        let Some(peer) = self.conns.get(&conn).map(|conn| conn.peer) else { return };
        self.heard(conn);
        match message {
            Message::Heartbeat(heartbeat) => self.heartbeat(peer, conn, *heartbeat),
            Message::HeartbeatSeen { seq } => self.heartbeat_seen(peer, seq),
            Message::Members(members) => {
                let (members, by) = (members.sanitized(), Some(peer));
                self.step_membership(membership::Input::Learned { members, by });
            }
            Message::Desired(told) => self.desired_told(told, conn),
            Message::Spawn { worker, order } => self.host(peer, worker, *order),
            Message::Command { worker, command } => self.command(peer, worker, command),
            Message::End { worker, at_once } => self.end_worker(peer, worker, at_once),
            Message::Spawned { worker, pid } => {
                self.step_owner(peer, worker, instance::Input::Spawned { worker, pid });
            }
            Message::Event { worker, event } => {
                self.step_owner(peer, worker, instance::Input::FromWorker { worker, event });
            }
            Message::Exited { worker, how } => {
                self.step_owner(peer, worker, instance::Input::Exited { worker, how });
            }
            Message::Generate { stream, name, request, relays } => {
                self.generate_for(conn, stream, &name, request, relays.min(1));
            }
            Message::CancelGenerate { stream } => self.cancel_for(conn, stream),
            Message::Generated { stream, event, let_go } => {
                self.generated(conn, stream, event, let_go)
            }
            Message::Report(report) => self.reported(peer, *report),
            Message::Decide { call, node, number } => {
                self.decide_for(conn, call, node, number.as_deref());
            }
            Message::Decided { call, outcome } => self.decided(peer, call, outcome),
        }
    }

    /// A member says something that is another's to say. It is not believed, and told once: a
    /// healthy one never does that.
    pub(super) fn disbelieve(&mut self, peer: NodeId, of: &'static str) {
        let name = self.node_name(peer);
        let Some(view) = self.views.get_mut(&peer).filter(|view| view.spoke_of.is_none()) else {
            return;
        };
        warn!(peer = %peer.short(), name, of, "a member speaks for another one");
        view.spoke_of = Some(of);
        self.dirty = true;
    }

    pub(super) fn heard(&mut self, conn: ConnId) {
        let Some(peer) = self.conns.get(&conn).map(|conn| conn.peer) else { return };
        let was = self.membership.state(peer);
        let now = self.now();
        // It answers with no effects; it only takes note.
        self.membership.step(membership::Input::Heard { conn }, now);
        self.dirty |= was != self.membership.state(peer);
    }

    pub(super) fn send(&mut self, conn: ConnId, message: Message) {
        self.outside.send(conn, message);
    }

    pub(super) fn send_to(&mut self, peer: NodeId, message: Message) {
        if let Some(conn) = self.membership.conn(peer) {
            self.send(conn, message);
        }
    }

    pub(super) fn send_heartbeats(&mut self) {
        let peers: Vec<_> = self.conns.iter().map(|(id, conn)| (conn.peer, *id)).collect();
        for (peer, conn) in peers {
            self.send_heartbeat(peer, conn);
        }
    }

    fn send_heartbeat(&mut self, peer: NodeId, conn: ConnId) {
        let seq = self.ticks;
        let heartbeat = Heartbeat {
            seq,
            name: self.config.name.clone(),
            version: VERSION.to_owned(),
            memory_bytes: self.config.memory_bytes,
            memory_used_bytes: self.memory_used_bytes(),
            threads: self.config.threads,
            numerics: self.versions.numerics,
            speed: self.speed,
            device: self.config.device.told(),
            instances: self.owned.values().map(super::Owned::told).collect(),
            sees: self.membership.reachable().collect(),
            document: self.desired.fingerprint(),
            files: self.files(),
            kept: self.kept_ranks(),
            cannot_copy: self.cannot_copy(),
            requests: self.own_requests(),
        };
        let now = self.now();
        if let Some(view) = self.views.get_mut(&peer) {
            view.asked = Some((seq, now));
        }
        self.send(conn, Message::Heartbeat(Box::new(heartbeat)));
    }

    fn heartbeat_seen(&mut self, peer: NodeId, seq: u64) {
        let now = self.now();
        let Some(view) = self.views.get_mut(&peer) else { return };
        if let Some((_, asked_at)) = view.asked.take_if(|(asked, _)| *asked == seq) {
            if view.round_trips.len() == ROUND_TRIPS {
                view.round_trips.pop_front();
            }
            view.round_trips.push_back(now.saturating_sub(asked_at));
            self.finish_joining();
        }
    }

    /// All members, this node first, and who was removed.
    pub(super) fn all_members(&self) -> Members {
        let (id, name) = (self.me, self.config.name.clone());
        let me = Member { id, name, addresses: self.outside.addresses(), admitted: 0 };
        self.membership.document(me)
    }

    pub(super) fn node_name(&self, id: NodeId) -> String {
        if id == self.me {
            return self.config.name.clone();
        }
        self.membership.name_of(id).map_or_else(|| id.short(), str::to_owned)
    }

    /// The connection to a member that can be reached.
    pub(super) fn conn(&self, id: NodeId) -> Option<&PeerConn> {
        self.conns.get(&self.membership.conn(id)?)
    }
}

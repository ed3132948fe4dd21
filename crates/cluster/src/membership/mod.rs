//! Tracks members and their connections, and decides on calls. A pure state machine.
//!
//! `(state, event, now) -> effects`; the driver dials and closes connections. ALGORITHM.md has the
//! rules and their reasons. Time is the driver's monotonic clock.

mod admission;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::SocketAddr;
use std::time::Duration;

use crate::counts::Counts;
use crate::members::{ADDRESSES_MAX, Member, Members, Removed};
use crate::{NodeId, NodeState};

/// Interval of heartbeats.
pub(crate) const HEARTBEAT: Duration = Duration::from_millis(500);
/// Five heartbeats: a node frozen for two seconds (a long collection, a busy machine) is not yet
/// suspect.
pub(crate) const SUSPECT_AFTER: Duration = Duration::from_millis(2500);
/// One more heartbeat, and a silent node counts as lost.
pub(crate) const LOST_AFTER: Duration = Duration::from_millis(3000);
/// On a path with a round trip of more than 250 ms, far or full, a node gets this many of them: TCP
/// repeats a lost packet after about two, and then after twice as long each time.
const LOST_ROUND_TRIPS: u32 = 12;
/// Longer than any path that still serves a model needs.
const LOST_MAX: Duration = Duration::from_secs(15);
/// Of this many round trips the fastest counts: a busy machine makes single ones slow.
const ROUND_TRIPS: usize = 4;
/// Two missing signs of life: reason enough to try a member's other addresses. The higher id tries
/// a tick later, so that the two do not both make a new connection.
const QUIET_AFTER: Duration = Duration::from_millis(500);
const QUIET_AFTER_HIGHER: Duration = Duration::from_millis(750);
/// Age at which a connection is settled. A younger one may result from two calls at once; with a
/// settled one, a new connection from the same process means that the old one has failed at its
/// end.
const SETTLED_AFTER: Duration = Duration::from_secs(5);
/// A gap this long between two own ticks means that this node slept: the silence of others is then
/// its own.
pub(crate) const CLOCK_GAP: Duration = Duration::from_secs(1);
/// Back-off between calls that fail.
const REDIAL_MIN: Duration = Duration::from_millis(250);
const REDIAL_MAX: Duration = Duration::from_secs(5);
/// The higher id calls too if the lower one has not connected for this long.
const SECOND_CALLER_AFTER: Duration = Duration::from_secs(2);

/// How long a member's statement that it belongs to no cluster is ignored: it may be joining.
const DISOWNED_MAX: Duration = Duration::from_secs(20);

/// A machine connects within seconds of its admission, even over a slow path.
const UNMET_AFTER: Duration = Duration::from_secs(30);

/// One connection, numbered by the driver. Numbers are never reused.
pub(crate) type ConnId = u64;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Input {
    /// A list of members from disk, or from the member `by`.
    Learned { members: Members, by: Option<NodeId> },
    /// A member has admitted this node; carries its list of members.
    Joined(Members),
    /// A user admits a node.
    Admit(Member),
    /// A user removes a member.
    Remove(NodeId),
    /// A member replies that this node is not a member to it: this node was removed, or that member
    /// has no members (`alone`).
    Disowned { by: NodeId, removed: Option<u64>, alone: bool },
    /// This node leaves the cluster.
    Leave,
    /// A member's connection has passed its handshake.
    Opened { conn: ConnId, dialed: bool, boot: u64, member: Member },
    /// Bytes have arrived on a connection.
    Heard { conn: ConnId },
    /// A heartbeat was confirmed, so long after it was sent.
    Confirmed { conn: ConnId, round_trip: Duration },
    /// A connection ended.
    Closed { conn: ConnId, reason: String },
    /// An announcement names a member at these addresses. Only its key can prove that it is there.
    Sighted { peer: NodeId, addresses: Vec<SocketAddr> },
    /// No address of a member answered.
    DialFailed { peer: NodeId },
    /// A member with a quiet connection has answered at another address.
    OtherWay { peer: NodeId, address: SocketAddr },
    /// Time has passed.
    Tick,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Effect {
    Dial {
        peer: NodeId,
        addresses: Vec<SocketAddr>,
    },
    Close {
        conn: ConnId,
        why: CloseReason,
    },
    /// Messages to the peer now use this connection.
    Up {
        peer: NodeId,
        conn: ConnId,
        boot: u64,
    },
    /// The peer's connection is gone.
    Down {
        peer: NodeId,
        conn: ConnId,
        reason: String,
    },
    /// The list of members has changed: save it and send it to all members, including those that
    /// the following effects disconnect.
    MembersChanged,
    /// This node has left its cluster; effects for its connections follow.
    Parted,
}

/// Why a connection is closed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum CloseReason {
    NoMember,
    /// A removal with this version.
    Removed {
        version: u64,
    },
    /// This node has left the cluster.
    Parted,
    /// Another process with the same key is connected and alive.
    Duplicate,
    /// There is a better connection to the same process.
    Redundant,
    Silent,
}

#[derive(Debug)]
pub(crate) struct Membership {
    me: NodeId,
    /// The version of this node's admission.
    admitted: u64,
    peers: BTreeMap<NodeId, Peer>,
    removed: BTreeMap<NodeId, Removed>,
    /// The removed nodes that were members here or are on the disk. Others may be made up.
    were_members: BTreeSet<NodeId>,
    /// What members told of versions.
    told: Counts,
    last_tick: Duration,
}

#[derive(Debug)]
struct Peer {
    member: Member,
    /// Further addresses, as claimed by other nodes; the latest first.
    hints: Vec<SocketAddr>,
    /// When this node admitted it, if it has not connected since: its list is still another
    /// cluster's.
    new_since: Option<Duration>,
    /// The member that told this node of it, until it is met.
    told_by: Option<NodeId>,
    /// Time of its first statement that it belongs to no cluster.
    disowned_since: Option<Duration>,
    session: Option<Session>,
    dialing: bool,
    dial_at: Duration,
    backoff: Duration,
}

#[derive(Debug)]
struct Session {
    conn: ConnId,
    /// Whether this node made the call.
    dialed: bool,
    /// A random number of the daemon's start, which distinguishes a restart from a second
    /// connection.
    boot: u64,
    since: Duration,
    heard_at: Duration,
    suspect: bool,
    /// The last ones.
    round_trips: VecDeque<Duration>,
}

impl Membership {
    pub(crate) fn new(me: NodeId, now: Duration) -> Self {
        let (peers, removed, were_members, told) = Default::default();
        Self { me, admitted: 0, peers, removed, were_members, told, last_tick: now }
    }

    pub(crate) fn step(&mut self, event: Input, now: Duration) -> Vec<Effect> {
        match event {
            Input::Learned { members, by } => self.learned(members, by, now),
            Input::Joined(members) => self.joined(members, now),
            Input::Admit(member) => self.admit(member, now),
            Input::Remove(id) => self.remove(id),
            Input::Disowned { by, removed, alone } => self.disowned(by, removed, alone, now),
            Input::Leave => self.part(),
            Input::Opened { conn, dialed, boot, member } => {
                let (since, heard_at, suspect) = (now, now, false);
                let round_trips = VecDeque::with_capacity(ROUND_TRIPS);
                let new = Session { conn, dialed, boot, since, heard_at, suspect, round_trips };
                self.opened(new, member, now)
            }
            Input::Heard { conn } => {
                if let Some(session) = self.session_mut(conn) {
                    session.heard_at = now;
                    session.suspect = false;
                }
                Vec::new()
            }
            Input::Confirmed { conn, round_trip } => {
                if let Some(session) = self.session_mut(conn) {
                    session.round_trips.truncate(ROUND_TRIPS - 1);
                    session.round_trips.push_front(round_trip);
                }
                Vec::new()
            }
            Input::Closed { conn, reason } => self.closed(conn, reason, now),
            Input::Sighted { peer, addresses } => {
                if let Some(peer) = self.peers.get_mut(&peer) {
                    peer.hint(addresses, now);
                }
                self.dial_due(now)
            }
            Input::DialFailed { peer } => {
                self.dial_failed(peer, now);
                Vec::new()
            }
            Input::OtherWay { peer, address } => self.other_way(peer, address),
            Input::Tick => self.tick(now),
        }
    }

    /// The version of a key's removal, if it was removed.
    pub(crate) fn removed_under(&self, id: NodeId) -> Option<u64> {
        self.removed.get(&id).map(|removed| removed.version)
    }

    pub(crate) fn was_removed(&self, id: NodeId) -> bool {
        self.removed.contains_key(&id)
    }

    /// Whether a member that this node admitted has not connected since.
    pub(crate) fn is_new(&self, id: NodeId) -> bool {
        self.peers.get(&id).is_some_and(|peer| peer.new_since.is_some())
    }

    /// Members that this node admitted at least [`UNMET_AFTER`] ago and that have not connected
    /// since: they may never have saved their membership.
    pub(crate) fn unmet(&self, now: Duration) -> impl Iterator<Item = &Member> {
        let is_old = move |since: Duration| now.saturating_sub(since) >= UNMET_AFTER;
        let unmet = self.peers.values().filter(move |peer| peer.new_since.is_some_and(is_old));
        unmet.map(|peer| &peer.member)
    }

    pub(crate) fn is_member(&self, id: NodeId) -> bool {
        self.peers.contains_key(&id)
    }

    /// Members that this node knows from the word of a removed node alone.
    pub(crate) fn told_by_removed(&self) -> Vec<NodeId> {
        let is_it = |peer: &Peer| peer.told_by.is_some_and(|by| self.removed.contains_key(&by));
        self.peers.iter().filter(|(_, peer)| is_it(peer)).map(|(id, _)| *id).collect()
    }

    /// Whether this node belongs to no cluster: it has no members, or all its members state the
    /// same of themselves. So a chain of nodes that each know only the next one ends at once, not
    /// link by link.
    pub(crate) fn is_alone(&self) -> bool {
        self.peers.values().all(|peer| peer.disowned_since.is_some())
    }

    /// All other members.
    pub(crate) fn members(&self) -> impl Iterator<Item = &Member> {
        self.peers.values().map(|peer| &peer.member)
    }

    /// The name of another node that is or was a member.
    pub(crate) fn name_of(&self, id: NodeId) -> Option<&str> {
        let removed = || self.removed.get(&id).map(|removed| removed.name.as_str());
        self.peers.get(&id).map(|peer| peer.member.name.as_str()).or_else(removed)
    }

    pub(crate) fn state(&self, id: NodeId) -> NodeState {
        match self.peers.get(&id).and_then(|peer| peer.session.as_ref()) {
            Some(session) if session.suspect => NodeState::Suspect,
            Some(_) => NodeState::Live,
            None => NodeState::Lost,
        }
    }

    /// The members with a connection.
    pub(crate) fn reachable(&self) -> impl Iterator<Item = NodeId> {
        self.peers.iter().filter(|(_, peer)| peer.session.is_some()).map(|(id, _)| *id)
    }

    /// The members whose connection has been silent for a while.
    pub(crate) fn quiet(&self, now: Duration) -> Vec<NodeId> {
        let is_quiet = |(id, peer): &(&NodeId, &Peer)| {
            let limit = if self.me < **id { QUIET_AFTER } else { QUIET_AFTER_HIGHER };
            let heard_at = peer.session.as_ref().map(|session| session.heard_at);
            heard_at.is_some_and(|at| now.saturating_sub(at) >= limit)
        };
        self.peers.iter().filter(is_quiet).map(|(id, _)| *id).collect()
    }

    /// The connection for messages to a member.
    pub(crate) fn conn(&self, id: NodeId) -> Option<ConnId> {
        self.peers.get(&id)?.session.as_ref().map(|session| session.conn)
    }

    fn opened(&mut self, new: Session, member: Member, now: Duration) -> Vec<Effect> {
        let me = self.me;
        let Some(peer) = self.peers.get_mut(&member.id) else {
            let removed = self.removed_under(member.id);
            let removed = removed.map(|version| CloseReason::Removed { version });
            let why = removed.unwrap_or(CloseReason::NoMember);
            return vec![Effect::Close { conn: new.conn, why }];
        };
        let id = member.id;
        if new.dialed {
            peer.dialing = false;
        }
        let mut effects = Vec::new();
        if let Some(old) = &peer.session {
            let fresh = now.saturating_sub(old.heard_at) < old.suspect_after();
            if old.boot != new.boot && fresh {
                // Two live processes with one key: the second is a copy of the first.
                return vec![Effect::Close { conn: new.conn, why: CloseReason::Duplicate }];
            }
            let is_settled = now.saturating_sub(old.since) >= SETTLED_AFTER;
            let is_worse = !is_settled && caller(me, id, old) < caller(me, id, &new);
            if old.boot == new.boot && is_worse {
                return vec![Effect::Close { conn: new.conn, why: CloseReason::Redundant }];
            }
            let reason = "it connected anew".to_owned();
            effects.push(Effect::Close { conn: old.conn, why: CloseReason::Redundant });
            effects.push(Effect::Down { peer: id, conn: old.conn, reason });
        }
        effects.push(Effect::Up { peer: id, conn: new.conn, boot: new.boot });
        peer.session = Some(new);
        peer.disowned_since = None;
        (peer.new_since, peer.told_by) = (None, None);
        peer.backoff = REDIAL_MIN;
        if peer.member.update(member.sanitized()) {
            effects.push(Effect::MembersChanged);
        }
        effects
    }

    fn closed(&mut self, conn: ConnId, reason: String, now: Duration) -> Vec<Effect> {
        let me = self.me;
        let found = self.peers.iter_mut().find(|(_, peer)| peer.is_on(conn));
        let Some((id, peer)) = found else {
            return Vec::new();
        };
        peer.session = None;
        peer.dial_at = now + first_call_after(me, *id);
        let mut effects = vec![Effect::Down { peer: *id, conn, reason }];
        effects.extend(self.dial_due(now));
        effects
    }

    /// Calls the peer at another address. The old connection ends once the new one is open.
    fn other_way(&mut self, id: NodeId, address: SocketAddr) -> Vec<Effect> {
        let Some(peer) = self.peers.get_mut(&id) else { return Vec::new() };
        if peer.session.is_none() || std::mem::replace(&mut peer.dialing, true) {
            return Vec::new();
        }
        vec![Effect::Dial { peer: id, addresses: vec![address] }]
    }

    fn dial_failed(&mut self, peer: NodeId, now: Duration) {
        if let Some(peer) = self.peers.get_mut(&peer) {
            peer.dialing = false;
            peer.dial_at = now + peer.backoff;
            peer.backoff = (peer.backoff * 2).min(REDIAL_MAX);
        }
    }

    fn tick(&mut self, now: Duration) -> Vec<Effect> {
        let slept = now.saturating_sub(self.last_tick) > CLOCK_GAP;
        self.last_tick = now;
        let mut effects = Vec::new();
        for (id, peer) in &mut self.peers {
            let Some(session) = &mut peer.session else { continue };
            if slept {
                session.heard_at = now;
            }
            let silence = now.saturating_sub(session.heard_at);
            session.suspect = silence >= session.suspect_after();
            if silence >= session.lost_after() {
                let conn = session.conn;
                let reason =
                    format!("nothing was heard from it for {:.1} s", silence.as_secs_f64());
                peer.session = None;
                peer.dial_at = now + first_call_after(self.me, *id);
                effects.push(Effect::Close { conn, why: CloseReason::Silent });
                effects.push(Effect::Down { peer: *id, conn, reason });
            }
        }
        effects.extend(self.dial_due(now));
        effects
    }

    fn dial_due(&mut self, now: Duration) -> Vec<Effect> {
        let mut effects = Vec::new();
        for (id, peer) in &mut self.peers {
            if peer.session.is_none() && !peer.dialing && now >= peer.dial_at {
                peer.dialing = true;
                let addresses = peer.everywhere();
                effects.push(Effect::Dial { peer: *id, addresses });
            }
        }
        effects
    }

    fn session_mut(&mut self, conn: ConnId) -> Option<&mut Session> {
        let sessions = self.peers.values_mut().filter_map(|peer| peer.session.as_mut());
        sessions.into_iter().find(|session| session.conn == conn)
    }
}

impl Session {
    /// How much silence loses the peer.
    fn lost_after(&self) -> Duration {
        let round_trip = self.round_trips.iter().min().copied().unwrap_or_default();
        LOST_AFTER.max(round_trip.saturating_mul(LOST_ROUND_TRIPS)).min(LOST_MAX)
    }

    fn suspect_after(&self) -> Duration {
        self.lost_after() - (LOST_AFTER - SUSPECT_AFTER)
    }
}

impl Peer {
    /// The addresses where it was reached, then further ones.
    fn everywhere(&self) -> Vec<SocketAddr> {
        let known = &self.member.addresses;
        let further = self.hints.iter().filter(|hint| !known.contains(hint));
        known.iter().chain(further).copied().collect()
    }

    /// Adds addresses. New ones are tried soon, no matter how long calls have failed.
    fn hint(&mut self, addresses: Vec<SocketAddr>, now: Duration) {
        let known = self.everywhere();
        let news = addresses.into_iter().filter(|address| !known.contains(address));
        let news: Vec<SocketAddr> = news.take(ADDRESSES_MAX).collect();
        if news.is_empty() {
            return;
        }
        self.hints.splice(0..0, news);
        self.hints.truncate(ADDRESSES_MAX);
        self.backoff = REDIAL_MIN;
        self.dial_at = self.dial_at.min(now + REDIAL_MIN);
    }

    fn is_on(&self, conn: ConnId) -> bool {
        self.session.as_ref().is_some_and(|session| session.conn == conn)
    }
}

/// The lower id calls at once, the higher one only if that fails.
fn first_call_after(me: NodeId, peer: NodeId) -> Duration {
    if me < peer { Duration::ZERO } else { SECOND_CALLER_AFTER }
}

/// The node that made the call: of two connections, both ends keep the one of the lower caller.
fn caller(me: NodeId, peer: NodeId, session: &Session) -> NodeId {
    if session.dialed { me } else { peer }
}

#[cfg(test)]
mod simulation;
#[cfg(test)]
mod tests;

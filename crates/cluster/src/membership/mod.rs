//! Who is a member, who can be reached, and who should be called: a pure state machine.
//!
//! `(state, event, now) -> effects`; the driver does the dialing and closes what it is told to.
//! The rules and the reasons for them are in ALGORITHM.md. Time is the driver's monotonic clock.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

use crate::members::{MEMBERS_MAX, Member};
use crate::{NodeId, NodeState};

/// How often a node speaks when it has nothing to say.
pub(crate) const HEARTBEAT: Duration = Duration::from_millis(500);
/// Five heartbeats: a node frozen for two seconds (a long collection, a busy machine) is not yet
/// suspect.
pub(crate) const SUSPECT_AFTER: Duration = Duration::from_millis(2500);
/// One heartbeat more, and a silent node is taken for lost.
pub(crate) const LOST_AFTER: Duration = Duration::from_millis(3000);
/// A gap this long between two own ticks means that this node slept: it heard nobody because it did
/// not listen.
pub(crate) const CLOCK_GAP: Duration = Duration::from_secs(1);
/// Back-off between calls that fail.
const REDIAL_MIN: Duration = Duration::from_millis(250);
const REDIAL_MAX: Duration = Duration::from_secs(5);
/// The higher id calls as well if the lower one has not managed to for this long.
const SECOND_CALLER_AFTER: Duration = Duration::from_secs(2);

/// One connection, numbered by the driver; never used twice.
pub(crate) type ConnId = u64;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Input {
    /// Members that were remembered, told by a member, or have just joined.
    Learned(Vec<Member>),
    /// A member's connection has passed its handshake.
    Opened { conn: ConnId, dialed: bool, boot: u64, member: Member },
    /// Anything was received on a connection.
    Heard { conn: ConnId },
    /// A connection ended.
    Closed { conn: ConnId, reason: String },
    /// No address of a member answered.
    DialFailed { peer: NodeId },
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
    /// From now on the peer is spoken to over this connection.
    Up {
        peer: NodeId,
        conn: ConnId,
        boot: u64,
    },
    /// The peer, as it was over this connection, is gone.
    Down {
        peer: NodeId,
        conn: ConnId,
        reason: String,
    },
    /// The list of members has changed: save it, tell it.
    MembersChanged,
}

/// Why a connection is not kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum CloseReason {
    NoMember,
    /// Another process with the same key is connected and alive.
    Duplicate,
    /// There is a better connection to the same process.
    Redundant,
    Silent,
}

#[derive(Debug)]
pub(crate) struct Membership {
    me: NodeId,
    peers: BTreeMap<NodeId, Peer>,
    last_tick: Duration,
}

#[derive(Debug)]
struct Peer {
    member: Member,
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
    /// Drawn at random when a daemon starts: tells a restart from a second connection.
    boot: u64,
    heard_at: Duration,
    suspect: bool,
}

impl Membership {
    pub(crate) fn new(me: NodeId, now: Duration) -> Self {
        Self { me, peers: BTreeMap::new(), last_tick: now }
    }

    pub(crate) fn step(&mut self, event: Input, now: Duration) -> Vec<Effect> {
        match event {
            Input::Learned(members) => self.learn(members, now),
            Input::Opened { conn, dialed, boot, member } => {
                let session = Session { conn, dialed, boot, heard_at: now, suspect: false };
                self.opened(session, member, now)
            }
            Input::Heard { conn } => {
                if let Some(session) = self.session_mut(conn) {
                    session.heard_at = now;
                    session.suspect = false;
                }
                Vec::new()
            }
            Input::Closed { conn, reason } => self.closed(conn, reason, now),
            Input::DialFailed { peer } => {
                self.dial_failed(peer, now);
                Vec::new()
            }
            Input::Tick => self.tick(now),
        }
    }

    pub(crate) fn is_member(&self, id: NodeId) -> bool {
        self.peers.contains_key(&id)
    }

    /// All other members.
    pub(crate) fn members(&self) -> impl Iterator<Item = &Member> {
        self.peers.values().map(|peer| &peer.member)
    }

    pub(crate) fn state(&self, id: NodeId) -> NodeState {
        match self.peers.get(&id).and_then(|peer| peer.session.as_ref()) {
            Some(session) if session.suspect => NodeState::Suspect,
            Some(_) => NodeState::Live,
            None => NodeState::Lost,
        }
    }

    /// The members with whom there is a connection.
    pub(crate) fn reachable(&self) -> impl Iterator<Item = NodeId> {
        self.peers.iter().filter(|(_, peer)| peer.session.is_some()).map(|(id, _)| *id)
    }

    /// The connection over which a member is spoken to.
    pub(crate) fn conn(&self, id: NodeId) -> Option<ConnId> {
        self.peers.get(&id)?.session.as_ref().map(|session| session.conn)
    }

    fn learn(&mut self, members: Vec<Member>, now: Duration) -> Vec<Effect> {
        let mut changed = false;
        for member in members {
            if member.id == self.me {
                continue;
            }
            let full = self.peers.len() + 1 >= MEMBERS_MAX;
            match self.peers.get_mut(&member.id) {
                // What a third node says of a peer adds addresses; the peer is believed more.
                Some(peer) => {
                    let mut merged = member.sanitized();
                    changed |= {
                        let known = peer.member.clone();
                        merged.update(known);
                        merged != peer.member
                    };
                    peer.member = merged;
                }
                None if full => {}
                None => {
                    let dial_at = now + first_call_after(self.me, member.id);
                    let (session, member) = (None, member.sanitized());
                    let backoff = REDIAL_MIN;
                    let peer = Peer { member, session, dialing: false, dial_at, backoff };
                    self.peers.insert(peer.member.id, peer);
                    changed = true;
                }
            }
        }
        let mut effects = if changed { vec![Effect::MembersChanged] } else { Vec::new() };
        effects.extend(self.dial_due(now));
        effects
    }

    fn opened(&mut self, new: Session, member: Member, now: Duration) -> Vec<Effect> {
        let me = self.me;
        let Some(peer) = self.peers.get_mut(&member.id) else {
            return vec![Effect::Close { conn: new.conn, why: CloseReason::NoMember }];
        };
        let id = member.id;
        if new.dialed {
            peer.dialing = false;
        }
        let mut effects = Vec::new();
        if let Some(old) = &peer.session {
            let fresh = now.saturating_sub(old.heard_at) < SUSPECT_AFTER;
            if old.boot != new.boot && fresh {
                // Two processes with one key, both alive: the second is a copy of the first.
                return vec![Effect::Close { conn: new.conn, why: CloseReason::Duplicate }];
            }
            if old.boot == new.boot && caller(me, id, old) < caller(me, id, &new) {
                return vec![Effect::Close { conn: new.conn, why: CloseReason::Redundant }];
            }
            let reason = "it connected anew".to_owned();
            effects.push(Effect::Close { conn: old.conn, why: CloseReason::Redundant });
            effects.push(Effect::Down { peer: id, conn: old.conn, reason });
        }
        effects.push(Effect::Up { peer: id, conn: new.conn, boot: new.boot });
        peer.session = Some(new);
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
            session.suspect = silence >= SUSPECT_AFTER;
            if silence >= LOST_AFTER {
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
                let addresses = peer.member.addresses.clone();
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

impl Peer {
    fn is_on(&self, conn: ConnId) -> bool {
        self.session.as_ref().is_some_and(|session| session.conn == conn)
    }
}

/// The lower id calls at once, the higher one only if that does not come to anything.
fn first_call_after(me: NodeId, peer: NodeId) -> Duration {
    if me < peer { Duration::ZERO } else { SECOND_CALLER_AFTER }
}

/// Who made the call: of two connections both ends keep the lower caller's.
fn caller(me: NodeId, peer: NodeId, session: &Session) -> NodeId {
    if session.dialed { me } else { peer }
}

#[cfg(test)]
mod simulation;
#[cfg(test)]
mod tests;

//! The connections to the other members: calls, refusals, losses, heartbeats. The membership's
//! state machine ([`crate::membership`]) decides; this module runs its effects.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

use tracing::{debug, error, info, warn};

use crate::NodeId;
use crate::context::view::{PeerConn, View};
use crate::context::{Announcement, Context, DialError, News, Opened};
use crate::desired::{Entry, Service};
use crate::members::Member;
use crate::membership::{CloseReason, ConnId, Effect, Input};
use crate::wire::{Heartbeat, Message, Verdict};

/// A new member may be refused once, by a node that has not yet received its admission.
const REFUSALS_MIN: u32 = 2;
/// A heartbeat without an answer for this long was lost.
const ANSWER_MAX: Duration = Duration::from_secs(10);

/// A member's refusals in a row, and the last reason.
#[derive(Default)]
struct Refusal {
    times: u32,
    reason: String,
}

#[derive(Default)]
pub(crate) struct Peers {
    refusals: BTreeMap<NodeId, Refusal>,
    /// Addresses of members from `--peer`.
    pub given: Vec<SocketAddr>,
}

impl Peers {
    pub(crate) fn new(given: Vec<SocketAddr>) -> Self {
        Self { refusals: BTreeMap::new(), given }
    }

    pub(crate) fn step(&mut self, ctx: &mut Context, input: Input) {
        let now = ctx.now();
        let effects = ctx.membership.step(input, now);
        self.run(ctx, effects);
    }

    pub(crate) fn run(&mut self, ctx: &mut Context, effects: Vec<Effect>) {
        ctx.changed();
        let mut effects = effects.into_iter();
        while let Some(effect) = effects.next() {
            match effect {
                Effect::Dial { peer, mut addresses } => {
                    // The pinned key shows whether a given address is this peer's.
                    addresses.extend(self.given.iter().copied());
                    ctx.outside.dial(peer, addresses);
                }
                Effect::Close { conn, .. } => {
                    ctx.conns.remove(&conn);
                    ctx.outside.close(conn);
                }
                Effect::Up { peer, conn, boot } => self.up(ctx, peer, conn, boot),
                Effect::Down { peer, conn, reason } => down(ctx, peer, conn, reason),
                Effect::MembersChanged => {
                    self.keep_members(ctx);
                    ctx.send_all(&Message::Members(ctx.all_members()));
                    ctx.post(News::MembersChanged);
                }
                // The connections stay until the instances have ended their workers over them.
                Effect::Parted => ctx.post(News::Parted { rest: effects.by_ref().collect() }),
            }
        }
    }

    pub(crate) fn dial_failed(&mut self, ctx: &mut Context, peer: NodeId, error: &DialError) {
        let connected = ctx.membership.conn(peer).is_some();
        if let DialError::Refused { verdict: Some(verdict), .. } = error {
            let Verdict { removed, alone } = *verdict;
            self.step(ctx, Input::Disowned { by: peer, removed, alone });
        }
        match error {
            DialError::Refused { reason, .. } | DialError::Version(reason) if !connected => {
                let reason = format!("{}: {reason}", ctx.name_of(peer));
                let refusal = self.refusals.entry(peer).or_default();
                *refusal = Refusal { times: refusal.times + 1, reason };
                if refusal.times == REFUSALS_MIN {
                    let reason = &refusal.reason;
                    error!(peer = %peer.short(), reason, "a member does not let this node in");
                }
            }
            error => debug!(peer = %peer.short(), %error, "a member does not answer"),
        }
        self.step(ctx, Input::DialFailed { peer });
    }

    /// The reasons of members that refuse this node repeatedly.
    pub(crate) fn refusals(&self) -> impl Iterator<Item = String> {
        let repeated = self.refusals.values().filter(|refusal| refusal.times >= REFUSALS_MIN);
        repeated.map(|refusal| refusal.reason.clone())
    }

    /// A connection has passed its handshake; the membership decides whether it is kept.
    pub(crate) fn connected(&mut self, ctx: &mut Context, opened: Opened) {
        let Opened { conn, dialed, peer, boot, name, addresses, path, protocol } = opened;
        ctx.conns.insert(conn, PeerConn { peer, path, protocol });
        let member = Member { id: peer, name, addresses, admitted: 0 };
        let now = ctx.now();
        let effects = ctx.membership.step(Input::Opened { conn, dialed, boot, member }, now);
        let closed = effects.iter().find_map(|effect| match effect {
            Effect::Close { conn: closed, why } if *closed == conn => Some(*why),
            _ => None,
        });
        match closed {
            None => ctx.outside.keep(conn),
            Some(_) if dialed => {}
            Some(why) => {
                let reason = explain(ctx, peer, why);
                info!(peer = %peer.short(), reason, "a connection was refused");
                let alone = ctx.membership.is_alone();
                let verdict = match why {
                    CloseReason::Removed { version } => {
                        Some(Verdict { removed: Some(version), alone })
                    }
                    CloseReason::NoMember => Some(Verdict { removed: None, alone }),
                    _ => None,
                };
                ctx.outside.refuse(conn, reason, verdict);
            }
        }
        self.run(ctx, effects);
    }

    fn up(&mut self, ctx: &mut Context, peer: NodeId, conn: ConnId, boot: u64) {
        info!(peer = %peer.short(), name = ctx.name_of(peer), "a member is here");
        self.refusals.remove(&peer);
        let before = ctx.views.remove(&peer).filter(|view| view.boot == boot);
        let returned = before.as_ref().is_some_and(|view| view.gone_at.is_some());
        // Its next report comes with its first heartbeat; plans before need the pairs that cannot
        // link.
        let mut view = View::new(boot);
        view.report = before.and_then(|before| before.report);
        ctx.views.insert(peer, view);
        ctx.post(News::PeerUp { peer, conn, returned });
    }

    /// Saves the list of members, and drops the state of former ones.
    pub(crate) fn keep_members(&mut self, ctx: &mut Context) {
        ctx.outside.keep_members(ctx.all_members());
        announce(ctx);
        let Context { membership, views, .. } = ctx;
        views.retain(|id, _| membership.is_member(*id));
        self.refusals.retain(|id, _| membership.is_member(*id));
    }
}

fn down(ctx: &mut Context, peer: NodeId, conn: ConnId, reason: String) {
    warn!(peer = %peer.short(), name = ctx.name_of(peer), reason, "a member is gone");
    ctx.conns.remove(&conn);
    let now = ctx.now();
    if let Some(view) = ctx.views.get_mut(&peer) {
        view.gone_at = Some(now);
    }
    ctx.post(News::PeerDown { peer, conn, reason });
}

/// The reason for which a connection is not kept, for the user at its other end.
fn explain(ctx: &Context, peer: NodeId, why: CloseReason) -> String {
    match why {
        CloseReason::NoMember => {
            "this node is no member of the cluster. Ask a member for a join code".to_owned()
        }
        CloseReason::Removed { .. } => "this node was removed from the cluster. To come back it \
             needs a new join code of a member"
            .to_owned(),
        CloseReason::Duplicate => {
            let address = ctx.conn(peer).map(|conn| conn.path.theirs.to_string());
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

pub(crate) fn announce(ctx: &mut Context) {
    let members = ctx.all_members().members;
    let fleet_key = ctx.config.fleet_key.as_ref();
    let announcement = Announcement::of(ctx.me, &ctx.config.name, &members, fleet_key);
    ctx.outside.announce(announcement);
}

/// Bytes arrived on a connection, maybe only a part of a message.
pub(crate) fn heard(ctx: &mut Context, conn: ConnId) {
    let Some(peer) = ctx.conns.get(&conn).map(|conn| conn.peer) else { return };
    let was = ctx.membership.state(peer);
    let now = ctx.now();
    // This input has no effects.
    ctx.membership.step(Input::Heard { conn }, now);
    ctx.changed_if(was != ctx.membership.state(peer));
}

/// Records a member's heartbeat. Returns whether it is the first one over this connection, after
/// which the member can take work.
pub(crate) fn note_heartbeat(ctx: &mut Context, peer: NodeId, heartbeat: Heartbeat) -> bool {
    ctx.changed();
    let view = ctx.views.get_mut(&peer);
    view.is_some_and(|view| view.heartbeat.replace(heartbeat).is_none())
}

pub(crate) fn send_heartbeat(ctx: &mut Context, peer: NodeId, conn: ConnId, heartbeat: Heartbeat) {
    let now = ctx.now();
    if let Some(view) = ctx.views.get_mut(&peer) {
        // A far or full path confirms a heartbeat after the next ones have gone out.
        view.asked = view.asked.filter(|(_, at)| now.saturating_sub(*at) < ANSWER_MAX);
        view.asked.get_or_insert((heartbeat.seq, now));
    }
    ctx.send(conn, Message::Heartbeat(Box::new(heartbeat)));
}

/// A member has confirmed a heartbeat of this node.
pub(crate) fn heartbeat_seen(ctx: &mut Context, peer: NodeId, seq: u64) {
    let now = ctx.now();
    let Some(view) = ctx.views.get_mut(&peer) else { return };
    if let Some((_, asked_at)) = view.asked.take_if(|(asked, _)| *asked == seq) {
        let round_trip = now.saturating_sub(asked_at);
        view.note_round_trip(round_trip);
        if let Some(conn) = ctx.membership.conn(peer) {
            // This input has no effects.
            ctx.membership.step(Input::Confirmed { conn, round_trip }, now);
        }
        ctx.post(News::RoundTrip);
    }
}

/// Sends a message to all members between two heartbeats, so that silence is detected in half the
/// time.
pub(crate) fn send_signs_of_life(ctx: &mut Context) {
    let conns: Vec<_> = ctx.conns.iter().map(|(id, conn)| (*id, conn.peer)).collect();
    for (conn, peer) in conns {
        // The peer has received this answer before. Its repetition shows that this node lives.
        if let Some(seq) = ctx.heartbeat_of(peer).map(|heartbeat| heartbeat.seq) {
            ctx.send(conn, Message::HeartbeatSeen { seq });
        }
    }
}

/// How long a member has been unreachable; at most since this node started.
pub(crate) fn gone_for(ctx: &Context, peer: NodeId) -> Duration {
    if ctx.membership.conn(peer).is_some() {
        return Duration::ZERO;
    }
    let gone_at = ctx.views.get(&peer).and_then(|view| view.gone_at);
    ctx.now().saturating_sub(gone_at.unwrap_or_default())
}

/// The connection to a member that reaches a node which this one does not reach.
pub(crate) fn way_round(ctx: &Context, node: NodeId) -> Option<ConnId> {
    let reaches = |peer: &NodeId| {
        ctx.heartbeat_of(*peer).is_some_and(|heartbeat| heartbeat.sees.contains(&node))
    };
    ctx.membership.conn(ctx.membership.reachable().find(reaches)?)
}

/// The connection to another node that owns an instance, if that node runs it by its own report, or
/// would load it.
pub(crate) fn conn_to_owner(ctx: &Context, entry: &Entry, wanted: &Service) -> Option<ConnId> {
    let heartbeat = ctx.heartbeat_of(entry.owner())?;
    let runs = entry.unloaded || heartbeat.instances.iter().any(|one| one.id == wanted.id);
    ctx.membership.conn(entry.owner()).filter(|_| runs)
}

/// Whether this node owns another replica of an instance, or reaches its owner.
pub(crate) fn reaches_another_replica(ctx: &Context, id: &str) -> bool {
    let others = ctx.desired.other_replicas(id);
    let is_reached = |node: NodeId| node == ctx.me || ctx.live_heartbeat_of(node).is_some();
    others.iter().any(|(entry, _)| is_reached(entry.owner()))
}

//! Admission and removal of members: invitations by code, requests by number, fleets. `io::join`
//! has the handshakes with the other machine; this module has the state and the decisions.

mod approvals;
mod check;
mod fleets;
pub(crate) mod invites;
mod leaving;
pub(crate) mod nearby;
pub(crate) mod requests;
pub(crate) mod waiting;

use std::net::IpAddr;
use std::time::Duration;

use tokio::sync::oneshot;
use tracing::{info, warn};

use crate::admission::invites::Invites;
use crate::admission::nearby::{Nearby, Sighting};
use crate::context::view::View;
use crate::context::{Context, News, Reply};
use crate::id::fingerprint;
use crate::members::{MEMBERS_MAX, Member, Members};
use crate::membership::Input;
use crate::peers::Peers;
use crate::secrets::code::{ADDRESSES_MAX, JoinCode};
use crate::wire::JoinAnswer;
use crate::{Error, Joined, NodeId, PairAsking, PairWith, Paired, Pairing, Result};
use approvals::Approvals;
pub(crate) use approvals::Decision;
use check::check_code;
use fleets::Fleets;
pub(crate) use leaving::{answer_when_parted, forget_unmet, leave_asked, remove};
use requests::OwnRequest;
pub(crate) use requests::PairEvent;

/// How long a join waits for its first connection, which normally takes milliseconds.
const JOIN_SETTLE_MAX: Duration = Duration::from_secs(3);

/// A completed join whose reply is still due.
pub(crate) struct Joining {
    joined: Joined,
    until: Duration,
    waits: Waits,
}

/// The receiver of a join's outcome.
enum Waits {
    Caller(Reply<Joined>),
    /// The status of this node's own request.
    Request {
        attempt: u64,
    },
}

#[derive(Default)]
pub(crate) struct Admission {
    invites: Invites,
    joining: Vec<Joining>,
    pub nearby: Nearby,
    fleets: Fleets,
    own: OwnRequest,
    pub approvals: Approvals,
    /// Why this node was removed from its cluster, if it was.
    pub parted: Option<String>,
}

impl Admission {
    pub(crate) fn invite(&mut self, ctx: &mut Context, ttl: Duration) -> String {
        let mut addresses = ctx.outside.addresses();
        addresses.truncate(ADDRESSES_MAX);
        let fingerprint = fingerprint(ctx.me);
        let random = ctx.outside.random();
        let secret = std::array::from_fn(|at| random[at]);
        self.invites.add(&secret, ttl, ctx.now());
        JoinCode { addresses, fingerprint, secret }.encode()
    }

    /// A machine presents the secret of a code.
    pub(crate) fn join_asked(
        &mut self,
        ctx: &mut Context,
        peers: &mut Peers,
        member: Member,
        (secret, from): (&[u8], IpAddr),
        reply: oneshot::Sender<(JoinAnswer, bool)>,
    ) {
        let (now, is_new) = (ctx.now(), !ctx.membership.is_member(member.id));
        let answer = match check_room_for(ctx, &member) {
            Some(reason) => JoinAnswer::Refused { reason },
            None => match self.invites.redeem(secret, from, now) {
                Err(refusal) => JoinAnswer::Refused { reason: refusal.to_string() },
                Ok(()) => self.let_in(ctx, peers, member),
            },
        };
        if let JoinAnswer::Refused { reason } = &answer {
            warn!(reason, "a node was not let in");
        }
        // The machine may have hung up.
        let _ = reply.send((answer, is_new));
    }

    /// A machine admitted by a code hung up before it saved its membership. It is not a member, and
    /// the code is valid again, unless it has come as a member: it may be shutting down, and saves
    /// its membership then. If it is lost there, it will say that it belongs to no cluster.
    pub(crate) fn join_lost(
        &mut self,
        ctx: &mut Context,
        peers: &mut Peers,
        peer: NodeId,
        secret: &[u8],
    ) {
        if ctx.membership.is_new(peer) {
            warn!(node = %peer.short(), "a machine has gone in mid-join, and is no member");
            self.invites.give_back(secret);
            peers.step(ctx, Input::Remove(peer));
        }
    }

    /// Admits a machine that a user wants as a member.
    fn let_in(&mut self, ctx: &mut Context, peers: &mut Peers, member: Member) -> JoinAnswer {
        if let Some(reason) = check_room_for(ctx, &member) {
            return JoinAnswer::Refused { reason };
        }
        info!(node = %member.id.short(), name = member.name, "a node has joined");
        self.own.withdraw();
        peers.step(ctx, Input::Admit(member));
        JoinAnswer::Accepted(ctx.all_members())
    }

    /// Joins through the maker of a code.
    pub(crate) fn join(&mut self, ctx: &mut Context, code: &str, reply: Reply<Joined>) {
        match check_code(ctx, code) {
            Ok(code) => ctx.outside.ask_to_join(code, reply),
            // The caller may have stopped waiting.
            Err(error) => drop(reply.send(Err(error))),
        }
    }

    /// The code's maker has admitted this node. `kept` completes once the membership is on disk.
    pub(crate) fn join_done(
        &mut self,
        ctx: &mut Context,
        peers: &mut Peers,
        (by, members): (NodeId, Members),
        kept: oneshot::Sender<()>,
        reply: Reply<Joined>,
    ) {
        self.own.withdraw();
        peers.step(ctx, Input::Joined(members));
        ctx.outside.when_members_kept(Box::new(|outcome| {
            // If saving fails, dropping `kept` makes the other node undo the admission.
            let _ = outcome.map(|()| kept.send(()));
        }));
        let joined = self.joined(ctx, by);
        info!(by = %by.short(), members = joined.members, "joined a cluster");
        self.settle(ctx, joined, Waits::Caller(reply));
    }

    fn joined(&mut self, ctx: &Context, by: NodeId) -> Joined {
        self.parted = None;
        let members = ctx.membership.members().count() + 1;
        Joined { by, by_name: ctx.name_of(by), members }
    }

    fn settle(&mut self, ctx: &Context, joined: Joined, waits: Waits) {
        self.joining.push(Joining { joined, until: ctx.now() + JOIN_SETTLE_MAX, waits });
    }

    /// Takes the joins whose new neighbour has received a heartbeat of this node, which can do work
    /// from then on. Also takes those that wait too long; they have joined all the same.
    pub(crate) fn take_settled(&mut self, ctx: &Context) -> Vec<Joining> {
        let now = ctx.now();
        let heard = |by| ctx.views.get(&by).is_some_and(View::has_heard_us);
        let is_done = |joining: &mut Joining| now >= joining.until || heard(joining.joined.by);
        self.joining.extract_if(.., is_done).collect()
    }

    /// Answers settled joins, once the status shows them.
    pub(crate) fn answer(&mut self, ctx: &mut Context, settled: Vec<Joining>) {
        for Joining { joined, waits, .. } in settled {
            match waits {
                // The caller may have stopped waiting; the join stands.
                Waits::Caller(reply) => ctx.outside.when_members_kept(Box::new(|kept| {
                    drop(reply.send(kept.map(|()| joined)));
                })),
                Waits::Request { attempt } => self.own.joined(ctx, attempt, joined),
            }
        }
    }

    /// Requests admission by a node nearby or at an address. The reply comes once the request waits
    /// there.
    pub(crate) fn pair(&mut self, ctx: &mut Context, with: PairWith, reply: Reply<PairAsking>) {
        self.own.pair(ctx, &self.nearby, with, reply);
    }

    /// Ends this node's own request for admission, if it has one.
    pub(crate) fn withdraw(&mut self, ctx: &mut Context) {
        self.own.give_up();
        ctx.changed();
    }

    /// The machines that wait for admission, and this node's own request.
    pub(crate) fn pairing(&self, ctx: &Context) -> Pairing {
        let requests = self.approvals.requests(ctx).into_iter().map(|(one, _)| one).collect();
        Pairing { asking: self.own.shown(ctx), requests }
    }

    pub(crate) fn pair_event(&mut self, ctx: &mut Context, peers: &mut Peers, event: PairEvent) {
        ctx.changed();
        match event {
            PairEvent::Asked { member, address, decide, reply } => {
                let (now, name) = (ctx.now(), member.name.clone());
                let added = self.approvals.waiting.add(member, address, decide, now);
                match &added {
                    Ok(_) => info!(name, %address, "a node asks to be let in"),
                    Err(error) => warn!(name, %address, %error, "a node may not ask to be let in"),
                }
                // If the machine has hung up, its task withdraws the request.
                let _ = reply.send(added);
                // Heartbeats carry the request, because a user may decide at any member.
                ctx.post(News::Heartbeats);
            }
            PairEvent::Gone { ticket } => {
                self.approvals.waiting.forget(ticket);
                ctx.post(News::Heartbeats);
            }
            PairEvent::Proved { member, decider, answer } => {
                let (node, name) = (member.id, member.name.clone());
                let admitted = self.let_in(ctx, peers, member);
                let members = ctx.membership.members().count() + 1;
                let outcome = match &admitted {
                    JoinAnswer::Accepted(_) => Ok(Paired { node, name, members }),
                    JoinAnswer::Refused { reason } => Err(Error::JoinRefused(reason.clone())),
                };
                decider.answer(ctx, outcome);
                drop(answer.send(admitted));
            }
            PairEvent::Unproved { name, decider } => {
                self.approvals.waiting.wrong.note(ctx.now());
                warn!(name, "a node did not show the number that was typed");
                decider.answer(ctx, Err(Error::WrongNumber { name }));
            }
            PairEvent::Unsaved { error, decider } => decider.answer(ctx, Err(error)),
            PairEvent::Waits { attempt, by, name } => self.own.waits(ctx, attempt, by, name),
            PairEvent::Ended { attempt, outcome } => self.ended(ctx, peers, attempt, outcome),
        }
    }

    fn ended(
        &mut self,
        ctx: &mut Context,
        peers: &mut Peers,
        attempt: u64,
        outcome: Result<(NodeId, Members)>,
    ) {
        if !self.own.is_of(attempt) {
            return;
        }
        match outcome {
            Ok((by, members)) => {
                peers.step(ctx, Input::Joined(members));
                let joined = self.joined(ctx, by);
                let members = joined.members;
                info!(by = %by.short(), members, "joined a cluster by a number");
                self.settle(ctx, joined, Waits::Request { attempt });
            }
            Err(error) => self.own.failed(ctx.now(), attempt, error),
        }
    }

    /// A node has proved that it has this node's fleet key.
    pub(crate) fn fleet_asked(
        &mut self,
        ctx: &mut Context,
        peers: &mut Peers,
        (peer, members): (NodeId, Members),
        reply: oneshot::Sender<JoinAnswer>,
    ) {
        let refused = |reason: String| JoinAnswer::Refused { reason };
        let full = ctx.membership.members().count() + 1 >= MEMBERS_MAX;
        let answer = if peer == ctx.me {
            refused("it is this node itself".to_owned())
        } else if ctx.membership.was_removed(peer) {
            refused("it was removed from this cluster, and needs a code: sinew invite".to_owned())
        } else if full && !ctx.membership.is_member(peer) {
            refused(format!("this cluster has {MEMBERS_MAX} nodes already"))
        } else {
            self.united(ctx, peers, peer, members);
            JoinAnswer::Accepted(ctx.all_members())
        };
        // The node may have hung up.
        let _ = reply.send(answer);
    }

    /// Both ends have proved the same fleet key.
    pub(crate) fn united(
        &mut self,
        ctx: &mut Context,
        peers: &mut Peers,
        peer: NodeId,
        members: Members,
    ) {
        if !ctx.membership.is_member(peer) {
            info!(peer = %peer.short(), "a node of the fleet is a member now");
        }
        self.own.withdraw();
        self.parted = None;
        peers.step(ctx, Input::Learned { members: members.sanitized(), by: Some(peer) });
    }

    /// A node announces itself on one of this machine's networks.
    pub(crate) fn sighted(&mut self, ctx: &mut Context, peers: &mut Peers, sighting: Sighting) {
        let (peer, addresses) = (sighting.announced.id, sighting.addresses.clone());
        ctx.changed_if(self.nearby.see(sighting));
        peers.step(ctx, Input::Sighted { peer, addresses });
    }

    /// Runs with each tick.
    pub(crate) fn tick(&mut self, ctx: &mut Context, peers: &Peers) {
        self.fleets.call(ctx, &self.nearby, &peers.given);
        let now = ctx.now();
        ctx.changed_if(self.approvals.waiting.expire(now));
        self.own.retry_undecided(ctx, &self.nearby);
        self.approvals.let_go(ctx, None);
    }
}

/// Why a node cannot become a member; applies to all ways of joining.
fn check_room_for(ctx: &Context, member: &Member) -> Option<String> {
    let full = ctx.membership.members().count() + 1 >= MEMBERS_MAX;
    let is_new = !ctx.membership.is_member(member.id);
    (full && is_new).then(|| format!("this cluster has {MEMBERS_MAX} nodes already"))
}

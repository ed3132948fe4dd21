//! Joining by a number that this machine shows and a user types at a member: this node's own
//! request, and the events of requests that wait here. `pake` is the key exchange that proves the
//! number, `waiting` the list of waiting requests.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use tokio::sync::oneshot;

use super::approvals::{Decider, Decision};
use super::check::members_elsewhere;
use super::nearby::Nearby;
use crate::admission::waiting::{REQUEST_MAX, Wrong};
use crate::context::{Attempt, Context, Reply};
use crate::members::{Member, Members};
use crate::secrets::pake::Number;
use crate::wire::JoinAnswer;
use crate::{Error, Joined, NodeId, PairAsking, PairState, PairWith, Result};

/// All nodes receive an announcement within a second; a lost one is repeated.
const NEAR_SETTLES: Duration = Duration::from_secs(3);

/// Events of requests, at either end.
pub(crate) enum PairEvent {
    /// A machine requests admission. The reply is its ticket, or the reason why it may not wait.
    Asked {
        member: Member,
        address: IpAddr,
        decide: oneshot::Sender<Decision>,
        reply: oneshot::Sender<Result<u64>>,
    },
    /// The machine has hung up.
    Gone { ticket: u64 },
    /// The machine proved the typed number.
    Proved { member: Member, decider: Decider, answer: oneshot::Sender<JoinAnswer> },
    /// The proof failed.
    Unproved { name: String, decider: Decider },
    /// This node cannot save a new member.
    Unsaved { error: Error, decider: Decider },
    /// This node's own request waits for a user.
    Waits { attempt: u64, by: NodeId, name: String },
    /// This node's own request was accepted or has failed.
    Ended { attempt: u64, outcome: Result<(NodeId, Members)> },
}

/// This node's own request, in progress or ended.
struct Asking {
    attempt: u64,
    number: Number,
    node: Option<NodeId>,
    /// The other node's name, or the given address.
    with: String,
    until: Duration,
    state: PairState,
    /// Completes once the request waits.
    reply: Option<Reply<PairAsking>>,
    _cancel: oneshot::Sender<()>,
}

/// This node's own request for admission.
#[derive(Default)]
pub(super) struct OwnRequest {
    asking: Option<Asking>,
    attempts: u64,
    wrong: Wrong,
    /// Calls whose target is still ambiguous, with their deadlines.
    undecided: Vec<(PairWith, Reply<PairAsking>, Duration)>,
}

impl OwnRequest {
    /// Whether this is the present request.
    pub(super) fn is_of(&self, attempt: u64) -> bool {
        self.asking.as_ref().is_some_and(|one| one.attempt == attempt)
    }

    fn of(&mut self, attempt: u64) -> Option<&mut Asking> {
        self.asking.as_mut().filter(|one| one.attempt == attempt)
    }

    /// Ends the request and the calls that would make one, because their user has given up.
    pub(super) fn give_up(&mut self) {
        self.undecided.clear();
        self.withdraw();
    }

    /// Ends the request, because this node is now a member of a cluster.
    pub(super) fn withdraw(&mut self) {
        self.asking.take_if(|asking| asking.state == PairState::Waiting);
    }

    pub(super) fn shown(&self, ctx: &Context) -> Option<PairAsking> {
        self.asking.as_ref().map(|asking| PairAsking {
            me: ctx.me,
            number: asking.number.text().to_owned(),
            node: asking.node,
            name: asking.with.clone(),
            state: asking.state.clone(),
            expires_in_secs: asking.until.saturating_sub(ctx.now()).as_secs(),
        })
    }

    pub(super) fn waits(&mut self, ctx: &Context, attempt: u64, by: NodeId, name: String) {
        let Some(asking) = self.of(attempt) else { return };
        (asking.node, asking.with) = (Some(by), name);
        let reply = asking.reply.take();
        if let (Some(reply), Some(shown)) = (reply, self.shown(ctx)) {
            drop(reply.send(Ok(shown)));
        }
    }

    /// The node that admitted this one is reachable.
    pub(super) fn joined(&mut self, ctx: &mut Context, attempt: u64, joined: Joined) {
        ctx.changed();
        if let Some(asking) = self.of(attempt) {
            asking.state = PairState::Joined(joined);
        }
    }

    pub(super) fn failed(&mut self, now: Duration, attempt: u64, error: Error) {
        if matches!(error, Error::OtherNumber { .. }) {
            self.wrong.note(now);
        }
        let Some(asking) = self.of(attempt) else { return };
        asking.state = PairState::Failed { reason: error.to_string() };
        if let Some(reply) = asking.reply.take() {
            // The caller may have stopped waiting.
            let _ = reply.send(Err(error));
        }
    }

    /// Requests admission by a node nearby or at an address. The reply comes once the request waits
    /// there.
    pub(super) fn pair(
        &mut self,
        ctx: &mut Context,
        nearby: &Nearby,
        with: PairWith,
        reply: Reply<PairAsking>,
    ) {
        let until = ctx.now() + NEAR_SETTLES;
        self.pair_until(ctx, nearby, (with, reply, until));
    }

    /// Retries ambiguous calls: nodes that have just formed one cluster do not announce it at the
    /// same moment.
    pub(super) fn retry_undecided(&mut self, ctx: &mut Context, nearby: &Nearby) {
        for (with, reply, until) in std::mem::take(&mut self.undecided) {
            self.pair_until(ctx, nearby, (with, reply, until));
        }
    }

    fn pair_until(
        &mut self,
        ctx: &mut Context,
        nearby: &Nearby,
        (with, reply, until): (PairWith, Reply<PairAsking>, Duration),
    ) {
        let (peer, name, addresses) = match self.check_pair(ctx, nearby, &with) {
            Ok(target) => target,
            Err(Error::ManyNear { .. }) if with.node.is_none() && ctx.now() < until => {
                return self.undecided.push((with, reply, until));
            }
            Err(error) => return drop(reply.send(Err(error))),
        };
        let [a, b, c, d, e, f, g, h, ..] = ctx.outside.random();
        let number = Number::of(u64::from_le_bytes([a, b, c, d, e, f, g, h]));
        self.attempts += 1;
        let attempt = self.attempts;
        let (cancel, cancelled) = oneshot::channel();
        self.asking = Some(Asking {
            attempt,
            number: number.clone(),
            node: peer,
            with: name,
            until: ctx.now() + REQUEST_MAX,
            state: PairState::Waiting,
            reply: Some(reply),
            _cancel: cancel,
        });
        ctx.outside.pair(Attempt { attempt, peer, addresses, number, cancelled });
    }

    /// The target of a request: its key if known, its name, its addresses.
    fn check_pair(
        &mut self,
        ctx: &Context,
        nearby: &Nearby,
        with: &PairWith,
    ) -> Result<(Option<NodeId>, String, Vec<SocketAddr>)> {
        let members = members_elsewhere(ctx) + 1;
        if members > 1 {
            return Err(Error::AlreadyMember { members });
        }
        self.wrong.check(ctx.now())?;
        if let Some(address) = with.peer {
            return Ok((None, address.to_string(), vec![address]));
        }
        let found = nearby.choose(with.node.as_deref())?;
        let name = found.announced.name.clone();
        Ok((Some(found.announced.id), name, found.addresses.clone()))
    }
}

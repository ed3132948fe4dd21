//! Decisions of users about machines that wait for admission. A user may decide at any member:
//! members report the waiting machines in their heartbeats, and pass a decision on to the member
//! that the machine called, because only that one has the other half of the exchange.

use std::collections::BTreeMap;
use std::time::Duration;

use tokio::sync::oneshot;

use crate::admission::waiting::{REQUESTS_MAX, Requests, choose};
use crate::context::{Context, Reply};
use crate::members::clean_name;
use crate::membership::ConnId;
use crate::secrets::pake::Number;
use crate::wire::Message;
use crate::{Error, NodeId, PairRequest, Paired, Result};

/// The called member proves the number with the waiting machine, and writes to its disk.
const ANSWER_MAX: Duration = Duration::from_secs(30);

/// A user's decision about a request.
pub(crate) enum Decision {
    Number { number: Number, decider: Decider },
    Refused,
}

/// The origin of a number, which receives its outcome.
pub(crate) enum Decider {
    Caller(Reply<Paired>),
    /// A member that has passed the number on.
    Member {
        conn: ConnId,
        call: u64,
    },
}

impl Decider {
    pub(super) fn answer(self, ctx: &mut Context, outcome: Result<Paired>) {
        match self {
            // The caller may have stopped waiting; the admission stands.
            Self::Caller(reply) => drop(reply.send(outcome)),
            Self::Member { conn, call } => {
                let outcome = outcome.map(Some).map_err(|error| error.to_string());
                ctx.send(conn, Message::Decided { call, outcome });
            }
        }
    }
}

/// A decision passed on to the member that the machine called.
struct Passed {
    to: NodeId,
    until: Duration,
    request: PairRequest,
    reply: Waits,
}

enum Waits {
    Accept(Reply<Paired>),
    Refuse(Reply<PairRequest>),
}

#[derive(Default)]
pub(crate) struct Approvals {
    /// The machines that wait at this node.
    pub waiting: Requests<oneshot::Sender<Decision>>,
    passed: BTreeMap<u64, Passed>,
    calls: u64,
}

impl Approvals {
    /// Admits the machine that shows this number.
    pub(crate) fn accept(
        &mut self,
        ctx: &mut Context,
        number: &str,
        node: Option<&str>,
        reply: Reply<Paired>,
    ) {
        let Some(number) = Number::parse(number) else {
            return drop(reply.send(Err(Error::NoNumber)));
        };
        match choose(&self.requests(ctx), node) {
            Err(error) => drop(reply.send(Err(error))),
            Ok((request, None)) => {
                self.accept_here(ctx, number, request.id, Decider::Caller(reply))
            }
            Ok((request, Some(at))) => {
                let number = Some(number.text().to_owned());
                self.pass_on(ctx, at, request, number, Waits::Accept(reply));
            }
        }
    }

    fn accept_here(&mut self, ctx: &mut Context, number: Number, node: NodeId, decider: Decider) {
        let now = ctx.now();
        let taken = self.waiting.wrong.check(now);
        match taken.and_then(|()| self.waiting.take(node, now)) {
            Err(error) => decider.answer(ctx, Err(error)),
            Ok(waiting) => {
                let name = waiting.member.name;
                // If the machine has just hung up, its task has dropped the receiver.
                if let Err(Decision::Number { decider, .. }) =
                    waiting.decide.send(Decision::Number { number, decider })
                {
                    decider.answer(ctx, Err(Error::WrongNumber { name }));
                }
            }
        }
    }

    /// Rejects a waiting machine.
    pub(crate) fn refuse(&mut self, ctx: &mut Context, node: &str, reply: Reply<PairRequest>) {
        match choose(&self.requests(ctx), Some(node)) {
            Err(error) => drop(reply.send(Err(error))),
            Ok((request, None)) => {
                drop(reply.send(self.refuse_here(ctx, request.id).map(|()| request)));
            }
            Ok((request, Some(at))) => self.pass_on(ctx, at, request, None, Waits::Refuse(reply)),
        }
    }

    fn refuse_here(&mut self, ctx: &Context, node: NodeId) -> Result<()> {
        let now = ctx.now();
        let waiting = self.waiting.take(node, now)?;
        // A machine that has hung up gets no reply.
        let _ = waiting.decide.send(Decision::Refused);
        Ok(())
    }

    /// The machines that wait at this node or at a reachable member; the id names that member.
    /// Entries for machines that are already members are ignored: other members' reports are not
    /// trusted.
    pub(crate) fn requests(&self, ctx: &Context) -> Vec<(PairRequest, Option<NodeId>)> {
        let own = self.own_requests(ctx).into_iter().map(|one| (one, None));
        let theirs = ctx.views.keys().flat_map(|peer| {
            let told = ctx.live_heartbeat_of(*peer).map_or(&[][..], |told| &told.requests);
            told.iter().take(REQUESTS_MAX).map(|one| {
                let (name, at) = (clean_name(&one.name), ctx.name_of(*peer));
                (PairRequest { name, at, ..one.clone() }, Some(*peer))
            })
        });
        let all = own.chain(theirs);
        all.filter(|(one, _)| one.id != ctx.me && !ctx.membership.is_member(one.id)).collect()
    }

    /// The machines that wait at this node.
    pub(crate) fn own_requests(&self, ctx: &Context) -> Vec<PairRequest> {
        let all = self.waiting.list(ctx.now());
        all.into_iter().map(|one| PairRequest { at: ctx.config.name.clone(), ..one }).collect()
    }

    /// Notices for the user about waiting machines.
    pub(crate) fn notices(&self, ctx: &Context) -> Vec<String> {
        let tell = |(one, _): &(PairRequest, Option<NodeId>)| {
            let (name, id, address) = (&one.name, one.id.short(), one.address);
            format!(
                "{name} ({id}, at {address}) asks to be let in. If you want that, type here the \
                 number that it shows: sinew accept NUMBER"
            )
        };
        self.requests(ctx).iter().map(tell).collect()
    }

    fn pass_on(
        &mut self,
        ctx: &mut Context,
        to: NodeId,
        request: PairRequest,
        number: Option<String>,
        reply: Waits,
    ) {
        self.calls += 1;
        let (call, until) = (self.calls, ctx.now() + ANSWER_MAX);
        ctx.send_to(to, Message::Decide { call, node: request.id, number });
        self.passed.insert(call, Passed { to, until, request, reply });
    }

    /// Another member passes on a user's decision about a machine that waits here.
    pub(crate) fn decide_for(
        &mut self,
        ctx: &mut Context,
        conn: ConnId,
        call: u64,
        node: NodeId,
        number: Option<&str>,
    ) {
        let Some(number) = number else {
            let outcome =
                self.refuse_here(ctx, node).map(|()| None).map_err(|error| error.to_string());
            return ctx.send(conn, Message::Decided { call, outcome });
        };
        let decider = Decider::Member { conn, call };
        match Number::parse(number) {
            Some(number) => self.accept_here(ctx, number, node, decider),
            None => decider.answer(ctx, Err(Error::NoNumber)),
        }
    }

    /// The outcome of a decision that was passed on, accepted only from the node that received it.
    pub(crate) fn decided(
        &mut self,
        ctx: &Context,
        by: NodeId,
        call: u64,
        outcome: std::result::Result<Option<Paired>, String>,
    ) {
        if self.passed.get(&call).is_none_or(|passed| passed.to != by) {
            return;
        }
        let Some(Passed { request, reply, .. }) = self.passed.remove(&call) else {
            return;
        };
        match (reply, outcome) {
            (Waits::Refuse(reply), Ok(_)) => drop(reply.send(Ok(request))),
            (Waits::Accept(reply), Ok(Some(paired))) => drop(reply.send(Ok(paired))),
            (Waits::Accept(reply), Ok(None)) => {
                let text = format!("node {} does not say who was let in", ctx.name_of(by));
                drop(reply.send(Err(Error::Unusable(text))));
            }
            (reply, Err(why)) => reply.fail(why),
        }
    }

    /// Fails decisions whose member is lost or has not answered in time.
    pub(crate) fn let_go(&mut self, ctx: &Context, lost: Option<NodeId>) {
        let now = ctx.now();
        let is_over = |one: &Passed| now >= one.until || lost == Some(one.to);
        let all = std::mem::take(&mut self.passed);
        let (over, kept) = all.into_iter().partition(|(_, one)| is_over(one));
        self.passed = kept;
        let over: BTreeMap<u64, Passed> = over;
        for Passed { to, request, reply, .. } in over.into_values() {
            reply.fail(format!(
                "node {}, which {} has asked, does not answer. See whether it is in: sinew nodes. \
                 If not, type there: sinew join",
                ctx.name_of(to),
                request.name
            ));
        }
    }
}

impl Waits {
    fn fail(self, why: String) {
        match self {
            Self::Accept(reply) => drop(reply.send(Err(Error::Unusable(why)))),
            Self::Refuse(reply) => drop(reply.send(Err(Error::Unusable(why)))),
        }
    }
}

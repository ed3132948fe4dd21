//! What a person decides about machines that ask to be let in. It may be told to any member: the
//! members tell each other who asks, and pass the decision on to the one that was asked, which
//! alone has the other half of the exchange.

use std::collections::BTreeMap;
use std::time::Duration;

use super::pairing::Decision;
use super::{Daemon, Reply};
use crate::members::clean_name;
use crate::membership::ConnId;
use crate::pairing::{REQUESTS_MAX, choose};
use crate::pake::Number;
use crate::wire::Message;
use crate::{Error, NodeId, PairRequest, Paired, Pairing, Result};

/// The member that was asked proves the number with the machine that asks, and writes to its disk.
const ANSWER_MAX: Duration = Duration::from_secs(30);

/// Who is told what came of a number.
pub(crate) enum Decider {
    Caller(Reply<Paired>),
    /// A member that has passed it on.
    Member {
        conn: ConnId,
        call: u64,
    },
}

/// A decision that was passed on to the member that was asked.
pub(super) struct Passed {
    to: NodeId,
    until: Duration,
    request: PairRequest,
    reply: Waits,
}

enum Waits {
    Accept(Reply<Paired>),
    Refuse(Reply<PairRequest>),
}

impl Daemon {
    /// Lets in who shows this number.
    pub(super) fn accept(&mut self, number: &str, node: Option<&str>, reply: Reply<Paired>) {
        let Some(number) = Number::parse(number) else {
            return drop(reply.send(Err(Error::NoNumber)));
        };
        match choose(&self.requests(), node) {
            Err(error) => drop(reply.send(Err(error))),
            Ok((request, None)) => self.accept_here(number, request.id, Decider::Caller(reply)),
            Ok((request, Some(at))) => {
                let number = Some(number.text().to_owned());
                self.pass_on(at, request, number, Waits::Accept(reply));
            }
        }
    }

    fn accept_here(&mut self, number: Number, node: NodeId, decider: Decider) {
        let now = self.now();
        let taken = self.pairs.requests.wrong.check(now);
        match taken.and_then(|()| self.pairs.requests.take(node, now)) {
            Err(error) => self.tell_decider(decider, Err(error)),
            Ok(waiting) => {
                let name = waiting.member.name;
                // If it has just hung up, its task has dropped the other end.
                if let Err(Decision::Number { decider, .. }) =
                    waiting.decide.send(Decision::Number { number, decider })
                {
                    self.tell_decider(decider, Err(Error::WrongNumber { name }));
                }
            }
        }
    }

    /// Sends somebody who asks away.
    pub(super) fn refuse_request(&mut self, node: &str, reply: Reply<PairRequest>) {
        match choose(&self.requests(), Some(node)) {
            Err(error) => drop(reply.send(Err(error))),
            Ok((request, None)) => {
                drop(reply.send(self.refuse_here(request.id).map(|()| request)));
            }
            Ok((request, Some(at))) => self.pass_on(at, request, None, Waits::Refuse(reply)),
        }
    }

    fn refuse_here(&mut self, node: NodeId) -> Result<()> {
        let now = self.now();
        let waiting = self.pairs.requests.take(node, now)?;
        // One that has hung up hears nothing.
        let _ = waiting.decide.send(Decision::Refused);
        Ok(())
    }

    /// Who asks here, or at a member that can be reached, which is named then; members are not
    /// believed about machines that are members.
    pub(super) fn requests(&self) -> Vec<(PairRequest, Option<NodeId>)> {
        let own = self.own_requests().into_iter().map(|one| (one, None));
        let reached = self.views.iter().filter(|(peer, _)| self.membership.conn(**peer).is_some());
        let theirs = reached.flat_map(|(peer, view)| {
            let told = view.heartbeat.as_ref().map_or(&[][..], |told| &told.requests);
            told.iter().take(REQUESTS_MAX).map(|one| {
                let (name, at) = (clean_name(&one.name), self.node_name(*peer));
                (PairRequest { name, at, ..one.clone() }, Some(*peer))
            })
        });
        let all = own.chain(theirs);
        all.filter(|(one, _)| one.id != self.me && !self.membership.is_member(one.id)).collect()
    }

    /// Who asks here.
    pub(super) fn own_requests(&self) -> Vec<PairRequest> {
        let all = self.pairs.requests.list(self.now());
        all.into_iter().map(|one| PairRequest { at: self.config.name.clone(), ..one }).collect()
    }

    /// Who asks to be let in, and what this node has asked.
    pub(super) fn pairing(&self) -> Pairing {
        let requests = self.requests().into_iter().map(|(one, _)| one).collect();
        Pairing { asking: self.asking(), requests }
    }

    /// What a person should know of those who ask.
    pub(super) fn pair_notices(&self) -> Vec<String> {
        let tell = |(one, _): &(PairRequest, Option<NodeId>)| {
            let (name, id, address) = (&one.name, one.id.short(), one.address);
            format!(
                "{name} ({id}, at {address}) asks to be let in. If you want that, type here the \
                 number that it shows: sinew accept NUMBER"
            )
        };
        self.requests().iter().map(tell).collect()
    }

    fn pass_on(&mut self, to: NodeId, request: PairRequest, number: Option<String>, reply: Waits) {
        self.pairs.calls += 1;
        let (call, until) = (self.pairs.calls, self.now() + ANSWER_MAX);
        self.send_to(to, Message::Decide { call, node: request.id, number });
        self.pairs.passed.insert(call, Passed { to, until, request, reply });
    }

    /// A person at a member has decided about somebody who asks here.
    pub(super) fn decide_for(
        &mut self,
        conn: ConnId,
        call: u64,
        node: NodeId,
        number: Option<&str>,
    ) {
        let Some(number) = number else {
            let outcome = self.refuse_here(node).map(|()| None).map_err(|error| error.to_string());
            return self.send(conn, Message::Decided { call, outcome });
        };
        let decider = Decider::Member { conn, call };
        match Number::parse(number) {
            Some(number) => self.accept_here(number, node, decider),
            None => self.tell_decider(decider, Err(Error::NoNumber)),
        }
    }

    pub(super) fn tell_decider(&mut self, decider: Decider, outcome: Result<Paired>) {
        match decider {
            // A caller that has stopped waiting is no reason to undo what it asked for.
            Decider::Caller(reply) => drop(reply.send(outcome)),
            Decider::Member { conn, call } => {
                let outcome = outcome.map(Some).map_err(|error| error.to_string());
                self.send(conn, Message::Decided { call, outcome });
            }
        }
    }

    /// What came of a decision that was passed on, by the word of the node that was told it.
    pub(super) fn decided(
        &mut self,
        by: NodeId,
        call: u64,
        outcome: std::result::Result<Option<Paired>, String>,
    ) {
        if self.pairs.passed.get(&call).is_none_or(|passed| passed.to != by) {
            return;
        }
        let Some(Passed { request, reply, .. }) = self.pairs.passed.remove(&call) else { return };
        match (reply, outcome) {
            (Waits::Refuse(reply), Ok(_)) => drop(reply.send(Ok(request))),
            (Waits::Accept(reply), Ok(Some(paired))) => drop(reply.send(Ok(paired))),
            (Waits::Accept(reply), Ok(None)) => {
                let text = format!("node {} does not say who was let in", self.node_name(by));
                drop(reply.send(Err(Error::Unusable(text))));
            }
            (reply, Err(why)) => reply.fail(why),
        }
    }

    /// Nobody waits for what a lost member, or one that says nothing, would have answered.
    pub(super) fn let_go_of_decisions(&mut self, lost: Option<NodeId>) {
        let now = self.now();
        let is_over = |one: &Passed| now >= one.until || lost == Some(one.to);
        let all = std::mem::take(&mut self.pairs.passed);
        let (over, kept) = all.into_iter().partition(|(_, one)| is_over(one));
        self.pairs.passed = kept;
        let over: BTreeMap<u64, Passed> = over;
        for Passed { to, request, reply, .. } in over.into_values() {
            reply.fail(format!(
                "node {}, which {} has asked, does not answer. See whether it is in: sinew nodes. \
                 If not, type there: sinew join",
                self.node_name(to),
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

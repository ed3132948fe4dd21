//! Joining by a number that one machine shows and a person types at another one. The exchange that
//! tells whether it was the right one is [`crate::pake`]; who waits, [`crate::pairing`].

use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use tokio::io::AsyncReadExt;
use tokio::sync::{mpsc, oneshot};
use tokio::time::timeout;
use tracing::{info, warn};

use super::deciding::{Decider, Passed};
use super::{Daemon, Event, Reply};
use crate::kept::Saver;
use crate::members::{Member, Members};
use crate::membership::Input;
use crate::net::{Connection, DialError, Net};
use crate::pairing::{REQUEST_MAX, Requests, Wrong};
use crate::pake::{Asker, Ends, Number, Teller};
use crate::tls::Pin;
use crate::wire::{
    HANDSHAKE_BYTES_MAX, JOIN_BYTES_MAX, JoinAnswer, PairAsk, PairNews, PairProof, Purpose,
};
use crate::{Error, Joined, NodeId, PairAsking, PairState, PairWith, Paired, Result, frames};

/// Both ends answer from memory, and one writes to its disk.
const ANSWER_MAX: Duration = Duration::from_secs(10);
/// What a node announces is heard by all within a second, and once more where that was lost.
const NEAR_SETTLES: Duration = Duration::from_secs(3);

/// What a person decides about a request.
pub(crate) enum Decision {
    Number { number: Number, decider: Decider },
    Refused,
}

/// A call by which this node asks to be let in.
pub(crate) struct Attempt {
    pub attempt: u64,
    /// Who must answer; a person may know an address alone.
    pub peer: Option<NodeId>,
    pub addresses: Vec<SocketAddr>,
    pub number: Number,
    /// Ends the call when its other end is dropped.
    pub cancelled: oneshot::Receiver<()>,
}

/// What happens to requests, at either end.
pub(crate) enum PairEvent {
    /// A stranger asks; the answer is its ticket, or why it may not wait.
    Asked {
        member: Member,
        address: IpAddr,
        decide: oneshot::Sender<Decision>,
        reply: oneshot::Sender<Result<u64>>,
    },
    /// It has hung up.
    Gone { ticket: u64 },
    /// It showed the number that was typed.
    Proved { member: Member, decider: Decider, answer: oneshot::Sender<JoinAnswer> },
    /// It did not.
    Unproved { name: String, decider: Decider },
    /// This node cannot save a new member.
    Unsaved { error: Error, decider: Decider },
    /// This node's own request waits for a person.
    Waits { attempt: u64, by: NodeId, name: String },
    /// It was let in by this node, or not.
    Ended { attempt: u64, outcome: Result<(NodeId, Members)> },
}

/// This node's own request.
struct Asking {
    attempt: u64,
    number: Number,
    node: Option<NodeId>,
    /// The other node's name, or the address that was given.
    with: String,
    until: Duration,
    state: PairState,
    /// Who is told once the request waits.
    reply: Option<Reply<PairAsking>>,
    _cancel: oneshot::Sender<()>,
}

#[derive(Default)]
pub(super) struct Pairs {
    pub requests: Requests<oneshot::Sender<Decision>>,
    asking: Option<Asking>,
    attempts: u64,
    wrong: Wrong,
    /// Decisions that members were told, by number.
    pub passed: BTreeMap<u64, Passed>,
    pub calls: u64,
    /// Requests of which it is not clear whom they mean, and until when they wait for that.
    undecided: Vec<(PairWith, Reply<PairAsking>, Duration)>,
}

impl Daemon {
    /// Asks a node nearby, or at an address, to let this one in; answered once it waits there.
    pub(super) fn pair(&mut self, with: PairWith, reply: Reply<PairAsking>) {
        let until = self.now() + NEAR_SETTLES;
        self.pair_by(with, reply, until);
    }

    /// Those who have just become one cluster do not announce it at the same moment.
    pub(super) fn pair_undecided(&mut self) {
        for (with, reply, until) in std::mem::take(&mut self.pairs.undecided) {
            self.pair_by(with, reply, until);
        }
    }

    fn pair_by(&mut self, with: PairWith, reply: Reply<PairAsking>, until: Duration) {
        let (peer, name, addresses) = match self.check_pair(&with) {
            Ok(target) => target,
            Err(Error::ManyNear { .. }) if with.node.is_none() && self.now() < until => {
                return self.pairs.undecided.push((with, reply, until));
            }
            Err(error) => return drop(reply.send(Err(error))),
        };
        let [a, b, c, d, e, f, g, h, ..] = self.outside.random();
        let number = Number::of(u64::from_le_bytes([a, b, c, d, e, f, g, h]));
        self.pairs.attempts += 1;
        let attempt = self.pairs.attempts;
        let (cancel, cancelled) = oneshot::channel();
        self.pairs.asking = Some(Asking {
            attempt,
            number: number.clone(),
            node: peer,
            with: name,
            until: self.now() + REQUEST_MAX,
            state: PairState::Waiting,
            reply: Some(reply),
            _cancel: cancel,
        });
        self.outside.pair(Attempt { attempt, peer, addresses, number, cancelled });
    }

    /// Whom to ask: its key if it is known, its name, and where it is.
    fn check_pair(&mut self, with: &PairWith) -> Result<(Option<NodeId>, String, Vec<SocketAddr>)> {
        let (now, members) = (self.now(), self.members_elsewhere() + 1);
        if members > 1 {
            return Err(Error::AlreadyMember { members });
        }
        self.pairs.wrong.check(now)?;
        if let Some(address) = with.peer {
            return Ok((None, address.to_string(), vec![address]));
        }
        let found = self.nearby.choose(with.node.as_deref())?;
        let name = found.announced.name.clone();
        Ok((Some(found.announced.id), name, found.addresses.clone()))
    }

    /// What this node has asked.
    pub(super) fn asking(&self) -> Option<PairAsking> {
        self.pairs.asking.as_ref().map(|asking| self.shown(asking))
    }

    fn shown(&self, asking: &Asking) -> PairAsking {
        PairAsking {
            me: self.me,
            number: asking.number.text().to_owned(),
            node: asking.node,
            name: asking.with.clone(),
            state: asking.state.clone(),
            expires_in_secs: asking.until.saturating_sub(self.now()).as_secs(),
        }
    }

    /// Whoever belongs to a cluster asks no other one.
    pub(super) fn stop_asking(&mut self) {
        self.pairs.asking.take_if(|asking| asking.state == PairState::Waiting);
    }

    pub(super) fn expire_requests(&mut self) {
        let now = self.now();
        self.dirty |= self.pairs.requests.expire(now);
    }

    pub(super) fn pair_event(&mut self, event: PairEvent) {
        self.dirty = true;
        match event {
            PairEvent::Asked { member, address, decide, reply } => {
                let (now, name) = (self.now(), member.name.clone());
                let added = self.pairs.requests.add(member, address, decide, now);
                match &added {
                    Ok(_) => info!(name, %address, "a node asks to be let in"),
                    Err(error) => warn!(name, %address, %error, "a node may not ask to be let in"),
                }
                // A stranger that has hung up is told nothing; its task lets go of the request.
                let _ = reply.send(added);
                // A person may decide at any member.
                self.send_heartbeats();
            }
            PairEvent::Gone { ticket } => {
                self.pairs.requests.forget(ticket);
                self.send_heartbeats();
            }
            PairEvent::Proved { member, decider, answer } => {
                let (node, name) = (member.id, member.name.clone());
                let admitted = self.let_in(member);
                let members = self.membership.members().count() + 1;
                let outcome = match &admitted {
                    JoinAnswer::Accepted(_) => Ok(Paired { node, name, members }),
                    JoinAnswer::Refused { reason } => Err(Error::JoinRefused(reason.clone())),
                };
                self.tell_decider(decider, outcome);
                drop(answer.send(admitted));
            }
            PairEvent::Unproved { name, decider } => {
                let now = self.now();
                self.pairs.requests.wrong.note(now);
                warn!(name, "a node did not show the number that was typed");
                self.tell_decider(decider, Err(Error::WrongNumber { name }));
            }
            PairEvent::Unsaved { error, decider } => self.tell_decider(decider, Err(error)),
            PairEvent::Waits { attempt, by, name } => self.asking_waits(attempt, by, name),
            PairEvent::Ended { attempt, outcome } => self.asking_ended(attempt, outcome),
        }
    }

    fn asking_waits(&mut self, attempt: u64, by: NodeId, name: String) {
        let Some(asking) = self.pairs.asking.as_mut().filter(|one| one.attempt == attempt) else {
            return;
        };
        (asking.node, asking.with) = (Some(by), name);
        let reply = asking.reply.take();
        let shown = self.pairs.asking.as_ref().map(|asking| self.shown(asking));
        if let (Some(reply), Some(shown)) = (reply, shown) {
            drop(reply.send(Ok(shown)));
        }
    }

    /// The node that has let this one in can be reached.
    pub(super) fn asking_joined(&mut self, attempt: u64, joined: Joined) {
        self.dirty = true;
        if let Some(asking) = self.pairs.asking.as_mut().filter(|one| one.attempt == attempt) {
            asking.state = PairState::Joined(joined);
        }
    }

    fn asking_ended(&mut self, attempt: u64, outcome: Result<(NodeId, Members)>) {
        if self.pairs.asking.as_ref().is_none_or(|one| one.attempt != attempt) {
            return;
        }
        let state = match outcome {
            Ok((by, members)) => {
                self.step_membership(Input::Joined(members));
                self.parted = None;
                let (by_name, members) = (self.node_name(by), self.membership.members().count());
                info!(by = %by.short(), members = members + 1, "joined a cluster by a number");
                let joined = Joined { by, by_name, members: members + 1 };
                return self.joined_by_number(joined, attempt);
            }
            Err(error) => {
                if matches!(error, Error::OtherNumber { .. }) {
                    let now = self.now();
                    self.pairs.wrong.note(now);
                }
                let reply = self.pairs.asking.as_mut().and_then(|asking| asking.reply.take());
                let reason = error.to_string();
                if let Some(reply) = reply {
                    // A caller that has stopped waiting needs no answer.
                    let _ = reply.send(Err(error));
                }
                PairState::Failed { reason }
            }
        };
        if let Some(asking) = &mut self.pairs.asking {
            asking.state = state;
        }
    }
}

/// A stranger asks to be let in by a number. It learns this node's version and name, no more, until
/// it has shown that it has the one that a person typed here.
pub(super) async fn answer(
    net: &Net,
    saver: &Arc<Saver<Members>>,
    inputs: &mpsc::Sender<Event>,
    mut connection: Connection,
) -> std::result::Result<(), DialError> {
    let mut about = net.about();
    about.addresses.clear();
    connection.welcome(about).await?;
    let asked = frames::read::<PairAsk>(&mut connection.stream, HANDSHAKE_BYTES_MAX);
    let PairAsk { half } = within(ANSWER_MAX, async { Ok(asked.await?) }).await?;
    let session = connection.session()?;
    let ends = Ends { asker: connection.peer, member: net.id(), session };
    let (id, name) = (connection.peer, connection.about.name.clone());
    let member = Member { id, name, addresses: connection.peer_addresses(), admitted: 0 };
    let (member, address) = (member.sanitized(), connection.remote.ip());
    let stream = &mut connection.stream;

    let ((decide, decided), (reply, noted)) = (oneshot::channel(), oneshot::channel());
    tell(inputs, PairEvent::Asked { member: member.clone(), address, decide, reply }).await?;
    let ticket = match noted.await.map_err(io::Error::other)? {
        Ok(ticket) => ticket,
        Err(error) => {
            let reason = error.to_string();
            return Ok(frames::write(stream, &PairNews::Refused { reason }).await?);
        }
    };
    frames::write(stream, &PairNews::Waiting).await?;
    let decision = tokio::select! {
        decision = decided => decision.ok(),
        // It has nothing to say while it waits.
        _ = stream.read_u8() => return tell(inputs, PairEvent::Gone { ticket }).await,
    };
    let (number, decider) = match decision {
        Some(Decision::Number { number, decider }) => (number, decider),
        Some(Decision::Refused) => {
            let reason = "a person there refused it".to_owned();
            return Ok(frames::write(stream, &PairNews::Refused { reason }).await?);
        }
        None => {
            let reason = "nobody typed the number there in time. Try again".to_owned();
            return Ok(frames::write(stream, &PairNews::Refused { reason }).await?);
        }
    };
    // A node that cannot remember the new one must not let it in.
    if let Err(error) = saver.clone().check_room().await {
        let reason = format!("node {} cannot save a new member. {error}", net.about().name);
        tell(inputs, PairEvent::Unsaved { error, decider }).await?;
        return Ok(frames::write(stream, &PairNews::Refused { reason }).await?);
    }
    let exchange = async {
        let Some((teller, answer)) = Teller::answer(&number, &ends, &half) else {
            return Ok(false);
        };
        frames::write(stream, &PairNews::Answer(answer)).await?;
        let PairProof { proof } = frames::read(stream, HANDSHAKE_BYTES_MAX).await?;
        Ok(teller.accepts(&proof))
    };
    // Whoever hangs up now may have found its guess wrong: that counts as one.
    if !matches!(within(ANSWER_MAX, exchange).await, Ok(true)) {
        return tell(inputs, PairEvent::Unproved { name: member.name, decider }).await;
    }
    let (answer, admitted) = oneshot::channel();
    tell(inputs, PairEvent::Proved { member, decider, answer }).await?;
    let admitted = admitted.await.map_err(io::Error::other)?;
    // The new member may only rely on what survives a crash here.
    saver.clone().save().await;
    Ok(frames::write(stream, &admitted).await?)
}

/// Asks a node to let this one in, and waits until a person there has typed the number.
pub(super) async fn ask(
    net: Arc<Net>,
    saver: Arc<Saver<Members>>,
    inputs: mpsc::Sender<Event>,
    attempt: Attempt,
) -> Option<Event> {
    let Attempt { attempt, peer, addresses, number, cancelled } = attempt;
    let asking = call(&net, &saver, &inputs, attempt, (peer, addresses), &number);
    let outcome = tokio::select! {
        outcome = asking => outcome,
        _ = cancelled => return None,
    };
    Some(Event::Pair(PairEvent::Ended { attempt, outcome }))
}

async fn call(
    net: &Arc<Net>,
    saver: &Arc<Saver<Members>>,
    inputs: &mpsc::Sender<Event>,
    attempt: u64,
    (peer, addresses): (Option<NodeId>, Vec<SocketAddr>),
    number: &Number,
) -> Result<(NodeId, Members)> {
    // A membership that cannot be saved is none.
    saver.clone().check_room().await?;
    let listed = addresses.iter().map(SocketAddr::to_string).collect::<Vec<_>>().join(", ");
    let unreachable = |why: &dyn std::fmt::Display| {
        let (addresses, why) = (listed.clone(), why.to_string());
        Error::Unreachable { addresses, why }
    };
    let pin = peer.map_or(Pin::Any, Pin::Node);
    let mut connection = match net.dial(addresses, pin, Purpose::Pair).await {
        Ok(connection) => connection,
        Err(DialError::Refused { reason, .. } | DialError::Version(reason)) => {
            return Err(Error::JoinRefused(reason));
        }
        Err(error) => return Err(unreachable(&error)),
    };
    let (by, remote) = (connection.peer, connection.remote);
    if by == net.id() {
        return Err(Error::JoinRefused("this is this node's own address".to_owned()));
    }
    let name = crate::members::clean_name(&connection.about.name);
    let session = connection.session().map_err(|error| unreachable(&error))?;
    let ends = Ends { asker: net.id(), member: by, session };
    let begun = Asker::begin(number, &ends);
    let (asker, half) = begun.ok_or_else(|| unreachable(&"no random bytes"))?;
    let stream = &mut connection.stream;
    let told = within(ANSWER_MAX, async {
        frames::write(stream, &PairAsk { half }).await?;
        Ok(frames::read::<PairNews>(stream, HANDSHAKE_BYTES_MAX).await?)
    });
    match told.await.map_err(|error| unreachable(&error))? {
        PairNews::Waiting => {}
        PairNews::Refused { reason } => return Err(Error::JoinRefused(reason)),
        PairNews::Answer(_) => return Err(unreachable(&"it answered before it was asked")),
    }
    // The driver is gone only if the whole node is.
    let _ = tell(inputs, PairEvent::Waits { attempt, by, name: name.clone() }).await;
    let wait = async { Ok(frames::read::<PairNews>(stream, HANDSHAKE_BYTES_MAX).await?) };
    let answer = match within(REQUEST_MAX + ANSWER_MAX, wait).await {
        Ok(PairNews::Answer(answer)) => answer,
        Ok(PairNews::Refused { reason }) => return Err(Error::JoinRefused(reason)),
        Ok(PairNews::Waiting) => return Err(unreachable(&"it said twice that it waits")),
        Err(error) => return Err(unreachable(&error)),
    };
    let Some(proof) = asker.finish(&answer) else { return Err(Error::OtherNumber { name }) };
    let end = within(ANSWER_MAX, async {
        frames::write(stream, &PairProof { proof }).await?;
        Ok(frames::read::<JoinAnswer>(stream, JOIN_BYTES_MAX).await?)
    });
    match end.await.map_err(|error| unreachable(&error))? {
        JoinAnswer::Refused { reason } => Err(Error::JoinRefused(reason)),
        JoinAnswer::Accepted(mut told) => {
            // The address that just worked comes first.
            for member in told.members.iter_mut().filter(|member| member.id == by) {
                member.addresses.insert(0, remote);
            }
            Ok((by, told.sanitized()))
        }
    }
}

async fn within<T>(
    limit: Duration,
    work: impl Future<Output = std::result::Result<T, DialError>>,
) -> std::result::Result<T, DialError> {
    timeout(limit, work).await.map_err(|_| DialError::Timeout(limit))?
}

async fn tell(
    inputs: &mpsc::Sender<Event>,
    event: PairEvent,
) -> std::result::Result<(), DialError> {
    let sent = inputs.send(Event::Pair(event)).await;
    Ok(sent.map_err(|_| io::Error::other("this node is shutting down"))?)
}

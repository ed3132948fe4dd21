use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::oneshot;
use tracing::{info, warn};

use super::Daemon;
use super::peers::View;
use crate::invite::{ADDRESSES_MAX, JoinCode};
use crate::link_local::unscoped;
use crate::members::{MEMBERS_MAX, Member, Members};
use crate::membership;
use crate::net::{Connection, DialError, Net};
use crate::tls::{Pin, fingerprint};
use crate::wire::{JOIN_BYTES_MAX, JoinAnswer, JoinKept, JoinRequest, Purpose};
use crate::{Error, Joined, NodeId, Result, frames};

/// An answer to a code takes one round trip and one write to disk.
const JOIN_TIMEOUT: Duration = Duration::from_secs(10);

/// How long a join waits for the first connection, which takes milliseconds where all is well.
const JOIN_SETTLE_MAX: Duration = Duration::from_secs(3);

/// A join that stands and is about to be answered.
pub(super) struct Joining {
    joined: Joined,
    until: Duration,
    told: Told,
}

/// Who waits for a join.
enum Told {
    Caller(oneshot::Sender<Result<Joined>>),
    /// Whoever looks at this node's own request to be let in.
    Asking {
        attempt: u64,
    },
}

impl Daemon {
    pub(super) fn invite(&mut self, ttl: Duration) -> String {
        let now = self.now();
        let mut addresses = self.outside.addresses();
        addresses.truncate(ADDRESSES_MAX);
        let (fingerprint, secret) = (fingerprint(self.me), crate::identity::random());
        self.invites.add(&secret, ttl, now);
        JoinCode { addresses, fingerprint, secret }.encode()
    }

    pub(super) fn join_asked(
        &mut self,
        member: Member,
        (secret, from): (&[u8], IpAddr),
        reply: oneshot::Sender<(JoinAnswer, bool)>,
    ) {
        let (now, is_new) = (self.now(), !self.membership.is_member(member.id));
        let answer = match self.check_room_for(&member) {
            Some(reason) => JoinAnswer::Refused { reason },
            None => match self.invites.redeem(secret, from, now) {
                Err(refusal) => JoinAnswer::Refused { reason: refusal.to_string() },
                Ok(()) => self.let_in(member),
            },
        };
        if let JoinAnswer::Refused { reason } = &answer {
            warn!(reason, "a node was not let in");
        }
        // A stranger that has hung up keeps nobody waiting.
        let _ = reply.send((answer, is_new));
    }

    /// A machine that a code let in has gone before it kept its membership: it is none, and the
    /// code is good again.
    pub(super) fn join_lost(&mut self, peer: NodeId, secret: &[u8]) {
        if self.membership.conn(peer).is_none() {
            warn!(node = %peer.short(), "a machine has gone in mid-join, and is no member");
            self.invites.give_back(secret);
            self.step_membership(membership::Input::Remove(peer));
        }
    }

    /// Why a node cannot become a member, whoever invites it.
    fn check_room_for(&self, member: &Member) -> Option<String> {
        let full = self.membership.members().count() + 1 >= MEMBERS_MAX;
        let is_new = !self.membership.is_member(member.id);
        (full && is_new).then(|| format!("this cluster has {MEMBERS_MAX} nodes already"))
    }

    /// A person wants this node to be a member.
    pub(super) fn let_in(&mut self, member: Member) -> JoinAnswer {
        if let Some(reason) = self.check_room_for(&member) {
            return JoinAnswer::Refused { reason };
        }
        info!(node = %member.id.short(), name = member.name, "a node has joined");
        self.stop_asking();
        self.step_membership(membership::Input::Admit(member));
        JoinAnswer::Accepted(self.all_members())
    }

    pub(super) fn join(&mut self, code: &str, reply: oneshot::Sender<Result<Joined>>) {
        let code = match self.check_code(code) {
            Ok(code) => code,
            Err(error) => return drop(reply.send(Err(error))),
        };
        self.outside.ask_to_join(code, reply);
    }

    /// How many nodes of other machines are members.
    pub(super) fn members_elsewhere(&self) -> usize {
        let companions = &self.config.companions;
        self.membership.members().filter(|member| !companions.contains(&member.id)).count()
    }

    fn check_code(&self, code: &str) -> Result<JoinCode> {
        let code = JoinCode::decode(code)?;
        if code.fingerprint == fingerprint(self.me) {
            let ours = self.outside.addresses();
            if let [first, ..] = code.addresses[..]
                && !code.addresses.iter().any(|address| ours.contains(&unscoped(*address)))
            {
                return Err(Error::Twin { address: first, data_dir: self.config.data_dir.clone() });
            }
            let why = "this is this node's own code; use it on the machine that is to join";
            return Err(Error::JoinRefused(why.to_owned()));
        }
        let others = self.members_elsewhere();
        let is_inviter = |member: &Member| fingerprint(member.id) == code.fingerprint;
        if others > 0 && !self.membership.members().any(is_inviter) {
            return Err(Error::AlreadyMember { members: others + 1 });
        }
        Ok(code)
    }

    pub(super) fn join_done(
        &mut self,
        by: NodeId,
        members: Members,
        kept: oneshot::Sender<()>,
        reply: oneshot::Sender<Result<Joined>>,
    ) {
        self.stop_asking();
        self.step_membership(membership::Input::Joined(members));
        self.outside.when_members_kept(Box::new(|outcome| {
            // One that cannot be kept is none: the other node hears that nothing more comes.
            let _ = outcome.map(|()| kept.send(()));
        }));
        self.parted = None;
        let joined = Joined {
            by,
            by_name: self.node_name(by),
            members: self.membership.members().count() + 1,
        };
        info!(by = %by.short(), members = joined.members, "joined a cluster");
        self.settle_joining(joined, Told::Caller(reply));
    }

    /// The same for a node that was let in by its number.
    pub(super) fn joined_by_number(&mut self, joined: Joined, attempt: u64) {
        self.settle_joining(joined, Told::Asking { attempt });
    }

    fn settle_joining(&mut self, joined: Joined, told: Told) {
        let until = self.now() + JOIN_SETTLE_MAX;
        self.joining.push(Joining { joined, until, told });
        self.finish_joining();
    }

    /// Answers those joins whose new neighbour has heard this node: from now on it can be given
    /// work. One that takes long has joined all the same.
    pub(super) fn finish_joining(&mut self) {
        let now = self.now();
        let views = &self.views;
        let heard = |by| views.get(&by).is_some_and(View::has_heard_us);
        let is_done = |joining: &mut Joining| now >= joining.until || heard(joining.joined.by);
        let done: Vec<Joining> = self.joining.extract_if(.., is_done).collect();
        if done.is_empty() {
            return;
        }
        self.publish();
        for Joining { joined, told, .. } in done {
            match told {
                // The caller may have stopped waiting; the join stands.
                Told::Caller(reply) => self.outside.when_members_kept(Box::new(|kept| {
                    drop(reply.send(kept.map(|()| joined)));
                })),
                Told::Asking { attempt } => self.asking_joined(attempt, joined),
            }
        }
    }
}

/// Shows a code's secret to the node that made it; returns that node and all members, and
/// the connection, over which it hears that they are kept.
pub(super) async fn ask(net: &Arc<Net>, code: JoinCode) -> Result<(NodeId, Members, Connection)> {
    let listed: Vec<String> = code.addresses.iter().map(SocketAddr::to_string).collect();
    let unreachable = |why: String| Error::Unreachable { addresses: listed.join(", "), why };
    let pin = Pin::Fingerprint(code.fingerprint);
    let mut connection = match net.dial(code.addresses, pin, Purpose::Join).await {
        Ok(connection) => connection,
        Err(DialError::Refused { reason, .. } | DialError::Version(reason)) => {
            return Err(Error::JoinRefused(reason));
        }
        Err(error) => return Err(unreachable(error.to_string())),
    };
    let exchange = async {
        let request = JoinRequest { secret: code.secret.to_vec(), confirms: true };
        frames::write(&mut connection.stream, &request).await?;
        frames::read::<JoinAnswer>(&mut connection.stream, JOIN_BYTES_MAX).await
    };
    let answer = tokio::time::timeout(JOIN_TIMEOUT, exchange).await;
    let answer =
        answer.map_err(|_| unreachable("it accepted the call, then fell silent".into()))?;
    match answer.map_err(|error| unreachable(error.to_string()))? {
        JoinAnswer::Refused { reason } => Err(Error::JoinRefused(reason)),
        JoinAnswer::Accepted(mut told) => {
            let by = connection.peer;
            // The address that just worked comes first.
            for member in told.members.iter_mut().filter(|member| member.id == by) {
                member.addresses.insert(0, connection.remote);
            }
            Ok((by, told, connection))
        }
    }
}

/// Tells the node that let this one in once its membership is kept; if it is not, hangs up.
pub(super) async fn confirm(mut connection: Connection, kept: oneshot::Receiver<()>) {
    if kept.await.is_ok() {
        // It may have gone, or be of a version that does not listen for that.
        let _ = frames::write(&mut connection.stream, &JoinKept {}).await;
    }
}

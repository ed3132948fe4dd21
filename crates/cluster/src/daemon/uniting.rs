//! Nodes with the same fleet key become one cluster by themselves.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::oneshot;
use tracing::{debug, info, warn};

use super::{Daemon, Event};
use crate::fleet::{End, FleetKey};
use crate::link_local::unscoped;
use crate::members::{MEMBERS_MAX, Members};
use crate::membership::Input;
use crate::net::{DialError, Net};
use crate::tls::Pin;
use crate::wire::{FleetProof, HANDSHAKE_BYTES_MAX, JOIN_BYTES_MAX, JoinAnswer, Purpose};
use crate::{NodeId, frames};

/// Of two the lower id calls at once, the higher one if nothing came of it.
const SECOND_CALLER_AFTER: Duration = Duration::from_secs(2);
/// How soon a node that is no member yet is called again, and how rarely in the end.
const CALL_AGAIN_MIN: Duration = Duration::from_secs(2);
const CALL_AGAIN_MAX: Duration = Duration::from_secs(30);
/// Both ends answer from memory, and one writes to its disk.
const ANSWER_MAX: Duration = Duration::from_secs(10);

/// Who is to be called, and when.
#[derive(Debug, Default)]
pub(super) struct Uniting {
    calls: BTreeMap<Target, Turn>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Target {
    /// It announces the same key.
    Node(NodeId),
    /// A person has named this address; whose it is turns out there.
    Address(SocketAddr),
}

#[derive(Debug)]
struct Turn {
    due: Duration,
    wait: Duration,
}

impl Daemon {
    /// Calls those who announce the same key, and the given addresses that are no member's.
    pub(super) fn unite_due(&mut self) {
        if self.config.fleet_key.is_none() {
            return;
        }
        let (now, targets) = (self.now(), self.to_unite_with());
        self.uniting.calls.retain(|target, _| targets.contains_key(target));
        for (target, addresses) in targets {
            let waits = matches!(target, Target::Node(id) if id < self.me);
            let due = now + if waits { SECOND_CALLER_AFTER } else { Duration::ZERO };
            let first = Turn { due, wait: CALL_AGAIN_MIN };
            let turn = self.uniting.calls.entry(target).or_insert(first);
            if now >= turn.due {
                *turn = Turn { due: now + turn.wait, wait: CALL_AGAIN_MAX.min(2 * turn.wait) };
                let peer = match target {
                    Target::Node(id) => Some(id),
                    Target::Address(_) => None,
                };
                self.outside.unite(peer, addresses, self.all_members());
            }
        }
    }

    fn to_unite_with(&self) -> BTreeMap<Target, Vec<SocketAddr>> {
        let Some(key) = &self.config.fleet_key else { return BTreeMap::new() };
        let (membership, me) = (&self.membership, self.me);
        let is_out = |id| id == me || membership.is_member(id) || membership.was_removed(id);
        let near = self.nearby.of_fleet(&key.tag(), is_out);
        let is_known = |address: &SocketAddr| {
            let (ours, address) = (self.outside.addresses(), unscoped(*address));
            let mut members = membership.members();
            ours.contains(&address) || members.any(|member| member.addresses.contains(&address))
        };
        let given = self.given.iter().filter(|address| !is_known(address));
        let near = near.into_iter().map(|(id, addresses)| (Target::Node(id), addresses));
        near.chain(given.map(|at| (Target::Address(*at), vec![*at]))).collect()
    }

    /// A node has proved that it has this node's fleet key.
    pub(super) fn fleet_asked(
        &mut self,
        peer: NodeId,
        members: Members,
        reply: oneshot::Sender<JoinAnswer>,
    ) {
        let refused = |reason: String| JoinAnswer::Refused { reason };
        let full = self.membership.members().count() + 1 >= MEMBERS_MAX;
        let answer = if peer == self.me {
            refused("it is this node itself".to_owned())
        } else if self.membership.was_removed(peer) {
            refused("it was removed from this cluster, and needs a code: sinew invite".to_owned())
        } else if full && !self.membership.is_member(peer) {
            refused(format!("this cluster has {MEMBERS_MAX} nodes already"))
        } else {
            self.united(peer, members);
            JoinAnswer::Accepted(self.all_members())
        };
        // A visitor that has hung up keeps nobody waiting.
        let _ = reply.send(answer);
    }

    /// Both ends have proved that they have the same key.
    pub(super) fn united(&mut self, peer: NodeId, members: Members) {
        if !self.membership.is_member(peer) {
            info!(peer = %peer.short(), "a node of the fleet is a member now");
        }
        self.stop_asking();
        self.parted = None;
        self.step_membership(Input::Learned { members: members.sanitized(), by: Some(peer) });
    }
}

/// Proves to another node that this one has the key, and hears the same of it.
pub(super) async fn unite(
    net: Arc<Net>,
    key: FleetKey,
    peer: Option<NodeId>,
    addresses: Vec<SocketAddr>,
    members: Members,
) -> Option<Event> {
    let pin = peer.map_or(Pin::Any, Pin::Node);
    let exchange = async {
        let mut connection = net.dial(addresses, pin, Purpose::Fleet).await?;
        if connection.peer == net.id() {
            let reason = "it is this node itself".to_owned();
            return Err(DialError::Refused { reason, verdict: None });
        }
        let (session, (me, peer)) = (connection.session()?, (net.id(), connection.peer));
        let stream = &mut connection.stream;
        let proof = key.prove(End::Dialer, &session, me, peer).to_vec();
        frames::write(stream, &FleetProof { proof }).await?;
        let FleetProof { proof } = frames::read(stream, HANDSHAKE_BYTES_MAX).await?;
        if !key.accepts(&proof, End::Listener, &session, peer, me) {
            let reason = "it does not have the fleet key that it announces".to_owned();
            return Err(DialError::Refused { reason, verdict: None });
        }
        frames::write(stream, &members).await?;
        let answer: JoinAnswer = frames::read(stream, JOIN_BYTES_MAX).await?;
        Ok::<_, DialError>((peer, answer))
    };
    let exchanged = tokio::time::timeout(ANSWER_MAX, exchange).await;
    match exchanged.unwrap_or(Err(DialError::Timeout(ANSWER_MAX))) {
        Ok((peer, JoinAnswer::Accepted(members))) => Some(Event::United { peer, members }),
        Ok((peer, JoinAnswer::Refused { reason })) => {
            warn!(peer = %peer.short(), reason, "a node of the fleet does not let this one in");
            None
        }
        Err(error) => {
            debug!(%error, "a node of the fleet does not answer");
            None
        }
    }
}

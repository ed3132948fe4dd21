//! The state that every owner of state may use beside its own: this node's identity, the clock and
//! the network, the members by their last reports, and the document.
//!
//! Calls go down, from `core` to `requests` to `instances` to the owners below them. An owner
//! notifies those above it through the queue of [`News`], which `core` empties after each input.

mod announcement;
mod dial_error;
mod news;
mod outside;
mod prepared;
mod served_file;
pub(crate) mod sources;
pub(crate) mod view;

use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;
use std::time::Duration;

use tracing::warn;

use crate::context::view::{PeerConn, View};
use crate::desired::{Desired, Document, Version};
use crate::members::{Member, Members};
use crate::membership::{ConnId, Membership};
use crate::wire::{Heartbeat, Message, Versions};
use crate::{NodeConfig, NodeId};

pub(crate) use announcement::Announcement;
pub(crate) use dial_error::{CONNECT_TIMEOUT, DialError};
pub(crate) use news::News;
pub(crate) use outside::{
    Attempt, Done, Events, HeaderOf, Opened, Outside, ProcessId, Reply, Start, WorkerNews,
};
pub use prepared::tower_bytes;
pub(crate) use prepared::{Placeable, Prepared, draft_bytes};
pub(crate) use served_file::ServedFile;

pub(crate) struct Context {
    pub config: NodeConfig,
    pub me: NodeId,
    /// A random number drawn when the daemon starts.
    pub boot: u64,
    /// The listen address of this node.
    pub listen: SocketAddr,
    pub versions: Versions,
    pub outside: Box<dyn Outside>,
    /// The members and their connections; `peers` changes all three.
    pub membership: Membership,
    pub conns: BTreeMap<ConnId, PeerConn>,
    pub views: BTreeMap<NodeId, View>,
    pub desired: Desired,
    news: VecDeque<News>,
    is_changed: bool,
    /// Whether waiting requests may go on since they were last looked at.
    may_resume: bool,
}

impl Context {
    pub(crate) fn new(
        config: NodeConfig,
        (me, boot, listen): (NodeId, u64, SocketAddr),
        document: Document,
        outside: Box<dyn Outside>,
    ) -> Self {
        Self {
            membership: Membership::new(me, outside.now()),
            desired: Desired::new(me, document, outside.signer()).called(&config.name),
            versions: outside.versions(),
            config,
            me,
            boot,
            listen,
            outside,
            conns: BTreeMap::new(),
            views: BTreeMap::new(),
            news: VecDeque::new(),
            is_changed: true,
            may_resume: true,
        }
    }

    pub(crate) fn now(&self) -> Duration {
        self.outside.now()
    }

    pub(crate) fn random_u32(&mut self) -> u32 {
        let [a, b, c, d, ..] = self.outside.random();
        u32::from_le_bytes([a, b, c, d])
    }

    /// The status differs from the published one.
    pub(crate) fn changed(&mut self) {
        self.changed_if(true);
    }

    pub(crate) fn changed_if(&mut self, is_changed: bool) {
        self.is_changed |= is_changed;
        self.may_resume |= is_changed;
    }

    /// Whether anything has changed since the last call, on which a waiting request may depend.
    pub(crate) fn take_may_resume(&mut self) -> bool {
        std::mem::take(&mut self.may_resume)
    }

    pub(crate) fn take_changed(&mut self) -> bool {
        std::mem::take(&mut self.is_changed)
    }

    /// Queues news for an owner above the caller.
    pub(crate) fn post(&mut self, news: News) {
        self.news.push_back(news);
    }

    pub(crate) fn take_news(&mut self) -> Option<News> {
        self.news.pop_front()
    }

    pub(crate) fn name_of(&self, id: NodeId) -> String {
        if id == self.me {
            return self.config.name.clone();
        }
        self.membership.name_of(id).map_or_else(|| id.short(), str::to_owned)
    }

    /// Whether a node is or was a member. Others may be made up.
    pub(crate) fn knows(&self, id: NodeId) -> bool {
        id == self.me || self.membership.is_member(id) || self.membership.was_removed(id)
    }

    /// The addresses at which a node can be called, this one included.
    pub(crate) fn addresses_of(&self, id: NodeId) -> Vec<SocketAddr> {
        if id == self.me {
            return self.outside.addresses();
        }
        let member = self.membership.members().find(|member| member.id == id);
        member.map(|member| member.addresses.clone()).unwrap_or_default()
    }

    /// All members, this node first, and the removed ones.
    pub(crate) fn all_members(&self) -> Members {
        let (id, name) = (self.me, self.config.name.clone());
        let me = Member { id, name, addresses: self.outside.addresses(), admitted: 0 };
        self.membership.document(me)
    }

    /// The connection to a reachable member.
    pub(crate) fn conn(&self, id: NodeId) -> Option<&PeerConn> {
        self.conns.get(&self.membership.conn(id)?)
    }

    /// The last heartbeat of a member.
    pub(crate) fn heartbeat_of(&self, id: NodeId) -> Option<&Heartbeat> {
        self.views.get(&id)?.heartbeat.as_ref()
    }

    /// The last heartbeat of a reachable member.
    pub(crate) fn live_heartbeat_of(&self, id: NodeId) -> Option<&Heartbeat> {
        self.membership.conn(id)?;
        self.heartbeat_of(id)
    }

    /// The present boot of a node's daemon.
    pub(crate) fn boot_of(&self, id: NodeId) -> Option<u64> {
        if id == self.me {
            return Some(self.boot);
        }
        self.views.get(&id).map(|view| view.boot)
    }

    pub(crate) fn send(&mut self, conn: ConnId, message: Message) {
        self.outside.send(conn, message);
    }

    pub(crate) fn send_to(&mut self, peer: NodeId, message: Message) {
        // While this node leaves its cluster, the connection is no member's any more.
        let open = || self.conns.iter().find(|(_, conn)| conn.peer == peer).map(|(id, _)| *id);
        if let Some(conn) = self.membership.conn(peer).or_else(open) {
            self.send(conn, message);
        }
    }

    pub(crate) fn send_all(&mut self, message: &Message) {
        for conn in self.conns.keys().copied().collect::<Vec<_>>() {
            self.send(conn, message.clone());
        }
    }

    /// Replicates changes of the document to all members except the one at `from`, and to the disk.
    pub(crate) fn replicate(&mut self, changes: impl Into<Document>, from: Option<ConnId>) {
        let changes = changes.into();
        if changes.is_empty() {
            return;
        }
        self.changed();
        self.outside.keep_desired(self.desired.document());
        let conns: Vec<ConnId> = self.conns.keys().copied().collect();
        for conn in conns.into_iter().filter(|conn| Some(*conn) != from) {
            self.send(conn, Message::Desired(changes.clone()));
        }
    }

    /// Whether an instance is served under this claim.
    pub(crate) fn is_current(&self, id: &str, claim: Version) -> bool {
        self.desired.find(id).is_some_and(|(entry, _)| entry.claim == claim)
    }

    /// Whether this node owns an instance, loaded or not.
    pub(crate) fn is_mine(&self, id: &str) -> bool {
        self.desired.find(id).is_some_and(|(entry, _)| entry.owner() == self.me)
    }

    /// Records that a member claimed what only another node can claim, and logs the first time. A
    /// healthy member never does that.
    pub(crate) fn disbelieve(&mut self, peer: NodeId, of: &'static str) {
        let name = self.name_of(peer);
        let Some(view) = self.views.get_mut(&peer).filter(|view| view.spoke_of.is_none()) else {
            return;
        };
        warn!(peer = %peer.short(), name, of, "a member speaks for another one");
        view.spoke_of = Some(of);
        self.changed();
    }
}

//! Who owns an instance: the node with the highest claim, as long as somebody sees it.

use std::time::Duration;

use protocol::Nodes;
use store::Digest;

use super::{Desired, Entry, Wanted};
use crate::NodeId;

/// How long an owner must be missing before another takes its instances over: a connection that
/// breaks and is made anew costs nothing.
const TAKEOVER_AFTER: Duration = Duration::from_secs(1);

/// Whether a node has the files of these models; those that it has not looked for yet are not
/// listed.
pub(crate) type Files = Vec<(Digest, bool)>;

/// A member that can be reached, as it last told of itself.
#[derive(Debug, Clone)]
pub(crate) struct Seen {
    pub node: NodeId,
    pub name: String,
    /// The members that it can reach.
    pub sees: Vec<NodeId>,
    pub files: Files,
}

impl Desired {
    /// Claims what this node has to take over now, given what it and the members that it reaches
    /// have; returns the changed entries.
    ///
    /// An owner is missing if neither this node nor anybody that it reaches can reach it, or if its
    /// file is gone. Of those that have the file, and are not to be empty, the first of the nodes
    /// that were asked for by name takes over, else the lowest id. An owner that is there stays
    /// owner, unless one comes back that was named before it ([`Self::to_inherit`]).
    pub(crate) fn take_over(&mut self, files: &Files, peers: &[Seen], now: Duration) -> Vec<Entry> {
        let mut claims = Vec::new();
        let all = self.wanted().map(|(entry, wanted)| {
            (entry.name.clone(), entry.owner(), wanted.digest, self.successor(wanted, files, peers))
        });
        let all: Vec<_> = all.collect();
        self.missing.retain(|name, _| all.iter().any(|(wanted, ..)| wanted == name));
        for (name, owner, digest, successor) in all {
            if !self.is_missing(owner, &digest, peers) {
                self.missing.remove(&name);
                continue;
            }
            let since = *self.missing.entry(name.clone()).or_insert(now);
            let is_due = now.saturating_sub(since) >= TAKEOVER_AFTER;
            if is_due && successor == Some(self.me) {
                claims.extend(self.claim(&name));
            }
        }
        claims
    }

    fn is_missing(&self, owner: NodeId, digest: &Digest, peers: &[Seen]) -> bool {
        if owner == self.me {
            return false;
        }
        match peers.iter().find(|peer| peer.node == owner) {
            Some(peer) => has(&peer.files, digest) == Some(false),
            None => !peers.iter().any(|peer| peer.sees.contains(&owner)),
        }
    }

    pub(super) fn successor(
        &self,
        wanted: &Wanted,
        files: &Files,
        peers: &[Seen],
    ) -> Option<NodeId> {
        let others = peers.iter().map(|peer| (peer.node, &peer.files));
        let all = others.chain([(self.me, files)]).filter(|(node, _)| !self.is_drained(*node));
        let able = all.filter(|(_, files)| has(files, &wanted.digest) == Some(true));
        able.map(|(node, _)| node).min_by_key(|node| (self.place(wanted, *node, peers), *node))
    }

    /// The place of a node among those that were asked for by name; the last if it was not.
    pub(super) fn place(&self, wanted: &Wanted, node: NodeId, peers: &[Seen]) -> usize {
        let peer = peers.iter().find(|peer| peer.node == node).map(|peer| peer.name.as_str());
        let name = if node == self.me { Some(self.name.as_str()) } else { peer };
        let place = |nodes: &Nodes| nodes.place_of(name.unwrap_or(""), &node.to_string());
        wanted.spec.nodes.as_ref().and_then(place).unwrap_or(usize::MAX)
    }

    /// This node owns an instance from now on, which stays loaded or unloaded.
    pub(crate) fn claim(&mut self, name: &str) -> Option<Entry> {
        let unloaded = self.entries.get(name)?.unloaded;
        self.claim_with(name, unloaded)
    }

    /// Notes of an instance of this node whether it is to be in memory; `None` if it is so already,
    /// or another node's.
    pub(crate) fn set_unloaded(&mut self, id: &str, unloaded: bool) -> Option<Entry> {
        let (entry, _) = self.find(id)?;
        let name = entry.name.clone();
        let is_news = entry.owner() == self.me && entry.unloaded != unloaded;
        is_news.then(|| self.claim_with(&name, unloaded)).flatten()
    }

    fn claim_with(&mut self, name: &str, unloaded: bool) -> Option<Entry> {
        self.missing.remove(name);
        let claim = self.next_version();
        let entry = self.entries.get_mut(name)?;
        (entry.claim, entry.unloaded) = (claim, unloaded);
        self.signer.sign_claim(entry);
        let entry = entry.clone();
        self.changed();
        Some(entry)
    }
}

fn has(files: &Files, digest: &Digest) -> Option<bool> {
    files.iter().find(|(found, _)| found == digest).map(|(_, has)| *has)
}

//! Who owns an instance: the node with the highest claim, as long as any member sees it; and which
//! nodes are drained, so that others take over what they own.

use std::time::Duration;

use protocol::Nodes;
use store::Digest;

use super::Desired;
use super::document::{Document, Drain, Entry, Files, Seen, Signature, Version, Wanted};
use crate::NodeId;

/// Nodes of which a drain is kept: more than a cluster has members. Those that are no longer
/// drained are forgotten first.
const DRAINS_MAX: usize = 256;
/// How long an owner must be missing before another takes its instances over: a connection that
/// breaks and is made anew costs nothing.
const TAKEOVER_AFTER: Duration = Duration::from_secs(1);

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

    /// From now on a node is to be empty, or no longer; returns what has changed.
    pub(crate) fn drain(&mut self, node: NodeId, is_on: bool) -> Document {
        let (version, signature) = (self.next_version(), Signature::default());
        let mut drain = Drain { node, version, is_on, signature };
        self.signer.sign_drain(&mut drain);
        self.drains.insert(node, drain.clone());
        self.changed();
        Document { entries: Vec::new(), drains: vec![drain] }
    }

    /// Whether a node is to be empty: it gets no ranks and owns nothing new.
    pub(crate) fn is_drained(&self, node: NodeId) -> bool {
        self.drains.get(&node).is_some_and(|drain| drain.is_on)
    }

    /// What this node is to take over from owners that are to be empty, or that lead only until a
    /// node is back that was named before them: as in a takeover it is the one to do so.
    pub(crate) fn to_inherit(&self, files: &Files, peers: &[Seen]) -> Vec<(Entry, Wanted)> {
        let is_due = |(entry, wanted): &(&Entry, &Wanted)| {
            let place = |node| self.place(wanted, node, peers);
            let is_seen = peers.iter().any(|peer| peer.node == entry.owner());
            let comes_after = is_seen && place(self.me) < place(entry.owner());
            (self.is_drained(entry.owner()) || comes_after)
                && self.successor(wanted, files, peers) == Some(self.me)
        };
        let due = self.wanted().filter(is_due);
        due.map(|(entry, wanted)| (entry.clone(), wanted.clone())).collect()
    }

    /// Owns an instance, which is loaded, under a claim that was made before, if it is above the
    /// present one.
    pub(crate) fn claim_as(&mut self, id: &str, claim: Version) -> Option<Entry> {
        let name = self.find(id).map(|(entry, _)| entry.name.clone())?;
        let entry = self.entries.get_mut(&name).filter(|entry| entry.claim < claim)?;
        (entry.claim, entry.unloaded) = (claim, false);
        self.signer.sign_claim(entry);
        let entry = entry.clone();
        self.missing.remove(&name);
        self.changed();
        Some(entry)
    }

    /// Of two words on one node the later one stays; returns what was news.
    pub(super) fn merge_drains(&mut self, told: Vec<Drain>) -> Vec<Drain> {
        let mut news = Vec::new();
        for drain in told {
            if self.is_news_of_drain(&drain) {
                self.drains.insert(drain.node, drain.clone());
                news.push(drain);
            }
        }
        news
    }

    pub(super) fn is_news_of_drain(&self, drain: &Drain) -> bool {
        let order = |drain: &Drain| (drain.version, drain.is_on);
        self.drains.get(&drain.node).is_none_or(|known| order(drain) > order(known))
    }

    pub(super) fn forget_drains(&mut self) {
        while self.drains.len() > DRAINS_MAX {
            let oldest = self.drains.values().min_by_key(|drain| (drain.is_on, drain.version));
            oldest.map(|drain| drain.node).and_then(|node| self.drains.remove(&node));
        }
    }
}

fn has(files: &Files, digest: &Digest) -> Option<bool> {
    files.iter().find(|(found, _)| found == digest).map(|(_, has)| *has)
}

//! Ownership of instances: the node with the highest claim, as long as any member reaches it. Also
//! drained nodes, whose instances others take over.
//!
//! A node that reaches no other member cannot know whether the others go on without it. Its claims
//! stay its secret until it meets a member again: it gives back what the former owner still runs,
//! and publishes the rest. Who returns takes nothing over from what runs.

use std::time::Duration;

use protocol::Nodes;
use store::Digest;

use super::Desired;
use super::document::{Document, Drain, Entry, Files, Seen, Service, Signature, Version};
use crate::NodeId;

/// Nodes with an entry: more than a cluster has members. Entries of nodes that are no longer
/// drained are dropped first.
const DRAINS_MAX: usize = 256;
/// How long an owner must be missing before a takeover: a connection that breaks and reconnects
/// costs nothing.
const TAKEOVER_AFTER: Duration = Duration::from_secs(1);
/// How long the former owner may be reachable for others only, before it counts as running.
const MEETING_MAX: Duration = Duration::from_secs(5);

impl Desired {
    /// Claims the instances that this node has to take over now, given its files and the state of
    /// the members that it reaches; returns the changed entries.
    ///
    /// An owner is missing if neither this node nor any member that it reaches can reach it, or if
    /// its file is gone. The new owner must have the file and not be drained: the first in the
    /// user's list of nodes, else the lowest id. A present owner stays owner, unless a node that
    /// precedes it in the list returns ([`Self::to_inherit`]). `is_loading`: whether this node
    /// loads an instance already, by its name; it is claimed once it works. A node with
    /// another replica takes over no further one. Without peers the claims stay secret
    /// ([`Self::reunite`]).
    pub(crate) fn take_over(
        &mut self,
        files: &Files,
        peers: &[Seen],
        now: Duration,
        is_loading: impl Fn(&str) -> bool,
    ) -> Vec<Entry> {
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
            if is_due && successor == Some(self.me) && !is_loading(&name) {
                claims.extend(match peers {
                    [] => self.claim_alone(&name),
                    _ => self.claim(&name),
                });
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

    pub(crate) fn successor(
        &self,
        wanted: &Service,
        files: &Files,
        peers: &[Seen],
    ) -> Option<NodeId> {
        let others = peers.iter().map(|peer| (peer.node, &peer.files));
        let all = others.chain([(self.me, files)]).filter(|(node, _)| !self.is_drained(*node));
        let able = all.filter(|(node, files)| {
            has(files, &wanted.digest) == Some(true) && !self.has_another_replica(wanted, *node)
        });
        able.map(|(node, _)| node).min_by_key(|node| (self.place(wanted, *node, peers), *node))
    }

    /// The position of a node in the user's list of nodes; the last if it is not listed.
    pub(super) fn place(&self, wanted: &Service, node: NodeId, peers: &[Seen]) -> usize {
        let peer = peers.iter().find(|peer| peer.node == node).map(|peer| peer.name.as_str());
        let name = if node == self.me { Some(self.name.as_str()) } else { peer };
        let place = |nodes: &Nodes| nodes.place_of(name.unwrap_or(""), &node.to_string());
        wanted.spec.nodes.as_ref().and_then(place).unwrap_or(usize::MAX)
    }

    /// Claims an instance, which stays loaded or unloaded.
    pub(crate) fn claim(&mut self, name: &str) -> Option<Entry> {
        let unloaded = self.entries.get(name)?.unloaded;
        self.claim_with(name, unloaded)
    }

    /// Records whether an instance of this node should be in memory; `None` if nothing changes or
    /// another node owns it.
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

    /// The document for the disk and for other members.
    pub(crate) fn document(&self) -> Document {
        let drains = self.drains.values().cloned().collect();
        let presets = self.presets.entries().cloned().collect();
        Document { entries: self.published().cloned().collect(), drains, presets }
    }

    pub(super) fn published(&self) -> impl Iterator<Item = &Entry> {
        self.entries.values().map(|entry| self.secret.get(&entry.name).unwrap_or(entry))
    }

    pub(super) fn published_of(&self, name: &str) -> Option<&Entry> {
        self.secret.get(name).or_else(|| self.entries.get(name))
    }

    /// Claims an instance in secret.
    pub(super) fn claim_alone(&mut self, name: &str) -> Option<Entry> {
        let published = self.entries.get(name)?.clone();
        self.secret.entry(name.to_owned()).or_insert(published);
        self.claim(name)
    }

    /// Settles the secret claims as soon as it is known whether the former owner runs the instance;
    /// returns those that are published now.
    pub(crate) fn reunite(&mut self, peers: &[Seen], now: Duration) -> Vec<Entry> {
        if self.secret.is_empty() || peers.is_empty() {
            self.met = None;
            return Vec::new();
        }
        let since = *self.met.get_or_insert(now);
        let is_late = now.saturating_sub(since) >= MEETING_MAX;
        let runs = |entry: &Entry| {
            let id = entry.wanted.as_ref().map(|wanted| &wanted.id);
            match peers.iter().find(|peer| peer.node == entry.owner()) {
                Some(owner) => Some(entry.unloaded || id.is_some_and(|id| owner.runs.contains(id))),
                None if !peers.iter().any(|peer| peer.sees.contains(&entry.owner())) => Some(false),
                None => is_late.then_some(true),
            }
        };
        let known: Vec<(Entry, bool)> =
            self.secret.values().filter_map(|entry| Some((entry.clone(), runs(entry)?))).collect();
        let mut claims = Vec::new();
        for (published, runs) in known {
            let name = published.name.clone();
            self.secret.remove(&name);
            if runs {
                self.entries.insert(name, published);
            } else {
                claims.extend(self.entries.get(&name).cloned());
            }
            self.changed();
        }
        claims
    }

    /// Drains a node or ends its draining; returns the change.
    pub(crate) fn drain(&mut self, node: NodeId, is_on: bool) -> Document {
        let (version, signature) = (self.next_version(), Signature::default());
        let mut drain = Drain { node, version, is_on, signature };
        self.signer.sign_drain(&mut drain);
        self.drains.insert(node, drain.clone());
        self.changed();
        Document { drains: vec![drain], ..Document::default() }
    }

    /// Whether a node is drained: it gets no ranks and no new instances.
    pub(crate) fn is_drained(&self, node: NodeId) -> bool {
        self.drains.get(&node).is_some_and(|drain| drain.is_on)
    }

    /// The instances that this node should take over from drained owners, and from reachable owners
    /// that it precedes in the user's list. The rule for the successor is that of a takeover.
    pub(crate) fn to_inherit(&self, files: &Files, peers: &[Seen]) -> Vec<(Entry, Service)> {
        let is_due = |(entry, wanted): &(&Entry, &Service)| {
            let place = |node| self.place(wanted, node, peers);
            let is_seen = peers.iter().any(|peer| peer.node == entry.owner());
            let comes_after = is_seen && place(self.me) < place(entry.owner());
            (self.is_drained(entry.owner()) || comes_after)
                && self.successor(wanted, files, peers) == Some(self.me)
        };
        let due = self.wanted().filter(is_due);
        due.map(|(entry, wanted)| (entry.clone(), wanted.clone())).collect()
    }

    /// Owns a loaded instance under a claim made before, if that is above the present one.
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

    /// Merges drains; the later one wins. Returns those that were new.
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

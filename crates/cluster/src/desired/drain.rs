//! Which nodes are to be empty, so that somebody can switch them off, and who takes over what they
//! own.

use serde::{Deserialize, Serialize};

use super::signature::Signature;
use super::{Desired, Document, Entry, Files, Seen, Version, Wanted};
use crate::NodeId;

/// Nodes of which it is kept: more than a cluster has members. Those that are no longer drained are
/// forgotten first.
const DRAINS_MAX: usize = 256;

/// Whether a node is to be empty, as a person said last.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Drain {
    pub node: NodeId,
    pub version: Version,
    pub is_on: bool,
    /// Of the node that made the version.
    pub signature: Signature,
}

impl Desired {
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

//! The list of members and removals that all members share, and its changes.
//!
//! Each admission and each removal by a user has a version above all that its maker knows. Of two
//! entries for one key, the higher version wins; of two equal versions, the removal. Order and
//! repetition therefore do no harm, and a removed key comes back only by a new admission. A node's
//! claim about its own admission is ignored: a removed node cannot readmit itself through members
//! that have not yet received the removal.

use super::*;
use crate::counts::{COUNT_MAX, KEPT_MAX, is_near};
use crate::members::{MEMBERS_MAX, REMOVED_MAX};

impl Membership {
    /// The list to save and to send: all members, this node as `me`, and the removals.
    pub(crate) fn document(&self, me: Member) -> Members {
        let me = Member { admitted: self.admitted, ..me };
        let members = std::iter::once(me).chain(self.members().cloned()).collect();
        Members { members, removed: self.removed.values().cloned().collect() }
    }

    /// The list that this node sends when it leaves.
    pub(crate) fn farewell(&self, name: &str) -> Members {
        let (id, name, version) = (self.me, name.to_owned(), self.next_version());
        Members { members: Vec::new(), removed: vec![Removed { id, name, version }] }
    }

    fn next_version(&self) -> u64 {
        self.highest().saturating_add(1)
    }

    fn highest(&self) -> u64 {
        let admitted = self.members().map(|member| member.admitted);
        let removed = self.removed.values().map(|removed| removed.version);
        admitted.chain(removed).chain([self.admitted]).max().unwrap_or(0)
    }

    /// Learns from a list on the disk or of a member, as far as its versions can be: an absurd one
    /// would end all later admissions or removals of its key.
    pub(super) fn learned(
        &mut self,
        told: Members,
        by: Option<NodeId>,
        now: Duration,
    ) -> Vec<Effect> {
        let limit = match by {
            Some(by) => {
                let admitted = told.members.iter().map(|member| member.admitted);
                let versions = admitted.chain(told.removed.iter().map(|removed| removed.version));
                let highest = versions.max().unwrap_or(0);
                let known = self.highest();
                self.told.limit((by, highest), known, self.peers.keys().copied())
            }
            None => {
                self.were_members.extend(told.removed.iter().map(|removed| removed.id));
                KEPT_MAX
            }
        };
        self.learn(believed_to(limit, told), by, now)
    }

    fn learn(&mut self, told: Members, by: Option<NodeId>, now: Duration) -> Vec<Effect> {
        let outdates =
            |removed: &Removed| removed.id == self.me && removed.version >= self.admitted;
        if told.removed.iter().any(outdates) {
            return self.part();
        }
        let mut gone = Vec::new();
        let mut changed = false;
        for removed in told.removed {
            let (news, effects) = self.note_removed(removed);
            changed |= news;
            gone.extend(effects);
        }
        for member in told.members {
            changed |= self.note_member(member, by, now);
        }
        let mut effects = if changed { vec![Effect::MembersChanged] } else { Vec::new() };
        effects.extend(gone);
        effects.extend(self.dial_due(now));
        effects
    }

    /// Takes over the list of the admitting node. If this node had no members, it first drops its
    /// removals, which belong to its former cluster. It calls all members at once.
    pub(super) fn joined(&mut self, members: Members, now: Duration) -> Vec<Effect> {
        if self.peers.is_empty() {
            self.removed.clear();
            self.admitted = 0;
        }
        let mut effects = self.learn(believed_to(COUNT_MAX, members), None, now);
        // The admitting node calls before this one knows its list; its next call comes much later.
        self.peers.values_mut().for_each(|peer| peer.dial_at = now);
        effects.extend(self.dial_due(now));
        effects
    }

    pub(super) fn admit(&mut self, member: Member, now: Duration) -> Vec<Effect> {
        let member = Member { admitted: self.next_version(), ..member };
        let id = member.id;
        let members = Members { members: vec![member], removed: Vec::new() };
        let effects = self.learn(members, None, now);
        if let Some(peer) = self.peers.get_mut(&id) {
            peer.new_since = peer.session.is_none().then_some(now);
        }
        effects
    }

    pub(super) fn remove(&mut self, id: NodeId) -> Vec<Effect> {
        let Some(peer) = self.peers.get(&id) else { return Vec::new() };
        let name = peer.member.name.clone();
        let removed = Removed { id, name, version: self.next_version() };
        let (_, gone) = self.note_removed(removed);
        [vec![Effect::MembersChanged], gone].concat()
    }

    /// Handles a `Input::Disowned`. If its removal is newer than this node's admission, this node
    /// leaves the cluster. A peer that has no members for `DISOWNED_MAX` is removed: it left
    /// without a message, or never received its admission. A peer with other members may only be
    /// late to learn of this node.
    pub(super) fn disowned(
        &mut self,
        by: NodeId,
        removed: Option<u64>,
        alone: bool,
        now: Duration,
    ) -> Vec<Effect> {
        let known = self.highest();
        let removed = removed.filter(|version| is_near(known, *version));
        let Some(peer) = self.peers.get_mut(&by) else { return Vec::new() };
        if peer.new_since.is_none() && removed.is_some_and(|version| version >= self.admitted) {
            return self.part();
        }
        if !alone {
            peer.disowned_since = None;
            return Vec::new();
        }
        let since = *peer.disowned_since.get_or_insert(now);
        if now.saturating_sub(since) < DISOWNED_MAX { Vec::new() } else { self.remove(by) }
    }

    /// Leaves the cluster and clears the list.
    pub(super) fn part(&mut self) -> Vec<Effect> {
        let reason = "this node is no member of the cluster any more";
        let peers = std::mem::take(&mut self.peers);
        let gone = peers.iter().flat_map(|(id, peer)| peer.ended(*id, CloseReason::Parted, reason));
        let effects = [Effect::Parted].into_iter().chain(gone).collect();
        self.removed.clear();
        self.were_members.clear();
        self.told.forget();
        self.admitted = 0;
        effects
    }

    /// Records a removal; returns whether it was new, and the effects.
    fn note_removed(&mut self, removed: Removed) -> (bool, Vec<Effect>) {
        let id = removed.id;
        let is_known = |known: &Removed| known.version >= removed.version;
        let is_back = |peer: &Peer| peer.member.admitted > removed.version;
        let is_old = self.removed.get(&id).is_some_and(is_known)
            || self.peers.get(&id).is_some_and(is_back)
            || id == self.me;
        if is_old {
            return (false, Vec::new());
        }
        let why = CloseReason::Removed { version: removed.version };
        let peer = self.peers.remove(&id);
        if peer.is_some() {
            self.were_members.insert(id);
        }
        self.removed.insert(id, removed);
        // Drops the oldest, which are the same on all nodes, and first those of unknown nodes.
        while self.removed.len() > REMOVED_MAX {
            let order =
                |known: &&Removed| (self.were_members.contains(&known.id), known.version, known.id);
            let oldest = self.removed.values().min_by_key(order).map(|known| known.id);
            oldest.and_then(|id| self.removed.remove(&id));
            self.were_members.retain(|id| self.removed.contains_key(id));
        }
        let reason = "it was removed from the cluster";
        (true, peer.map(|peer| peer.ended(id, why, reason)).unwrap_or_default())
    }

    /// Records a member; returns whether anything was new.
    fn note_member(&mut self, member: Member, by: Option<NodeId>, now: Duration) -> bool {
        if member.id == self.me {
            let was = self.admitted;
            self.admitted = was.max(member.admitted);
            return self.admitted != was;
        }
        let id = member.id;
        let admitted = if by == Some(id) { 0 } else { member.admitted };
        if let Some(peer) = self.peers.get_mut(&id) {
            peer.hint(member.addresses.clone(), now);
            let known = &mut peer.member;
            // Of a peer that this node has met, its own words are kept alone; before that, another
            // node's entry adds addresses.
            let mut merged = known.clone();
            if peer.told_by.is_some() {
                merged = member.sanitized();
                merged.update(known.clone());
            }
            merged.admitted = known.admitted.max(admitted);
            let changed = merged != *known;
            *known = merged;
            return changed;
        }
        let is_out = self.removed.get(&id).is_some_and(|known| known.version >= admitted);
        if is_out || self.peers.len() + 1 >= MEMBERS_MAX {
            return false;
        }
        self.removed.remove(&id);
        let dial_at = now + first_call_after(self.me, id);
        let peer = Peer {
            member: Member { admitted, ..member.sanitized() },
            hints: Vec::new(),
            new_since: None,
            told_by: by,
            disowned_since: None,
            session: None,
            dialing: false,
            dial_at,
            backoff: REDIAL_MIN,
        };
        self.peers.insert(id, peer);
        true
    }
}

/// The list without removals of a later version; later admissions become the first.
fn believed_to(limit: u64, mut told: Members) -> Members {
    told.removed.retain(|removed| removed.version <= limit);
    for member in told.members.iter_mut().filter(|member| member.admitted > limit) {
        member.admitted = 0;
    }
    told
}

impl Peer {
    /// The effects of dropping the peer's connection.
    fn ended(&self, id: NodeId, why: CloseReason, reason: &str) -> Vec<Effect> {
        let Some(session) = &self.session else { return Vec::new() };
        let (conn, reason) = (session.conn, reason.to_owned());
        vec![Effect::Close { conn, why }, Effect::Down { peer: id, conn, reason }]
    }
}

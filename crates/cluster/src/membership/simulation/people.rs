//! Users' changes to a cluster, the messages between nodes, and the agreement that they must reach.

use std::collections::BTreeMap;

use super::super::*;
use super::world::{Action, NODES, World, address, id, member, number};

/// Interval of a node's announcements.
const ANNOUNCE_MS: u64 = 1_000;

impl World {
    /// Sends a node's list. It arrives in order, late if the path is cut, or not at all if the
    /// connection ends.
    pub fn tell(&mut self, from: usize, to: usize, conn: ConnId) {
        self.told.push(self.document(from));
        let delay = 1 + self.random.u64(..40);
        let cut = self.cut_until[from][to].saturating_sub(self.now);
        self.later(cut + delay, Action::Told { at: to, conn, told: self.told.len() - 1 });
    }

    pub fn document(&self, at: usize) -> Members {
        self.nodes[at].machine.document(member(at, self.nodes[at].place))
    }

    pub fn hear(&mut self, at: usize, conn: ConnId, told: usize) {
        let (from, to) = self.conns[conn as usize - 1];
        let by = if at == from { to } else { from };
        if self.nodes[at].believed.get(&id(by)) == Some(&conn) {
            let (members, by) = (self.told[told].clone(), Some(id(by)));
            self.step(at, Input::Learned { members, by });
        } else if self.nodes[by].believed.get(&id(at)) == Some(&conn) {
            // The dialer's admission is still on its way to it.
            self.later(50, Action::Told { at, conn, told });
        }
    }

    pub fn announce(&mut self, at: usize) {
        self.later(ANNOUNCE_MS, Action::Announce(at));
        for to in (0..NODES).filter(|to| *to != at) {
            let lost = self.random.u64(..4) == 0 || self.now < self.cut_until[at][to];
            if self.nodes[at].up && !lost && self.now >= self.nodes[to].frozen_until {
                let addresses = vec![address(at, self.nodes[at].place)];
                self.step(to, Input::Sighted { peer: id(at), addresses });
            }
        }
    }

    /// A user admits a node without members, at a member that has others.
    pub fn join(&mut self, by: usize, at: usize) {
        let is_alone = self.is_alone(at);
        if !self.nodes[by].up || !self.nodes[at].up || !is_alone || self.is_alone(by) {
            return;
        }
        self.admissions.push((self.now, at));
        self.step(by, Input::Admit(member(at, self.nodes[at].place)));
        self.told.push(self.document(by));
        let delay = 1 + self.random.u64(..40);
        // If the answer is lost, the user tries again.
        if !self.is_cut(by, at) && self.random.u64(..4) > 0 {
            self.later(delay, Action::Joined { at, told: self.told.len() - 1 });
        } else {
            self.later(delay + 5_000, Action::Join { by, at });
        }
    }

    pub fn joined(&mut self, at: usize, told: usize) {
        if self.nodes[at].up && self.is_alone(at) {
            self.step(at, Input::Joined(self.told[told].clone()));
        }
    }

    pub fn is_alone(&self, at: usize) -> bool {
        self.nodes[at].machine.members().next().is_none()
    }

    /// A user's change to a cluster.
    pub fn change(&mut self, at: usize, other: usize) {
        match self.random.u64(..4) {
            // A machine is switched off, moved, and switched on. Without announcements, one node
            // must keep its known address.
            0 if self.nodes[at].up && (self.multicast || at > 0) => {
                self.stop(at, true);
                self.nodes[at].place += 1;
                let after_ms = 1 + self.random.u64(..8_000);
                self.later(after_ms, Action::Restart(at));
            }
            1 if self.nodes[at].up && self.nodes[at].machine.is_member(id(other)) => {
                self.removals.push((self.now, at, other));
                self.step(at, Input::Remove(id(other)));
            }
            2 if self.nodes[at].up && self.random.u64(..3) == 0 => {
                self.removals.push((self.now, at, at));
                for (peer, conn) in self.nodes[at].believed.clone() {
                    self.told.push(self.nodes[at].machine.farewell("leaver"));
                    let (at, told) = (number(peer), self.told.len() - 1);
                    self.later(1, Action::Told { at, conn, told });
                }
                self.step(at, Input::Leave);
            }
            _ => self.later(1, Action::Join { by: at, at: other }),
        }
    }

    /// Two nodes that list each other are connected and have the same list, and removed nodes are
    /// out.
    pub fn check_agreement(&self) {
        let seed = self.seed;
        let knows = |at: usize, other: usize| self.nodes[at].machine.is_member(id(other));
        for at in 0..NODES {
            for other in (0..NODES).filter(|other| *other != at && knows(at, *other)) {
                if knows(other, at) {
                    if !self.finds(at, other) && !self.finds(other, at) {
                        // Both were moved without announcements, and all others are out.
                        continue;
                    }
                    self.check_connected(&[at, other]);
                    // The version of a node's admission may be known only to that node.
                    let lists = [at, other].map(|at| {
                        let [members, removed] = self.belongings(at);
                        (members.into_keys().collect::<Vec<_>>(), removed)
                    });
                    assert_eq!(lists[0], lists[1], "seed {seed}, {}", self.story());
                } else {
                    // It belongs to another cluster now, or no node that lists it reaches it.
                    let reaches = self.finds(at, other) && self.is_alone(other);
                    assert!(!reaches, "seed {seed}: {at} knows {other}, {}", self.story());
                }
            }
        }
        for (when, by, out) in &self.removals {
            let undone = self.admissions.iter().any(|(at, node)| node == out && at >= when);
            // A removal by a node that is itself removed may reach no other node.
            let forgotten = self.removals.iter().any(|(_, _, node)| node == by);
            if !undone && !forgotten {
                // Nodes that cannot reach it may still list it, and it may list nodes that it
                // cannot reach.
                let hears = (0..NODES)
                    .any(|at| knows(*out, at) && !knows(at, *out) && self.finds(*out, at));
                assert!(!hears, "seed {seed}: {out} is in, {}", self.story());
            }
        }
    }

    /// The lists of all nodes, and the changes by users.
    fn story(&self) -> String {
        let belief = |at| {
            let sets = self.belongings(at);
            let [members, removed] =
                sets.map(|set| set.iter().map(|(id, v)| (number(*id), *v)).collect::<Vec<_>>());
            format!("{at} has {members:?} without {removed:?}")
        };
        let beliefs: Vec<String> = (0..NODES).map(belief).collect();
        let (removals, admissions) = (&self.removals, &self.admissions);
        format!("{}; removals {removals:?}, admissions {admissions:?}", beliefs.join(", "))
    }

    /// Whether a node can call another one at its present address.
    fn finds(&self, at: usize, other: usize) -> bool {
        if self.walled[at][other] {
            return false;
        }
        let address = address(other, self.nodes[other].place);
        let mut members = self.nodes[at].machine.members();
        members.any(|member| member.id == id(other) && member.addresses.contains(&address))
    }

    /// A node's list, without the parts in which nodes may differ.
    fn belongings(&self, at: usize) -> [BTreeMap<NodeId, u64>; 2] {
        let Members { members, removed } = self.document(at);
        let members = members.into_iter().map(|member| (member.id, member.admitted)).collect();
        let removed = removed.into_iter().map(|removed| (removed.id, removed.version)).collect();
        [members, removed]
    }
}

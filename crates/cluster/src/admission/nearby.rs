//! Announcements on local networks: this node's, and the nodes nearby. Announcements are neither
//! secret nor trusted. A member's announced address is only called, and its key must answer there;
//! other nodes are shown to the user.

use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;

use crate::context::Announcement;
use crate::link_local;
use crate::members::{ADDRESSES_MAX, clean_name};
use crate::{Error, FindNodeError, NearbyNode, NodeId, Result, find_node};

/// Remembered nodes. Any machine on the network can announce any number of them, so a further one
/// replaces one from the address with the most.
const NEARBY_MAX: usize = 64;

/// A received announcement, and the addresses in it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Sighting {
    pub announced: Announcement,
    pub addresses: Vec<SocketAddr>,
}

/// The latest announcements of nodes that are not members.
#[derive(Debug, Default)]
pub(crate) struct Nearby {
    seen: BTreeMap<NodeId, Sighting>,
    /// In the order of their last announcement, the latest last.
    order: VecDeque<NodeId>,
}

impl Nearby {
    /// Records an announcement; returns whether anything changed.
    pub(crate) fn see(&mut self, mut sighting: Sighting) -> bool {
        let id = sighting.announced.id;
        if !self.seen.contains_key(&id) && self.seen.len() >= NEARBY_MAX {
            self.make_room();
        }
        self.order.retain(|known| *known != id);
        self.order.push_back(id);
        sighting.announced.name = clean_name(&sighting.announced.name);
        sighting.addresses.truncate(ADDRESSES_MAX);
        let known = self.seen.insert(id, sighting);
        known.as_ref() != self.seen.get(&id)
    }

    /// Of the nodes from the address with the most, drops the one announced longest ago: a machine
    /// that invents nodes loses its own.
    fn make_room(&mut self) {
        let address = |id: &NodeId| Some(self.seen.get(id)?.addresses.first()?.ip());
        let mut counts = BTreeMap::new();
        for id in &self.order {
            *counts.entry(address(id)).or_insert(0) += 1;
        }
        let most = counts.values().max().copied();
        let last = self.order.iter().position(|id| counts.get(&address(id)).copied() == most);
        if let Some(id) = last.and_then(|at| self.order.remove(at)) {
            self.seen.remove(&id);
        }
    }

    /// Drops a node whose announcement ended, by the beginning of its id.
    pub(crate) fn forget(&mut self, id: &str) -> bool {
        let before = self.seen.len();
        self.seen.retain(|known, _| !known.to_string().starts_with(id));
        self.order.retain(|known| self.seen.contains_key(known));
        self.seen.len() < before
    }

    /// Nodes of a fleet and their addresses, without those for which `out` is true.
    pub(crate) fn of_fleet(
        &self,
        tag: &str,
        out: impl Fn(NodeId) -> bool,
    ) -> Vec<(NodeId, Vec<SocketAddr>)> {
        let fleet = self
            .seen
            .iter()
            .filter(|(id, seen)| seen.announced.fleet.as_deref() == Some(tag) && !out(**id));
        fleet.map(|(id, seen)| (*id, seen.addresses.clone())).collect()
    }

    /// The node that a user wants to join: a node of the only cluster nearby, or the result of
    /// [`find_node()`]. This node has no members then.
    ///
    /// # Errors
    /// No node or several nodes match.
    pub(crate) fn choose(&self, name: Option<&str>) -> Result<&Sighting> {
        let near = || self.clusters().join("; ");
        let first = self.seen.values().next().ok_or(Error::NobodyNear)?;
        let Some(name) = name else {
            let is_same = |one: &Sighting| one.announced.cluster == first.announced.cluster;
            let is_one = self.seen.values().all(is_same);
            return if is_one { Ok(first) } else { Err(Error::ManyNear { near: near() }) };
        };
        let nodes = self.seen.iter().map(|(id, seen)| (*id, seen.announced.name.as_str()));
        match find_node(name, nodes) {
            Ok(id) => self.seen.get(&id).ok_or(Error::NobodyNear),
            Err(FindNodeError::Nobody { .. }) => {
                Err(Error::NotNear { name: name.to_owned(), near: near() })
            }
            Err(other) => Err(other.into()),
        }
    }

    /// Each cluster in words: its nodes, with their ids where two have one name.
    fn clusters(&self) -> Vec<String> {
        let mut groups: Vec<Vec<&Announcement>> = Vec::new();
        for Sighting { announced, .. } in self.seen.values() {
            match groups.iter_mut().find(|group| group[0].cluster == announced.cluster) {
                Some(group) => group.push(announced),
                None => groups.push(vec![announced]),
            }
        }
        let is_alone = |name: &str| {
            self.seen.values().filter(|other| other.announced.name == name).count() == 1
        };
        let name = |one: &&Announcement| match is_alone(&one.name) {
            true => one.name.clone(),
            false => format!("{} ({})", one.name, one.id.short()),
        };
        let line = |group: &Vec<_>| group.iter().map(name).collect::<Vec<_>>().join(", ");
        groups.iter().map(line).collect()
    }

    /// The nodes that are not members.
    pub(crate) fn strangers(&self, is_member: impl Fn(NodeId) -> bool) -> Vec<NearbyNode> {
        let strangers = self.seen.values().filter(|seen| !is_member(seen.announced.id));
        let shown = strangers.map(|Sighting { announced, addresses }| NearbyNode {
            id: announced.id,
            name: announced.name.clone(),
            address: link_local::first(addresses).unwrap_or_else(|| ([0, 0, 0, 0], 0).into()),
            nodes: announced.nodes,
            cluster: announced.cluster.clone(),
        });
        shown.collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::members::Member;

    fn sighting(id: u8, name: &str, port: u16) -> Sighting {
        let member = |id| Member {
            id: NodeId([id; 32]),
            name: String::new(),
            addresses: Vec::new(),
            admitted: 0,
        };
        let announced = Announcement::of(NodeId([id; 32]), name, &[member(id), member(200)], None);
        Sighting { announced, addresses: vec![SocketAddr::from(([10, 0, 0, id], port))] }
    }

    #[test]
    fn who_is_near_is_shown_until_it_is_a_member_or_gone() {
        let mut nearby = Nearby::default();
        assert!(nearby.see(sighting(1, "desk\x1b[2J", 1)));
        assert!(!nearby.see(sighting(1, "desk\x1b[2J", 1)), "nothing new");
        assert!(nearby.see(sighting(1, "desk\x1b[2J", 2)));
        let shown = nearby.strangers(|_| false);
        assert_eq!((shown.len(), &*shown[0].name, shown[0].nodes), (1, "desk[2J", 2));
        assert_eq!(shown[0].address.port(), 2);
        assert_eq!(nearby.strangers(|id| id == NodeId([1; 32])).len(), 0);
        assert!(nearby.forget(&"01".repeat(16)));
        assert_eq!(nearby.strangers(|_| false).len(), 0);
    }

    #[test]
    fn a_cluster_is_listed_once_and_names_that_two_have_carry_their_id() {
        let mut nearby = Nearby::default();
        let nodes = [(1, "laptop", "one"), (2, "laptop", "two"), (3, "attic", "three")];
        for (id, name, cluster) in nodes.into_iter().chain([(4, "studio", "three")]) {
            let mut one = sighting(id, name, 1);
            one.announced.cluster = cluster.to_owned();
            nearby.see(one);
        }
        let listed = ["laptop (01010101)", "laptop (02020202)", "attic, studio"];
        assert_eq!(nearby.clusters(), listed);
    }

    #[test]
    fn whom_a_person_means_is_clear_or_asked_for() {
        let mut nearby = Nearby::default();
        assert!(matches!(nearby.choose(None), Err(Error::NobodyNear)));
        let two = |id, cluster: &str| {
            let mut one = sighting(id, "desk", 1);
            one.announced.cluster = cluster.to_owned();
            one
        };
        nearby.see(two(1, "a"));
        nearby.see(two(2, "a"));
        assert_eq!(nearby.choose(None).unwrap().announced.id, NodeId([1; 32]), "one cluster");
        let both = nearby.choose(Some("desk")).unwrap_err().to_string();
        assert!(both.contains("desk (01010101), desk (02020202)"), "{both}");
        assert!(nearby.choose(Some("020")).unwrap_err().to_string().contains("too few"));
        assert_eq!(nearby.choose(Some("0202")).unwrap().announced.id, NodeId([2; 32]));
        nearby.see(two(3, "b"));
        let several = nearby.choose(None).unwrap_err().to_string();
        assert!(several.contains("desk (03030303)"), "{several}");
        assert!(matches!(nearby.choose(Some("sofa")), Err(Error::NotNear { .. })));
    }

    #[test]
    fn a_flood_of_announcements_is_bounded() {
        let mut nearby = Nearby::default();
        for id in 0..=255 {
            nearby.see(sighting(id, "flood", 1));
        }
        assert_eq!(nearby.strangers(|_| false).len(), NEARBY_MAX);
        assert_eq!(nearby.order.len(), NEARBY_MAX);
        assert!(nearby.see(sighting(255, "known", 1)), "who is known already may still change");
    }

    #[test]
    fn made_up_nodes_hide_no_newcomer_and_nobody_who_is_there() {
        let mut nearby = Nearby::default();
        nearby.see(sighting(1, "desk", 1));
        let made_up = |id| {
            let mut one = sighting(id, "flood", 1);
            one.addresses = vec![SocketAddr::from(([10, 9, 9, 9], 1))];
            one
        };
        for id in 100..=255 {
            nearby.see(made_up(id));
        }
        assert!(nearby.see(sighting(2, "sofa", 1)));
        // Its second announcement makes it the latest.
        nearby.see(made_up(192));
        for id in 100..=255 {
            nearby.see(made_up(id));
        }
        let shown = nearby.strangers(|_| false);
        assert_eq!(shown.len(), NEARBY_MAX);
        for name in ["desk", "sofa"] {
            assert_eq!(nearby.choose(Some(name)).unwrap().announced.name, name);
        }
        // With one node for each address, the one announced longest ago makes room.
        for id in 3..=99 {
            nearby.see(sighting(id, "many", 1));
        }
        assert!(nearby.choose(Some("desk")).is_err() && nearby.choose(Some("6363")).is_ok());
    }

    #[test]
    fn members_of_one_cluster_announce_the_same_one() {
        let of = |me: u8, ids: [u8; 2]| {
            let member = |id| Member {
                id: NodeId([id; 32]),
                name: id.to_string(),
                addresses: Vec::new(),
                admitted: u64::from(me),
            };
            Announcement::of(NodeId([me; 32]), "n", &ids.map(member), None).cluster
        };
        assert_eq!(of(1, [1, 2]), of(2, [2, 1]));
        assert_ne!(of(1, [1, 2]), of(1, [1, 3]));
    }
}

//! Handles instances in which not every two nodes can link: sums then go around a ring of links
//! that work, and the ranks are ordered along it.
//!
//! A worker that has waited in vain for a link names the other rank. Both ends of a pair must have
//! named each other; otherwise one of them is frozen or dead, and nothing follows about the
//! network. Such reports only show failed pairs, so all other pairs count as linked.

use std::time::Duration;

use protocol::ring_pairs;

use super::graph::{Apart, Suspicion};
use super::limits::{LINK_DEADLINE, SUSPICION_WAIT};
use super::{Effect, Instance, Phase};
use crate::NodeId;

/// Limit for the search of an order: an unsuccessful search may try all orders.
const NODES_MAX: usize = 16;

/// Limit of the search's steps, a tenth of a second: most searches need one step a node.
const SEARCH_STEPS_MAX: usize = 200_000;

/// Links come up within milliseconds, or after the rest of a step. After this time the owner checks
/// whether the nodes reach each other at all.
const LATE_AFTER: Duration = Duration::from_secs(2);

impl Instance {
    /// Collects a rank's report while links are being built, until all ranks have had time to
    /// report. Returns the report if it cannot lead to a decision.
    pub(super) fn receive(&mut self, suspicion: Suspicion, now: Duration) -> Option<Suspicion> {
        let is_linking = matches!(self.phase, Phase::Linking { .. });
        // With two ranks, such a report only shows that the other one has left. With more, others
        // may lack a link.
        let tells_nothing = self.ranks.len() == 2 && suspicion.unreached.is_empty();
        if !is_linking || tells_nothing || self.ranks.len() > NODES_MAX {
            return Some(suspicion);
        }
        self.graph.decide_at.get_or_insert(now + SUSPICION_WAIT);
        self.graph.suspicions.push(suspicion);
        None
    }

    /// Whether its links should be up by now, and no unreachable nodes are known for this epoch.
    pub(crate) fn is_late(&self, now: Duration) -> bool {
        let Phase::Linking { until } = self.phase else { return false };
        let began = until.saturating_sub(LINK_DEADLINE);
        now.saturating_sub(began) >= LATE_AFTER && self.graph.unreached_in != self.epoch
    }

    /// Takes pairs of nodes that report no connection to each other, so that their workers' reports
    /// need not be awaited.
    pub(crate) fn unreached(&mut self, pairs: &[Apart], now: Duration) -> Vec<Effect> {
        self.graph.unreached_in = self.epoch;
        let known = self.graph.apart.len();
        for (a, b, why) in pairs {
            if !self.graph.are_apart(*a, *b) {
                self.graph.apart.push((*a, *b, why.clone()));
            }
        }
        if self.graph.apart.len() > known {
            match self.find_order() {
                Some(order) => self.go_along(&order, now),
                None => self.effects.push(Effect::Part(std::mem::take(&mut self.graph.apart))),
            }
        }
        self.advance(now);
        std::mem::take(&mut self.effects)
    }

    /// Continues to retry, because the other nodes would not suffice.
    pub(crate) fn cannot_part(&mut self, why: &str) {
        self.trouble = Some(match &self.trouble {
            Some(trouble) => {
                format!("{trouble}; and without one of them the others do not suffice: {why}")
            }
            None => format!("some nodes have no link, and the others do not suffice: {why}"),
        });
    }

    /// Decides when the reports are in: continues along a ring; or ends the epoch, and asks whether
    /// the instance can run without some nodes.
    pub(super) fn decide(&mut self, now: Duration) {
        let said = self.graph.mutual_suspicions();
        for (a, b, reason) in &said {
            let (a, b) = (self.ranks[*a].node, self.ranks[*b].node);
            if !self.graph.are_apart(a, b) {
                self.graph.apart.push((a, b, reason.clone()));
            }
        }
        let order = if said.is_empty() { None } else { self.find_order() };
        let Some(order) = order else {
            // The known failures allow no ring; after a while they may be outdated.
            let apart = match said.is_empty() {
                true => Vec::new(),
                false => std::mem::take(&mut self.graph.apart),
            };
            let suspicions = std::mem::take(&mut self.graph.suspicions);
            let first = suspicions.into_iter().min_by_key(|said| said.unreached.is_empty());
            if let Some(Suspicion { by, rank, reason, .. }) = first {
                self.link_lost(by, rank, &reason, now);
            }
            if !apart.is_empty() {
                self.effects.push(Effect::Part(apart));
            }
            return;
        };
        self.go_along(&order, now);
    }

    /// Links the ranks in an order that needs no link between unlinkable nodes.
    fn go_along(&mut self, order: &[usize], now: Duration) {
        self.end_epoch(self.notes_in(order).join("; "));
        if !order.is_sorted() {
            // Keeps the ranks in their present order from trying again.
            self.link_at = now + SUSPICION_WAIT;
            let place = |at: &usize| (self.ranks[*at].node, self.split.shares[*at]);
            self.effects.push(Effect::Reorder(order.iter().map(place).collect()));
        }
    }

    /// An order of the ranks in which all required links are possible; the present one if it
    /// suffices.
    fn find_order(&self) -> Option<Vec<usize>> {
        let node = |at: usize| self.ranks[at].node;
        let can_link = |a: usize, b: usize| !self.graph.are_apart(node(a), node(b));
        find_order(self.ranks.len(), &ring_pairs(self.ranks.len(), &self.split.stages), can_link)
    }

    /// The pairs without a link, and the consequences, as text for the user.
    pub(super) fn ring_notes(&self) -> Vec<String> {
        self.notes_in(&Vec::from_iter(0..self.ranks.len()))
    }

    /// The same for another order of the ranks.
    fn notes_in(&self, order: &[usize]) -> Vec<String> {
        let name = |node: NodeId| {
            let rank = self.ranks.iter().find(|rank| rank.node == node);
            rank.map_or("a node", |rank| rank.node_name.as_str())
        };
        let no_link = |(a, b, why): &Apart| {
            format!("nodes {} and {} have no link: {why}", name(*a), name(*b))
        };
        let mut notes: Vec<String> = self.graph.apart.iter().map(no_link).collect();
        if !notes.is_empty() {
            let names = order.iter().map(|at| self.ranks[*at].node_name.as_str());
            let names: Vec<&str> = names.collect();
            let order = names.join(", ");
            notes.push(format!(
                "so ranks are in the order {order} and only those link that must; where four or \
                 more of them share a layer, its sums go round a ring and take longer. Open the \
                 way between all nodes and serve the model again for the full speed"
            ));
        }
        notes
    }
}

/// The lexicographically first order of `0..count` that begins with 0 and in which all `pairs` of
/// positions can link.
fn find_order(
    count: usize,
    pairs: &[(usize, usize)],
    can_link: impl Fn(usize, usize) -> bool,
) -> Option<Vec<usize>> {
    let fits = |order: &[usize], next: usize| {
        let place = order.len();
        let due = pairs.iter().filter(|(_, later)| *later == place);
        due.into_iter().all(|(earlier, _)| can_link(order[*earlier], next))
    };
    let (mut order, mut next) = (vec![0], 0);
    for _ in 0..SEARCH_STEPS_MAX {
        if order.len() == count {
            return Some(order);
        }
        match (next..count).find(|at| !order.contains(at) && fits(&order, *at)) {
            Some(at) => {
                order.push(at);
                next = 0;
            }
            None => {
                next = order.pop()? + 1;
                if order.is_empty() {
                    return None;
                }
            }
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::super::tests::{brief, fixed, linked, load, ms, ranks_of, says, split};
    use super::*;
    use crate::InstanceState;
    use protocol::{WorkerCommand, WorkerEvent};

    /// Four nodes with loaded workers that begin to link; worker `n + 1` is on node `n`.
    fn linking() -> Instance {
        let ranks = ranks_of(&["a", "b", "c", "d"]);
        let mut instance = Instance::new(fixed(), ranks, split(4), ms(0));
        for worker in 1..=4 {
            load(&mut instance, worker, 1);
        }
        instance
    }

    /// Worker `by` reports the ranks with which it has no link.
    fn suspects(instance: &mut Instance, epoch: u64, by: u64, of: &[usize], at: u64) -> String {
        let (rank, unreached) = (of.first().copied(), of.to_vec());
        let said = WorkerEvent::Lost { epoch, rank, reason: format!("refused to {by}"), unreached };
        brief(&says(instance, by, said, at))
    }

    #[test]
    fn nodes_without_a_link_are_neighbours_no_more() {
        let mut instance = linking();
        assert_eq!(suspects(&mut instance, 1, 2, &[2], 10_000), "");
        // The others only report that the two have given up.
        assert_eq!(suspects(&mut instance, 1, 1, &[], 10_001), "");
        assert_eq!(suspects(&mut instance, 1, 3, &[1], 10_100), "");
        assert_eq!(instance.deadline(), Some(ms(11_000)));
        let effects = instance.step(super::super::Input::Tick, ms(11_000));
        let expected = "disconnect1 disconnect2 disconnect3 disconnect4 reorder";
        assert!(brief(&effects).starts_with(expected), "{}", brief(&effects));
        let Some(Effect::Reorder(order)) = effects.last() else { panic!("{effects:?}") };
        let names = |instance: &Instance| -> Vec<String> {
            instance.ranks.iter().map(|rank| rank.node_name.clone()).collect()
        };
        let nodes: Vec<NodeId> = instance.ranks.iter().map(|rank| rank.node).collect();
        let expected = [0, 1, 3, 2].map(|at| (nodes[at], 1));
        assert_eq!(order[..], expected);
        let InstanceState::Recovering { reason } = instance.status().state else { panic!() };
        assert!(reason.contains("nodes b and c have no link: refused to 3"), "{reason}");
        assert!(reason.contains("in the order a, b, d, c"), "{reason}");

        instance.reorder(ranks_of(&["a", "b", "d", "c"]), split(4), ms(11_000));
        assert_eq!(names(&instance), ["a", "b", "d", "c"]);
        let mut connects = Vec::new();
        for worker in 5..=8 {
            connects = load(&mut instance, worker, 12_000);
        }
        assert_eq!(brief(&connects), "connect5@2 connect6@2 connect7@2 connect8@2");
        let is_ring = |effect: &Effect| {
            matches!(
                effect,
                Effect::Send { command: WorkerCommand::Connect { ring: true, .. }, .. }
            )
        };
        assert!(connects.iter().all(is_ring), "{connects:?}");
        for worker in 5..=8 {
            says(&mut instance, worker, linked(2), 12_001);
        }
        assert_eq!(instance.status().state, InstanceState::Ready);
        let notes = instance.status().notes.join("; ");
        assert!(notes.contains("in the order a, b, d, c"), "{notes}");
    }

    #[test]
    fn where_the_present_order_is_a_ring_nothing_is_loaded_again() {
        let mut instance = linking();
        suspects(&mut instance, 1, 2, &[3], 10_000);
        suspects(&mut instance, 1, 4, &[1], 10_000);
        let effects = brief(&instance.step(super::super::Input::Tick, ms(11_000)));
        assert!(effects.contains("connect1@2 connect2@2"), "{effects}");
        assert!(!effects.contains("end") && !effects.contains("reorder"), "{effects}");
    }

    #[test]
    fn one_sided_suspicions_and_hopeless_graphs_are_errors_as_before() {
        // Rank 3 is frozen and silent; or ranks 2 and 3 reach only rank 0.
        let frozen: &[(u64, &[usize])] = &[(1, &[3]), (2, &[3]), (3, &[3])];
        let star: &[(u64, &[usize])] = &[(2, &[2, 3]), (3, &[1, 3]), (4, &[1, 2])];
        let cases = [(frozen, "(rank 3) cannot link: refused", ""), (star, "cannot link", " part")];
        for (said, why, asks) in cases {
            let mut instance = linking();
            for (by, of) in said {
                suspects(&mut instance, 1, *by, of, 10_000);
            }
            let effects = brief(&instance.step(super::super::Input::Tick, ms(11_000)));
            assert_eq!(effects.strip_prefix(DISCONNECTS), Some(asks));
            let InstanceState::Recovering { reason } = instance.status().state else { panic!() };
            assert!(reason.contains(why) && instance.status().notes.is_empty(), "{reason}");
        }
    }

    const DISCONNECTS: &str = "disconnect1 disconnect2 disconnect3 disconnect4";

    #[test]
    fn three_of_which_two_do_not_link_do_without_one_of_them() {
        let mut instance = Instance::new(fixed(), ranks_of(&["a", "b", "c"]), split(3), ms(0));
        (1..=3).for_each(|worker| drop(load(&mut instance, worker, 1)));
        suspects(&mut instance, 1, 2, &[2], 10_000);
        suspects(&mut instance, 1, 3, &[1], 10_100);
        let effects = instance.step(super::super::Input::Tick, ms(11_000));
        let Some(Effect::Part(apart)) = effects.last() else { panic!("{effects:?}") };
        let nodes: Vec<NodeId> = instance.nodes().collect();
        assert_eq!(apart[..], [(nodes[1], nodes[2], "refused to 3".to_owned())]);
        let effects = instance.move_to(ranks_of(&["a", "b"]), split(2), "without c", ms(11_000));
        assert_eq!(brief(&effects), "end1 end2 end3 spawn4 spawn5");
        let without_c = InstanceState::Recovering { reason: "without c".to_owned() };
        assert_eq!(instance.state(), without_c);
    }

    #[test]
    fn nodes_that_say_they_do_not_reach_each_other_are_not_waited_for() {
        let ring = format!("{DISCONNECTS} reorder4");
        for (count, expected) in [(3, "part"), (4, &ring)] {
            let names = &["a", "b", "c", "d"][..count];
            let mut instance = Instance::new(fixed(), ranks_of(names), split(count), ms(0));
            (1..=count as u64).for_each(|worker| drop(load(&mut instance, worker, 1)));
            assert!(!instance.is_late(ms(1900)) && instance.is_late(ms(2001)));
            let nodes: Vec<NodeId> = instance.nodes().collect();
            let unreached = [(nodes[1], nodes[2], "no way".to_owned())];
            assert_eq!(brief(&instance.unreached(&unreached, ms(2001))), expected);
            // Once an epoch: the rest may not suffice.
            assert!(!instance.is_late(ms(9000)));
        }
    }

    fn order(count: usize, apart: &[(usize, usize)]) -> Option<Vec<usize>> {
        let pairs = ring_pairs(count, &[]);
        find_order(count, &pairs, |a, b| !apart.contains(&(a.min(b), a.max(b))))
    }

    #[test]
    fn the_present_order_is_kept_where_it_will_do() {
        for count in 1..=NODES_MAX {
            assert_eq!(order(count, &[]), Some((0..count).collect()));
        }
        assert_eq!(order(4, &[(0, 2), (1, 3)]), Some(vec![0, 1, 2, 3]));
    }

    #[test]
    fn a_ring_is_found_around_what_is_missing_or_there_is_none() {
        assert_eq!(order(4, &[(1, 2)]), Some(vec![0, 1, 3, 2]));
        assert_eq!(order(5, &[(0, 1), (2, 3)]), Some(vec![0, 2, 1, 3, 4]));
        assert_eq!(order(3, &[(1, 2)]), None);
        // Node 3 has only one link.
        assert_eq!(order(4, &[(0, 3), (1, 3)]), None);
        // Two groups that share one node.
        let bridge: Vec<_> = (0..3).flat_map(|a| (4..7).map(move |b| (a, b))).collect();
        assert_eq!(order(7, &bridge), None);
    }

    #[test]
    fn the_search_ends_with_as_many_nodes_as_there_may_be() {
        // Two groups of seven, joined by the nodes 0 and 8.
        let mut apart: Vec<_> = (1..8).flat_map(|a| (9..16).map(move |b| (a, b))).collect();
        assert!(order(NODES_MAX, &apart).is_some());
        // Joined only by node 0: there is no ring, and the search would try all orders of a group.
        apart.extend((9..16).map(|b| (8, b)));
        assert_eq!(order(NODES_MAX, &apart), None);
    }
}

//! Nodes that do not reach each other although this one reaches both. A model that needs a link
//! between the two is placed on one of them, until they are seen to reach each other again.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use protocol::Transport;
use tracing::warn;

use super::Daemon;
use super::placing::{Candidate, plan_in_need, ranks};
use crate::instance::{Apart, Effect};
use crate::net::cannot_call;
use crate::{InstanceSpec, NodeId};

/// Where only workers have no link, nothing tells when they have: after so long it is tried again,
/// and at once when a person asks for a model.
const TRY_AGAIN: Duration = Duration::from_secs(600);

/// Pairs of nodes, the lower one first.
pub(super) type Pairs = BTreeMap<(NodeId, NodeId), Known>;

#[derive(Debug)]
pub(super) struct Known {
    why: String,
    until: Until,
}

#[derive(Debug)]
enum Until {
    /// Their daemons do not reach each other either.
    TheyMeet,
    Then(Duration),
}

impl Daemon {
    /// What holds for a pair no more.
    pub(super) fn forget_apart(&mut self) {
        let now = self.now();
        let mut pairs = std::mem::take(&mut self.apart);
        let known = pairs.len();
        pairs.retain(|(a, b), known| match known.until {
            Until::TheyMeet => self.why_apart(*a, *b).is_some(),
            Until::Then(until) => now < until,
        });
        self.dirty |= pairs.len() < known;
        self.apart = pairs;
    }

    /// Forgets pairs of which nothing tells whether they have a link now: a person asks for one.
    pub(super) fn try_links_again(&mut self) {
        self.apart.retain(|_, known| matches!(known.until, Until::TheyMeet));
    }

    /// The nodes that a model can be placed on that a person asks for.
    pub(super) fn candidates_asked(&self, spec: &InstanceSpec) -> Vec<Candidate> {
        let all = self.candidates(None, spec.options.transport);
        // Whoever asks for so many nodes, or for these, is told what is wrong with them.
        if spec.nodes.is_some() {
            return all;
        }
        let pairs = self.apart.iter().filter(|(_, known)| matches!(known.until, Until::TheyMeet));
        self.together(all, &pairs.map(|(pair, _)| *pair).collect())
    }

    /// A node has come back, perhaps by another way.
    pub(super) fn forget_apart_of(&mut self, node: NodeId) {
        self.apart.retain(|(a, b), _| *a != node && *b != node);
    }

    /// Why two nodes do not reach each other, as they say themselves.
    fn why_apart(&self, a: NodeId, b: NodeId) -> Option<String> {
        let misses = |by: NodeId, other: NodeId| {
            self.membership.conn(by)?;
            let heartbeat = self.views.get(&by)?.heartbeat.as_ref()?;
            (!heartbeat.sees.contains(&other)).then_some((by, other))
        };
        let (by, other) = misses(a, b).or_else(|| misses(b, a))?;
        let (by, other) = (self.node_name(by), self.node_name(other));
        Some(format!("node {by} says that it does not reach node {other}"))
    }

    /// The members with which a node is connected, but which it cannot call: their firewalls let it
    /// answer alone.
    pub(super) fn uncalled_by(&self, node: NodeId) -> Vec<NodeId> {
        let told = match node == self.me {
            true => self.ways.unanswered(),
            false => {
                let report = self.views.get(&node).and_then(|view| view.report.as_ref());
                report.map_or_else(Vec::new, |report| report.uncalled.clone())
            }
        };
        let sees = |node: NodeId, other: NodeId| {
            let heartbeat = || self.views.get(&node)?.heartbeat.as_ref();
            match node == self.me {
                true => self.membership.conn(other).is_some(),
                false => heartbeat().is_some_and(|heartbeat| heartbeat.sees.contains(&other)),
            }
        };
        let is_here = node == self.me || self.membership.conn(node).is_some();
        told.into_iter().filter(|other| is_here && sees(node, *other)).collect()
    }

    /// That one node cannot call another which can call it, in words.
    pub(super) fn one_way(&self) -> Vec<String> {
        let members = self.membership.members().map(|member| member.id);
        let all = std::iter::once(self.me).chain(members);
        let words = |caller: NodeId| {
            let called = self.uncalled_by(caller).into_iter();
            called.map(move |called| {
                let addresses = self.addresses_of(called);
                cannot_call(&self.node_name(caller), &self.node_name(called), &addresses)
            })
        };
        all.flat_map(words).collect()
    }

    /// Where links do not come up, nodes that do not reach each other need not be waited for.
    pub(super) fn look_at_late_links(&mut self) {
        let now = self.now();
        let late = self.owned.iter().filter(|(_, owned)| owned.machine.is_late(now));
        for id in late.map(|(id, _)| id.clone()).collect::<Vec<_>>() {
            let Some(owned) = self.owned.get(&id) else { continue };
            let others: Vec<NodeId> = owned.machine.nodes().filter(|on| *on != self.me).collect();
            let pairs = others.iter().enumerate().flat_map(|(at, a)| {
                let later = others[at + 1..].iter();
                later.filter_map(|b| Some((*a, *b, self.why_apart(*a, *b)?)))
            });
            let pairs: Vec<Apart> = pairs.collect();
            if let (false, Some(owned)) = (pairs.is_empty(), self.owned.get_mut(&id)) {
                let effects = owned.machine.unreached(&pairs, now);
                self.run_effects(&id, effects);
            }
        }
    }

    pub(super) fn note_apart(&mut self, pairs: Vec<Apart>) {
        let now = self.now();
        for (a, b, why) in pairs {
            let (a_name, b_name) = (self.node_name(a), self.node_name(b));
            warn!(a = a_name, b = b_name, why, "two nodes have no link");
            let until = match self.why_apart(a, b) {
                Some(_) => Until::TheyMeet,
                None => Until::Then(now + TRY_AGAIN),
            };
            self.apart.insert((a.min(b), a.max(b)), Known { why, until });
        }
    }

    /// Places an instance without some of those that have no link, if the rest suffices.
    pub(super) fn part(&mut self, id: &str, pairs: Vec<Apart>) -> Vec<Effect> {
        self.dirty = true;
        self.note_apart(pairs);
        let now = self.now();
        let Some(owned) = self.owned.get(id) else { return Vec::new() };
        let wanted = &owned.machine.fixed().spec;
        let candidates = self.candidates_together(Some(id), wanted.options.transport);
        let Some(owned) = self.owned.get(id) else { return Vec::new() };
        match plan_in_need(&owned.prepared, candidates, wanted) {
            Ok((plan, candidates)) => {
                let ranks = ranks(&plan, &candidates);
                let names: Vec<&str> = ranks.iter().map(|rank| rank.node_name.as_str()).collect();
                let why = format!(
                    "it is loaded on {}, since {}",
                    names.join(", "),
                    self.apart_in_words().join("; ")
                );
                warn!(instance = id, why, "placed again");
                let Some(owned) = self.owned.get_mut(id) else { return Vec::new() };
                (owned.why, owned.prediction) = (plan.why, plan.prediction);
                owned.machine.move_to(ranks, plan.split, &why, now)
            }
            Err(why) => {
                warn!(instance = id, why, "cannot do without nodes that have no link");
                let Some(owned) = self.owned.get_mut(id) else { return Vec::new() };
                owned.machine.cannot_part(&why);
                Vec::new()
            }
        }
    }

    /// The nodes that could take ranks of one instance, all of which reach each other as far as it
    /// is known.
    pub(super) fn candidates_together(
        &self,
        leaving: Option<&str>,
        transport: Transport,
    ) -> Vec<Candidate> {
        let all = self.candidates(leaving, transport);
        self.together(all, &self.apart.keys().copied().collect())
    }

    /// Those of them that are left once none lacks a link to another.
    fn together(
        &self,
        mut candidates: Vec<Candidate>,
        apart: &BTreeSet<(NodeId, NodeId)>,
    ) -> Vec<Candidate> {
        while let Some(node) = self.most_apart(&candidates, apart) {
            candidates.retain(|one| one.node != node);
        }
        candidates
    }

    /// The node that lacks most links to the others; of several the one with the least memory. This
    /// node stays: it leads.
    fn most_apart(
        &self,
        candidates: &[Candidate],
        apart: &BTreeSet<(NodeId, NodeId)>,
    ) -> Option<NodeId> {
        let here: BTreeSet<NodeId> = candidates.iter().map(|one| one.node).collect();
        let links_missing = |node: NodeId| {
            let both = apart.iter().filter(|(a, b)| here.contains(a) && here.contains(b));
            both.filter(|(a, b)| *a == node || *b == node).count()
        };
        let others = candidates.iter().filter(|one| one.node != self.me);
        let worst = others.max_by_key(|one| {
            (links_missing(one.node), std::cmp::Reverse(one.memory_free_bytes), one.node)
        })?;
        (links_missing(worst.node) > 0).then_some(worst.node)
    }

    pub(super) fn apart_in_words(&self) -> Vec<String> {
        let words = |((a, b), known): (&(NodeId, NodeId), &Known)| {
            let (a, b) = (self.node_name(*a), self.node_name(*b));
            format!("nodes {a} and {b} have no link: {}", known.why)
        };
        self.apart.iter().map(words).collect()
    }

    /// Why an instance of this node is on one of two nodes alone, for a person.
    pub(super) fn apart_notes(&self, id: &str) -> Vec<String> {
        let Some(owned) = self.owned.get(id) else { return Vec::new() };
        let nodes: BTreeSet<NodeId> = owned.machine.nodes().collect();
        let asked = owned.machine.fixed().spec.nodes.as_ref().map(protocol::Nodes::count);
        let pairs = self.apart.iter().filter(|((a, b), _)| nodes.contains(a) != nodes.contains(b));
        let notes = pairs.map(|((a, b), known)| {
            let (a, b, why) = (self.node_name(*a), self.node_name(*b), &known.why);
            format!(
                "nodes {a} and {b} have no link ({why}), so the model is not placed on both. \
                 Look at the firewalls and addresses between them; it moves to both once they \
                 reach each other"
            )
        });
        notes.filter(|_| asked.is_none_or(|count| count > nodes.len())).collect()
    }
}

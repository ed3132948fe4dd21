//! Pairs of nodes that this node reaches but that do not reach each other. A model that needs a
//! link between the two is placed on one of them until they are connected again.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use tracing::warn;

use super::owned::Owned;
use crate::NodeId;
use crate::context::Context;
use crate::instance::Apart;

/// If only the workers have no link, no event shows its return. So it is tried again after this
/// time, and at once when a user requests a model.
const TRY_AGAIN: Duration = Duration::from_secs(600);

type Pair = (NodeId, NodeId);

/// The lower node of a pair comes first.
#[derive(Debug, Default)]
pub(crate) struct Partition {
    pairs: BTreeMap<Pair, Known>,
}

#[derive(Debug)]
struct Known {
    why: String,
    until: Until,
}

#[derive(Debug)]
enum Until {
    /// Their daemons are not connected either.
    TheyMeet,
    Then(Duration),
}

impl Partition {
    pub(super) fn note(&mut self, ctx: &Context, pairs: Vec<Apart>) {
        let now = ctx.now();
        for (a, b, why) in pairs {
            let (a_name, b_name) = (ctx.name_of(a), ctx.name_of(b));
            warn!(a = a_name, b = b_name, why, "two nodes have no link");
            let until = match why_apart(ctx, a, b) {
                Some(_) => Until::TheyMeet,
                None => Until::Then(now + TRY_AGAIN),
            };
            self.pairs.insert((a.min(b), a.max(b)), Known { why, until });
        }
    }

    /// Drops pairs that are connected again.
    pub(super) fn expire(&mut self, ctx: &mut Context) {
        let now = ctx.now();
        let known = self.pairs.len();
        self.pairs.retain(|(a, b), known| match known.until {
            Until::TheyMeet => why_apart(ctx, *a, *b).is_some(),
            Until::Then(until) => now < until,
        });
        ctx.changed_if(self.pairs.len() < known);
    }

    /// Drops the pairs of a node that has returned, perhaps over another path.
    pub(super) fn forget(&mut self, node: NodeId) {
        self.pairs.retain(|(a, b), _| *a != node && *b != node);
    }

    /// Drops pairs whose present state is unknown.
    pub(super) fn try_again(&mut self) {
        self.pairs.retain(|_, known| matches!(known.until, Until::TheyMeet));
    }

    pub(super) fn pairs(&self) -> BTreeSet<Pair> {
        self.pairs.keys().copied().collect()
    }

    /// The pairs without a connection between their daemons.
    pub(super) fn lasting(&self) -> BTreeSet<Pair> {
        let lasting = self.pairs.iter().filter(|(_, one)| matches!(one.until, Until::TheyMeet));
        lasting.map(|(pair, _)| *pair).collect()
    }

    pub(super) fn in_words(&self, ctx: &Context) -> Vec<String> {
        let words = |((a, b), known): (&Pair, &Known)| {
            let (a, b) = (ctx.name_of(*a), ctx.name_of(*b));
            format!("nodes {a} and {b} have no link: {}", known.why)
        };
        self.pairs.iter().map(words).collect()
    }

    /// Notes for the user: why an instance is on only one node of a pair.
    pub(super) fn notes(&self, ctx: &Context, owned: &Owned) -> Vec<String> {
        let nodes: BTreeSet<NodeId> = owned.machine.nodes().collect();
        let asked = owned.machine.fixed().spec.nodes.as_ref().map(protocol::Nodes::count);
        let pairs = self.pairs.iter().filter(|((a, b), _)| nodes.contains(a) != nodes.contains(b));
        let notes = pairs.map(|((a, b), known)| {
            let (a, b, why) = (ctx.name_of(*a), ctx.name_of(*b), &known.why);
            format!(
                "nodes {a} and {b} have no link ({why}), so the model is not placed on both. \
                 Look at the firewalls and addresses between them; it moves to both once they \
                 reach each other"
            )
        });
        notes.filter(|_| asked.is_none_or(|count| count > nodes.len())).collect()
    }
}

/// Why two nodes do not reach each other, by their own reports.
pub(super) fn why_apart(ctx: &Context, a: NodeId, b: NodeId) -> Option<String> {
    let misses = |by: NodeId, other: NodeId| {
        let heartbeat = ctx.live_heartbeat_of(by)?;
        (!heartbeat.sees.contains(&other)).then_some((by, other))
    };
    let (by, other) = misses(a, b).or_else(|| misses(b, a))?;
    let (by, other) = (ctx.name_of(by), ctx.name_of(other));
    Some(format!("node {by} says that it does not reach node {other}"))
}

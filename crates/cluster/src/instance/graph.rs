//! Which nodes of an instance can link.

use std::time::Duration;

use crate::NodeId;

/// Two nodes without a link, and what is said of it.
pub(crate) type Apart = (NodeId, NodeId, String);

/// What is known of an instance's nodes.
#[derive(Debug, Default)]
pub(super) struct Graph {
    /// What the second of the two said of it.
    pub apart: Vec<Apart>,
    /// What ranks have said of the links of the present epoch.
    pub suspicions: Vec<Suspicion>,
    /// When to decide something by that.
    pub decide_at: Option<Duration>,
    /// The last epoch in which nodes were said not to reach each other.
    pub unreached_in: u64,
}

#[derive(Debug)]
pub(super) struct Suspicion {
    pub by: usize,
    /// The rank that it blames, if it blames one.
    pub rank: Option<usize>,
    pub reason: String,
    /// The ranks with which it has no link.
    pub unreached: Vec<usize>,
}

impl Graph {
    /// Whether only the links of a ring are to be built.
    pub fn is_sparse(&self) -> bool {
        !self.apart.is_empty()
    }

    pub fn decide_at(&self) -> Option<Duration> {
        self.decide_at
    }

    /// The epoch has ended: what was said of it is void.
    pub fn forget_suspicions(&mut self) {
        self.suspicions.clear();
        self.decide_at = None;
    }

    /// A node has come back, perhaps by another way.
    pub fn forget(&mut self, node: NodeId) {
        self.apart.retain(|(a, b, _)| *a != node && *b != node);
    }

    pub fn are_apart(&self, a: NodeId, b: NodeId) -> bool {
        self.apart.iter().any(|(c, d, _)| (*c, *d) == (a, b) || (*c, *d) == (b, a))
    }

    /// Pairs of ranks that have each said that they have no link, and what the second said.
    pub fn mutual_suspicions(&self) -> Vec<(usize, usize, String)> {
        let says = |by: usize, of: usize| {
            let all = self.suspicions.iter();
            all.filter(|said| said.by == by).find(|said| said.unreached.contains(&of))
        };
        let mut pairs = Vec::new();
        for said in &self.suspicions {
            for of in said.unreached.iter().filter(|of| **of > said.by) {
                let pair = says(*of, said.by).map(|other| (said.by, *of, other.reason.clone()));
                pairs.extend(pair);
            }
        }
        pairs
    }
}

//! The links that an instance's nodes can make.

use std::time::Duration;

use crate::NodeId;

/// Two nodes without a link, and the reason.
pub(crate) type Apart = (NodeId, NodeId, String);

/// Known failures among an instance's links.
#[derive(Debug, Default)]
pub(super) struct Graph {
    /// The reason comes from the second node.
    pub apart: Vec<Apart>,
    /// Reports about links of the present epoch.
    pub suspicions: Vec<Suspicion>,
    /// When to decide on these reports.
    pub decide_at: Option<Duration>,
    /// The last epoch with a report of unreachable nodes.
    pub unreached_in: u64,
}

#[derive(Debug)]
pub(super) struct Suspicion {
    pub by: usize,
    /// The blamed rank, if any.
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

    /// Drops the reports of an epoch that has ended.
    pub fn forget_suspicions(&mut self) {
        self.suspicions.clear();
        self.decide_at = None;
    }

    /// Drops the failures of a node that has returned, perhaps by another path.
    pub fn forget(&mut self, node: NodeId) {
        self.apart.retain(|(a, b, _)| *a != node && *b != node);
    }

    pub fn are_apart(&self, a: NodeId, b: NodeId) -> bool {
        self.apart.iter().any(|(c, d, _)| (*c, *d) == (a, b) || (*c, *d) == (b, a))
    }

    /// Pairs of ranks that have each reported the missing link, with the second one's reason.
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

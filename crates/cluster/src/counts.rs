//! Which counts of changes a member is believed.
//!
//! Versions count changes, and each new one is above all that are known. So one absurd count would
//! end all changes for good. A count is believed if it is near the highest known one, or if two
//! members have told such counts.

use std::collections::BTreeMap;

use crate::NodeId;

/// The believed distance from the highest known count: 136 years of a change each second. Whoever
/// uses it up in every message needs more than 4 billion signed messages to reach the end.
const STEP: u64 = 1 << 32;
/// Higher counts are never believed, so that changes stay possible.
pub(crate) const COUNT_MAX: u64 = u64::MAX - STEP;

/// The highest count that is read from a disk: what one bad count has done before is undone at the
/// next start. Lower ones may be the cluster's own, and are kept.
pub(crate) const KEPT_MAX: u64 = u64::MAX >> 1;

/// The highest count that each member has told.
#[derive(Debug, Default)]
pub(crate) struct Counts(BTreeMap<NodeId, u64>);

impl Counts {
    /// The highest count to believe in a message of `by` with counts up to `told`. `known`: the
    /// highest one here; `others`: the other members, of which a node without a count believes the
    /// only one.
    pub(crate) fn limit(
        &mut self,
        (by, told): (NodeId, u64),
        known: u64,
        others: impl Iterator<Item = NodeId>,
    ) -> u64 {
        self.0.insert(by, told.min(COUNT_MAX));
        let of = |node: NodeId| self.0.get(&node).copied();
        let mut all: Vec<Option<u64>> = others.map(of).collect();
        all.sort_unstable_by(|a, b| b.cmp(a));
        let confirmed = match all[..] {
            [only] if known == 0 => only,
            [_, second, ..] => second,
            _ => None,
        };
        known.max(confirmed.unwrap_or(0)).saturating_add(STEP).min(COUNT_MAX)
    }

    pub(crate) fn forget(&mut self) {
        self.0.clear();
    }
}

/// Whether a count is near the highest known one, or below.
pub(crate) fn is_near(known: u64, count: u64) -> bool {
    count.saturating_sub(known) <= STEP
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(node: u8) -> NodeId {
        NodeId([node; 32])
    }

    #[test]
    fn a_count_far_above_is_believed_once_two_members_tell_it() {
        let others = || [1, 2, 3].map(id).into_iter();
        let mut counts = Counts::default();
        for told in [1000, 7 * STEP, u64::MAX] {
            assert_eq!(counts.limit((id(1), told), 1000, others()), 1000 + STEP);
        }
        assert_eq!(counts.limit((id(2), 1001), 1000, others()), 1001 + STEP);
        // Not by repetition, and not by one who is no member any more.
        assert_eq!(counts.limit((id(1), 7 * STEP), 1001, others()), 1001 + STEP);
        assert_eq!(counts.limit((id(9), 7 * STEP), 1001, others()), 1001 + STEP);
        assert_eq!(counts.limit((id(3), 6 * STEP), 1001, others()), 7 * STEP);
        // Room stays above all that is ever believed.
        for by in [1, 2, 3] {
            assert!(counts.limit((id(by), u64::MAX), u64::MAX - 9, others()) <= COUNT_MAX);
        }
    }

    #[test]
    fn a_node_that_knows_nothing_believes_its_only_member() {
        let mut counts = Counts::default();
        assert_eq!(counts.limit((id(1), 7 * STEP), 0, [id(1)].into_iter()), 8 * STEP);
        assert_eq!(counts.limit((id(1), 7 * STEP), 5, [id(1)].into_iter()), 5 + STEP);
        let two = || [1, 2].map(id).into_iter();
        let mut counts = Counts::default();
        assert_eq!(counts.limit((id(1), 7 * STEP), 0, two()), STEP);
        assert_eq!(counts.limit((id(2), 7 * STEP), 0, two()), 8 * STEP);
    }
}

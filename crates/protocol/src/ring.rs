//! The links that an instance needs at least. Where not every pair of nodes can reach each other,
//! sums go round a ring of those that can.

use crate::StageSize;

/// The pairs of ranks that exchange messages if the sums of each stage go round a ring: neighbours
/// within a stage (its last and first rank are neighbours); each rank and the rank of the next
/// stage that takes its results; and the last stage and rank 0, which gets the logits. Each pair
/// appears once, the lower rank first.
///
/// `stages`: as in [`crate::Split`], empty for one stage of all `ranks`.
pub fn ring_pairs(ranks: usize, stages: &[StageSize]) -> Vec<(usize, usize)> {
    let mut pairs = Vec::new();
    let mut add = |a: usize, b: usize| {
        let pair = (a.min(b), a.max(b));
        if a != b && !pairs.contains(&pair) {
            pairs.push(pair);
        }
    };
    let all = [ranks];
    let by_ranks: Vec<usize> = stages.iter().map(|stage| stage.ranks).collect();
    let (mut before, mut first) = (0..0, 0);
    for count in if stages.is_empty() { &all[..] } else { &by_ranks } {
        for place in 0..*count {
            add(first + place, first + (place + 1) % count);
            if !before.is_empty() {
                add(before.start + place % before.len(), first + place);
            }
        }
        before = first..first + count;
        first = before.end;
    }
    // The last of several stages sends its results to rank 0; a single stage gathers along its
    // ring.
    if before.start > 0 {
        before.for_each(|rank| add(rank, 0));
    }
    pairs
}

/// The peers of `rank` in those pairs, in order.
pub fn ring_peers(ranks: usize, stages: &[StageSize], rank: usize) -> Vec<usize> {
    let pairs = ring_pairs(ranks, stages).into_iter();
    let mut peers: Vec<usize> =
        pairs.filter(|(a, b)| *a == rank || *b == rank).map(|(a, b)| a + b - rank).collect();
    peers.sort_unstable();
    peers
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stages(by_ranks: &[usize]) -> Vec<StageSize> {
        by_ranks.iter().map(|&ranks| StageSize { ranks, layers: 1 }).collect()
    }

    #[test]
    fn tensors_and_pipelines_need_the_links_of_a_ring() {
        for ranks in 1..8 {
            let pipeline = stages(&vec![1; ranks]);
            for rank in 0..ranks {
                let (before, after) = ((rank + ranks - 1) % ranks, (rank + 1) % ranks);
                let mut near: Vec<_> = [before, after].into_iter().filter(|p| *p != rank).collect();
                near.sort_unstable();
                near.dedup();
                assert_eq!(ring_peers(ranks, &[], rank), near, "tensor, {rank} of {ranks}");
                assert_eq!(ring_peers(ranks, &pipeline, rank), near, "pipeline, {rank} of {ranks}");
            }
        }
    }

    #[test]
    fn a_hybrid_needs_rings_and_what_leads_from_one_to_the_next() {
        assert_eq!(ring_pairs(4, &stages(&[2, 2])), [(0, 1), (2, 3), (0, 2), (1, 3), (0, 3)]);
        assert_eq!(ring_peers(5, &stages(&[1, 4]), 0), [1, 2, 3, 4]);
        assert_eq!(ring_peers(5, &stages(&[1, 4]), 1), [0, 2, 4]);
    }
}

//! The plan of a row-parallel product's all-reduce: the parts of each rank, and the additions.

use std::ops::Range;

use sumtree::{Add, cover, program};

use crate::CollectiveError;

/// The all-reduce of one row-parallel product, prepared at load from the ranks' spans.
///
/// A rank that owns a run of the product's leaves holds one vector (a *part*) for each subtree in
/// [`sumtree::cover`] of that run. The plan knows the number of parts of each rank, their position
/// in the tree, and the additions that finish it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReducePlan {
    leaves: usize,
    /// By rank: the range of its parts among all parts from left to right.
    parts: Vec<Range<usize>>,
    /// The leaves under each part, from left to right.
    subtrees: Vec<Range<usize>>,
    adds: Vec<Add>,
}

impl ReducePlan {
    /// `spans`: by rank, its run of the tree's `leaves` leaves; empty for a rank without any.
    /// Together they hold each leaf once, in any order of ranks.
    pub fn new(leaves: usize, spans: &[Range<usize>]) -> Result<Self, CollectiveError> {
        let mut by_place: Vec<usize> = (0..spans.len()).collect();
        by_place.sort_by_key(|&rank| (spans[rank].start, spans[rank].end));
        let mut parts = vec![0..0; spans.len()];
        let mut subtrees = Vec::new();
        for rank in by_place {
            let first = subtrees.len();
            subtrees.extend(cover(leaves, spans[rank].clone()));
            parts[rank] = first..subtrees.len();
        }
        let covered: usize = spans.iter().map(Range::len).sum();
        match program(leaves, &subtrees) {
            Some(adds) if covered == leaves => Ok(ReducePlan { leaves, parts, subtrees, adds }),
            _ => Err(CollectiveError::Spans { leaves, spans: format!("{spans:?}") }),
        }
    }

    /// Leaves of the tree.
    pub(crate) fn leaves(&self) -> usize {
        self.leaves
    }

    pub(crate) fn ranks(&self) -> usize {
        self.parts.len()
    }

    /// The number of vectors of `rank`.
    pub fn parts(&self, rank: usize) -> usize {
        self.parts[rank].len()
    }

    /// The number of vectors of all ranks.
    pub fn parts_total(&self) -> usize {
        self.parts.iter().map(Range::len).sum()
    }

    /// The positions of the vectors of `rank` among all, from left to right in the tree.
    pub(crate) fn places(&self, rank: usize) -> Range<usize> {
        self.parts[rank].clone()
    }

    /// The leaves under each part of all ranks, from left to right.
    pub(crate) fn subtrees(&self) -> &[Range<usize>] {
        &self.subtrees
    }

    /// Finishes the tree, given all parts from left to right; the total is left in vector 0.
    ///
    /// `vectors`: `[parts_total, len]` f32.
    pub(crate) fn finish(&self, vectors: &mut [f32], len: usize) {
        // In blocks, so that every vector's block is still in the cache for the next addition.
        for start in (0..len).step_by(BLOCK) {
            let block = BLOCK.min(len - start);
            for &Add { into, from } in &self.adds {
                assert!(into < from, "the left sum takes in the right one");
                let (left, right) = vectors.split_at_mut(from * len);
                let into = &mut left[into * len + start..][..block];
                for (into, from) in into.iter_mut().zip(&right[start..start + block]) {
                    *into += from;
                }
            }
        }
    }
}

/// Elements: 4 KiB of each of up to 16 vectors fit the first-level cache, or nearly.
const BLOCK: usize = 1024;

/// Chunks of the two-phase algorithm end at multiples of this many elements: a cache line.
pub(crate) const CHUNK_STEP: usize = 16;

/// The elements of a vector of `len` that `rank` finishes.
pub(crate) fn chunk(rank: usize, ranks: usize, len: usize) -> Range<usize> {
    let steps = len.div_ceil(CHUNK_STEP);
    let border = |rank: usize| (steps * rank / ranks * CHUNK_STEP).min(len);
    border(rank)..border(rank + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[expect(clippy::single_range_in_vec_init, reason = "one rank has one range")]
    fn spans_must_hold_each_leaf_once() {
        let cases: [(usize, &[Range<usize>], bool); 10] = [
            (4, &[0..4], true),
            (4, &[0..2, 2..4], true),
            (4, &[2..4, 0..2], true),
            (4, &[0..0, 0..4, 4..4], true),
            (4, &[0..2, 2..2, 2..4], true),
            (4, &[0..2], false),
            (4, &[0..3, 2..4], false),
            (4, &[0..2, 2..5], false),
            (4, &[], false),
            (0, &[0..0], false),
        ];
        for (leaves, spans, good) in cases {
            assert_eq!(ReducePlan::new(leaves, spans).is_ok(), good, "{spans:?}");
        }
    }

    #[test]
    fn parts_follow_the_tree_and_not_the_ranks() {
        let plan = ReducePlan::new(8, &[5..8, 0..0, 0..5]).unwrap();
        assert_eq!([plan.parts(0), plan.parts(1), plan.parts(2)], [2, 0, 2]);
        assert_eq!([plan.places(0), plan.places(2)], [2..4, 0..2]);
        assert_eq!(plan.parts_total(), 4);
    }

    #[test]
    fn the_total_is_the_trees() {
        // Values whose sum depends on the order, at lengths around the block size.
        for len in [1, 7, BLOCK - 1, BLOCK, BLOCK + 1, 3 * BLOCK + 5] {
            let plan = ReducePlan::new(5, &[0..2, 2..5]).unwrap();
            let value = |part: usize, at: usize| [1e8f32, 1.0, -1e8][part] + at as f32;
            let mut vectors: Vec<f32> =
                (0..3).flat_map(|part| (0..len).map(move |at| value(part, at))).collect();
            plan.finish(&mut vectors, len);
            // Leaves 0..2, then the subtree 2..4, then leaf 4.
            let expected = |at| (value(0, at) + value(1, at)) + value(2, at);
            assert!((0..len).all(|at| vectors[at].to_bits() == expected(at).to_bits()));
        }
    }

    #[test]
    fn chunks_cover_the_vector_once_and_in_order() {
        for len in [1, 15, 16, 17, 100, 2048, 4097] {
            for ranks in 1..=16 {
                let chunks: Vec<_> = (0..ranks).map(|rank| chunk(rank, ranks, len)).collect();
                assert_eq!((chunks[0].start, chunks[ranks - 1].end), (0, len));
                assert!(chunks.windows(2).all(|pair| pair[0].end == pair[1].start));
            }
        }
    }
}

//! The cut of a shard's columns into leaves, and of its leaves into subtrees.

use crate::error::Error;
use crate::matrix::Matrix;
use crate::simd::LANES;
use sumtree::LEAVES_MAX;

/// The leaves of a shard's own columns and the subtrees they form.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Parts {
    leaf_ends: Vec<usize>,
    part_ends: Vec<usize>,
}

impl Parts {
    /// `leaf_ends`: the end of each leaf, in columns; the last is the number of columns.
    /// `part_ends`: the end of each part (a subtree of the whole tree), in leaves; the last is the
    /// number of leaves.
    ///
    /// # Errors
    /// The ends do not increase from above zero, there are more leaves than [`LEAVES_MAX`], or the
    /// parts do not cover the leaves.
    pub fn new(leaf_ends: Vec<usize>, part_ends: Vec<usize>) -> Result<Self, Error> {
        let rising = |ends: &[usize]| {
            ends.first().is_some_and(|&first| first > 0) && ends.is_sorted_by(|a, b| a < b)
        };
        let reason = if !rising(&leaf_ends) || !rising(&part_ends) {
            Some(format!("{leaf_ends:?} and {part_ends:?} must rise from above zero"))
        } else if leaf_ends.len() > LEAVES_MAX {
            Some(format!("{} leaves, at most {LEAVES_MAX} are possible", leaf_ends.len()))
        } else if part_ends.last() != Some(&leaf_ends.len()) {
            Some(format!("parts end at {part_ends:?} of {} leaves", leaf_ends.len()))
        } else {
            None
        };
        match reason {
            Some(reason) => Err(Error::Parts { reason }),
            None => Ok(Self { leaf_ends, part_ends }),
        }
    }

    /// The number of parts, which is the number of vectors of a row's product.
    pub fn count(&self) -> usize {
        self.part_ends.len()
    }

    pub(super) fn leaves(&self) -> Leaves<'_> {
        Leaves { leaf_ends: &self.leaf_ends, part_ends: &self.part_ends }
    }

    /// Asserts that these are leaves of this matrix's columns.
    pub(super) fn check(&self, matrix: &Matrix) {
        let block = matrix.ty().block_len();
        assert_eq!(self.leaf_ends.last(), Some(&matrix.cols()), "leaves must cover the columns");
        assert!(
            self.leaf_ends.iter().all(|end| end.is_multiple_of(block)),
            "leaves {:?} must end on blocks of {block} columns",
            self.leaf_ends
        );
    }
}

/// The ends of leaves, in columns, and of parts, in leaves.
#[derive(Clone, Copy)]
pub(super) struct Leaves<'a> {
    pub leaf_ends: &'a [usize],
    pub part_ends: &'a [usize],
}

impl<'a> Leaves<'a> {
    /// One part of one leaf that ends with `cols`.
    pub fn whole(cols: &'a usize) -> Self {
        Self { leaf_ends: std::slice::from_ref(cols), part_ends: &[1] }
    }
}

/// The sums of subtrees still to be merged, the topmost last; all have the same length.
pub(super) struct Stack {
    sums: Vec<f32>,
    depth: usize,
}

/// Bounds the stack: before leaf `i` is pushed it holds one sum for each set bit of `i`.
pub(super) const DEPTH_MAX: usize = LEAVES_MAX.ilog2() as usize + 1;

/// The longest sums of a task.
const LEN_MAX: usize = super::TILE_ROWS * super::GEMM_PANELS * LANES;

impl Stack {
    pub fn new() -> Self {
        Self { sums: vec![0.0; DEPTH_MAX * LEN_MAX], depth: 0 }
    }

    /// Clears the remains of a task that panicked.
    pub fn clear(&mut self) {
        self.depth = 0;
    }

    /// `[merges + 1, len]`: the sums of the `merges` topmost subtrees, which the next leaf
    /// completes, and a place for the leaf's own, with arbitrary content. The caller leaves the new
    /// subtree's sums in the first.
    pub fn push(&mut self, len: usize, merges: usize) -> &mut [f32] {
        let first = self.depth - merges;
        self.depth = first + 1;
        &mut self.sums[first * len..(first + merges + 1) * len]
    }

    /// The tree's sums.
    pub fn pop(&mut self, len: usize) -> &[f32] {
        debug_assert_eq!(self.depth, 1, "one sum is left after the last leaf");
        self.depth = 0;
        &self.sums[..len]
    }
}

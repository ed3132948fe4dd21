//! The leaves of a product's columns, so that every split adds them up in one order.

use std::ops::Range;

use sumtree::{LEAVES_MAX, cover, leaves};

use crate::split::Split;

/// The columns of a row-parallel product, cut into leaves, and each rank's run of them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Leaves {
    /// Columns of each leaf, left to right.
    columns: Vec<Range<usize>>,
    /// The run of leaves of each rank.
    spans: Vec<Range<usize>>,
}

impl Leaves {
    /// `columns` columns in indivisible units of `unit`.
    pub fn new(columns: usize, unit: usize, split: &Split) -> Self {
        let units = columns.div_ceil(unit);
        Self::spread(columns, unit, units.min(LEAVES_MAX), split)
    }

    /// The same in `count` leaves; some are empty if there are fewer units.
    pub(crate) fn spread(columns: usize, unit: usize, count: usize, split: &Split) -> Self {
        let border = |units: usize| (units * unit).min(columns);
        let leaves = leaves(columns.div_ceil(unit), count).into_iter();
        let columns = leaves.map(|leaf| border(leaf.start)..border(leaf.end)).collect();
        Self { columns, spans: split.cut(count) }
    }

    pub fn count(&self) -> usize {
        self.columns.len()
    }

    /// Leaves of every rank, by rank.
    pub fn spans(&self) -> &[Range<usize>] {
        &self.spans
    }

    /// The columns of `rank`.
    pub fn columns(&self, rank: usize) -> Range<usize> {
        let span = &self.spans[rank];
        match span.is_empty() {
            true => 0..0,
            false => self.columns[span.start].start..self.columns[span.end - 1].end,
        }
    }

    /// The end of each of `rank`'s leaves, counted from its first column.
    pub fn leaf_ends(&self, rank: usize) -> Vec<usize> {
        let first_column = self.columns(rank).start;
        let leaves = &self.columns[self.spans[rank].clone()];
        leaves.iter().map(|leaf| leaf.end - first_column).collect()
    }

    /// The end of each of `rank`'s subtrees, counted from its first leaf.
    pub fn part_ends(&self, rank: usize) -> Vec<usize> {
        let span = self.spans[rank].clone();
        let subtrees = cover(self.count(), span.clone());
        subtrees.iter().map(|subtree| subtree.end - span.start).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn split(shares: &[u32]) -> Split {
        Split::new(shares).unwrap()
    }

    #[test]
    fn leaves_end_at_whole_units_and_the_last_may_be_short() {
        let leaves = Leaves::new(160, 32, &split(&[2, 1]));
        assert_eq!(leaves.count(), 5);
        assert_eq!(leaves.spans(), [0..3, 3..5]);
        assert_eq!((leaves.columns(0), leaves.columns(1)), (0..96, 96..160));
        let odd = Leaves::new(100, 32, &split(&[1]));
        assert_eq!(odd.columns(0), 0..100);
        let none = Leaves::new(64, 32, &split(&[1, 1, 1]));
        assert_eq!(none.spans().iter().filter(|span| span.is_empty()).count(), 1);
    }
}

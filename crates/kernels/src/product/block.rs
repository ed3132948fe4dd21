//! A task of a product with many rows, and its sums.

use crate::input::Input;
use crate::matrix::Matrix;
use crate::shared::SharedMut;
use crate::simd::{LANES, Simd, array_of};
use std::ops::Range;

/// The destination of a task's sums.
#[derive(Clone, Copy)]
pub(super) struct Output {
    /// The address of its first row and panel.
    pub first: SharedMut<f32>,
    /// Elements from a row to the next.
    pub stride: usize,
    /// Whether sums bypass the caches; then rows and panels start at multiples of
    /// [`crate::simd::VECTOR_BYTES`], and [`Sums::end`] must be called.
    pub streams: bool,
}

/// One task: some panels and input rows over the columns of a leaf.
#[derive(Clone)]
pub(super) struct Block<'a> {
    pub matrix: &'a Matrix,
    pub input: &'a Input,
    pub panels: Range<usize>,
    pub rows: Range<usize>,
    pub cols: Range<usize>,
}

/// A task's sums of a leaf before and after a run of its columns, above the sums of the subtrees
/// that the leaf completes.
pub(super) struct Sums<'a> {
    /// `[merges + 1, rows, panels, 16]`, the leaf's own sums last; the merged sums are left in the
    /// first.
    values: &'a mut [f32],
    /// The number of subtrees to the leaf's left that its sums are merged with.
    merges: usize,
    rows: usize,
    panels: usize,
    /// Whether the leaf's sums start at zero, whatever `values` contains.
    pub is_first: bool,
    /// Whether this run ends the leaf.
    pub is_last: bool,
    /// The destination of the merged sums, instead of `values`.
    output: Option<Output>,
}

impl<'a> Sums<'a> {
    /// The sums of a block's next leaf; `values` and `merges` are as in the fields.
    pub fn new(
        block: &Block,
        values: &'a mut [f32],
        merges: usize,
        output: Option<Output>,
    ) -> Self {
        let (rows, panels) = (block.rows.len(), block.panels.len());
        Sums { values, merges, rows, panels, is_first: true, is_last: false, output }
    }

    pub fn reborrow(&mut self) -> Sums<'_> {
        Sums { values: &mut *self.values, ..*self }
    }

    /// Elements of one leaf or subtree.
    fn len(&self) -> usize {
        self.rows * self.panels * LANES
    }

    /// The leaf's sums of `R` rows and `P` panels, starting at a row and a panel.
    ///
    /// # Panics
    /// If there are fewer.
    #[inline(always)]
    pub fn load<S: Simd, const P: usize, const R: usize>(
        &self,
        s: S,
        row: usize,
        panel: usize,
    ) -> [[S::F; P]; R] {
        self.check(row + R, panel + P);
        let zero = s.splat(0.0);
        if self.is_first {
            return [[zero; P]; R];
        }
        let at = self.merges * self.len() + (row * self.panels + panel) * LANES;
        let from = self.values.as_ptr();
        // SAFETY: the block is inside, as checked.
        unsafe {
            array_of!(R, [zero; P], r => {
                array_of!(P, zero, p => s.load(from.add(at + (r * self.panels + p) * LANES)))
            })
        }
    }

    /// Stores the sums; after the leaf's last columns, merges them and writes the result to its
    /// destination.
    ///
    /// # Panics
    /// If there are fewer.
    ///
    /// # Safety
    /// The output has room for 16 elements of each panel in each row, and no other user.
    #[inline(always)]
    pub unsafe fn store<S: Simd, const P: usize, const R: usize>(
        &mut self,
        s: S,
        row: usize,
        panel: usize,
        mut sums: [[S::F; P]; R],
    ) {
        self.check(row + R, panel + P);
        let (len, row_len) = (self.len(), self.panels * LANES);
        let at = row * row_len + panel * LANES;
        let first = self.values.as_mut_ptr();
        let merges = if self.is_last { self.merges } else { 0 };
        let own = first.wrapping_add((self.merges - merges) * len + at);
        let (to, stride, streams) = match self.output {
            Some(Output { first, stride, streams }) if self.is_last => {
                (first.ptr().wrapping_add(row * stride + panel * LANES), stride, streams)
            }
            _ => (own, row_len, false),
        };
        // SAFETY: the block is inside, as checked; the caller promises the output.
        unsafe {
            for below in 1..=merges {
                let left = first.add((self.merges - below) * len + at);
                for r in 0..R {
                    for p in 0..P {
                        let left = s.load(left.add(r * row_len + p * LANES));
                        sums[r][p] = s.add(left, sums[r][p]);
                    }
                }
            }
            for r in 0..R {
                for p in 0..P {
                    let to = to.add(r * stride + p * LANES);
                    if streams { s.stream(to, sums[r][p]) } else { s.store(to, sums[r][p]) }
                }
            }
        }
    }

    /// Call it after the last [`Sums::store`].
    #[inline(always)]
    pub fn end<S: Simd>(&self, s: S) {
        if self.is_last && self.output.is_some_and(|output| output.streams) {
            s.end_streams();
        }
    }

    fn check(&self, row_end: usize, panel_end: usize) {
        assert!(row_end <= self.rows && panel_end <= self.panels);
        assert!(self.values.len() == (self.merges + 1) * self.len());
    }
}

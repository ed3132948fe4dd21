//! A task of a product with many rows, and the sums that it makes.

use crate::input::Input;
use crate::matrix::Matrix;
use crate::shared::SharedMut;
use crate::simd::LANES;
use std::ops::Range;

/// Where a task's sums go: its first row and panel, and the distance of the next row, in numbers.
#[derive(Clone, Copy)]
pub(super) struct Output {
    pub first: SharedMut<f32>,
    pub stride: usize,
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

/// A task's sums before and after a run of columns.
pub(super) struct Sums<'a> {
    /// `[rows, panels, 16]`
    pub values: &'a mut [f32],
    pub panels: usize,
    /// Whether they are zero, whatever `values` hold.
    pub is_new: bool,
    /// Where they go instead of back to `values`.
    pub output: Option<Output>,
}

impl Sums<'_> {
    pub fn reborrow(&mut self) -> Sums<'_> {
        Sums { values: &mut *self.values, ..*self }
    }

    /// Where those of a row from a panel on lie, and the distance of the next row.
    pub fn source(&self, row: usize, panel: usize) -> (*const f32, usize) {
        let at = (row * self.panels + panel) * LANES;
        (self.values[at..].as_ptr(), self.panels * LANES)
    }

    /// Where they go.
    pub fn target(&mut self, row: usize, panel: usize) -> (*mut f32, usize) {
        match self.output {
            Some(Output { first, stride }) => {
                (first.ptr().wrapping_add(row * stride + panel * LANES), stride)
            }
            None => {
                let at = (row * self.panels + panel) * LANES;
                (self.values[at..].as_mut_ptr(), self.panels * LANES)
            }
        }
    }
}

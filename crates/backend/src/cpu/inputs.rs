//! Prepared inputs of products, reused between calls.

use kernels::{Forms, Input, Pool};

use super::Rows;

/// The most rows of small inputs: enough for the sequences of a decoding batch.
pub(super) const SMALL_ROWS: usize = 8;

/// Inputs by width, created when a width first occurs.
#[derive(Default)]
pub(super) struct Inputs {
    /// One for each width, with room for the largest step.
    whole: Vec<Input>,
    /// Several for each width, each with room for [`SMALL_ROWS`].
    small: Vec<Vec<Input>>,
}

impl Inputs {
    /// `x`, prepared for products with matrices that need `forms`.
    pub fn whole(&mut self, pool: &Pool, x: &Rows, forms: Forms) -> &Input {
        let input = self.large(x.width, x.rows_max);
        input.load_for(pool, x.values(), x.rows, forms);
        input
    }

    /// `count` inputs of `cols` columns for the caller to load, each with room for `rows` rows: any
    /// number of them for at most [`SMALL_ROWS`] rows, otherwise one. No call with this width has
    /// more than `rows_max` rows.
    pub fn several(
        &mut self,
        cols: usize,
        count: usize,
        rows: usize,
        rows_max: usize,
    ) -> &mut [Input] {
        if rows <= SMALL_ROWS {
            return self.small(cols, count);
        }
        assert_eq!(count, 1, "inputs of many rows come one at a time");
        std::slice::from_mut(self.large(cols, rows_max))
    }

    fn large(&mut self, cols: usize, rows_max: usize) -> &mut Input {
        fitting(&mut self.whole, rows_max, cols, Input::new)
    }

    fn small(&mut self, cols: usize, count: usize) -> &mut [Input] {
        let known = self.small.iter().position(|inputs| inputs[0].cols() == cols);
        let at = known.unwrap_or_else(|| {
            self.small.push(vec![Input::new(SMALL_ROWS, cols)]);
            self.small.len() - 1
        });
        let inputs = &mut self.small[at];
        if inputs.len() < count {
            inputs.resize_with(count, || Input::new(SMALL_ROWS, cols));
        }
        &mut inputs[..count]
    }
}

/// The input of this width. Two models may share it: it has room for the larger model's steps.
pub(super) fn fitting(
    inputs: &mut Vec<Input>,
    rows_max: usize,
    cols: usize,
    new: fn(usize, usize) -> Input,
) -> &mut Input {
    let known = inputs.iter().position(|input| input.cols() == cols);
    let at = known.unwrap_or_else(|| {
        inputs.push(new(rows_max, cols));
        inputs.len() - 1
    });
    if inputs[at].rows_max() < rows_max {
        inputs[at] = new(rows_max, cols);
    }
    &mut inputs[at]
}

//! A product with activations of about 16 bits instead of 8.

use kernels::{Input, Matrix, Pool, Product, multiply};

use super::Rows;
use super::inputs::fitting;

/// Inputs by width, reused between calls.
#[derive(Default)]
pub(super) struct Int16 {
    inputs: Vec<Input>,
}

impl Int16 {
    /// `out = x Wᵀ`, `[rows, matrix.rows]`, for quantised weights.
    pub fn multiply(&mut self, pool: &Pool, x: &Rows, matrix: &Matrix, out: &mut [f32]) {
        let input = fitting(&mut self.inputs, x.rows_max, x.width, Input::new_int16);
        input.load_int16(pool, x.values(), x.rows);
        multiply(pool, [Product::new(input, matrix, out)]);
    }
}

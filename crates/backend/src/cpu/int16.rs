//! A product whose activations have about 16 bits instead of 8.

use kernels::{Input, Matrix, Pool, Product, multiply};

use super::Rows;

/// Kept from call to call, for one width of input.
#[derive(Default)]
pub(super) struct Int16 {
    input: Option<Input>,
}

impl Int16 {
    /// `out = x Wᵀ`, `[rows, matrix.rows]`, for quantised weights.
    pub fn multiply(&mut self, pool: &Pool, x: &Rows, matrix: &Matrix, out: &mut [f32]) {
        let input = self.input.get_or_insert_with(|| Input::new_int16(x.rows_max, x.width));
        input.load_int16(pool, x.values(), x.rows);
        multiply(pool, [Product::new(input, matrix, out)]);
    }
}

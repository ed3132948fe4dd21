//! A product whose activations have about 16 bits: 8, and 8 of what those leave.

use kernels::{Input, Matrix, Pool, Product, multiply};

use super::Rows;

/// Kept from call to call, for one width of input.
#[derive(Default)]
pub(super) struct Fine {
    input: Option<Input>,
    /// The outputs of all rows, then those of their rests.
    terms: Vec<f32>,
}

impl Fine {
    /// `out = x Wᵀ`, `[rows, matrix.rows]`, for quantised weights. Few rows cost little more than
    /// half as many, because it is the weights that take time to come.
    pub fn multiply(&mut self, pool: &Pool, x: &Rows, matrix: &Matrix, out: &mut [f32]) {
        let room = || Input::new(2 * x.rows_max, x.width);
        let input = self.input.get_or_insert_with(room);
        input.load_with_rests(pool, x.values(), x.rows);
        self.terms.resize(2 * out.len(), 0.0);
        multiply(pool, &mut [Product::new(input, matrix, &mut self.terms)]);
        let (near, rests) = self.terms.split_at(out.len());
        for ((out, near), rest) in out.iter_mut().zip(near).zip(rests) {
            *out = near + rest;
        }
    }
}

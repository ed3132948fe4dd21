//! A matrix for each head, for latent attention before and after it attends.

use std::sync::Arc;

use kernels::{Matrix, Pool, Product, multiply};

use super::inputs::{Inputs, SMALL_ROWS};
use super::{Rows, held};

/// Reused by every call.
#[derive(Default)]
pub(super) struct Buffers {
    /// One head's columns of all rows, `[rows, cols]`.
    gathered: Vec<f32>,
    /// Heads' products, `[heads, rows, outputs]`.
    products: Vec<f32>,
}

impl Buffers {
    /// Head `h` of `out` becomes that of `x` times `matrices[h]`ᵀ, for all rows of `x`.
    pub fn multiply(
        &mut self,
        pool: &Pool,
        inputs: &mut Inputs,
        x: &Rows,
        matrices: &[Option<Arc<Matrix>>],
        out: &mut Rows,
    ) {
        let (cols, outputs) = (x.width / matrices.len(), out.width / matrices.len());
        let (rows, width) = (x.rows, out.width);
        // With few rows all heads share one job; with many, the rows of one head are enough work.
        let wave = if rows <= SMALL_ROWS { matrices.len() } else { 1 };
        self.gathered.resize(rows * cols, 0.0);
        self.products.resize(wave * rows * outputs, 0.0);
        let out = out.values_mut();
        for (at, matrices) in matrices.chunks(wave).enumerate() {
            let first = at * wave;
            let prepared = inputs.several(cols, wave, rows, x.rows_max);
            for (head, input) in prepared.iter_mut().enumerate() {
                let gathered = self.gathered.chunks_exact_mut(cols);
                for (x, gathered) in x.values().chunks_exact(x.width).zip(gathered) {
                    gathered.copy_from_slice(&x[(first + head) * cols..][..cols]);
                }
                input.load_for(pool, &self.gathered, rows, held(&matrices[head]).form());
            }
            let outs = self.products.chunks_exact_mut(rows * outputs);
            let jobs = prepared.iter().zip(matrices).zip(outs);
            let product = |((input, matrix), out)| Product::new(input, held(matrix), out);
            multiply(pool, jobs.map(product));
            for (head, product) in self.products.chunks_exact(rows * outputs).enumerate() {
                let at = (first + head) * outputs;
                for (row, values) in product.chunks_exact(outputs).enumerate() {
                    out[row * width + at..][..outputs].copy_from_slice(values);
                }
            }
        }
    }
}

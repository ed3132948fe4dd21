//! Products with a matrix of the file.

use kernels::{Input, Matrix, Pool, Product, add_bias, for_each_row, multiply};

/// Rows of one product: enough to read weights from memory once for many rows, and few enough that
/// hidden rows need little memory.
pub(crate) const CHUNK: usize = 1056;

/// The threads, and the prepared inputs of products, one for each width.
pub(crate) struct Work<'a> {
    pub pool: &'a Pool,
    inputs: Vec<Input>,
}

impl<'a> Work<'a> {
    pub fn new(pool: &'a Pool) -> Self {
        Self { pool, inputs: Vec::new() }
    }

    /// The input of products with matrices of `cols` columns.
    fn input(&mut self, cols: usize) -> &mut Input {
        let known = self.inputs.iter().position(|input| input.cols() == cols);
        let at = known.unwrap_or_else(|| {
            self.inputs.push(Input::new(CHUNK, cols));
            self.inputs.len() - 1
        });
        &mut self.inputs[at]
    }
}

/// A matrix `[outputs, cols]`, with a bias and limits if the file has them.
pub(crate) struct Linear {
    pub matrix: Matrix,
    pub bias: Option<Vec<f32>>,
    pub clamp: Option<Clamp>,
}

/// The smallest and largest numbers of a product's input and output (Gemma 4).
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Clamp {
    pub input: (f32, f32),
    pub output: (f32, f32),
}

impl Linear {
    /// Numbers of an output row.
    pub fn outputs(&self) -> usize {
        self.matrix.rows()
    }

    /// `out = x Wᵀ + bias`; `x`: `[rows, cols]`, at most [`CHUNK`] rows; `out`: `[rows, outputs]`.
    pub fn apply(&self, work: &mut Work<'_>, x: &[f32], out: &mut [f32]) {
        let mut limited = Vec::new();
        let x = match self.clamp {
            Some(Clamp { input, .. }) => {
                limited.extend_from_slice(x);
                clamp(work.pool, &mut limited, self.matrix.cols(), input);
                &limited
            }
            None => x,
        };
        let (pool, cols) = (work.pool, self.matrix.cols());
        let input = work.input(cols);
        input.load_for(pool, x, x.len() / cols, self.matrix.form());
        multiply(pool, [Product::new(input, &self.matrix, out)]);
        if let Some(bias) = &self.bias {
            add_bias(pool, out, bias);
        }
        if let Some(Clamp { output, .. }) = self.clamp {
            clamp(pool, out, self.outputs(), output);
        }
    }

    /// The same into rows of its own.
    pub fn rows(&self, work: &mut Work<'_>, x: &[f32]) -> Vec<f32> {
        let mut out = vec![0.0; x.len() / self.matrix.cols() * self.outputs()];
        self.apply(work, x, &mut out);
        out
    }

    /// Bytes in memory.
    pub fn bytes(&self) -> usize {
        self.matrix.bytes() + self.bias.as_ref().map_or(0, |bias| size_of_val(bias.as_slice()))
    }
}

/// Calls `change` for each row of `x`, `[rows, width]`, on all threads.
pub(crate) fn for_all_rows(
    pool: &Pool,
    x: &mut [f32],
    width: usize,
    change: impl Fn(usize, &mut [f32]) + Sync,
) {
    let rows: Vec<usize> = (0..x.len() / width).collect();
    for_each_row(pool, x, width, &rows, change);
}

/// `x = min(max(x, low), high)`; NaN stays.
fn clamp(pool: &Pool, x: &mut [f32], width: usize, (low, high): (f32, f32)) {
    for_all_rows(pool, x, width, |_, x| x.iter_mut().for_each(|x| *x = x.clamp(low, high)));
}

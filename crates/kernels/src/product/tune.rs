//! The trial that finds this machine's fastest access pattern for weights.

use super::access::{Access, CANDIDATES, CHOSEN};
use super::gemv::Gemv;
use super::parts::Leaves;
use crate::input::{Forms, Input};
use crate::isa::Isa;
use crate::matrix::Matrix;
use crate::pool::Pool;
use crate::shared::SharedMut;
use crate::simd::LANES;
use std::time::Instant;

/// The minimum bytes of a trial, so that they come from memory.
const TRIAL_BYTES_MIN: usize = 48 << 20;

/// The most bytes of a trial: a few milliseconds.
const TRIAL_BYTES_MAX: usize = 96 << 20;

/// Turns of each candidate; the best counts, because delays only ever add time.
const TURNS: usize = 4;

/// Finds the fastest access pattern, with the weights of `matrix`, if they exceed the caches and no
/// trial has run before. All products of the process use the result.
pub fn tune(pool: &Pool, matrix: &Matrix) {
    if matrix.bytes() >= TRIAL_BYTES_MIN {
        CHOSEN.get_or_init(|| fastest(pool, matrix));
    }
}

fn fastest(pool: &Pool, matrix: &Matrix) -> Access {
    if Isa::chosen() == Isa::Scalar {
        // Bound neither by memory nor by this kernel.
        return CANDIDATES[0];
    }
    let mut input = Input::new(1, matrix.cols());
    input.load_for(pool, &vec![1.0; matrix.cols()], 1, Forms::BOTH);
    let mut best = [f64::INFINITY; CANDIDATES.len()];
    // Candidates take turns, so that other load on the machine affects them equally.
    for _ in 0..TURNS {
        for (best, access) in best.iter_mut().zip(CANDIDATES) {
            let start = Instant::now();
            read(access, pool, matrix, &input);
            *best = best.min(start.elapsed().as_secs_f64());
        }
    }
    let order = |a: &(f64, Access), b: &(f64, Access)| a.0.total_cmp(&b.0);
    let fastest = best.into_iter().zip(CANDIDATES).min_by(order);
    fastest.expect("there are candidates").1
}

/// Multiplies the first [`TRIAL_BYTES_MAX`] of `matrix` by `input` and drops the result.
fn read(access: Access, pool: &Pool, matrix: &Matrix, input: &Input) {
    let panels = matrix.panels().min(TRIAL_BYTES_MAX / matrix.panel(0).len());
    let mut out = vec![0.0_f32; panels * LANES];
    let out = SharedMut::new(out.as_mut_ptr());
    let cols = matrix.cols();
    let row = Gemv { access, matrix, input, leaves: Leaves::whole(&cols), out };
    pool.run_in_runs(panels, |panels| {
        // SAFETY: each run has its own panels, and `out` has room for all of them.
        unsafe { row.multiply(Isa::chosen(), panels) };
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::matrix::Packer;
    use gguf::TensorType;

    fn zeros(pool: &Pool, rows: usize, cols: usize) -> Matrix {
        let mut packer = Packer::new(TensorType::Q8_0, rows, cols).unwrap();
        packer.push(pool, &vec![0; rows * TensorType::Q8_0.row_bytes(cols)]).unwrap();
        packer.finish().unwrap()
    }

    #[test]
    fn a_trial_ends_with_a_candidate_for_few_panels_and_many() {
        let pool = Pool::new(2).unwrap();
        for rows in [1, 17, 160] {
            assert!(CANDIDATES.contains(&fastest(&pool, &zeros(&pool, rows, 64))));
        }
    }

    #[test]
    fn a_small_matrix_decides_nothing() {
        let pool = Pool::new(1).unwrap();
        tune(&pool, &zeros(&pool, 16, 64));
        assert_eq!(CHOSEN.get(), None);
    }
}

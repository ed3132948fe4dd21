//! How the weights of a product with one row are asked for, found by trial on this machine.
//!
//! Such a product is bound by memory, and what fills a core's memory pipeline differs between
//! machines: an AMD Zen 5 wants four streams at once, each asked for 2 KB ahead; a Zen 4 reads a
//! third slower so, and wants one stream, asked for in the second-level cache or left to the
//! machine (NOTES.md has the figures). The choice changes no bit of a result.

use super::gemv::OneRow;
use super::parts::Leaves;
use crate::input::{Forms, Input};
use crate::isa::Isa;
use crate::matrix::Matrix;
use crate::pool::Pool;
use crate::shared::SharedMut;
use crate::simd::{LANES, Simd};
use std::sync::OnceLock;
use std::time::Instant;

/// How one thread walks over weights.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Access {
    /// Panels that are read side by side: 1 or 4.
    pub streams: usize,
    /// Bytes between what is used and what is asked for; 0 leaves it to the machine.
    pub ahead: usize,
    /// Where it is asked for.
    pub level: Level,
}

/// A cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Level {
    L1,
    L2,
}

impl Level {
    /// Where the trial found that memory is best asked for.
    pub fn chosen() -> Self {
        Access::chosen().level
    }

    /// Asks for the cache line at `line`; any address will do.
    #[inline(always)]
    pub fn fetch<S: Simd>(self, s: S, line: *const u8) {
        match self {
            Level::L1 => s.prefetch(line),
            Level::L2 => s.prefetch_l2(line),
        }
    }
}

/// Bytes of a cache line.
const LINE: usize = 64;

/// What is tried, the one that is used without a trial first.
const CANDIDATES: [Access; 5] = [
    Access { streams: 1, ahead: 1024, level: Level::L2 },
    Access { streams: 1, ahead: 0, level: Level::L2 },
    Access { streams: 1, ahead: 2048, level: Level::L1 },
    Access { streams: 4, ahead: 1024, level: Level::L2 },
    Access { streams: 4, ahead: 2048, level: Level::L1 },
];

/// Bytes of weights that a trial reads at least, so that they come from memory.
const TRIAL_BYTES_MIN: usize = 48 << 20;

/// Bytes that it reads at most: a few milliseconds.
const TRIAL_BYTES_MAX: usize = 96 << 20;

/// Each candidate's turns, of which the best counts: others only add delays to the truth.
const TURNS: usize = 4;

static CHOSEN: OnceLock<Access> = OnceLock::new();

impl Access {
    /// The best of the trial, or the first candidate before one.
    pub fn chosen() -> Self {
        CHOSEN.get().copied().unwrap_or(CANDIDATES[0])
    }

    /// Asks for what lies `ahead` of the `bytes` bytes at `from`.
    #[inline(always)]
    pub fn fetch<S: Simd>(self, s: S, from: *const u8, bytes: usize) {
        if self.ahead == 0 {
            return;
        }
        for line in 0..bytes.div_ceil(LINE) {
            self.level.fetch(s, from.wrapping_add(self.ahead + line * LINE));
        }
    }
}

/// Finds out how this machine reads weights fastest, with those of `matrix`, if they are more than
/// caches hold and nothing has found it out before. All products of the process use what is found.
pub fn tune(pool: &Pool, matrix: &Matrix) {
    if matrix.bytes() >= TRIAL_BYTES_MIN {
        CHOSEN.get_or_init(|| fastest(pool, matrix));
    }
}

fn fastest(pool: &Pool, matrix: &Matrix) -> Access {
    let mut input = Input::new(1, matrix.cols());
    input.load_for(pool, &vec![1.0; matrix.cols()], 1, Forms::BOTH);
    let mut best = [f64::INFINITY; CANDIDATES.len()];
    // Candidates take turns, so that a neighbour's load on the machine strikes them alike.
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

/// Multiplies the first [`TRIAL_BYTES_MAX`] of `matrix` by `input` and forgets the result.
fn read(access: Access, pool: &Pool, matrix: &Matrix, input: &Input) {
    let panels = matrix.panels().min(TRIAL_BYTES_MAX / matrix.panel(0).len());
    let mut out = vec![0.0_f32; panels * LANES];
    let out = SharedMut::new(out.as_mut_ptr());
    let cols = matrix.cols();
    let row = OneRow { access, matrix, input, leaves: Leaves::whole(&cols), out };
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

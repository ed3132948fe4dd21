//! Several residual streams, and their mixing by a half of a layer (hyper-connections).
//!
//! A half reads a weighted sum of the streams, or the mean of the gated streams. Its output is
//! added to each stream, times a weight. With a matrix, each stream also becomes a sum of all. All
//! sums run over the streams in their order, in plain multiplications and additions.

use crate::math::finite;
use crate::pool::Pool;
use crate::routing::{sigmoid_in_place, softmax};
use crate::rows::for_each_run;
use crate::shared::SharedMut;

/// The mixing of the streams, besides each row's own weights.
#[derive(Debug, Clone)]
pub enum StreamMix {
    /// By weights, and a matrix whose rows and columns add up to nearly one (manifold-constrained
    /// hyper-connections, arXiv 2512.24880).
    Matrix(MatrixMix),
    /// By gates, over `count` streams that are already gated (Qwen3.8-Flash-Next).
    Gates { count: usize },
}

impl StreamMix {
    /// Turns each row's numbers into weights, in place. With a matrix these are the `[rows, count]`
    /// weights of the input, or `[rows, (2 + count) * count]`: then also those of the output and
    /// the matrix, from streams (rows) to streams (columns). With gates these are the `[rows,
    /// count]` weights of the output, `2 * sigmoid(number / count)`. An infinite or NaN number
    /// makes the weight of its stream, or its row's matrix, NaN.
    ///
    /// # Panics
    /// If `numbers` is not whole rows.
    pub fn weigh(&self, numbers: &mut [f32]) {
        match self {
            Self::Matrix(mix) => mix.weigh(numbers),
            Self::Gates { count } => {
                numbers.iter_mut().for_each(|number| *number /= *count as f32);
                sigmoid_in_place(numbers);
                numbers.iter_mut().for_each(|weight| *weight *= 2.0);
            }
        }
    }

    /// The half's input: `out`, `[rows, width]`, from `x`, `[rows, count, width]`. With a matrix it
    /// is a sum weighted by the first `count` of each row's `weights`, with gates a mean.
    ///
    /// # Panics
    /// If the shapes do not match.
    pub fn read(&self, pool: &Pool, x: &[f32], weights: &[f32], out: &mut [f32]) {
        match self {
            Self::Matrix(mix) => mix.read(pool, x, weights, out),
            Self::Gates { count } => mean(pool, x, (*count, weights.len() / count), out),
        }
    }

    /// Updates the streams `x`, `[rows, count, width]`, with the half's output, `[rows, width]`.
    ///
    /// # Panics
    /// If the shapes do not match.
    pub fn give(&self, pool: &Pool, x: &mut [f32], given: &[f32], weights: &[f32]) {
        match self {
            Self::Matrix(mix) => mix.give(pool, x, given, weights),
            Self::Gates { count } => give_each(pool, x, given, (*count, weights)),
        }
    }
}

/// The mean of `count` streams of `rows` rows.
fn mean(pool: &Pool, x: &[f32], (count, rows): (usize, usize), out: &mut [f32]) {
    let width = out.len() / rows.max(1);
    assert_eq!(x.len(), out.len() * count, "there are {count} streams");
    assert_eq!(out.len(), rows * width, "rows of {width} numbers");
    let (target, part) = (SharedMut::new(out.as_mut_ptr()), 1.0 / count as f32);
    for_each_run(pool, rows, count * width, |row| {
        // SAFETY: the row lies inside `out`, and no other task has it.
        let out = unsafe { std::slice::from_raw_parts_mut(target.ptr().add(row * width), width) };
        let mut streams = x[row * count * width..][..count * width].chunks_exact(width);
        out.copy_from_slice(streams.next().expect("there is one"));
        streams.for_each(|x| out.iter_mut().zip(x).for_each(|(out, x)| *out += x));
        out.iter_mut().for_each(|out| *out *= part);
    });
}

/// Adds the half's output to each stream, times its weight, `[rows, count]`.
fn give_each(pool: &Pool, x: &mut [f32], given: &[f32], (count, weights): (usize, &[f32])) {
    let rows = weights.len() / count;
    let width = given.len() / rows.max(1);
    assert_eq!(x.len(), given.len() * count, "there are {count} streams");
    assert_eq!(given.len(), rows * width, "rows of {width} numbers");
    let target = SharedMut::new(x.as_mut_ptr());
    for_each_run(pool, rows, count * width, |row| {
        let (all, given) = (count * width, &given[row * width..][..width]);
        // SAFETY: the row lies inside `x`, and no other task has it.
        let x = unsafe { std::slice::from_raw_parts_mut(target.ptr().add(row * all), all) };
        for (x, weight) in x.chunks_exact_mut(width).zip(&weights[row * count..]) {
            x.iter_mut().zip(given).for_each(|(x, given)| *x += given * weight);
        }
    });
}

/// Mixing by a matrix.
#[derive(Debug, Clone)]
pub struct MatrixMix {
    /// Residual streams.
    pub count: usize,
    /// The number of normalisations of the matrix's rows and columns.
    pub rounds: usize,
    /// Added to the divisors, and to the weights of the half's input.
    pub eps: f32,
    /// The factors of a row's numbers: for the weights of the half's input, of its output, and for
    /// the matrix.
    pub scale: [f32; 3],
    /// Added to them afterwards, `[(2 + count) * count]`.
    pub base: Vec<f32>,
}

impl MatrixMix {
    fn weigh(&self, numbers: &mut [f32]) {
        let (count, width) = (self.count, self.base.len());
        assert!(numbers.len().is_multiple_of(width), "rows must be {width} long");
        for row in numbers.chunks_exact_mut(width) {
            for (at, (number, base)) in row.iter_mut().zip(&self.base).enumerate() {
                *number = finite(*number * self.scale[(at / count).min(2)] + base);
            }
            let (read, rest) = row.split_at_mut(count);
            sigmoid_in_place(read);
            read.iter_mut().for_each(|weight| *weight += self.eps);
            if rest.is_empty() {
                continue;
            }
            let (given, matrix) = rest.split_at_mut(count);
            sigmoid_in_place(given);
            given.iter_mut().for_each(|weight| *weight *= 2.0);
            self.normalise(matrix);
        }
    }

    /// Sinkhorn's rounds, the first row by row as a softmax.
    fn normalise(&self, matrix: &mut [f32]) {
        let (count, eps) = (self.count, self.eps);
        for row in matrix.chunks_exact_mut(count) {
            softmax(row);
            row.iter_mut().for_each(|weight| *weight += eps);
        }
        for round in 0..self.rounds {
            if round > 0 {
                for row in matrix.chunks_exact_mut(count) {
                    let sum = row.iter().sum::<f32>() + eps;
                    row.iter_mut().for_each(|weight| *weight /= sum);
                }
            }
            for column in 0..count {
                let sum = matrix.iter().skip(column).step_by(count).sum::<f32>() + eps;
                let weights = matrix.iter_mut().skip(column).step_by(count);
                weights.for_each(|weight| *weight /= sum);
            }
        }
    }

    fn read(&self, pool: &Pool, x: &[f32], weights: &[f32], out: &mut [f32]) {
        let (count, of_row) = (self.count, self.base.len());
        let rows = weights.len() / of_row;
        assert_eq!(x.len(), out.len() * count, "there are {count} streams");
        let width = out.len() / rows.max(1);
        assert_eq!(out.len(), rows * width, "rows of {width} numbers");
        let target = SharedMut::new(out.as_mut_ptr());
        for_each_run(pool, rows, count * width, |row| {
            // SAFETY: the row lies inside `out`, and no other task has it.
            let out =
                unsafe { std::slice::from_raw_parts_mut(target.ptr().add(row * width), width) };
            let weights = &weights[row * of_row..][..count];
            out.fill(0.0);
            for (stream, weight) in weights.iter().enumerate() {
                let stream = &x[(row * count + stream) * width..][..width];
                out.iter_mut().zip(stream).for_each(|(out, x)| *out += x * weight);
            }
        });
    }

    fn give(&self, pool: &Pool, x: &mut [f32], given: &[f32], weights: &[f32]) {
        let (count, of_row) = (self.count, self.base.len());
        let rows = weights.len() / of_row;
        assert_eq!(of_row, (2 + count) * count, "these weights are of what is read alone");
        assert_eq!(x.len(), given.len() * count, "there are {count} streams");
        let width = given.len() / rows.max(1);
        assert_eq!(given.len(), rows * width, "rows of {width} numbers");
        let target = SharedMut::new(x.as_mut_ptr());
        for_each_run(pool, rows, count * count * width, |row| {
            let all = count * width;
            // SAFETY: the row lies inside `x`, and no other task has it.
            let x = unsafe { std::slice::from_raw_parts_mut(target.ptr().add(row * all), all) };
            let weights = &weights[row * of_row..][..of_row];
            let given = &given[row * width..][..width];
            mix(x, given, &weights[count..]);
        });
    }
}

/// One row: `weights` of the half's output, then the matrix.
fn mix(x: &mut [f32], given: &[f32], weights: &[f32]) {
    let (width, count) = (given.len(), x.len() / given.len());
    let (of_given, matrix) = weights.split_at(count);
    let mut old = [[0.0; RUN]; STREAMS_MAX];
    for (run, given) in given.chunks(RUN).enumerate() {
        let (first, len) = (run * RUN, given.len());
        for (stream, old) in old[..count].iter_mut().enumerate() {
            old[..len].copy_from_slice(&x[stream * width + first..][..len]);
        }
        for to in 0..count {
            let x = &mut x[to * width + first..][..len];
            x.iter_mut().zip(given).for_each(|(x, given)| *x = given * of_given[to]);
            for (from, old) in old[..count].iter().enumerate() {
                let weight = matrix[from * count + to];
                x.iter_mut().zip(old).for_each(|(x, old)| *x += old * weight);
            }
        }
    }
}

/// The most streams, and the elements of each that are mixed at once.
const STREAMS_MAX: usize = 16;
const RUN: usize = 64;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_matrix_keeps_what_the_streams_add_up_to() {
        let (count, width) = (4, 3);
        let base = vec![0.1; (2 + count) * count];
        let scale = [1.0, 0.5, 2.0];
        let mix = StreamMix::Matrix(MatrixMix { count, rounds: 20, eps: 1e-6, scale, base });
        let pool = Pool::new(2).unwrap();
        let mut weights: Vec<f32> = (0..2 * 24).map(|i| (i as f32 * 0.7).sin()).collect();
        mix.weigh(&mut weights);
        let mut x: Vec<f32> = (0..2 * count * width).map(|i| (i as f32 * 1.3).cos()).collect();
        let before = x.clone();
        let given = [1.0, 2.0, 3.0, -1.0, 0.5, 0.0];
        mix.give(&pool, &mut x, &given, &weights);
        for row in 0..2 {
            let of_given: f32 = weights[row * 24 + count..][..count].iter().sum();
            for at in 0..width {
                let sum = |x: &[f32]| -> f32 {
                    (0..count).map(|stream| x[(row * count + stream) * width + at]).sum()
                };
                let expected = sum(&before) + of_given * given[row * width + at];
                assert!((sum(&x) - expected).abs() < 1e-4, "{} {expected}", sum(&x));
            }
        }
        let mut read = [0.0; 6];
        mix.read(&pool, &before, &weights, &mut read);
        let expected: f32 =
            (0..count).map(|stream| before[stream * width + 1] * weights[stream]).sum();
        assert!((read[1] - expected).abs() < 1e-6, "{} {expected}", read[1]);
    }

    #[test]
    fn a_number_that_is_not_finite_leaves_no_weight_of_its_kind() {
        let count = 4;
        let matrix = MatrixMix {
            count,
            rounds: 3,
            eps: 1e-6,
            scale: [1.0; 3],
            base: vec![0.1; (2 + count) * count],
        };
        let (matrix, gates) = (StreamMix::Matrix(matrix), StreamMix::Gates { count });
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            for at in 0..(2 + count) * count {
                let mut weights = [0.5; 24];
                weights[at] = bad;
                matrix.weigh(&mut weights);
                let kind = if at < 2 * count { at..at + 1 } else { 2 * count..24 };
                assert!(weights[kind].iter().all(|weight| weight.is_nan()), "{bad} at {at}");
            }
            let mut weights = [0.5, bad, 0.5, 0.5];
            gates.weigh(&mut weights);
            assert!(weights[1].is_nan() && weights[0].is_finite(), "{weights:?}");
        }
    }

    #[test]
    fn gates_leave_a_mean_and_what_is_given_is_weighed() {
        let (pool, mix) = (Pool::new(2).unwrap(), StreamMix::Gates { count: 2 });
        let mut weights = [0.0, 2.0, -2.0, 0.0];
        mix.weigh(&mut weights);
        let half = 2.0 / (1.0 + (-1.0_f32).exp());
        for (found, due) in weights.iter().zip([1.0, half, 2.0 - half, 1.0]) {
            assert!((found - due).abs() < 1e-6, "{found} {due}");
        }
        let mut x = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0];
        let mut read = [0.0; 4];
        mix.read(&pool, &x, &weights, &mut read);
        assert_eq!(read, [2.0, 3.0, 6.0, 7.0]);
        mix.give(&pool, &mut x, &[1.0, 0.0, 0.0, 1.0], &[1.0, 2.0, 3.0, 4.0]);
        assert_eq!(x, [2.0, 2.0, 5.0, 4.0, 5.0, 9.0, 7.0, 12.0]);
    }
}

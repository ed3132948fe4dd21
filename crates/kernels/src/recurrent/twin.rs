//! The layers without states, steps or vectors: a sequence from its first row to its last, in f32
//! in the order of the module's doc, and in f64 by the papers' formulas.

use super::layer::{RecurrentShape, RecurrentWeights, Rule};
use crate::math;
use crate::simd::fused::fused;
use crate::simd::scalar::Scalar;

/// A sequence's inputs, as in [`super::RecurrentRows`].
#[derive(Debug, Clone, Default)]
pub struct Sequence {
    pub rows: usize,
    pub q: Vec<f32>,
    pub k: Vec<f32>,
    pub v: Vec<f32>,
    pub decay: Vec<f32>,
    pub beta: Vec<f32>,
}

/// Applies one of the crate's functions of 16 lanes to one number.
macro_rules! one {
    ($name:ident, $x:expr) => {
        math::$name(Scalar, [$x; 16])[0]
    };
}

/// Halves are added until one of 16 is left.
fn halves(mut x: [f32; 16]) -> f32 {
    for half in [8, 4, 2, 1] {
        for i in 0..half {
            x[i] += x[i + half];
        }
    }
    x[0]
}

/// A channel's convolution at `row`; `x` gives the channel at each row.
fn convolve(taps: &[f32], bias: f32, row: usize, x: impl Fn(usize) -> f32) -> f32 {
    let mut sum = bias;
    for (tap, weight) in taps.iter().enumerate() {
        let at = (row + tap + 1).checked_sub(taps.len());
        sum = fused(at.map_or(0.0, &x), *weight, sum);
    }
    sum
}

/// One head's q, k or v at `row`: convolution, SiLU, length.
fn head(
    (x, conv, bias): (&[f32], &[f32], &[f32]),
    (heads, dim, taps): (usize, usize, usize),
    (row, head): (usize, usize),
    length: Option<f32>,
) -> Vec<f32> {
    let channels = head * dim..(head + 1) * dim;
    let mut out: Vec<f32> = channels
        .map(|channel| {
            let bias = bias.get(channel).copied().unwrap_or(0.0);
            let taps = &conv[channel * taps..(channel + 1) * taps];
            let sum = convolve(taps, bias, row, |row| x[row * heads * dim + channel]);
            one!(silu, sum)
        })
        .collect();
    if let Some(length) = length {
        let mut squares = [0.0_f32; 16];
        for (i, x) in out.iter().enumerate() {
            squares[i % 16] = fused(*x, *x, squares[i % 16]);
        }
        let factor = 1.0 / (halves(squares) + 1e-6).sqrt() * length;
        out.iter_mut().for_each(|x| *x *= factor);
    }
    out
}

/// `sum x[i] * s[i][column]`, as one sum or two, over even and odd i.
fn product(x: &[f32], state: &[f32], v_dim: usize, column: usize, parts: usize) -> f32 {
    let mut sums = [0.0_f32; 2];
    for (i, x) in x.iter().enumerate() {
        sums[i % parts] = fused(*x, state[i * v_dim + column], sums[i % parts]);
    }
    sums[0] + sums[1]
}

/// The layer's output for a sequence, `[rows, v_heads * v_dim]`, bit by bit.
pub fn run(shape: &RecurrentShape, weights: &RecurrentWeights, x: &Sequence) -> Vec<f32> {
    if shape.rule == Rule::Convolution {
        return short_convolution(shape, weights, x);
    }
    let mut out = vec![0.0; x.rows * shape.v_width()];
    for v_head in 0..shape.v_heads {
        let mut state = vec![0.0; shape.k_dim * shape.v_dim];
        for row in 0..x.rows {
            let at = row * shape.v_width() + v_head * shape.v_dim;
            let out = &mut out[at..at + shape.v_dim];
            step(shape, weights, x, (row, v_head), &mut state, out);
        }
    }
    out
}

fn step(
    shape: &RecurrentShape,
    weights: &RecurrentWeights,
    x: &Sequence,
    (row, v_head): (usize, usize),
    state: &mut [f32],
    out: &mut [f32],
) {
    let RecurrentWeights { conv_q, conv_k, conv_v, bias_q, bias_k, bias_v, a, dt, skip } = weights;
    let (k_heads, k_dim, v_heads, v_dim) = (shape.k_heads, shape.k_dim, shape.v_heads, shape.v_dim);
    let taps = shape.taps;
    let k_head = shape.k_of_v[v_head] as usize;
    let (k_length, q_length) = match shape.rule {
        Rule::Mamba => (None, None),
        _ => (Some(1.0), Some(1.0 / (k_dim as f32).sqrt())),
    };
    let keys = (k_heads, k_dim, taps);
    let q = head((&x.q, conv_q, bias_q), keys, (row, k_head), q_length);
    let k = head((&x.k, conv_k, bias_k), keys, (row, k_head), k_length);
    let v = head((&x.v, conv_v, bias_v), (v_heads, v_dim, taps), (row, v_head), None);
    let a = a[v_head];
    // With one decay a head, the index in the key does not matter.
    let by_channel = shape.rule == Rule::DeltaByChannel;
    let sum = |i: usize| {
        let channel = if by_channel { v_head * k_dim + i } else { v_head };
        x.decay[row * shape.decay_width() + channel] + dt[channel]
    };
    let raw_step = |i: usize| one!(softplus, sum(i));
    for i in 0..k_dim {
        let decay = match shape.decay_bound {
            None => one!(exp, raw_step(i) * a),
            Some(bound) => one!(exp, one!(sigmoid, sum(i) * -a) * bound),
        };
        for column in 0..v_dim {
            state[i * v_dim + column] *= decay;
        }
    }
    for column in 0..v_dim {
        let d = if shape.rule == Rule::Mamba {
            raw_step(0) * v[column]
        } else {
            let beta = one!(sigmoid, x.beta[row * v_heads + v_head]);
            beta * (v[column] - product(&k, state, v_dim, column, 2))
        };
        for i in 0..k_dim {
            let s = &mut state[i * v_dim + column];
            *s = fused(k[i], d, *s);
        }
        let parts = if shape.rule == Rule::Mamba { 2 } else { 1 };
        out[column] = product(&q, state, v_dim, column, parts);
        if shape.rule == Rule::Mamba {
            out[column] = fused(skip[v_head], v[column], out[column]);
        }
    }
}

fn short_convolution(shape: &RecurrentShape, weights: &RecurrentWeights, x: &Sequence) -> Vec<f32> {
    let (width, taps) = (shape.v_width(), shape.taps);
    let place = |at: usize| (at / width, at % width);
    (0..x.rows * width)
        .map(|at| {
            let (row, channel) = place(at);
            let bias = weights.bias_v.get(channel).copied().unwrap_or(0.0);
            let filter = &weights.conv_v[channel * taps..(channel + 1) * taps];
            let u = |row: usize| x.k[row * width + channel] * x.v[row * width + channel];
            x.q[at] * convolve(filter, bias, row, u)
        })
        .collect()
}

/// The same in f64 with the system's functions, by the papers' formulas.
pub fn exact(shape: &RecurrentShape, weights: &RecurrentWeights, x: &Sequence) -> Vec<f64> {
    let RecurrentShape { rule, k_heads, v_heads, k_dim, v_dim, taps, .. } = *shape;
    let silu = |x: f64| x / (1.0 + (-x).exp());
    let conv = |x: &dyn Fn(usize, usize) -> f64, w: &[f32], b: &[f32], row: usize, c: usize| {
        let taps = (0..taps.min(row + 1))
            .map(|back| x(row - back, c) * f64::from(w[c * taps + taps - 1 - back]));
        taps.sum::<f64>() + b.get(c).map_or(0.0, |b| f64::from(*b))
    };
    let of = |x: &[f32], width: usize, row: usize, c: usize| f64::from(x[row * width + c]);
    let (k_width, v_width) = (k_heads * k_dim, v_heads * v_dim);
    let w = weights;
    let mut out = vec![0.0; x.rows * v_width];
    if rule == Rule::Convolution {
        let u = |row, c| of(&x.k, v_width, row, c) * of(&x.v, v_width, row, c);
        for (at, out) in out.iter_mut().enumerate() {
            let (row, c) = (at / v_width, at % v_width);
            *out = f64::from(x.q[at]) * conv(&u, &w.conv_v, &w.bias_v, row, c);
        }
        return out;
    }
    let q_of = |row, c| silu(conv(&|r, c| of(&x.q, k_width, r, c), &w.conv_q, &w.bias_q, row, c));
    let k_of = |row, c| silu(conv(&|r, c| of(&x.k, k_width, r, c), &w.conv_k, &w.bias_k, row, c));
    let v_of = |row, c| silu(conv(&|r, c| of(&x.v, v_width, r, c), &w.conv_v, &w.bias_v, row, c));
    for h in 0..v_heads {
        let mut state = vec![0.0_f64; k_dim * v_dim];
        let k_head = shape.k_of_v[h] as usize;
        for row in 0..x.rows {
            let mut q: Vec<f64> = (0..k_dim).map(|i| q_of(row, k_head * k_dim + i)).collect();
            let mut k: Vec<f64> = (0..k_dim).map(|i| k_of(row, k_head * k_dim + i)).collect();
            if rule != Rule::Mamba {
                for x in [&mut q, &mut k] {
                    let length = (x.iter().map(|x| x * x).sum::<f64>() + 1e-6).sqrt();
                    x.iter_mut().for_each(|x| *x /= length);
                }
                q.iter_mut().for_each(|q| *q /= (k_dim as f64).sqrt());
            }
            let raw = |i: usize| {
                let c = if rule == Rule::DeltaByChannel { h * k_dim + i } else { h };
                of(&x.decay, shape.decay_width(), row, c) + f64::from(w.dt[c])
            };
            let step = |i: usize| raw(i).exp().ln_1p();
            for i in 0..k_dim {
                let a = f64::from(w.a[h]);
                let g = match shape.decay_bound {
                    None => (a * step(i)).exp(),
                    Some(bound) => (f64::from(bound) / (1.0 + (a * raw(i)).exp())).exp(),
                };
                state[i * v_dim..(i + 1) * v_dim].iter_mut().for_each(|s| *s *= g);
            }
            for c in 0..v_dim {
                let v = v_of(row, h * v_dim + c);
                let seen: f64 = (0..k_dim).map(|i| k[i] * state[i * v_dim + c]).sum();
                let d = if rule == Rule::Mamba {
                    step(0) * v
                } else {
                    (v - seen) / (1.0 + (-of(&x.beta, v_heads, row, h)).exp())
                };
                (0..k_dim).for_each(|i| state[i * v_dim + c] += k[i] * d);
                let sum: f64 = (0..k_dim).map(|i| q[i] * state[i * v_dim + c]).sum();
                let skip = if rule == Rule::Mamba { f64::from(w.skip[h]) * v } else { 0.0 };
                out[row * v_width + h * v_dim + c] = sum + skip;
            }
        }
    }
    out
}

//! Computes the state's factors from a row's raw decay and beta.

use super::layer::Rule;
use super::rows::Columns;
use crate::isa::Kernel;
use crate::math::{exp, sigmoid, softplus, tainted};
use crate::norm::{load_padded, store_part};
use crate::simd::{LANES, Simd};

/// Decays of all rows of a segment: `g = exp(a * softplus(decay + dt))`, or with a bound
/// `g = exp(bound * sigmoid(-a * (decay + dt)))`.
pub(super) struct Decays<'a> {
    pub rule: Rule,
    pub bound: Option<f32>,
    pub decay: &'a Columns,
    /// One for each column, or one for all.
    pub a: &'a [f32],
    pub dt: &'a [f32],
    /// g, `[rows, width]`, rows `stride` apart.
    pub out: *mut f32,
    /// As `out`: softplus(decay + dt), only for Mamba.
    pub steps: *mut f32,
    pub stride: usize,
    pub rows: usize,
}

impl Kernel for Decays<'_> {
    type Out = ();
    const WIDE: bool = false;

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let width = self.decay.width;
        for row in 0..self.rows {
            // SAFETY: rows of these columns are `width` long.
            let decay = unsafe { std::slice::from_raw_parts(self.decay.at(row as isize), width) };
            for first in (0..width).step_by(LANES) {
                let len = LANES.min(width - first);
                let a = match self.a {
                    [a] => s.splat(*a),
                    a => load_padded(s, &a[first..first + len]),
                };
                let decay = load_padded(s, &decay[first..first + len]);
                let dt = load_padded(s, &self.dt[first..first + len]);
                let sum = s.add(decay, dt);
                let (step, factor) = match self.bound {
                    None => (softplus(s, sum), a),
                    Some(bound) => {
                        let turned = s.mul(sum, s.sub(s.splat(0.0), a));
                        (sigmoid(s, turned), s.splat(bound))
                    }
                };
                // A state must not depend on a decay of zero that came from an infinity.
                let decay = tainted(s, tainted(s, exp(s, s.mul(step, factor)), sum), a);
                let at = row * self.stride + first;
                // SAFETY: the caller has room for the rows.
                unsafe {
                    let out = std::slice::from_raw_parts_mut(self.out.add(at), len);
                    store_part(s, out, decay);
                    if self.rule == Rule::Mamba {
                        let steps = std::slice::from_raw_parts_mut(self.steps.add(at), len);
                        store_part(s, steps, step);
                    }
                }
            }
        }
    }
}

/// `sigmoid(beta)` of all rows of a segment.
pub(super) struct Betas<'a> {
    pub beta: &'a Columns,
    /// `[rows, width]`.
    pub out: *mut f32,
    pub rows: usize,
}

impl Kernel for Betas<'_> {
    type Out = ();
    const WIDE: bool = false;

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let width = self.beta.width;
        for row in 0..self.rows {
            // SAFETY: rows of these columns and of the output are `width` long, and the caller has
            // room for the rows.
            let (beta, out) = unsafe {
                (
                    std::slice::from_raw_parts(self.beta.at(row as isize), width),
                    std::slice::from_raw_parts_mut(self.out.add(row * width), width),
                )
            };
            for (out, beta) in out.chunks_mut(LANES).zip(beta.chunks(LANES)) {
                let beta = load_padded(s, beta);
                store_part(s, out, tainted(s, sigmoid(s, beta), beta));
            }
        }
    }
}

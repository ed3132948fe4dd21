//! From dot products to weights: the softmax of query vectors, side by side, over one page, and its
//! end: merging spans, and dividing by the sum.
//!
//! Weights are powers of two: scores are multiplied by log2 e, and running maxima have the same
//! unit. A NaN score does not affect the maximum, but its weight is NaN, and so is the query's sum.

use super::chosen::ALL;
use super::page::{Ahead, PAGE_POSITIONS, POS_VECTORS, Page, Query, States};
use crate::isa::Kernel;
use crate::math::{exp2, finite, tanh};
use crate::norm::load_padded;
use crate::simd::{LANES, Simd, array_of};
use std::f32::consts::LOG2_E;

/// Numbers of `R` queries for each position of a page.
#[repr(align(64))]
pub(super) struct Weights<const R: usize>(pub [[f32; PAGE_POSITIONS]; R]);

/// The softmax of `R` queries from `first` on: turns their dot products into weights, updates their
/// running maxima and sums, and returns the factors of their earlier outputs. The queries run side
/// by side because each is a chain of dependent operations.
///
/// A separate kernel, shared by the tiles of all kinds of cache.
pub(super) struct PageSoftmax<'a, 'q, const R: usize> {
    pub page: &'a Page<'a, 'q>,
    pub first: usize,
    /// The factors of the dot products.
    pub scales: [f32; R],
    pub states: &'a mut States,
    pub weights: &'a mut Weights<R>,
    pub ahead: Ahead,
}

impl<const R: usize> PageSoftmax<'_, '_, R> {
    /// The number of steps for prefetching.
    pub const STEPS: usize = R * POS_VECTORS;
}

impl<const R: usize> Kernel for PageSoftmax<'_, '_, R> {
    type Out = [f32; R];

    #[inline(always)]
    fn run<S: Simd>(self, s: S) -> [f32; R] {
        let Self { page, first, scales, states, weights, ahead } = self;
        let (old, sums) = (&mut states.max[first..first + R], &mut states.sum[first..first + R]);
        let weights = &mut weights.0;
        let mut scales = array_of!(R, 0.0, r => {
            let scale = scales[r] * LOG2_E;
            // A query of zeros has a scale of zero. A tiny one adds nothing, and keeps hidden
            // positions hidden.
            if scale == 0.0 { f32::MIN_POSITIVE } else { scale }
        });
        if let Some(cap) = page.soft_cap {
            for r in 0..R {
                cap_scores(s, cap, scales[r], &mut weights[r]);
            }
            scales = [1.0; R];
        }
        let zero = s.splat(0.0);
        let mut tops = [zero; R];
        for r in 0..R {
            hide(page, &page.queries[first + r], &mut weights[r]);
            // SAFETY: four vectors in an array of 64, here and below.
            let dots = array_of!(POS_VECTORS, zero, v => unsafe {
                s.load(weights[r].as_ptr().add(v * LANES))
            });
            tops[r] = s.max(s.max(dots[0], dots[1]), s.max(dots[2], dots[3]));
        }
        let tops = s.tops(tops);
        const { assert!(R <= LANES) };
        let (mut new, mut fall) = ([0.0; R], [0.0; LANES]);
        for r in 0..R {
            let top = tops[r] * scales[r];
            new[r] = if top > old[r] { top } else { old[r] };
            fall[r] = old[r] - new[r];
            old[r] = new[r];
        }
        let mut rescale = [0.0; LANES];
        // SAFETY: both arrays are one vector.
        unsafe { s.store(rescale.as_mut_ptr(), exp2(s, s.load(fall.as_ptr()))) };
        let mut parts = [zero; R];
        for r in 0..R {
            let (scale, top) = (s.splat(scales[r]), s.splat(new[r]));
            let mut part = [zero; POS_VECTORS];
            for v in 0..POS_VECTORS {
                // SAFETY: see above.
                unsafe {
                    ahead.fetch(s, r * POS_VECTORS + v);
                    let at = weights[r].as_mut_ptr().add(v * LANES);
                    // Not by `fma`: its exact product may be above the rounded maximum.
                    part[v] = exp2(s, s.sub(s.mul(s.load(at), scale), top));
                    s.store(at, part[v]);
                }
            }
            parts[r] = s.add(s.add(part[0], part[1]), s.add(part[2], part[3]));
        }
        let page = s.sums(parts);
        for r in 0..R {
            sums[r] = sums[r] * rescale[r] + page[r];
        }
        array_of!(R, 0.0, r => rescale[r])
    }
}

/// One query's dot products times `scale`, capped.
#[inline(always)]
fn cap_scores<S: Simd>(s: S, cap: f32, scale: f32, weights: &mut [f32; PAGE_POSITIONS]) {
    let (cap, inverse) = (s.splat(cap * LOG2_E), s.splat(scale / (cap * LOG2_E)));
    for v in 0..POS_VECTORS {
        // SAFETY: four vectors in an array of 64.
        unsafe {
            let at = weights.as_mut_ptr().add(v * LANES);
            s.store(at, s.mul(tanh(s, s.mul(s.load(at), inverse)), cap));
        }
    }
}

/// Sets hidden positions to minus infinity.
#[inline(always)]
fn hide(page: &Page, query: &Query, weights: &mut [f32; PAGE_POSITIONS]) {
    let seen = query.seen.map_or(ALL, |seen| seen[page.start / PAGE_POSITIONS]);
    let is_whole = query.first_pos <= page.start && query.end_pos >= page.start + PAGE_POSITIONS;
    if is_whole && seen == ALL {
        return;
    }
    for (slot, weight) in weights.iter_mut().enumerate() {
        let pos = page.start + slot;
        if pos < query.first_pos || pos >= query.end_pos || seen >> slot & 1 == 0 {
            *weight = f32::NEG_INFINITY;
        }
    }
}

/// [`exp2`] of one number.
#[inline(always)]
pub(super) fn exp2_one<S: Simd>(s: S, x: f32) -> f32 {
    let mut lanes = [0.0; LANES];
    // SAFETY: the array is one vector.
    unsafe { s.store(lanes.as_mut_ptr(), exp2(s, s.splat(x))) };
    lanes[0]
}

/// Merges the running softmax of a later span (or of several queries) into `total`.
pub(super) struct Merge<'a> {
    pub total: &'a mut States,
    pub max: &'a [f32],
    pub sum: &'a [f32],
    pub acc: &'a [f32],
    pub v_stride: usize,
}

impl Kernel for Merge<'_> {
    type Out = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let stride = self.v_stride;
        for (index, (&max, &sum)) in self.max.iter().zip(self.sum).enumerate() {
            let old_max = self.total.max[index];
            let new_max = if max > old_max { max } else { old_max };
            let (old, new) = (exp2_one(s, old_max - new_max), exp2_one(s, max - new_max));
            self.total.max[index] = new_max;
            self.total.sum[index] = self.total.sum[index] * old + sum * new;
            let total = &mut self.total.acc[index * stride..][..stride];
            for (total, acc) in total.iter_mut().zip(&self.acc[index * stride..][..stride]) {
                *total = *total * old + acc * new;
            }
        }
    }
}

/// Writes one query's output `[v_dim]`: its sum of values over its sum of weights, including the
/// sink logit if there is one. NaN if one of the query's elements or the sink is infinite or NaN:
/// scores of minus infinity leave no trace.
pub(super) struct Finish<'a> {
    /// The query.
    pub q: &'a [f32],
    pub max: f32,
    pub sum: f32,
    pub acc: &'a [f32],
    pub sink: Option<f32>,
    pub out: &'a mut [f32],
}

impl Kernel for Finish<'_> {
    type Out = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let sink = self.sink.map_or(f32::NEG_INFINITY, |sink| finite(sink) * LOG2_E);
        let max = if sink > self.max { sink } else { self.max };
        let scale = exp2_one(s, self.max - max);
        let mut taint = s.splat(0.0);
        for q in self.q.chunks(LANES) {
            let q = load_padded(s, q);
            taint = s.add(taint, s.sub(q, q));
        }
        let sum = self.sum * scale + exp2_one(s, sink - max) + s.sum(taint);
        for (out, acc) in self.out.iter_mut().zip(self.acc) {
            *out = acc * scale / sum;
        }
    }
}

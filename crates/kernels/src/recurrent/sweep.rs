//! The recurrence: 16 columns of a head's state through the rows of a segment.
//!
//! Bound by arithmetic when there are many rows: a vector of S costs four operations a row with the
//! delta rules and three with Mamba's, and is loaded and stored once: the sweep that applies a row
//! also decays the state for the next one and takes its S^T k. With one row it is bound by reading
//! and writing S.

use crate::isa::Kernel;
use crate::norm::store_part;
use crate::simd::{LANES, Simd};

/// Runs a body for `$i` in `0..$len`; `$parity`, `$i % 2`, is a constant in it, so that sums which
/// it chooses stay in registers.
macro_rules! for_each_parity {
    ($len:expr, $i:ident, $parity:ident => $body:block) => {{
        let mut even = 0;
        while even + 2 <= $len {
            {
                let ($i, $parity) = (even, 0);
                $body
            }
            {
                let ($i, $parity) = (even + 1, 1);
                $body
            }
            even += 2;
        }
        if even < $len {
            let ($i, $parity) = (even, 0);
            $body
        }
    }};
}

/// A block's way through consecutive rows. All pointers are those of the first row.
#[derive(Clone, Copy)]
pub(super) struct Sweep {
    pub rows: usize,
    pub k_dim: usize,
    /// The state before the rows, `[k_dim, 16]`.
    pub from: *const f32,
    /// The state after them; may be `from`.
    pub to: *mut f32,
    /// `[rows, k_dim]`, rows `k_stride` apart, as k and a decay by channel are.
    pub q: *const f32,
    pub k: *const f32,
    pub k_stride: usize,
    /// 16 columns of `[rows, v_dim]`, rows `v_stride` apart.
    pub v: *const f32,
    pub v_stride: usize,
    /// The factor of S: one a row, rows `gate_stride` apart, or as k.
    pub decay: *const f32,
    /// The factor of what is added: one a row, rows `gate_stride` apart.
    pub beta: *const f32,
    pub gate_stride: usize,
    /// Where the columns of row `silent` go, `columns` of them (at most 16), rows `out_stride`
    /// apart; the rows before it have no output.
    pub out: *mut f32,
    pub out_stride: usize,
    pub columns: usize,
    pub silent: usize,
}

/// Rows that what misses the caches is asked for ahead.
const AHEAD: usize = 4;

impl Sweep {
    /// Asks for a later row's v and output. Stores leave in order, so one that waits for memory holds
    /// up those of the state.
    #[inline(always)]
    fn prefetch<S: Simd>(&self, s: S, row: usize) {
        let row = row + AHEAD;
        s.prefetch(self.v.wrapping_add(row * self.v_stride).cast());
        let out = self.out.wrapping_add(row.saturating_sub(self.silent) * self.out_stride);
        s.prefetch(out.cast_const().cast());
        s.prefetch(out.wrapping_add(self.columns - 1).cast_const().cast());
    }

    /// # Safety
    /// The pointers are what the fields say, and nobody else uses `to` and the output.
    #[inline(always)]
    unsafe fn write<S: Simd>(&self, s: S, row: usize, v: S::F) {
        if row < self.silent {
            return;
        }
        // SAFETY: as the caller promises.
        unsafe {
            let out = self.out.add((row - self.silent) * self.out_stride);
            store_part(s, std::slice::from_raw_parts_mut(out, self.columns), v);
        }
    }
}

/// The delta rules; with `BY_CHANNEL`, each number of the key has its own decay.
///
/// Whoever makes it promises what [`Sweep`] says of its pointers.
pub(super) struct Delta<const BY_CHANNEL: bool>(pub Sweep);

impl<const BY_CHANNEL: bool> Kernel for Delta<BY_CHANNEL> {
    type Out = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let Sweep { rows, k_dim, k_stride, .. } = self.0;
        let decay_stride = if BY_CHANNEL { k_stride } else { self.0.gate_stride };
        // SAFETY: the pointers are what the fields say.
        unsafe {
            let mut row = Row { q: self.0.q, k: self.0.k, decay: self.0.decay };
            let mut sum = first_sum::<S, BY_CHANNEL>(s, self.0.from, k_dim, &row);
            for index in 0..rows {
                let next = Row {
                    q: row.q.wrapping_add(k_stride),
                    k: row.k.wrapping_add(k_stride),
                    decay: row.decay.wrapping_add(decay_stride),
                };
                self.0.prefetch(s, index);
                let v = s.load(self.0.v.add(index * self.0.v_stride));
                let beta = s.splat(*self.0.beta.add(index * self.0.gate_stride));
                let d = s.mul(beta, s.sub(v, sum));
                let (from, to) = (self.0.from, self.0.to);
                let (out, next_sum) = match (index == 0, index + 1 == rows) {
                    (true, true) => {
                        apply::<S, BY_CHANNEL, true, false>(s, from, to, k_dim, &row, &next, d)
                    }
                    (true, false) => {
                        apply::<S, BY_CHANNEL, true, true>(s, from, to, k_dim, &row, &next, d)
                    }
                    (false, true) => {
                        apply::<S, BY_CHANNEL, false, false>(s, to, to, k_dim, &row, &next, d)
                    }
                    (false, false) => {
                        apply::<S, BY_CHANNEL, false, true>(s, to, to, k_dim, &row, &next, d)
                    }
                };
                self.0.write(s, index, out);
                (row, sum) = (next, next_sum);
            }
        }
    }
}

/// What a row brings, for all columns alike.
struct Row {
    q: *const f32,
    k: *const f32,
    decay: *const f32,
}

/// S^T k of the decayed state, which is not written.
#[inline(always)]
unsafe fn first_sum<S: Simd, const BY_CHANNEL: bool>(
    s: S,
    from: *const f32,
    k_dim: usize,
    row: &Row,
) -> S::F {
    let mut sums = [s.splat(0.0); 2];
    // SAFETY: as the caller promises.
    unsafe {
        let all = s.splat(*row.decay);
        for_each_parity!(k_dim, i, parity => {
            if parity == 0 {
                s.prefetch(from.wrapping_add((k_dim + i) * LANES).cast());
            }
            let decay = if BY_CHANNEL { s.splat(*row.decay.add(i)) } else { all };
            let x = s.mul(s.load(from.add(i * LANES)), decay);
            sums[parity] = s.fma(s.splat(*row.k.add(i)), x, sums[parity]);
        });
    }
    s.add(sums[0], sums[1])
}

/// Adds `k (x) d` to the state and gives S^T q. `FIRST` says that the state is not decayed yet;
/// with `NEXT`, it is left decayed for the next row, and that row's S^T k is the second result.
#[inline(always)]
unsafe fn apply<S: Simd, const BY_CHANNEL: bool, const FIRST: bool, const NEXT: bool>(
    s: S,
    from: *const f32,
    to: *mut f32,
    k_dim: usize,
    row: &Row,
    next: &Row,
    d: S::F,
) -> (S::F, S::F) {
    let (mut out, mut sums) = (s.splat(0.0), [s.splat(0.0); 2]);
    // SAFETY: as the caller promises; the next row is looked at only if there is one.
    unsafe {
        let all = s.splat(*row.decay);
        let next_all = if NEXT { s.splat(*next.decay) } else { all };
        for_each_parity!(k_dim, i, parity => {
            let mut x = s.load(from.add(i * LANES));
            if FIRST {
                if parity == 1 {
                    s.prefetch(from.wrapping_add((k_dim + i) * LANES).cast());
                }
                x = s.mul(x, if BY_CHANNEL { s.splat(*row.decay.add(i)) } else { all });
            }
            x = s.fma(s.splat(*row.k.add(i)), d, x);
            out = s.fma(s.splat(*row.q.add(i)), x, out);
            if NEXT {
                x = s.mul(x, if BY_CHANNEL { s.splat(*next.decay.add(i)) } else { next_all });
                sums[parity] = s.fma(s.splat(*next.k.add(i)), x, sums[parity]);
            }
            s.store(to.add(i * LANES), x);
        });
    }
    (out, s.add(sums[0], sums[1]))
}

/// Mamba's rule. Whoever makes it promises what [`Sweep`] says of its pointers.
pub(super) struct Mamba {
    pub sweep: Sweep,
    /// The factor of v in the output.
    pub skip: f32,
}

impl Kernel for Mamba {
    type Out = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let Sweep { rows, k_dim, k_stride, v_stride, gate_stride, .. } = self.sweep;
        let mut from = self.sweep.from;
        let to = self.sweep.to;
        for index in 0..rows {
            let mut outs = [s.splat(0.0); 2];
            // SAFETY: the pointers are what the fields say.
            unsafe {
                self.sweep.prefetch(s, index);
                let v = s.load(self.sweep.v.add(index * v_stride));
                let d = s.mul(s.splat(*self.sweep.beta.add(index * gate_stride)), v);
                let decay = s.splat(*self.sweep.decay.add(index * gate_stride));
                let (q, k) =
                    (self.sweep.q.add(index * k_stride), self.sweep.k.add(index * k_stride));
                for_each_parity!(k_dim, i, parity => {
                    if rows == 1 {
                        s.prefetch(from.wrapping_add((k_dim + i) * LANES).cast());
                    }
                    let x = s.mul(s.load(from.add(i * LANES)), decay);
                    let x = s.fma(s.splat(*k.add(i)), d, x);
                    outs[parity] = s.fma(s.splat(*q.add(i)), x, outs[parity]);
                    s.store(to.add(i * LANES), x);
                });
                let out = s.fma(s.splat(self.skip), v, s.add(outs[0], outs[1]));
                self.sweep.write(s, index, out);
            }
            from = to;
        }
    }
}

//! The recurrence: some columns of a head's state through the rows of a segment.
//!
//! Bound by arithmetic when there are many rows: a vector of S costs four operations a row with the
//! delta rules and three with Mamba's, and is loaded and stored once: the sweep that applies a row
//! also decays the state for the next one and takes its S^T k. With one row it is bound by reading
//! and writing S.

use crate::isa::Kernel;
use crate::norm::store_part;
use crate::simd::{LANES, Simd, array_of};

/// The most blocks of 16 columns in one sweep. With 32 registers they are processed side by side,
/// because the sums of one block would wait for each other.
pub(super) const BLOCKS: usize = 2;

/// Rows of prefetching for data that misses the caches.
const AHEAD: usize = 4;

/// Runs a body for `$i` in `0..$len`; `$parity`, `$i % 2`, is a constant in it, so that the
/// selected sums stay in registers.
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

/// The update of some columns through consecutive rows. All pointers are those of the first row.
#[derive(Clone, Copy)]
pub(super) struct Sweep {
    pub rows: usize,
    pub k_dim: usize,
    /// The state before the rows, `[blocks, k_dim, 16]`, for 1 to [`BLOCKS`] blocks.
    pub from: *const f32,
    /// The state after them; may be `from`.
    pub to: *mut f32,
    pub blocks: usize,
    /// `[rows, k_dim]`, rows `k_stride` apart, like k and a decay by channel.
    pub q: *const f32,
    pub k: *const f32,
    pub k_stride: usize,
    /// The columns of `[rows, v_dim]` by whole blocks, rows `v_stride` apart.
    pub v: *const f32,
    pub v_stride: usize,
    /// The factor of S: one a row, rows `gate_stride` apart, or like k.
    pub decay: *const f32,
    /// The factor of the update: one a row, rows `gate_stride` apart.
    pub beta: *const f32,
    pub gate_stride: usize,
    /// The address for the columns of row `silent`, `columns` of them, rows `out_stride` apart;
    /// earlier rows have no output.
    pub out: *mut f32,
    pub out_stride: usize,
    pub columns: usize,
    pub silent: usize,
}

impl Sweep {
    /// Whether two blocks run side by side. Without vectors they do too, so that every machine's
    /// tests check that the results are equal.
    #[inline(always)]
    fn side_by_side<S: Simd>(&self) -> bool {
        (S::WIDE_TILES || !S::ROW_TILES) && self.blocks == BLOCKS
    }

    /// The same for one block only.
    fn block(mut self, block: usize) -> Self {
        self.from = self.from.wrapping_add(block * self.k_dim * LANES);
        self.to = self.to.wrapping_add(block * self.k_dim * LANES);
        self.v = self.v.wrapping_add(block * LANES);
        self.out = self.out.wrapping_add(block * LANES);
        self.columns = LANES.min(self.columns - block * LANES);
        self.blocks = 1;
        self
    }

    /// Prefetches a later row's v and output. Stores leave in order, so one that waits for memory
    /// delays those of the state.
    #[inline(always)]
    fn prefetch<S: Simd>(&self, s: S, row: usize) {
        let row = row + AHEAD;
        s.prefetch(self.v.wrapping_add(row * self.v_stride).cast());
        let out = self.out.wrapping_add(row.saturating_sub(self.silent) * self.out_stride);
        s.prefetch(out.cast_const().cast());
        s.prefetch(out.wrapping_add(self.columns - 1).cast_const().cast());
    }

    /// # Safety
    /// The pointers are as the fields describe, for `P` blocks, and `row` is below `rows`.
    #[inline(always)]
    unsafe fn v<S: Simd, const P: usize>(&self, s: S, row: usize) -> [S::F; P] {
        let v = self.v.wrapping_add(row * self.v_stride);
        // SAFETY: as the caller promises.
        unsafe { array_of!(P, s.splat(0.0), p => s.load(v.add(p * LANES))) }
    }

    /// # Safety
    /// As [`Sweep::v`], and the output has no other user.
    #[inline(always)]
    unsafe fn write<S: Simd, const P: usize>(&self, s: S, row: usize, v: [S::F; P]) {
        if row < self.silent {
            return;
        }
        let out = self.out.wrapping_add((row - self.silent) * self.out_stride);
        for p in 0..P {
            let columns = LANES.min(self.columns - p * LANES);
            // SAFETY: as the caller promises.
            unsafe {
                let out = std::slice::from_raw_parts_mut(out.add(p * LANES), columns);
                store_part(s, out, v[p]);
            }
        }
    }
}

/// The delta rules; with `BY_CHANNEL`, each element of the key has its own decay.
///
/// The creator promises the properties of [`Sweep`]'s pointers.
pub(super) struct Delta<const BY_CHANNEL: bool>(pub Sweep);

impl<const BY_CHANNEL: bool> Kernel for Delta<BY_CHANNEL> {
    type Out = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        // SAFETY: the pointers are as the fields describe.
        unsafe {
            if self.0.side_by_side::<S>() {
                return Self::rows::<S, BLOCKS>(s, &self.0);
            }
            for block in 0..self.0.blocks {
                Self::rows::<S, 1>(s, &self.0.block(block));
            }
        }
    }
}

/// The inputs of a row, common to all columns.
struct Row {
    q: *const f32,
    k: *const f32,
    decay: *const f32,
}

impl<const BY_CHANNEL: bool> Delta<BY_CHANNEL> {
    /// # Safety
    /// The pointers are as the fields describe, for `P` blocks.
    #[inline(always)]
    unsafe fn rows<S: Simd, const P: usize>(s: S, sweep: &Sweep) {
        let Sweep { rows, k_stride, from, to, .. } = *sweep;
        let len = sweep.k_dim;
        let decay_stride = if BY_CHANNEL { k_stride } else { sweep.gate_stride };
        // SAFETY: as the caller promises.
        unsafe {
            let mut row = Row { q: sweep.q, k: sweep.k, decay: sweep.decay };
            let mut sum = Self::first_sum::<S, P>(s, from, len, &row);
            for index in 0..rows {
                let next = Row {
                    q: row.q.wrapping_add(k_stride),
                    k: row.k.wrapping_add(k_stride),
                    decay: row.decay.wrapping_add(decay_stride),
                };
                sweep.prefetch(s, index);
                let v = sweep.v::<S, P>(s, index);
                let beta = s.splat(*sweep.beta.add(index * sweep.gate_stride));
                let d = array_of!(P, beta, p => s.mul(beta, s.sub(v[p], sum[p])));
                let (out, next_sum) = match (index == 0, index + 1 == rows) {
                    (true, true) => {
                        Self::apply::<S, P, true, false>(s, from, to, len, &row, &next, d)
                    }
                    (true, false) => {
                        Self::apply::<S, P, true, true>(s, from, to, len, &row, &next, d)
                    }
                    (false, true) => {
                        Self::apply::<S, P, false, false>(s, to, to, len, &row, &next, d)
                    }
                    (false, false) => {
                        Self::apply::<S, P, false, true>(s, to, to, len, &row, &next, d)
                    }
                };
                sweep.write(s, index, out);
                (row, sum) = (next, next_sum);
            }
        }
    }

    /// S^T k of the decayed state, without writing it.
    ///
    /// # Safety
    /// As [`Delta::rows`].
    #[inline(always)]
    unsafe fn first_sum<S: Simd, const P: usize>(
        s: S,
        from: *const f32,
        k_dim: usize,
        row: &Row,
    ) -> [S::F; P] {
        let mut sums = [[s.splat(0.0); P]; 2];
        // SAFETY: as the caller promises.
        unsafe {
            let all = s.splat(*row.decay);
            for_each_parity!(k_dim, i, parity => {
                let k = s.splat(*row.k.add(i));
                let decay = if BY_CHANNEL { s.splat(*row.decay.add(i)) } else { all };
                for p in 0..P {
                    let from = from.add((p * k_dim + i) * LANES);
                    if parity == 0 {
                        s.prefetch(from.wrapping_add(P * k_dim * LANES).cast());
                    }
                    let x = s.mul(s.load(from), decay);
                    sums[parity][p] = s.fma(k, x, sums[parity][p]);
                }
            });
        }
        array_of!(P, s.splat(0.0), p => s.add(sums[0][p], sums[1][p]))
    }

    /// Adds `k (x) d` to the state and returns S^T q. `FIRST`: the state is not decayed yet.
    /// `NEXT`: the state is decayed for the next row, and that row's S^T k is the second result.
    ///
    /// # Safety
    /// As [`Delta::rows`]; the next row is read only if there is one.
    #[inline(always)]
    unsafe fn apply<S: Simd, const P: usize, const FIRST: bool, const NEXT: bool>(
        s: S,
        from: *const f32,
        to: *mut f32,
        k_dim: usize,
        row: &Row,
        next: &Row,
        d: [S::F; P],
    ) -> ([S::F; P], [S::F; P]) {
        let (mut outs, mut sums) = ([s.splat(0.0); P], [[s.splat(0.0); P]; 2]);
        // SAFETY: as the caller promises.
        unsafe {
            let all = s.splat(*row.decay);
            let next_all = if NEXT { s.splat(*next.decay) } else { all };
            for_each_parity!(k_dim, i, parity => {
                for p in 0..P {
                    let at = (p * k_dim + i) * LANES;
                    let mut x = s.load(from.add(at));
                    if FIRST {
                        if parity == 1 {
                            s.prefetch(from.wrapping_add(at + P * k_dim * LANES).cast());
                        }
                        x = s.mul(x, if BY_CHANNEL { s.splat(*row.decay.add(i)) } else { all });
                    }
                    x = s.fma(s.splat(*row.k.add(i)), d[p], x);
                    outs[p] = s.fma(s.splat(*row.q.add(i)), x, outs[p]);
                    if NEXT {
                        let decay = if BY_CHANNEL { s.splat(*next.decay.add(i)) } else { next_all };
                        x = s.mul(x, decay);
                        sums[parity][p] = s.fma(s.splat(*next.k.add(i)), x, sums[parity][p]);
                    }
                    s.store(to.add(at), x);
                }
            });
        }
        (outs, array_of!(P, s.splat(0.0), p => s.add(sums[0][p], sums[1][p])))
    }
}

/// Mamba's rule. The creator promises the properties of [`Sweep`]'s pointers.
pub(super) struct Mamba {
    pub sweep: Sweep,
    /// The factor of v in the output.
    pub skip: f32,
}

impl Kernel for Mamba {
    type Out = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        // SAFETY: the pointers are as the fields describe.
        unsafe {
            if self.sweep.side_by_side::<S>() {
                return self.rows::<S, BLOCKS>(s, &self.sweep);
            }
            for block in 0..self.sweep.blocks {
                self.rows::<S, 1>(s, &self.sweep.block(block));
            }
        }
    }
}

impl Mamba {
    /// # Safety
    /// The pointers are as the fields describe, for `P` blocks.
    #[inline(always)]
    unsafe fn rows<S: Simd, const P: usize>(&self, s: S, sweep: &Sweep) {
        let Sweep { rows, k_dim, k_stride, gate_stride, mut from, to, .. } = *sweep;
        for index in 0..rows {
            let mut outs = [[s.splat(0.0); P]; 2];
            sweep.prefetch(s, index);
            // SAFETY: as the caller promises.
            unsafe {
                let v = sweep.v::<S, P>(s, index);
                let step = s.splat(*sweep.beta.add(index * gate_stride));
                let d = array_of!(P, step, p => s.mul(step, v[p]));
                let decay = s.splat(*sweep.decay.add(index * gate_stride));
                let (q, k) = (sweep.q.add(index * k_stride), sweep.k.add(index * k_stride));
                for_each_parity!(k_dim, i, parity => {
                    for p in 0..P {
                        let at = (p * k_dim + i) * LANES;
                        if rows == 1 {
                            s.prefetch(from.wrapping_add(at + P * k_dim * LANES).cast());
                        }
                        let x = s.mul(s.load(from.add(at)), decay);
                        let x = s.fma(s.splat(*k.add(i)), d[p], x);
                        outs[parity][p] = s.fma(s.splat(*q.add(i)), x, outs[parity][p]);
                        s.store(to.add(at), x);
                    }
                });
                let skip = s.splat(self.skip);
                let out = array_of!(P, skip, p => {
                    s.fma(skip, v[p], s.add(outs[0][p], outs[1][p]))
                });
                sweep.write(s, index, out);
            }
            from = to;
        }
    }
}

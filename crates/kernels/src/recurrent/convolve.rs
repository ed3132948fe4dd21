//! The causal convolution over a sequence's last few inputs, channel by channel.

use super::layer::TAPS_MAX;
use super::rows::Columns;
use crate::isa::Kernel;
use crate::math::silu;
use crate::norm::{load_padded, store_part};
use crate::simd::{LANES, Simd};

/// What is added to the squared length of a q or k.
const LENGTH_EPS: f32 = 1e-6;

/// Rows of prefetching: those of a head are too far apart for the machine's own prefetching.
const AHEAD: usize = 4;

/// One head's q, k or v of all rows of a segment: convolution, SiLU, and normalisation if wanted.
pub(super) struct Convolve<'a> {
    pub x: &'a Columns,
    /// `[blocks, taps, 16]`.
    pub weights: &'a [f32],
    /// `[blocks, 16]`.
    pub bias: &'a [f32],
    /// The length to normalise each row to, if any.
    pub length: Option<f32>,
    /// `[rows, blocks, 16]`.
    pub out: *mut f32,
    pub rows: usize,
}

impl Kernel for Convolve<'_> {
    type Out = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        // With a constant number of taps, the inputs' addresses stay in registers.
        match self.x.before_rows + 1 {
            3 => self.rows::<S, 3>(s, 3),
            4 => self.rows::<S, 4>(s, 4),
            taps => self.rows::<S, TAPS_MAX>(s, taps),
        }
    }
}

impl Convolve<'_> {
    /// All rows, with `taps` taps, at most `MOST`.
    #[inline(always)]
    fn rows<S: Simd, const MOST: usize>(&self, s: S, taps: usize) {
        let taps = if MOST == TAPS_MAX { taps } else { MOST };
        let padded = self.bias.len();
        let mut inputs = [self.x.before; MOST];
        for tap in 1..taps {
            inputs[tap] = self.x.at(tap as isize - taps as isize);
        }
        for row in 0..self.rows {
            for tap in 1..taps {
                inputs[tap - 1] = inputs[tap];
            }
            inputs[taps - 1] = self.x.at(row as isize);
            let out = self.out.wrapping_add(row * padded);
            let squares = self.row(s, &inputs, taps, out);
            let Some(length) = self.length else { continue };
            let factor = s.splat(1.0 / (s.sum(squares) + LENGTH_EPS).sqrt() * length);
            for first in (0..padded).step_by(LANES) {
                // SAFETY: the row was just written.
                unsafe {
                    let out = out.add(first);
                    s.store(out, s.mul(s.load(out), factor));
                }
            }
        }
    }

    /// One row after convolution and SiLU, and the squares of its elements by lane.
    #[inline(always)]
    fn row<S: Simd, const MOST: usize>(
        &self,
        s: S,
        inputs: &[*const f32; MOST],
        taps: usize,
        out: *mut f32,
    ) -> S::F {
        let later = inputs[taps - 1].wrapping_add(AHEAD * self.x.new_stride);
        let mut squares = s.splat(0.0);
        let mut weights = self.weights.as_ptr();
        for first in (0..self.bias.len()).step_by(LANES) {
            s.prefetch(later.wrapping_add(first).cast());
            let len = LANES.min(self.x.width - first);
            // SAFETY: each input has `width` elements, and the caller has room for the row; weights
            // and biases are whole vectors.
            unsafe {
                let mut sum = s.load(self.bias.as_ptr().add(first));
                for tap in 0..taps {
                    let weight = s.load(weights.add(tap * LANES));
                    sum = s.fma(load(s, inputs[tap].add(first), len), weight, sum);
                }
                let y = silu(s, sum);
                squares = s.fma(y, y, squares);
                s.store(out.add(first), y);
            }
            weights = weights.wrapping_add(taps * LANES);
        }
        squares
    }
}

/// `len` elements (at most 16) and zeros.
///
/// # Safety
/// They are there.
#[inline(always)]
unsafe fn load<S: Simd>(s: S, from: *const f32, len: usize) -> S::F {
    // SAFETY: as the caller promises.
    load_padded(s, unsafe { std::slice::from_raw_parts(from, len) })
}

/// Channels of one task of [`Gate`].
pub(super) const GATE_CHANNELS: usize = 64;

const GATE_BLOCKS: usize = GATE_CHANNELS / LANES;

/// LFM2's layer for up to [`GATE_CHANNELS`] channels of a run of rows: `q * conv(k * v)`.
pub(super) struct Gate<'a> {
    pub q: &'a Columns,
    pub k: &'a Columns,
    pub v: &'a Columns,
    /// As in [`Convolve`].
    pub weights: &'a [f32],
    pub bias: &'a [f32],
    pub taps: usize,
    /// The last inputs of the convolution.
    pub window: &'a mut Window,
    pub rows: std::ops::Range<usize>,
    /// The address of row `silent`, rows `stride` apart; earlier rows have no output.
    pub out: *mut f32,
    pub stride: usize,
    pub silent: usize,
}

/// k * v of the last rows, row `i` at `i % TAPS_MAX`.
pub(super) type Window = [[f32; GATE_CHANNELS]; TAPS_MAX];

impl Kernel for Gate<'_> {
    type Out = ();
    const WIDE: bool = false;

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let width = self.q.width;
        let taps = self.taps;
        for row in self.rows.clone() {
            let [q, k, v] = [self.q, self.k, self.v].map(|columns| columns.at(row as isize));
            for block in 0..width.div_ceil(LANES).min(GATE_BLOCKS) {
                let first = block * LANES;
                let len = LANES.min(width - first);
                // SAFETY: each input has `width` elements, and a row of the output too.
                unsafe {
                    let u = s.mul(load(s, k.add(first), len), load(s, v.add(first), len));
                    s.store(self.window[row % TAPS_MAX][first..].as_mut_ptr(), u);
                    let mut sum = s.load(self.bias[first..][..LANES].as_ptr());
                    let weights = &self.weights[block * taps * LANES..][..taps * LANES];
                    for tap in 0..taps {
                        let u = &self.window[(row + TAPS_MAX + 1 + tap - taps) % TAPS_MAX];
                        let u = s.load(u[first..][..LANES].as_ptr());
                        sum = s.fma(u, s.load(weights[tap * LANES..].as_ptr()), sum);
                    }
                    if row >= self.silent {
                        let out = self.out.add((row - self.silent) * self.stride + first);
                        let out = std::slice::from_raw_parts_mut(out, len);
                        store_part(s, out, s.mul(load(s, q.add(first), len), sum));
                    }
                }
            }
        }
    }
}

/// Reads a convolution's last inputs before row 0, `[taps - 1, width]`, into the window.
pub(super) fn open_window(window: &mut Window, before: &[f32], width: usize) {
    let rows = before.len() / width;
    for (index, row) in before.chunks_exact(width).enumerate() {
        window[TAPS_MAX - rows + index][..width].copy_from_slice(row);
    }
}

/// Writes the convolution's inputs to keep after `applied` rows; the window has the last ones.
///
/// # Safety
/// `to` is followed by `rows` rows of `width` elements, `stride` apart, without another user.
pub(super) unsafe fn keep_window(
    window: &Window,
    applied: usize,
    rows: usize,
    width: usize,
    to: *mut f32,
    stride: usize,
) {
    for index in 0..rows {
        let from = window[(applied + TAPS_MAX + index - rows) % TAPS_MAX].as_ptr();
        // SAFETY: as the caller promises; a row of the window is not shorter.
        unsafe { to.add(index * stride).copy_from_nonoverlapping(from, width) };
    }
}

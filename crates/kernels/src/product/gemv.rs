//! One input row: bound by the memory that delivers the weights, which are asked for ahead of time.

use super::access::Access;
use crate::format::{FloatFormat, Quantised, TILE, tile_weights, with_float, with_quantised};
use crate::input::{Input, InputTile};
use crate::isa::{Isa, Kernel, run};
use crate::matrix::Matrix;
use crate::simd::{LANES, Simd, array_of};
use std::marker::PhantomData;
use std::ops::Range;

/// Columns of float weights that are summed before the sum is added to the total.
pub(super) const FLOAT_RUN: usize = 256;

/// The partial sums of columns `cols` for the panels: `sums` is `[panels, 16]`.
pub(super) fn sum_leaf(
    isa: Isa,
    access: Access,
    matrix: &Matrix,
    input: &Input,
    panels: Range<usize>,
    cols: Range<usize>,
    sums: &mut [f32],
) {
    debug_assert_eq!(sums.len(), panels.len() * LANES);
    let mut panel = panels.start;
    let mut sums = sums;
    while panel < panels.end {
        let streams = match access.streams.min(panels.end - panel) {
            0..2 => 1,
            2..4 => 2,
            _ => 4,
        };
        let (now, later) = sums.split_at_mut(streams * LANES);
        match streams {
            1 => streams_of::<1>(isa, access, matrix, input, panel, &cols, now),
            2 => streams_of::<2>(isa, access, matrix, input, panel, &cols, now),
            _ => streams_of::<4>(isa, access, matrix, input, panel, &cols, now),
        }
        panel += streams;
        sums = later;
    }
}

fn streams_of<const P: usize>(
    isa: Isa,
    access: Access,
    matrix: &Matrix,
    input: &Input,
    panel: usize,
    cols: &Range<usize>,
    sums: &mut [f32],
) {
    let sums: &mut [[f32; LANES]] = sums.as_chunks_mut().0;
    let sums: &mut [[f32; LANES]; P] = sums.try_into().expect("one vector a stream");
    let panels = std::array::from_fn(|p| matrix.panel(panel + p));
    with_quantised!(matrix.ty(), T => {
        let record_cols = T::TILES * crate::format::TILE_COLS;
        let records = cols.start / record_cols..cols.end / record_cols;
        let (tiles, format) = (input.tiles(), PhantomData);
        run(isa, QuantisedGemv::<T, P> { panels, access, tiles, records, sums, format })
    }, _ => with_float!(matrix.ty(), T => {
        let (x, cols) = (input.floats(), cols.clone());
        run(isa, FloatGemv::<T, P> { panels, access, x, cols, sums, format: PhantomData })
    }, _ => unreachable!("no matrix of type {} can be made", matrix.ty())));
}

struct QuantisedGemv<'a, T, const P: usize> {
    panels: [&'a [u8]; P],
    access: Access,
    /// `[cols / 32]`: one row.
    tiles: &'a [InputTile],
    records: Range<usize>,
    sums: &'a mut [[f32; LANES]; P],
    format: PhantomData<T>,
}

impl<T: Quantised, const P: usize> Kernel for QuantisedGemv<'_, T, P> {
    type Out = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        assert!(self.tiles.len() >= self.records.end * T::TILES);
        assert!(self.panels.iter().all(|panel| panel.len() >= self.records.end * T::RECORD));
        let share = T::RECORD / T::TILES;
        let mut acc = [s.splat(0.0); P];
        for index in self.records {
            let mut records = [std::ptr::null(); P];
            for p in 0..P {
                records[p] = self.panels[p][index * T::RECORD..].as_ptr();
            }
            // SAFETY: the records and input tiles lie inside their slices, as asserted above.
            unsafe {
                let heads = array_of!(P, T::head(s, records[0]), p => T::head(s, records[p]));
                for tile in 0..T::TILES {
                    let x = self.tiles.get_unchecked(index * T::TILES + tile);
                    let bytes =
                        array_of!(TILE, s.splat_i(0), i => s.splat_x4(x.q.as_ptr().add(4 * i)));
                    for p in 0..P {
                        // A tile's share of the record at a time: a burst of prefetches would
                        // exceed what a core can have under way.
                        self.access.fetch(s, records[p].wrapping_add(tile * share), share);
                        let weights = tile_weights::<S, T>(s, records[p], tile);
                        let scales = T::scales(s, records[p], &heads[p], tile);
                        acc[p] = add_tile::<S, T>(s, acc[p], &weights, &scales, x, &bytes);
                    }
                }
            }
        }
        for p in 0..P {
            // SAFETY: the array is one vector.
            unsafe { s.store(self.sums[p].as_mut_ptr(), acc[p]) };
        }
    }
}

/// Adds the products of one tile of weights and one of inputs to the sums of 16 outputs, in the
/// order of the parent module's text.
#[inline(always)]
pub(super) fn add_tile<S: Simd, T: Quantised>(
    s: S,
    acc: S::F,
    weights: &[S::I; TILE],
    scales: &crate::format::Scales<S>,
    x: &InputTile,
    bytes: &[S::I; TILE],
) -> S::F {
    let factor =
        if T::BIASED { s.zero_factor::<true>(T::ZERO) } else { s.zero_factor::<false>(T::ZERO) };
    let quads = TILE / T::HALVES;
    let (mut acc, mut scaled) = (acc, s.splat(0.0));
    for half in 0..T::HALVES {
        let whole = if T::HALVES == 1 { 2 } else { half };
        // Two chains, because one would wait for itself; integers may be added in any order.
        let mut dots = [s.splat_i(factor * x.sums[whole]), s.splat_i(0)];
        for i in half * quads..(half + 1) * quads {
            dots[i % 2] = if T::BIASED {
                s.dot4::<true>(dots[i % 2], weights[i], bytes[i])
            } else {
                s.dot4::<false>(dots[i % 2], weights[i], bytes[i])
            };
        }
        let dot = s.to_f(s.add_i(dots[0], dots[1]));
        scaled = match half {
            0 => s.mul(dot, scales.scale[0]),
            _ => s.fma(dot, scales.scale[1], scaled),
        };
        if half + 1 == T::HALVES {
            acc = s.fma(scaled, s.splat(x.scale), acc);
        }
        if T::OFFSETS {
            acc = s.fma(scales.offset[half], s.splat(x.scaled_sums[whole]), acc);
        }
    }
    acc
}

struct FloatGemv<'a, T, const P: usize> {
    panels: [&'a [u8]; P],
    access: Access,
    /// `[cols]`: one row.
    x: &'a [f32],
    cols: Range<usize>,
    sums: &'a mut [[f32; LANES]; P],
    format: PhantomData<T>,
}

impl<T: FloatFormat, const P: usize> Kernel for FloatGemv<'_, T, P> {
    type Out = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let column_bytes = T::BYTES * LANES;
        assert!(self.x.len() >= self.cols.end);
        assert!(self.panels.iter().all(|panel| panel.len() >= self.cols.end * column_bytes));
        let mut total = [s.splat(0.0); P];
        for start in self.cols.clone().step_by(FLOAT_RUN) {
            let mut acc = [s.splat(0.0); P];
            for col in start..self.cols.end.min(start + FLOAT_RUN) {
                // SAFETY: the column lies inside the row and the panels, as asserted above.
                unsafe {
                    let x = s.splat(*self.x.get_unchecked(col));
                    for p in 0..P {
                        let weights = self.panels[p].as_ptr().add(col * column_bytes);
                        self.access.fetch(s, weights, column_bytes);
                        acc[p] = s.fma(T::load(s, weights), x, acc[p]);
                    }
                }
            }
            for p in 0..P {
                total[p] = s.add(total[p], acc[p]);
            }
        }
        for p in 0..P {
            // SAFETY: the array is one vector.
            unsafe { s.store(self.sums[p].as_mut_ptr(), total[p]) };
        }
    }
}

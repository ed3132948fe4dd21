//! A few input rows, such as the next tokens of concurrent requests: still bound by the memory of
//! the weights, if each tile of them is unpacked into registers once for all rows. Unpacking into
//! the cache, as for many rows, takes longer than the products of a few rows.

use super::access::{Access, Level};
use super::block::{Block, Sums};
use super::gemv::add_tile;
use crate::format::{Quantised, TILE_COLS, read_tile, with_quantised};
use crate::input::SKINNY_ROWS;
use crate::isa::{Isa, Kernel, run};
use crate::simd::Simd;
use crate::tile::RowTile;
use std::marker::PhantomData;
use std::ops::Range;

/// Rows keep a core busy between two tiles, so its own prefetching reaches less far: the best
/// distance here is longer than with one row (NOTES.md).
pub(super) const ACCESS: Access = Access { streams: 1, ahead: 8192, level: Level::L2 };

/// Sums a block's leaf, and merges it. It must have a quantised type and at most [`SKINNY_ROWS`]
/// rows.
///
/// # Safety
/// As for [`Sums::store`].
pub(super) unsafe fn sum_leaf(isa: Isa, block: Block, sums: Sums) {
    // SAFETY: as the caller promises.
    unsafe {
        if block.input.is_int16() {
            sum_tiles(isa, block.input.int16_tiles(), &block, sums);
        } else {
            sum_tiles(isa, block.input.skinny_tiles(), &block, sums);
        }
    }
}

/// Like [`sum_leaf`], for the tiles of the input.
///
/// # Safety
/// As for [`Sums::store`].
unsafe fn sum_tiles<X: RowTile>(isa: Isa, tiles: &[X], block: &Block, mut sums: Sums) {
    let Block { matrix, panels, rows, cols, .. } = block;
    sums.is_last = true;
    for (at, panel) in panels.clone().enumerate() {
        let panel = matrix.panel(panel);
        let x = Inputs { tiles, stride: block.input.rows(), rows: rows.clone() };
        with_quantised!(matrix.ty(), T => {
            let record_cols = T::TILES * TILE_COLS;
            let records = cols.start / record_cols..cols.end / record_cols;
            let (factor, sums, format) = (matrix.factor(), sums.reborrow(), PhantomData);
            run(isa, Skinny::<T, X> { panel, factor, x, records, sums, at, format })
        }, _ => unreachable!("float weights of type {} take another way", matrix.ty()));
    }
}

/// Some rows of an input.
struct Inputs<'a, X> {
    /// `[cols / 32, stride]`.
    tiles: &'a [X],
    stride: usize,
    rows: Range<usize>,
}

struct Skinny<'a, T, X> {
    panel: &'a [u8],
    /// Of the matrix.
    factor: f32,
    x: Inputs<'a, X>,
    records: Range<usize>,
    sums: Sums<'a>,
    /// The panel's index in the sums.
    at: usize,
    format: PhantomData<T>,
}

impl<T: Quantised, X: RowTile> Kernel for Skinny<'_, T, X> {
    type Out = ();
    const INT_DOTS: bool = true;
    const LOOKUPS: bool = T::CODEBOOK;

    #[inline(always)]
    fn run<S: Simd>(mut self, s: S) {
        let Inputs { tiles, stride, rows: Range { start, end } } = self.x;
        let rows = end - start;
        assert!(rows <= SKINNY_ROWS && end <= stride);
        assert!(tiles.len() >= self.records.end * T::TILES * stride);
        assert!(self.panel.len() >= self.records.end * T::RECORD);
        let share = T::RECORD / T::TILES;
        let mut acc = [s.splat(0.0); SKINNY_ROWS];
        for index in self.records {
            let record = self.panel[index * T::RECORD..].as_ptr();
            // SAFETY: the record and the input tiles lie inside their slices, as asserted above.
            unsafe {
                let head = T::head(s, record);
                for tile in 0..T::TILES {
                    ACCESS.fetch(s, record.wrapping_add(tile * share), share);
                    let (weights, scales) = read_tile::<S, T>(s, record, &head, tile, self.factor);
                    let first = (index * T::TILES + tile) * stride + start;
                    for row in 0..rows {
                        let x = tiles.get_unchecked(first + row);
                        let sum = acc.get_unchecked_mut(row);
                        *sum = add_tile::<S, T, X>(s, *sum, &weights, &scales, x, &x.spread(s));
                    }
                }
            }
        }
        for row in 0..rows {
            // SAFETY: the caller of `sum_leaf` promises the output.
            unsafe { self.sums.store(s, row, self.at, [[acc[row]]]) };
        }
    }
}

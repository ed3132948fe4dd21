//! A few input rows, such as the next tokens of requests that run together: still bound by the
//! memory that delivers the weights, if each tile of them is unpacked into registers once for all
//! rows. Unpacking into the cache, as for many rows, takes longer than a few rows' products do.

use super::access::{Access, Level};
use super::block::{Block, Sums};
use super::gemv::add_tile;
use crate::format::{Quantised, TILE, TILE_COLS, tile_weights, with_quantised};
use crate::input::{FEW_ROWS, InputTile};
use crate::isa::{Isa, Kernel, run};
use crate::simd::{Simd, array_of};
use std::marker::PhantomData;
use std::ops::Range;

/// Rows keep a core busy between two tiles, so it looks less far ahead by itself: what is best here
/// is further away than with one row (NOTES.md).
pub(super) const ACCESS: Access = Access { streams: 1, ahead: 8192, level: Level::L2 };

/// Sums a block's leaf, which must be of a quantised type and all input rows, and merges it.
///
/// # Safety
/// As for [`Sums::store`].
pub(super) unsafe fn sum_leaf(isa: Isa, block: Block, mut sums: Sums) {
    let Block { matrix, input, panels, rows, cols } = block;
    assert!(rows == (0..input.rows()) && (1..=FEW_ROWS).contains(&rows.len()));
    sums.is_last = true;
    let tiles = input.tiles();
    for (at, panel) in panels.enumerate() {
        let panel = matrix.panel(panel);
        with_quantised!(matrix.ty(), T => {
            let record_cols = T::TILES * TILE_COLS;
            let records = cols.start / record_cols..cols.end / record_cols;
            let (rows, sums, format) = (rows.len(), sums.reborrow(), PhantomData);
            run(isa, FewRows::<T> { panel, tiles, rows, records, sums, at, format })
        }, _ => unreachable!("float weights of type {} take another way", matrix.ty()));
    }
}

struct FewRows<'a, T> {
    panel: &'a [u8],
    /// `[cols / 32, rows]`.
    tiles: &'a [InputTile],
    rows: usize,
    records: Range<usize>,
    sums: Sums<'a>,
    /// The panel's place among those of the sums.
    at: usize,
    format: PhantomData<T>,
}

impl<T: Quantised> Kernel for FewRows<'_, T> {
    type Out = ();

    #[inline(always)]
    fn run<S: Simd>(mut self, s: S) {
        let rows = self.rows;
        assert!(rows <= FEW_ROWS && self.tiles.len() >= self.records.end * T::TILES * rows);
        assert!(self.panel.len() >= self.records.end * T::RECORD);
        let share = T::RECORD / T::TILES;
        let mut acc = [s.splat(0.0); FEW_ROWS];
        for index in self.records {
            let record = self.panel[index * T::RECORD..].as_ptr();
            // SAFETY: the record and the input tiles lie inside their slices, as asserted above.
            unsafe {
                let head = T::head(s, record);
                for tile in 0..T::TILES {
                    ACCESS.fetch(s, record.wrapping_add(tile * share), share);
                    let weights = tile_weights::<S, T>(s, record, tile);
                    let scales = T::scales(s, record, &head, tile);
                    let first = (index * T::TILES + tile) * rows;
                    for row in 0..rows {
                        let x = self.tiles.get_unchecked(first + row);
                        let bytes =
                            array_of!(TILE, s.splat_i(0), i => s.splat_x4(x.q.as_ptr().add(4 * i)));
                        let sum = acc.get_unchecked_mut(row);
                        *sum = add_tile::<S, T>(s, *sum, &weights, &scales, x, &bytes);
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

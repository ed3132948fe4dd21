//! One input row: bound by the memory that delivers the weights, which are asked for ahead of time.
//!
//! Some panels side by side are read from their first column to their last in one go, whatever
//! leaves there are: the sums of leaves still to be merged stay in registers.

use super::access::Access;
use super::parts::{DEPTH_MAX, Leaves};
use crate::format::{
    FloatFormat, Quantised, Scales, TILE, TILE_COLS, tile_weights, with_float, with_quantised,
};
use crate::input::{Forms, Input};
use crate::isa::{Isa, Kernel, run};
use crate::matrix::Matrix;
use crate::shared::SharedMut;
use crate::simd::{LANES, Simd, array_of};
use crate::tile::RowTile;
use std::marker::PhantomData;
use std::ops::Range;
use sumtree::merges_after;

/// Columns of float weights that are summed before the sum is added to the total.
pub(super) const FLOAT_RUN: usize = 256;

/// A product with one row.
pub(super) struct OneRow<'a> {
    pub access: Access,
    pub matrix: &'a Matrix,
    pub input: &'a Input,
    pub leaves: Leaves<'a>,
    /// `[parts, matrix.rows]`.
    pub out: SharedMut<f32>,
}

impl OneRow<'_> {
    /// Writes the outputs of the panels.
    ///
    /// # Safety
    /// `out` has room for all parts, and nobody else touches these panels' outputs meanwhile.
    pub unsafe fn multiply(&self, isa: Isa, panels: Range<usize>) {
        if self.input.is_fine() {
            for panel in panels {
                // SAFETY: as the caller promises.
                unsafe { self.quantised::<_, 1>(isa, panel, self.input.fine_tiles()) };
            }
            return;
        }
        let mut panel = panels.start;
        while panel < panels.end {
            // SAFETY (all arms): as the caller promises.
            panel += match self.access.streams.min(panels.end - panel) {
                // SAFETY: see above.
                0..2 => unsafe { self.side_by_side::<1>(isa, panel) },
                // SAFETY: see above.
                2..4 => unsafe { self.side_by_side::<2>(isa, panel) },
                // SAFETY: see above.
                _ => unsafe { self.side_by_side::<4>(isa, panel) },
            };
        }
    }

    /// Writes the outputs of `P` panels from `first` on, and returns `P`.
    ///
    /// # Safety
    /// As for [`OneRow::multiply`].
    unsafe fn side_by_side<const P: usize>(&self, isa: Isa, first: usize) -> usize {
        if self.matrix.form() == Forms::INT8 {
            // SAFETY: as the caller promises.
            unsafe { self.quantised::<_, P>(isa, first, self.input.few_tiles()) };
            return P;
        }
        let (panels, leaves, out) = self.panels(first);
        with_float!(self.matrix.ty(), T => {
            let (access, x, format) = (self.access, self.input.floats(), PhantomData);
            let columns = FloatColumns::<T, P> { panels, access, x, format };
            run(isa, Panels { columns, leaves, out })
        }, _ => unreachable!("no matrix of type {} can be made", self.matrix.ty()));
        P
    }

    /// As [`OneRow::side_by_side`], of quantised weights and the tiles of the input.
    ///
    /// # Safety
    /// As for [`OneRow::multiply`].
    unsafe fn quantised<X: RowTile, const P: usize>(&self, isa: Isa, first: usize, tiles: &[X]) {
        let (panels, leaves, out) = self.panels(first);
        with_quantised!(self.matrix.ty(), T => {
            let (access, format) = (self.access, PhantomData);
            let columns = QuantisedColumns::<T, X, P> { panels, access, tiles, format };
            run(isa, Panels { columns, leaves, out })
        }, _ => unreachable!("weights of type {} are floats", self.matrix.ty()));
    }

    /// `P` panels from `first` on, the leaves of each, and where outputs go.
    fn panels<const P: usize>(&self, first: usize) -> ([&[u8]; P], Leaves<'_>, Outputs) {
        let panels = std::array::from_fn(|p| self.matrix.panel(first + p));
        let out = Outputs { all: self.out.ptr(), rows: self.matrix.rows(), first: first * LANES };
        (panels, self.leaves, out)
    }
}

/// Where `P` panels' outputs belong.
struct Outputs {
    /// `[parts, rows]`.
    all: *mut f32,
    rows: usize,
    /// Row of the first output.
    first: usize,
}

impl Outputs {
    /// Writes what panel `p` has as part `part`: fewer than 16 outputs at the end of a matrix.
    ///
    /// # Safety
    /// As for [`OneRow::multiply`].
    #[inline(always)]
    unsafe fn write<S: Simd>(&self, s: S, part: usize, p: usize, sums: S::F) {
        let row = self.first + p * LANES;
        let count = LANES.min(self.rows - row);
        let mut vector = [0.0; LANES];
        // SAFETY: the array is one vector; the outputs are those of this part's rows.
        unsafe {
            let out = self.all.add(part * self.rows + row);
            if count == LANES {
                s.store(out, sums);
            } else {
                s.store(vector.as_mut_ptr(), sums);
                out.copy_from_nonoverlapping(vector.as_ptr(), count);
            }
        }
    }
}

/// `P` panels and the input row, column by column.
trait Columns<const P: usize> {
    /// Asserts that columns below `end` are there.
    fn check(&self, end: usize);

    /// The panels' sums over columns `cols`. Must be `#[inline(always)]`.
    ///
    /// # Safety
    /// [`Columns::check`] has seen the columns.
    unsafe fn sum<S: Simd>(&self, s: S, cols: Range<usize>) -> [S::F; P];
}

/// All parts of `P` panels.
struct Panels<'a, C, const P: usize> {
    columns: C,
    leaves: Leaves<'a>,
    out: Outputs,
}

impl<C: Columns<P>, const P: usize> Kernel for Panels<'_, C, P> {
    type Out = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let Leaves { leaf_ends, part_ends } = self.leaves;
        let mut sums = [[s.splat(0.0); P]; DEPTH_MAX];
        let (mut col, mut first_leaf) = (0, 0);
        self.columns.check(leaf_ends[leaf_ends.len() - 1]);
        for (part, &end) in part_ends.iter().enumerate() {
            let mut depth = 0;
            for leaf in first_leaf..end {
                // SAFETY: the last leaf's end was checked, and leaves' ends rise.
                sums[depth] = unsafe { self.columns.sum(s, col..leaf_ends[leaf]) };
                for _ in 0..merges_after(leaf - first_leaf, end - first_leaf) {
                    depth -= 1;
                    for p in 0..P {
                        sums[depth][p] = s.add(sums[depth][p], sums[depth + 1][p]);
                    }
                }
                depth += 1;
                col = leaf_ends[leaf];
            }
            first_leaf = end;
            for p in 0..P {
                // SAFETY: whoever made the kernel promises the outputs.
                unsafe { self.out.write(s, part, p, sums[0][p]) };
            }
        }
    }
}

struct QuantisedColumns<'a, T, X, const P: usize> {
    panels: [&'a [u8]; P],
    access: Access,
    /// `[cols / 32]`: one row.
    tiles: &'a [X],
    format: PhantomData<T>,
}

impl<T: Quantised, X, const P: usize> QuantisedColumns<'_, T, X, P> {
    const RECORD_COLS: usize = T::TILES * TILE_COLS;
}

impl<T: Quantised, X: RowTile, const P: usize> Columns<P> for QuantisedColumns<'_, T, X, P> {
    #[inline(always)]
    fn check(&self, end: usize) {
        let records = end / Self::RECORD_COLS;
        assert!(self.tiles.len() >= records * T::TILES);
        assert!(self.panels.iter().all(|panel| panel.len() >= records * T::RECORD));
    }

    #[inline(always)]
    unsafe fn sum<S: Simd>(&self, s: S, cols: Range<usize>) -> [S::F; P] {
        let share = T::RECORD / T::TILES;
        let mut acc = [s.splat(0.0); P];
        for index in cols.start / Self::RECORD_COLS..cols.end / Self::RECORD_COLS {
            let mut records = [std::ptr::null(); P];
            for p in 0..P {
                records[p] = self.panels[p].as_ptr().wrapping_add(index * T::RECORD);
            }
            // SAFETY: the records and input tiles lie inside their slices, as was checked.
            unsafe {
                let heads = array_of!(P, T::head(s, records[0]), p => T::head(s, records[p]));
                for tile in 0..T::TILES {
                    let x = self.tiles.get_unchecked(index * T::TILES + tile);
                    let spread = x.spread(s);
                    for p in 0..P {
                        // A tile's share of the record at a time: a burst of prefetches would
                        // exceed what a core can have under way.
                        self.access.fetch(s, records[p].wrapping_add(tile * share), share);
                        let weights = tile_weights::<S, T>(s, records[p], tile);
                        let scales = T::scales(s, records[p], &heads[p], tile);
                        acc[p] = add_tile::<S, T, X>(s, acc[p], &weights, &scales, x, &spread);
                    }
                }
            }
        }
        acc
    }
}

/// Adds the products of one tile of weights and one of inputs to the sums of 16 outputs, in the
/// order of the parent module's text.
#[inline(always)]
pub(super) fn add_tile<S: Simd, T: Quantised, X: RowTile>(
    s: S,
    acc: S::F,
    weights: &[S::I; TILE],
    scales: &Scales<S>,
    x: &X,
    spread: &X::Spread<S>,
) -> S::F {
    let (mut acc, mut scaled) = (acc, s.splat(0.0));
    for half in 0..T::HALVES {
        let dot = s.to_f(x.dot::<S, T>(s, weights, spread, half));
        scaled = match half {
            0 => s.mul(dot, scales.scale[0]),
            _ => s.fma(dot, scales.scale[1], scaled),
        };
        if half + 1 == T::HALVES {
            acc = s.fma(scaled, s.splat(x.scale()), acc);
        }
        if T::OFFSETS {
            let sum = s.splat(x.scale() * x.sum::<T>(half) as f32);
            acc = s.fma(scales.offset[half], sum, acc);
        }
    }
    acc
}

struct FloatColumns<'a, T, const P: usize> {
    panels: [&'a [u8]; P],
    access: Access,
    /// `[cols]`: one row.
    x: &'a [f32],
    format: PhantomData<T>,
}

impl<T: FloatFormat, const P: usize> Columns<P> for FloatColumns<'_, T, P> {
    #[inline(always)]
    fn check(&self, end: usize) {
        assert!(self.x.len() >= end);
        assert!(self.panels.iter().all(|panel| panel.len() >= end * T::BYTES * LANES));
    }

    #[inline(always)]
    unsafe fn sum<S: Simd>(&self, s: S, cols: Range<usize>) -> [S::F; P] {
        let column_bytes = T::BYTES * LANES;
        let mut total = [s.splat(0.0); P];
        for start in cols.clone().step_by(FLOAT_RUN) {
            let mut acc = [s.splat(0.0); P];
            for col in start..cols.end.min(start + FLOAT_RUN) {
                // SAFETY: the column lies inside the row and the panels, as was checked.
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
        total
    }
}

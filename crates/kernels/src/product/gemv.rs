//! One input row, of 8-bit integers if weights are quantised: bound by the memory of the weights,
//! which are prefetched.
//!
//! One kernel walks over all panels of a thread's run, each from its first column to its last
//! across all leaves: the sums of leaves still to be merged stay in registers. It touches little
//! memory beside weights and inputs, because weights push it out of the caches.

use super::access::Access;
use super::parts::{DEPTH_MAX, Leaves};
use crate::format::{
    FloatFormat, Quantised, Scales, TILE, TILE_COLS, read_tile, with_float, with_quantised,
};
use crate::input::{Forms, Input};
use crate::isa::{Isa, Kernel, run};
use crate::matrix::Matrix;
use crate::shared::SharedMut;
use crate::simd::{LANES, Simd, array_of};
use crate::tile::{RowTile, SkinnyTile};
use std::marker::PhantomData;
use std::ops::Range;
use sumtree::merges_after;

/// Columns of float weights that are summed before the sum is added to the total.
pub(super) const FLOAT_RUN: usize = 256;

/// A product with one row.
pub(super) struct Gemv<'a> {
    pub access: Access,
    pub matrix: &'a Matrix,
    pub input: &'a Input,
    pub leaves: Leaves<'a>,
    /// `[parts, matrix.rows]`.
    pub out: SharedMut<f32>,
}

impl Gemv<'_> {
    /// Writes the outputs of the panels.
    ///
    /// # Safety
    /// `out` has room for all parts, and no other thread uses these panels' outputs meanwhile.
    pub unsafe fn multiply(&self, isa: Isa, panels: Range<usize>) {
        let rest = panels.end - panels.len() % self.access.streams;
        // SAFETY: as the caller promises.
        unsafe {
            if self.access.streams == 4 {
                self.side_by_side::<4>(isa, panels.start..rest);
                self.side_by_side::<1>(isa, rest..panels.end);
            } else {
                self.side_by_side::<1>(isa, panels);
            }
        }
    }

    /// Writes the outputs of the panels, `P` of them at a time.
    ///
    /// # Safety
    /// As for [`Gemv::multiply`], and their number is a multiple of `P`.
    unsafe fn side_by_side<const P: usize>(&self, isa: Isa, panels: Range<usize>) {
        let (input, matrix) = (self.input, self.matrix);
        if matrix.form() == Forms::INT8 {
            self.quantised::<P>(isa, panels, input.skinny_tiles());
        } else {
            with_float!(matrix.ty(), T => {
                let (access, x, format) = (self.access, input.floats(), PhantomData);
                run(isa, self.kernel::<_, P>(panels, FloatColumns::<T> { access, x, format }));
            }, _ => unreachable!("no matrix of type {} can be made", matrix.ty()));
        }
    }

    /// Like [`Gemv::side_by_side`], for quantised weights and the tiles of the input.
    fn quantised<const P: usize>(&self, isa: Isa, panels: Range<usize>, tiles: &[SkinnyTile]) {
        with_quantised!(self.matrix.ty(), T => {
            let (access, factor, format) = (self.access, self.matrix.factor(), PhantomData);
            let columns = QuantisedColumns::<T> { access, tiles, factor, format };
            run(isa, self.kernel::<_, P>(panels, columns));
        }, _ => unreachable!("weights of type {} are floats", self.matrix.ty()));
    }

    fn kernel<C, const P: usize>(&self, panels: Range<usize>, columns: C) -> Panels<'_, C, P> {
        let first = panels.start * LANES;
        let out = Outputs { all: self.out.ptr(), rows: self.matrix.rows(), first };
        let (data, panel_bytes) = (self.matrix.panels_data(panels), self.matrix.panel_bytes());
        Panels { columns, data, panel_bytes, leaves: self.leaves, out }
    }
}

/// The destination of panels' outputs.
struct Outputs {
    /// `[parts, rows]`.
    all: *mut f32,
    rows: usize,
    /// Row of the first output.
    first: usize,
}

impl Outputs {
    /// Writes part `part` of panel `panel`: fewer than 16 outputs at the end of a matrix.
    ///
    /// # Safety
    /// As for [`Gemv::multiply`].
    #[inline(always)]
    unsafe fn write<S: Simd>(&self, s: S, part: usize, panel: usize, sums: S::F) {
        let row = self.first + panel * LANES;
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

/// The input row, column by column.
trait Columns {
    /// As in [`Kernel`].
    const INT_DOTS: bool;
    const LOOKUPS: bool;
    const SCALAR: bool;

    /// Asserts that columns below `end` exist, in the input and in panels of `panel_bytes`.
    fn check(&self, end: usize, panel_bytes: usize);

    /// The sums of `P` panels over columns `cols`. Must be `#[inline(always)]`.
    ///
    /// # Safety
    /// [`Columns::check`] has checked the columns and the panels' size.
    unsafe fn sum<S: Simd, const P: usize>(
        &self,
        s: S,
        panels: &[*const u8; P],
        cols: Range<usize>,
    ) -> [S::F; P];
}

/// All parts of consecutive panels, `P` at a time: one kernel for all of them, because weights that
/// stream through the caches push out whatever else a call would touch.
struct Panels<'a, C, const P: usize> {
    columns: C,
    /// `[panels, panel_bytes]`.
    data: &'a [u8],
    panel_bytes: usize,
    leaves: Leaves<'a>,
    out: Outputs,
}

impl<C: Columns, const P: usize> Kernel for Panels<'_, C, P> {
    type Out = ();
    const INT_DOTS: bool = C::INT_DOTS;
    const LOOKUPS: bool = C::LOOKUPS;
    const SCALAR: bool = C::SCALAR;

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let Self { columns, data, panel_bytes, leaves, out } = self;
        let Leaves { leaf_ends, part_ends } = leaves;
        columns.check(leaf_ends[leaf_ends.len() - 1], panel_bytes);
        for (index, data) in data.chunks_exact(P * panel_bytes).enumerate() {
            let panels =
                array_of!(P, data.as_ptr(), p => data.as_ptr().wrapping_add(p * panel_bytes));
            let (mut col, mut first_leaf) = (0, 0);
            for (part, &end) in part_ends.iter().enumerate() {
                let mut trees = Trees::new(s);
                for leaf in first_leaf..end {
                    // SAFETY: the last leaf's end was checked, and leaves' ends rise.
                    trees.push(unsafe { columns.sum(s, &panels, col..leaf_ends[leaf]) });
                    for _ in 0..merges_after(leaf - first_leaf, end - first_leaf) {
                        trees.merge(s);
                    }
                    col = leaf_ends[leaf];
                }
                first_leaf = end;
                for p in 0..P {
                    // SAFETY: the creator of the kernel promises the outputs.
                    unsafe { out.write(s, part, index * P + p, trees.0[0][p]) };
                }
            }
        }
    }
}

/// The sums of subtrees still to be merged, the topmost first. All move at a push or pop, so that
/// each stays in a register.
struct Trees<S: Simd, const P: usize>([[S::F; P]; DEPTH_MAX]);

impl<S: Simd, const P: usize> Trees<S, P> {
    #[inline(always)]
    fn new(s: S) -> Self {
        Self([[s.splat(0.0); P]; DEPTH_MAX])
    }

    #[inline(always)]
    fn push(&mut self, sums: [S::F; P]) {
        for depth in (1..DEPTH_MAX).rev() {
            self.0[depth] = self.0[depth - 1];
        }
        self.0[0] = sums;
    }

    /// Adds the topmost sums to those below.
    #[inline(always)]
    fn merge(&mut self, s: S) {
        for p in 0..P {
            self.0[0][p] = s.add(self.0[1][p], self.0[0][p]);
        }
        for depth in 1..DEPTH_MAX - 1 {
            self.0[depth] = self.0[depth + 1];
        }
    }
}

struct QuantisedColumns<'a, T> {
    access: Access,
    /// `[cols / 32]`: one row.
    tiles: &'a [SkinnyTile],
    /// Of the matrix.
    factor: f32,
    format: PhantomData<T>,
}

impl<T: Quantised> QuantisedColumns<'_, T> {
    const RECORD_COLS: usize = T::TILES * TILE_COLS;
}

impl<T: Quantised> Columns for QuantisedColumns<'_, T> {
    const INT_DOTS: bool = true;
    const LOOKUPS: bool = T::CODEBOOK;
    const SCALAR: bool = false;

    #[inline(always)]
    fn check(&self, end: usize, panel_bytes: usize) {
        let records = end / Self::RECORD_COLS;
        assert!(self.tiles.len() >= records * T::TILES && panel_bytes >= records * T::RECORD);
    }

    #[inline(always)]
    unsafe fn sum<S: Simd, const P: usize>(
        &self,
        s: S,
        panels: &[*const u8; P],
        cols: Range<usize>,
    ) -> [S::F; P] {
        let share = T::RECORD / T::TILES;
        let mut acc = [s.splat(0.0); P];
        for index in cols.start / Self::RECORD_COLS..cols.end / Self::RECORD_COLS {
            let records = array_of!(P, panels[0], p => panels[p].wrapping_add(index * T::RECORD));
            // SAFETY: the records and input tiles lie inside their slices, as was checked.
            unsafe {
                let heads = array_of!(P, T::head(s, records[0]), p => T::head(s, records[p]));
                for tile in 0..T::TILES {
                    let x = self.tiles.get_unchecked(index * T::TILES + tile);
                    let spread = x.spread(s);
                    for p in 0..P {
                        // Prefetches a tile's share of the record at a time: a burst would exceed
                        // the core's limit of outstanding loads.
                        self.access.fetch(s, records[p].wrapping_add(tile * share), share);
                        let (weights, scales) =
                            read_tile::<S, T>(s, records[p], &heads[p], tile, self.factor);
                        acc[p] = add_tile::<S, T, _>(s, acc[p], &weights, &scales, x, &spread);
                    }
                }
            }
        }
        acc
    }
}

/// Adds the products of one tile of weights and one of inputs to the sums of 16 outputs, in the
/// order of the parent module's doc.
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
            acc = s.fma(scales.offset[half], s.splat(x.scaled_sum::<T>(half)), acc);
        }
    }
    acc
}

struct FloatColumns<'a, T> {
    access: Access,
    /// `[cols]`: one row.
    x: &'a [f32],
    format: PhantomData<T>,
}

impl<T: FloatFormat> Columns for FloatColumns<'_, T> {
    const INT_DOTS: bool = false;
    const LOOKUPS: bool = false;
    const SCALAR: bool = true;

    #[inline(always)]
    fn check(&self, end: usize, panel_bytes: usize) {
        assert!(self.x.len() >= end && panel_bytes >= end.div_ceil(T::COLS) * T::RECORD);
    }

    #[inline(always)]
    unsafe fn sum<S: Simd, const P: usize>(
        &self,
        s: S,
        panels: &[*const u8; P],
        cols: Range<usize>,
    ) -> [S::F; P] {
        let column_bytes = T::BYTES * LANES;
        let mut total = [s.splat(0.0); P];
        for start in cols.clone().step_by(FLOAT_RUN) {
            let mut acc = [s.splat(0.0); P];
            for col in start..cols.end.min(start + FLOAT_RUN) {
                // SAFETY: the column lies inside the row and the panels, as was checked.
                unsafe {
                    let x = s.splat(*self.x.get_unchecked(col));
                    for p in 0..P {
                        self.access.fetch(s, T::at(panels[p], col), column_bytes);
                        acc[p] = s.fma(T::column(s, panels[p], col), x, acc[p]);
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

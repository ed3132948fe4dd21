//! The input of matrix products: rows of activations, as floats and as integers.
//!
//! Quantised weights are multiplied with 8-bit activations, each tile of 32 consecutive columns
//! with its own scale (chosen by [`crate::quantise`]). The same form serves every quantised type,
//! including the K-quants (other engines give those one scale for 256 columns, which costs accuracy
//! if one activation is much larger than the rest). If 8 bits are not enough there are activations
//! of about 16 bits ([`Int16Tile`]). A tile depends only on its own 32 elements, so a shard
//! quantises its columns to the same bits as a single machine.

use crate::format::TILE_COLS;
use crate::isa::{Isa, Kernel, run};
use crate::pool::Pool;
use crate::quantise::Quantise;
use crate::shared::SharedMut;
use crate::simd::Simd;
use crate::tile::{GemmTile, Int16Tile, SkinnyTile};
use std::ops::BitOr;

/// Activations of one task of [`Input::load`]: whole tiles, sixteen at a time.
const TASK_LEN: usize = 4096;

/// The most rows for which a product unpacks quantised weights into registers, once for all rows.
pub(crate) const SKINNY_ROWS: usize = 12;

/// The forms of the activations that a product needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Forms {
    float: bool,
    int8: bool,
}

impl Forms {
    /// f32 rows, for F32, F16 and BF16 weights.
    pub const FLOAT: Forms = Forms { float: true, int8: false };
    /// 8-bit integers, for quantised weights.
    pub const INT8: Forms = Forms { float: false, int8: true };
    /// Both.
    pub const BOTH: Forms = Forms { float: true, int8: true };

    fn covers(self, other: Forms) -> bool {
        (self.float || !other.float) && (self.int8 || !other.int8)
    }
}

impl BitOr for Forms {
    type Output = Forms;
    fn bitor(self, other: Forms) -> Forms {
        Forms { float: self.float || other.float, int8: self.int8 || other.int8 }
    }
}

/// Activations `[rows, cols]`, prepared once for any number of products.
pub struct Input {
    rows_max: usize,
    cols: usize,
    rows: usize,
    forms: Forms,
    /// `[rows, cols]`.
    floats: Vec<f32>,
    /// Integers are `[cols / 32, rows]`, so that the rows of one tile are adjacent; empty if the
    /// columns are no multiple of 32. For more rows than [`SKINNY_ROWS`]:
    gemm: Vec<GemmTile>,
    /// For at most that many rows.
    skinny: Vec<SkinnyTile>,
    /// Only in inputs made with [`Input::new_int16`].
    int16: Vec<Int16Tile>,
}

impl Input {
    /// Room for up to `rows_max` rows of `cols` columns.
    pub fn new(rows_max: usize, cols: usize) -> Self {
        let tiles = if cols.is_multiple_of(TILE_COLS) { cols / TILE_COLS } else { 0 };
        let gemm = if rows_max > SKINNY_ROWS { rows_max * tiles } else { 0 };
        Self {
            rows_max,
            cols,
            rows: 0,
            forms: Forms::BOTH,
            floats: vec![0.0; rows_max * cols],
            gemm: vec![GemmTile::default(); gemm],
            skinny: vec![SkinnyTile::default(); rows_max.min(SKINNY_ROWS) * tiles],
            int16: Vec::new(),
        }
    }

    /// Room for rows as integers of about 16 bits, for quantised weights only; see
    /// [`Input::load_int16`].
    ///
    /// # Panics
    /// If `cols` is no multiple of 32, which every quantised matrix has.
    pub fn new_int16(rows_max: usize, cols: usize) -> Self {
        assert!(cols.is_multiple_of(TILE_COLS), "{cols} columns are no whole tiles");
        let int16 = vec![Int16Tile::default(); rows_max * (cols / TILE_COLS)];
        let (floats, gemm, skinny) = (Vec::new(), Vec::new(), Vec::new());
        Self { rows_max, cols, rows: 0, forms: Forms::INT8, floats, gemm, skinny, int16 }
    }

    /// Rows loaded.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Columns of a row.
    pub fn cols(&self) -> usize {
        self.cols
    }

    /// The most rows.
    pub fn rows_max(&self) -> usize {
        self.rows_max
    }

    /// Prepares `x`: `[rows, cols]` f32, row-major, in both forms.
    ///
    /// # Panics
    /// If there are too many rows, or `x` is not `[rows, cols]`.
    pub fn load(&mut self, pool: &Pool, x: &[f32], rows: usize) {
        self.load_for(pool, x, rows, Forms::BOTH);
    }

    /// Like [`Input::load`], only in the given forms: those of the matrices to multiply with
    /// ([`crate::Matrix::form`]). Products assert that their form is present.
    ///
    /// # Panics
    /// As [`Input::load`].
    pub fn load_for(&mut self, pool: &Pool, x: &[f32], rows: usize, forms: Forms) {
        assert!(!self.is_int16(), "an input made with `new_int16` takes `load_int16`");
        self.begin(x, rows, forms);
        let int8 = forms.int8 && self.cols.is_multiple_of(TILE_COLS);
        let cols = self.cols / TILE_COLS;
        let floats = SharedMut::new(self.floats.as_mut_ptr());
        let gemm = SharedMut::new(self.gemm.as_mut_ptr());
        let skinny = SharedMut::new(self.skinny.as_mut_ptr());
        let isa = Isa::chosen();
        pool.run(x.len().div_ceil(TASK_LEN), |task| {
            let start = task * TASK_LEN;
            let x = &x[start..x.len().min(start + TASK_LEN)];
            if forms.float {
                // SAFETY: the task's own run, inside `[rows_max, cols]`.
                let out =
                    unsafe { std::slice::from_raw_parts_mut(floats.ptr().add(start), x.len()) };
                out.copy_from_slice(x);
            }
            if int8 {
                // The tiles are the task's own, inside `[cols, rows]`.
                let first = start / TILE_COLS;
                if rows > SKINNY_ROWS {
                    run(isa, Quantise { x, first, cols, out: gemm.ptr(), stride: rows });
                } else {
                    run(isa, Quantise { x, first, cols, out: skinny.ptr(), stride: rows });
                }
            }
        });
    }

    /// Prepares `x` for products with a hundredth of the error of 8-bit ones, and twice the
    /// arithmetic; for few rows memory takes longer than that.
    ///
    /// # Panics
    /// As [`Input::load`], or if this input was not made with [`Input::new_int16`].
    pub fn load_int16(&mut self, pool: &Pool, x: &[f32], rows: usize) {
        assert!(self.is_int16(), "an input for `load_int16` is made with `new_int16`");
        self.begin(x, rows, Forms::INT8);
        let out = SharedMut::new(self.int16.as_mut_ptr());
        let isa = Isa::chosen();
        pool.run(rows, |row| {
            let x = &x[row * self.cols..][..self.cols];
            // SAFETY: the row's own tiles, inside `[cols, rows]`.
            run(isa, QuantiseInt16 { x, out: unsafe { out.ptr().add(row) }, stride: rows });
        });
    }

    fn begin(&mut self, x: &[f32], rows: usize, forms: Forms) {
        assert!(rows <= self.rows_max, "{rows} rows where there is room for {}", self.rows_max);
        assert_eq!(x.len(), rows * self.cols, "the input must be [{rows}, {}]", self.cols);
        (self.rows, self.forms) = (rows, forms);
    }

    /// Whether its integers have about 16 bits.
    pub(crate) fn is_int16(&self) -> bool {
        !self.int16.is_empty()
    }

    /// f32 rows, `[rows, cols]`.
    pub(crate) fn floats(&self) -> &[f32] {
        assert!(self.forms.covers(Forms::FLOAT), "this input was loaded without its f32 form");
        &self.floats[..self.rows * self.cols]
    }

    /// Integer tiles, `[cols / 32, rows]`, of more rows than [`SKINNY_ROWS`].
    pub(crate) fn gemm_tiles(&self) -> &[GemmTile] {
        assert!(self.rows > SKINNY_ROWS, "{} rows are few", self.rows);
        &self.gemm[..self.tiles()]
    }

    /// Integer tiles, `[cols / 32, rows]`, of at most [`SKINNY_ROWS`] rows.
    pub(crate) fn skinny_tiles(&self) -> &[SkinnyTile] {
        assert!(self.rows <= SKINNY_ROWS, "{} rows are many", self.rows);
        &self.skinny[..self.tiles()]
    }

    /// Integer tiles, `[cols / 32, rows]`, of about 16 bits.
    pub(crate) fn int16_tiles(&self) -> &[Int16Tile] {
        &self.int16[..self.tiles()]
    }

    /// The number of loaded tiles.
    fn tiles(&self) -> usize {
        assert!(self.forms.covers(Forms::INT8), "this input was loaded without its 8-bit form");
        self.rows * (self.cols / TILE_COLS)
    }
}

/// Quantises one row to about 16 bits. A kernel only for its instructions: the compiler vectorizes
/// the loops.
struct QuantiseInt16<'a> {
    /// Whole tiles.
    x: &'a [f32],
    out: *mut Int16Tile,
    stride: usize,
}

impl Kernel for QuantiseInt16<'_> {
    type Out = ();

    #[inline(always)]
    fn run<S: Simd>(self, _: S) {
        for (index, x) in self.x.chunks_exact(TILE_COLS).enumerate() {
            // SAFETY: a tile of the caller's.
            unsafe { *self.out.add(index * self.stride) = Int16Tile::of(x) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::reference::floats;
    use fastrand::Rng;

    #[test]
    fn a_tile_depends_on_nothing_but_its_own_numbers() {
        let pool = Pool::new(2).unwrap();
        for (rows, tiles) in [(1, 3), (5, 7), (SKINNY_ROWS + 1, 33)] {
            let cols = tiles * TILE_COLS;
            let x = floats(&mut Rng::with_seed(6), rows * cols);
            let (mut all, mut alone) = (Input::new(rows, cols), Input::new(1, TILE_COLS));
            let (mut int16, mut int16_alone) =
                (Input::new_int16(rows, cols), Input::new_int16(1, TILE_COLS));
            all.load(&pool, &x, rows);
            int16.load_int16(&pool, &x, rows);
            assert_eq!(all.floats(), x);
            for (index, x) in x.chunks(TILE_COLS).enumerate() {
                alone.load(&pool, x, 1);
                int16_alone.load_int16(&pool, x, 1);
                let (row, tile) = (index / tiles, index % tiles);
                let at = tile * rows + row;
                let expected = alone.skinny_tiles()[0];
                let (q, scale, sums) = if rows > SKINNY_ROWS {
                    let GemmTile { q, scale, sums, scaled_sums } = all.gemm_tiles()[at];
                    assert_eq!(sums[2], sums[0] + sums[1]);
                    assert_eq!(scaled_sums, sums.map(|sum| scale * sum as f32));
                    (q.map(|q| (q ^ 0x80) as i8), scale, [sums[0] as i16, sums[1] as i16])
                } else {
                    let SkinnyTile { q, scale, sums, .. } = all.skinny_tiles()[at];
                    (q, scale, sums)
                };
                assert_eq!(q, expected.q, "tile {tile} of row {row} of {rows}");
                assert_eq!(scale.to_bits(), expected.scale.to_bits());
                assert_eq!(sums, expected.sums);
                let (got, expected) = (int16.int16_tiles()[at], int16_alone.int16_tiles()[0]);
                assert_eq!((got.high, got.low), (expected.high, expected.low));
                assert_eq!(got.scale.to_bits(), expected.scale.to_bits());
                assert_eq!(got.sums, expected.sums);
            }
        }
    }
}

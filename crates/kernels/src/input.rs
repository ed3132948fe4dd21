//! The input of matrix products: rows of activations, as they are and as 8-bit integers.
//!
//! Quantised weights are multiplied with 8-bit activations, each tile of 32 consecutive columns
//! with a scale of its own ([`crate::quantise`] says which). The same form serves every quantised
//! type, the K-quants included (other engines give those one scale for 256 columns, which costs
//! accuracy where one activation towers above the rest). A tile depends on nothing but its own 32
//! numbers, so a shard quantises its columns to the same bits as one machine does.

use crate::format::TILE_COLS;
use crate::isa::{Isa, run};
use crate::pool::Pool;
use crate::quantise::Quantise;
use crate::shared::SharedMut;
use std::ops::BitOr;

/// Activations that one task of [`Input::load`] prepares: whole tiles, sixteen at a time.
const TASK_LEN: usize = 4096;

/// Rows up to which a product unpacks quantised weights into registers, once for all rows.
pub(crate) const FEW_ROWS: usize = 12;

/// Which forms of the activations a product needs.
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

/// 32 columns of one row as integers, with everything a product needs to know about them.
/// One cache line. `sums` and `scaled_sums` are of columns 0..16, 16..32 and 0..32.
#[derive(Clone, Copy, Default)]
#[repr(C, align(64))]
pub(crate) struct InputTile {
    /// About `x / scale` as `i8` if there are at most [`FEW_ROWS`]; that plus 128 if there are
    /// more, as [`crate::simd::Simd::many_splat_x4`] wants it.
    pub q: [u8; TILE_COLS],
    pub scale: f32,
    pub sums: [i32; 3],
    /// `scale * sum`.
    pub scaled_sums: [f32; 3],
}

/// Activations `[rows, cols]`, prepared once for any number of products.
pub struct Input {
    rows_max: usize,
    cols: usize,
    rows: usize,
    forms: Forms,
    /// `[rows, cols]`.
    floats: Vec<f32>,
    /// `[cols / 32, rows]`, so that the rows of one tile are neighbours; empty if the columns are
    /// no multiple of 32.
    tiles: Vec<InputTile>,
}

impl Input {
    /// Room for up to `rows_max` rows of `cols` columns.
    pub fn new(rows_max: usize, cols: usize) -> Self {
        let tiles = if cols.is_multiple_of(TILE_COLS) { cols / TILE_COLS } else { 0 };
        Self {
            rows_max,
            cols,
            rows: 0,
            forms: Forms::BOTH,
            floats: vec![0.0; rows_max * cols],
            tiles: vec![InputTile::default(); rows_max * tiles],
        }
    }

    /// Rows loaded.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Columns of a row.
    pub fn cols(&self) -> usize {
        self.cols
    }

    /// Prepares `x`: `[rows, cols]` f32, row-major, in both forms.
    ///
    /// # Panics
    /// If there are more rows than there is room for, or `x` is not `[rows, cols]`.
    pub fn load(&mut self, pool: &Pool, x: &[f32], rows: usize) {
        self.load_for(pool, x, rows, Forms::BOTH);
    }

    /// As [`Input::load`], only in the forms named: those of the matrices it will meet
    /// ([`crate::Matrix::form`]). Products assert that they find theirs.
    ///
    /// # Panics
    /// As [`Input::load`].
    pub fn load_for(&mut self, pool: &Pool, x: &[f32], rows: usize, forms: Forms) {
        self.fill(pool, x, rows, forms, 0);
    }

    /// As [`Input::load`], for quantised weights, and behind the rows as many with what their
    /// 8 bits leave of them: outputs `i` and `rows + i` of a product add up to one that
    /// errs by a two-hundredth.
    ///
    /// # Panics
    /// If there are more than half as many rows as there is room for, or `x` is not `[rows, cols]`.
    pub fn load_with_rests(&mut self, pool: &Pool, x: &[f32], rows: usize) {
        self.fill(pool, x, rows, Forms::INT8, rows);
    }

    /// `rests`: how many rows have one with their rests behind all rows, none or all.
    fn fill(&mut self, pool: &Pool, x: &[f32], rows: usize, forms: Forms, rests: usize) {
        let all = rows + rests;
        assert!(all <= self.rows_max, "{all} rows where there is room for {}", self.rows_max);
        assert_eq!(x.len(), rows * self.cols, "the input must be [{rows}, {}]", self.cols);
        (self.rows, self.forms) = (all, forms);
        let int8 = forms.int8 && self.cols.is_multiple_of(TILE_COLS);
        let cols = self.cols / TILE_COLS;
        let bias = if all <= FEW_ROWS { 0 } else { 128 };
        let floats = SharedMut::new(self.floats.as_mut_ptr());
        let tiles = SharedMut::new(self.tiles.as_mut_ptr());
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
                // Its tiles and those of their rests are the task's own, inside `[cols, all]`.
                let (first, out) = (start / TILE_COLS, tiles.ptr());
                run(isa, Quantise { x, first, cols, out, stride: all, rests, bias });
            }
        });
    }

    /// f32 rows, `[rows, cols]`.
    pub(crate) fn floats(&self) -> &[f32] {
        assert!(self.forms.covers(Forms::FLOAT), "this input was loaded without its f32 form");
        &self.floats[..self.rows * self.cols]
    }

    /// Integer tiles, `[cols / 32, rows]`.
    pub(crate) fn tiles(&self) -> &[InputTile] {
        assert!(self.forms.covers(Forms::INT8), "this input was loaded without its 8-bit form");
        &self.tiles[..self.rows * (self.cols / TILE_COLS)]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::reference::Random;

    #[test]
    fn a_tile_depends_on_nothing_but_its_own_numbers() {
        let pool = Pool::new(2).unwrap();
        for (rows, tiles) in [(1, 3), (5, 7), (FEW_ROWS + 1, 33)] {
            let cols = tiles * TILE_COLS;
            let x = Random(6).floats(rows * cols);
            let (mut all, mut alone) = (Input::new(rows, cols), Input::new(1, TILE_COLS));
            all.load(&pool, &x, rows);
            assert_eq!(all.floats(), x);
            for (index, x) in x.chunks(TILE_COLS).enumerate() {
                alone.load(&pool, x, 1);
                let (row, tile) = (index / tiles, index % tiles);
                let (got, mut expected) = (&all.tiles()[tile * rows + row], alone.tiles()[0]);
                if rows > FEW_ROWS {
                    expected.q = expected.q.map(|q| q ^ 0x80);
                }
                assert_eq!(got.q, expected.q, "tile {tile} of row {row} of {rows}");
                assert_eq!(got.scale.to_bits(), expected.scale.to_bits());
                assert_eq!(got.sums, expected.sums);
                assert_eq!(got.scaled_sums, expected.scaled_sums);
            }
        }
    }

    #[test]
    fn rows_and_their_rests_add_up() {
        let pool = Pool::new(2).unwrap();
        let (rows, cols) = (3, 3 * TILE_COLS);
        let x = Random(5).floats(rows * cols);
        let mut input = Input::new(2 * rows, cols);
        input.load_with_rests(&pool, &x, rows);
        assert_eq!(input.rows(), 2 * rows);
        for (row, x) in x.chunks(cols).enumerate() {
            for (tile, x) in x.chunks(TILE_COLS).enumerate() {
                let tiles = &input.tiles()[tile * 2 * rows..];
                let value = |tile: &InputTile, k: usize| tile.scale * f32::from(tile.q[k] as i8);
                for (k, x) in x.iter().enumerate() {
                    let (near, rest) = (value(&tiles[row], k), value(&tiles[rows + row], k));
                    let error = (near + rest - x).abs();
                    assert!(error <= tiles[row].scale / 250.0, "{x} became {near} and {rest}");
                }
            }
        }
    }
}

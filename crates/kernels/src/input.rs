//! The input of matrix products: rows of activations, as they are and as 8-bit integers.
//!
//! Quantised weights are multiplied with 8-bit activations, each tile of 32 consecutive columns
//! with a scale of its own: `scale = max|x| / 127`, `q = round(x / scale)` with ties to even. The
//! same form serves every quantised type, the K-quants included (other engines give those one
//! scale for 256 columns, which costs accuracy where one activation towers above the rest). A tile
//! depends on nothing but its own 32 numbers, so a shard quantises its columns to the same bits as
//! one machine does.

use crate::format::TILE_COLS;
use crate::isa::{Isa, Kernel, run};
use crate::pool::Pool;
use crate::shared::SharedMut;
use crate::simd::{LANES, Simd};
use std::ops::BitOr;

/// Columns that one task of [`Input::load`] prepares.
const TASK_COLS: usize = 4096;

/// Rows up to which a product unpacks quantised weights into registers, once for all rows.
pub(crate) const FEW_ROWS: usize = 12;

/// Below this the scale's reciprocal would overflow; the tile counts as zeros. No activation that
/// matters is anywhere near.
const SMALLEST_MAX: f32 = 1e-36;

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
    /// `round(x / scale)` as `i8` if there are at most [`FEW_ROWS`]; that plus 128 if there are
    /// more, as [`Simd::many_splat_x4`] wants it.
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
        let cols = self.cols;
        let int8 = forms.int8 && cols.is_multiple_of(TILE_COLS);
        let runs = cols.div_ceil(TASK_COLS);
        let floats = SharedMut::new(self.floats.as_mut_ptr());
        let tiles = SharedMut::new(self.tiles.as_mut_ptr());
        let isa = Isa::chosen();
        pool.run(rows * runs, |task| {
            let (row, start) = (task / runs, task % runs * TASK_COLS);
            let x = &x[row * cols..][start..cols.min(start + TASK_COLS)];
            if forms.float {
                // SAFETY: the task's own run of its own row, inside `[rows_max, cols]`.
                let out = unsafe {
                    let start = floats.ptr().add(row * cols + start);
                    std::slice::from_raw_parts_mut(start, x.len())
                };
                out.copy_from_slice(x);
            }
            if int8 {
                // SAFETY: tile `start / 32` of this row exists; `Quantise` writes every
                // `all`-th tile from there, which are this row's, and those of its rests.
                let out = unsafe { tiles.ptr().add(start / TILE_COLS * all + row) };
                let bias = if all <= FEW_ROWS { 0 } else { 128 };
                run(isa, Quantise { x, out, stride: all, bias, rests });
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

/// Quantises one run of a row, a multiple of 32 columns.
struct Quantise<'a> {
    x: &'a [f32],
    out: *mut InputTile,
    stride: usize,
    bias: i32,
    /// Tiles between one and the one with its rests; 0 if they are not wanted.
    rests: usize,
}

impl Kernel for Quantise<'_> {
    type Out = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        for (index, x) in self.x.chunks_exact(TILE_COLS).enumerate() {
            // SAFETY: 32 floats are read; the tiles are the caller's to write.
            unsafe {
                let out = self.out.add(index * self.stride);
                let halves = [s.load(x.as_ptr()), s.load(x.as_ptr().add(LANES))];
                let rests = quantise_tile(s, halves, self.bias, &mut *out);
                if self.rests > 0 {
                    quantise_tile(s, rests, self.bias, &mut *out.add(self.rests));
                }
            }
        }
    }
}

/// Quantises 32 columns, and returns what is left of them.
#[inline(always)]
fn quantise_tile<S: Simd>(s: S, x: [S::F; 2], bias: i32, out: &mut InputTile) -> [S::F; 2] {
    let mut rests = x;
    let top = s.top(s.max(s.abs(x[0]), s.abs(x[1])));
    let (scale, inverse) = if top < SMALLEST_MAX { (0.0, 0.0) } else { (top / 127.0, 127.0 / top) };
    for half in 0..2 {
        let q = s.to_i(s.mul(x[half], s.splat(inverse)));
        let biased = s.add_i(q, s.splat_i(bias));
        // SAFETY: the tile has room for two vectors of bytes.
        unsafe { s.store_i8(out.q.as_mut_ptr().add(half * LANES).cast(), biased) };
        out.sums[half] = s.sum_i(q);
        rests[half] = s.fma(s.to_f(q), s.splat(-scale), x[half]);
    }
    out.scale = scale;
    out.sums[2] = out.sums[0] + out.sums[1];
    out.scaled_sums = out.sums.map(|sum| scale * sum as f32);
    rests
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::reference::Random;

    #[test]
    fn quantisation_is_the_same_on_every_instruction_set_and_close() {
        let fill = |value: fn(usize) -> f32| (0..128).map(value).collect::<Vec<f32>>();
        let cases = [
            ("waves", fill(|k| (k as f32 * 0.37).sin() * (k as f32))),
            ("subnormal", fill(|k| k as f32 * 1e-40)),
            ("huge", fill(|k| if k % 3 == 0 { -3e38 } else { 1e30 * k as f32 })),
            ("one outlier", fill(|k| if k == 17 { 1e6 } else { 0.5 })),
        ];
        for (name, x) in cases {
            let of = |isa| {
                // The rests of the four tiles come behind them.
                let (mut tiles, rests) = (vec![InputTile::default(); 8], 4);
                let out = tiles.as_mut_ptr();
                run(isa, Quantise { x: &x, out, stride: 1, bias: 128, rests });
                tiles
            };
            let expected = of(Isa::Scalar);
            for isa in Isa::available() {
                for (tile, expected) in of(isa).iter().zip(&expected) {
                    assert_eq!(tile.q, expected.q, "{name} on {}", isa.name());
                    assert_eq!(tile.scale.to_bits(), expected.scale.to_bits());
                    assert_eq!(tile.sums, expected.sums);
                    assert_eq!(tile.scaled_sums, expected.scaled_sums);
                }
            }
            for (tile, x) in expected.iter().zip(x.chunks(TILE_COLS)) {
                let q = tile.q.map(|q| i32::from(q) - 128);
                assert_eq!(tile.sums[2], q.iter().sum());
                for (q, x) in q.iter().zip(x) {
                    let error = (f64::from(*q) * f64::from(tile.scale) - f64::from(*x)).abs();
                    let limit = f64::from(tile.scale) * 0.5001 + f64::from(SMALLEST_MAX);
                    assert!(error <= limit, "{name}: {x} became {q} x {}", tile.scale);
                }
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

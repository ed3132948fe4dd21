//! 32 columns of one input row as integers, in the form for each kind of product.
//!
//! With one row or a few, weights stream past inputs that should stay in the first-level cache, so
//! those tiles are as small as possible. With many rows the inputs stream, so their tiles contain
//! precomputed sums that a product would otherwise compute for every panel.

use crate::format::{Quantised, TILE, TILE_COLS};
use crate::simd::{LANES, Simd, array_of};

/// Steps of the largest element of an [`Int16Tile`]: the range of 8 bits above and 7 below.
const INT16_STEPS: f32 = 127.0 * 128.0;

/// Bits of a [`Int16Tile`]'s low parts.
const LOW_BITS: u32 = 7;

/// Below this a tile counts as zeros, since a scale's inverse might overflow. No relevant
/// activation is that small.
pub(crate) const SMALLEST_MAX: f32 = 1e-33;

/// For products with more rows than [`crate::input::SKINNY_ROWS`]. One cache line. `sums` and
/// `scaled_sums` are of columns 0..16, 16..32 and 0..32.
#[derive(Clone, Copy, Default)]
#[repr(C, align(64))]
pub(crate) struct GemmTile {
    /// About `x / scale`, plus 128, the form for [`Simd::gemm_splat_x4`].
    pub q: [u8; TILE_COLS],
    pub scale: f32,
    pub sums: [i32; 3],
    /// `scale * sum`.
    pub scaled_sums: [f32; 3],
}

/// For products with one row or a few, from the same elements as [`GemmTile`].
#[derive(Clone, Copy, Default)]
#[repr(C)]
pub(crate) struct SkinnyTile {
    /// About `x / scale`.
    pub q: [i8; TILE_COLS],
    pub scale: f32,
    /// Of columns 0..16 and 16..32.
    pub sums: [i16; 2],
    /// `scale` times both: with several rows, this saves a noticeable multiplication for each.
    pub scaled_sum: f32,
}

/// About sixteen bits: `x = scale * (128 high + low)`. For products with one row or a few.
#[derive(Clone, Copy, Default)]
#[repr(C)]
pub(crate) struct Int16Tile {
    pub high: [i8; TILE_COLS],
    /// From -64 to 63.
    pub low: [i8; TILE_COLS],
    pub scale: f32,
    /// Of `128 high + low` of columns 0..16 and 16..32.
    pub sums: [i32; 2],
}

impl Int16Tile {
    #[inline(always)]
    pub fn of(x: &[f32]) -> Self {
        let mut tile = Self::default();
        // As in `quantise`: infinity and NaN are above all finite elements, and give no finite
        // scale.
        let top = f32::from_bits(x.iter().fold(0, |top, x| top.max(x.abs().to_bits())));
        if top < SMALLEST_MAX {
            return tile;
        }
        tile.scale = top / INT16_STEPS;
        let inverse = INT16_STEPS / top;
        for k in 0..TILE_COLS {
            let q = (x[k] * inverse).round_ties_even() as i32;
            let high = (q + (1 << (LOW_BITS - 1))) >> LOW_BITS;
            tile.high[k] = high as i8;
            tile.low[k] = (q - (high << LOW_BITS)) as i8;
            tile.sums[k / LANES] += q;
        }
        tile
    }
}

/// A tile for products with one row or a few.
pub(crate) trait RowTile: Copy {
    /// The tile's integers, four in every lane.
    type Spread<S: Simd>: Copy;

    fn spread<S: Simd>(&self, s: S) -> Self::Spread<S>;

    /// The exact dot products of 16 rows of weights and the tile; for weight types with halves, of
    /// half `half` of its columns.
    fn dot<S: Simd, T: Quantised>(
        &self,
        s: S,
        weights: &[S::I; TILE],
        spread: &Self::Spread<S>,
        half: usize,
    ) -> S::I;

    fn scale(&self) -> f32;

    /// The sums of the integers of columns 0..16 and 16..32.
    fn sums(&self) -> [i32; 2];

    /// The sum that goes with [`RowTile::dot`].
    #[inline(always)]
    fn sum<T: Quantised>(&self, half: usize) -> i32 {
        let sums = self.sums();
        if T::HALVES == 1 { sums[0] + sums[1] } else { sums[half] }
    }

    /// The same, times the scale.
    #[inline(always)]
    fn scaled_sum<T: Quantised>(&self, half: usize) -> f32 {
        self.scale() * self.sum::<T>(half) as f32
    }

    /// The start of a dot product, so that weight [`Quantised::ZERO`] represents 0.
    #[inline(always)]
    fn start<S: Simd, T: Quantised>(&self, s: S, half: usize) -> S::I {
        let factor = if T::BIASED {
            s.zero_factor::<true>(T::ZERO)
        } else {
            s.zero_factor::<false>(T::ZERO)
        };
        s.splat_i(factor * self.sum::<T>(half))
    }
}

/// The vectors of weights for half `half` of a tile's columns.
#[inline(always)]
fn quads<T: Quantised>(half: usize) -> std::ops::Range<usize> {
    let quads = TILE / T::HALVES;
    half * quads..(half + 1) * quads
}

#[inline(always)]
fn dot4<S: Simd, T: Quantised>(s: S, acc: S::I, weights: S::I, x: S::I) -> S::I {
    if T::BIASED { s.dot4::<true>(acc, weights, x) } else { s.dot4::<false>(acc, weights, x) }
}

#[inline(always)]
fn spread<S: Simd>(s: S, q: &[i8; TILE_COLS]) -> [S::I; TILE] {
    // SAFETY: each reads four of the 32 bytes.
    array_of!(TILE, s.splat_i(0), i => unsafe { s.splat_x4(q.as_ptr().add(4 * i).cast()) })
}

impl RowTile for SkinnyTile {
    type Spread<S: Simd> = [S::I; TILE];

    #[inline(always)]
    fn spread<S: Simd>(&self, s: S) -> Self::Spread<S> {
        spread(s, &self.q)
    }

    #[inline(always)]
    fn dot<S: Simd, T: Quantised>(
        &self,
        s: S,
        weights: &[S::I; TILE],
        spread: &Self::Spread<S>,
        half: usize,
    ) -> S::I {
        // Two chains, because a single one would wait for itself; integers may be added in any
        // order.
        let mut dots = [self.start::<S, T>(s, half), s.splat_i(0)];
        for i in quads::<T>(half) {
            dots[i % 2] = dot4::<S, T>(s, dots[i % 2], weights[i], spread[i]);
        }
        s.add_i(dots[0], dots[1])
    }

    #[inline(always)]
    fn scale(&self) -> f32 {
        self.scale
    }

    #[inline(always)]
    fn sums(&self) -> [i32; 2] {
        self.sums.map(i32::from)
    }

    #[inline(always)]
    fn scaled_sum<T: Quantised>(&self, half: usize) -> f32 {
        if T::HALVES == 1 { self.scaled_sum } else { self.scale * f32::from(self.sums[half]) }
    }
}

impl RowTile for Int16Tile {
    type Spread<S: Simd> = [[S::I; TILE]; 2];

    #[inline(always)]
    fn spread<S: Simd>(&self, s: S) -> Self::Spread<S> {
        [spread(s, &self.high), spread(s, &self.low)]
    }

    #[inline(always)]
    fn dot<S: Simd, T: Quantised>(
        &self,
        s: S,
        weights: &[S::I; TILE],
        [high, low]: &Self::Spread<S>,
        half: usize,
    ) -> S::I {
        let mut dots = [s.splat_i(0), self.start::<S, T>(s, half)];
        for i in quads::<T>(half) {
            dots[0] = dot4::<S, T>(s, dots[0], weights[i], high[i]);
            dots[1] = dot4::<S, T>(s, dots[1], weights[i], low[i]);
        }
        s.add_i(s.shl(dots[0], LOW_BITS), dots[1])
    }

    #[inline(always)]
    fn scale(&self) -> f32 {
        self.scale
    }

    #[inline(always)]
    fn sums(&self) -> [i32; 2] {
        self.sums
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::reference::floats;
    use fastrand::Rng;

    #[test]
    fn an_int16_tile_errs_by_half_a_step() {
        let random = floats(&mut Rng::with_seed(5), 8 * TILE_COLS);
        let outlier = |k| if k == 7 { -3e38 } else { 1e36 * k as f32 };
        let others: Vec<f32> = (0..TILE_COLS).map(outlier).chain([0.0; TILE_COLS]).collect();
        for x in random.chunks(TILE_COLS).chain(others.chunks(TILE_COLS)) {
            let tile = Int16Tile::of(x);
            let top = x.iter().fold(0.0_f32, |top, x| top.max(x.abs()));
            let mut sums = [0; 2];
            for k in 0..TILE_COLS {
                assert!(tile.high[k] >= -127, "the smallest byte is not for all instruction sets");
                let q = (i32::from(tile.high[k]) << LOW_BITS) + i32::from(tile.low[k]);
                let error = (f64::from(q) * f64::from(tile.scale) - f64::from(x[k])).abs();
                assert!(error <= f64::from(top) / f64::from(INT16_STEPS) * 0.501, "{} {q}", x[k]);
                sums[k / LANES] += q;
            }
            assert_eq!(tile.sums, sums);
        }
    }
}

//! Activations as 8-bit integers: sixteen tiles of 32 columns at once, one in each lane.
//!
//! A tile is `x = q * scale`. Its largest element takes some number of steps up to 127, and the
//! rounding errors of the other 31 depend on that number by chance. So [`CANDIDATES`] numbers of
//! steps are tried, and the one with the least squared error is taken, and for its `q` the scale
//! that minimizes the error. Compared with `max / 127` that leaves four fifths of the squared error
//! of normal numbers.
//!
//! Lanes are independent, so a tile depends only on its own 32 elements.

use crate::format::TILE_COLS;
use crate::isa::Kernel;
use crate::simd::{LANES, Simd, VECTOR_BYTES, array_of};
use crate::tile::{GemmTile, SMALLEST_MAX, SkinnyTile};
use std::mem::{offset_of, size_of};

/// The steps of a tile's largest element are this many or up to seven fewer.
const MOST_STEPS: i32 = 127;

/// Twice as many would reduce the error by 2 %.
const CANDIDATES: usize = 8;

/// The bits that identify a candidate.
const CANDIDATE_BITS: i32 = CANDIDATES as i32 - 1;

/// 32 columns of sixteen tiles.
type Columns<S> = [<S as Simd>::F; TILE_COLS];

/// Quantises the tiles of one row after another.
pub(crate) struct Quantise<'a, T> {
    /// Whole tiles.
    pub x: &'a [f32],
    /// The index of the first tile, over all rows.
    pub first: usize,
    /// Tiles of a row.
    pub cols: usize,
    /// `[cols, stride]`.
    pub out: *mut T,
    pub stride: usize,
}

impl<T: Tile> Kernel for Quantise<'_, T> {
    type Out = ();
    const INT_DOTS: bool = true;

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let (mut row, mut col) = (self.first / self.cols, self.first % self.cols);
        for x in self.x.chunks(LANES * TILE_COLS) {
            let count = x.len() / TILE_COLS;
            let mut out = [self.out; LANES];
            for out in &mut out[..count] {
                // SAFETY: a tile of the caller's.
                *out = unsafe { self.out.add(col * self.stride + row) };
                // Rows of a step are adjacent, so the tiles of one row are far apart.
                s.prefetch(out.cast());
                col += 1;
                if col == self.cols {
                    (row, col) = (row + 1, 0);
                }
            }
            let tiles = quantise::<S, T>(s, &load(s, x), x.as_ptr_range().end);
            for lane in 0..count {
                // SAFETY: a tile of the caller's.
                unsafe { T::store(s, tiles[lane], out[lane]) };
            }
        }
    }
}

/// Up to sixteen tiles, transposed. Lanes without a tile repeat the last.
#[inline(always)]
fn load<S: Simd>(s: S, x: &[f32]) -> Columns<S> {
    let last = x.len() / TILE_COLS - 1;
    let mut halves = [[s.splat_i(0); LANES]; 2];
    for half in 0..2 {
        // SAFETY: half of a tile of `x`.
        let tiles = array_of!(LANES, s.splat_i(0), lane => unsafe {
            s.load_i(x.as_ptr().add(lane.min(last) * TILE_COLS + half * LANES).cast())
        });
        halves[half] = s.transpose(tiles);
    }
    array_of!(TILE_COLS, s.splat(0.0), k => s.cast_f(halves[k / LANES][k % LANES]))
}

/// Quantises sixteen tiles to one vector each, which starts with the tile's memory layout. `next`
/// is prefetched meanwhile.
#[inline(always)]
fn quantise<S: Simd, T: Tile>(s: S, x: &Columns<S>, next: *const f32) -> [S::I; LANES] {
    // Positive floats sort like their bits, infinity and NaN above all others: a tile that is not
    // finite gets a NaN scale, and so do all products.
    let mut top = s.cast_i(s.abs(x[0]));
    for x in &x[1..] {
        top = s.max_i(top, s.cast_i(s.abs(*x)));
    }
    let top = s.cast_f(top);
    let smallest = s.splat(SMALLEST_MAX);
    let inverse_top = s.keep_from(s.div(s.splat(1.0), top), top, smallest);
    let steps = best_steps(s, x, next, inverse_top);
    let scale = s.keep_from(s.div(top, steps), top, smallest);

    let inverse = s.mul(inverse_top, steps);
    let zero = s.splat(0.0);
    let (mut products, mut squares) = (zero, zero);
    let mut bytes = [s.splat_i(0); TILE_COLS / 4];
    for four in 0..TILE_COLS / 4 {
        for k in (4 * four..4 * four + 4).rev() {
            let steps = s.mul(x[k], inverse);
            let nearest = s.to_i(steps);
            let q = s.to_f(nearest);
            products = s.fma(s.sub(steps, q), q, products);
            squares = s.fma(q, q, squares);
            bytes[four] = s.add_i(s.shl(bytes[four], 8), nearest);
        }
    }
    // `sum(x q) / sum(q q)` in steps, minus the one step that the scale was.
    let more = s.keep_from(s.div(products, squares), squares, s.splat(1.0));
    let scale = s.fma(scale, more, scale);
    tiles::<S, T>(s, bytes, scale)
}

/// The candidate with the least error of each tile.
///
/// An element of `u` times the largest takes `steps * u` steps. Only the fraction matters, so these
/// are 16-bit integers with the unit 2^-16 of a step: whole steps overflow away.
#[inline(always)]
fn best_steps<S: Simd>(s: S, x: &Columns<S>, next: *const f32, inverse_top: S::F) -> S::F {
    let unit = s.mul(inverse_top, s.splat(65536.0));
    let mut squares = [s.splat_i(0); CANDIDATES];
    for pair in 0..TILE_COLS / 2 {
        for line in 2 * pair..2 * pair + 2 {
            s.prefetch(next.wrapping_add(line * LANES).cast());
        }
        let low = s.to_i(s.mul(x[2 * pair], unit));
        let high = s.to_i(s.mul(x[2 * pair + 1], unit));
        let both = s.or(s.and(low, s.splat_i(0xffff)), s.shl(high, 16));
        for candidate in 0..CANDIDATES {
            let steps = MOST_STEPS - candidate as i32;
            // Thirteen bits, so that 32 squares fit 32 bits.
            let rests = s.shr_i16::<3>(s.mul_i16(both, s.splat_i(steps << 16 | steps)));
            squares[candidate] = s.dot2(squares[candidate], rests, rests);
        }
    }
    let mut best = s.splat_i(i32::MAX);
    for candidate in 0..CANDIDATES {
        let steps = (MOST_STEPS - candidate as i32) as f32;
        // Positive floats sort like their bits; the last bits identify the candidate.
        let squares = s.mul(s.to_f(squares[candidate]), s.splat(1.0 / (steps * steps)));
        let bits = s.and(s.cast_i(squares), s.splat_i(!CANDIDATE_BITS));
        best = s.min_i(best, s.or(bits, s.splat_i(candidate as i32)));
    }
    s.to_f(s.sub_i(s.splat_i(MOST_STEPS), s.and(best, s.splat_i(CANDIDATE_BITS))))
}

/// The result of quantisation.
pub(crate) trait Tile {
    /// Words 9 to 15 in their memory layout, after the integers and the scale.
    fn tail<S: Simd>(s: S, scale: S::F, sums: [S::I; 3]) -> [S::I; 7];

    /// Whether the integers have 128 added.
    const BIASED: bool;

    /// Writes a tile; `words` is its start.
    ///
    /// # Safety
    /// `to` can be written.
    #[inline(always)]
    unsafe fn store<S: Simd>(s: S, words: S::I, to: *mut Self)
    where
        Self: Sized,
    {
        let mut bytes = [0_u8; VECTOR_BYTES];
        // SAFETY: the buffer is a vector, which is as long as a tile or longer.
        unsafe {
            s.store_i(bytes.as_mut_ptr(), words);
            to.cast::<u8>().copy_from_nonoverlapping(bytes.as_ptr(), size_of::<Self>());
        }
    }
}

// The layout that `tiles` produces.
const _: () = assert!(size_of::<GemmTile>() == VECTOR_BYTES);
const _: () = assert!(offset_of!(GemmTile, scale) == 8 * 4);
const _: () = assert!(offset_of!(GemmTile, sums) == 9 * 4);
const _: () = assert!(offset_of!(GemmTile, scaled_sums) == 12 * 4);
const _: () = assert!(size_of::<SkinnyTile>() == 11 * 4);
const _: () = assert!(offset_of!(SkinnyTile, scale) == 8 * 4);
const _: () = assert!(offset_of!(SkinnyTile, sums) == 9 * 4);
const _: () = assert!(offset_of!(SkinnyTile, scaled_sum) == 10 * 4);

impl Tile for GemmTile {
    const BIASED: bool = true;

    #[inline(always)]
    fn tail<S: Simd>(s: S, scale: S::F, sums: [S::I; 3]) -> [S::I; 7] {
        let scaled = array_of!(3, sums[0], i => s.cast_i(s.mul(scale, s.to_f(sums[i]))));
        [sums[0], sums[1], sums[2], scaled[0], scaled[1], scaled[2], s.splat_i(0)]
    }
}

impl Tile for SkinnyTile {
    const BIASED: bool = false;

    #[inline(always)]
    fn tail<S: Simd>(s: S, scale: S::F, sums: [S::I; 3]) -> [S::I; 7] {
        let zero = s.splat_i(0);
        let both = s.or(s.and(sums[0], s.splat_i(0xffff)), s.shl(sums[1], 16));
        let scaled = s.cast_i(s.mul(scale, s.to_f(sums[2])));
        [both, scaled, zero, zero, zero, zero, zero]
    }
}

/// Sixteen tiles, each one vector. A lane of `bytes` is `q0 + 256 q1 + 65536 q2 + ...` of four
/// columns.
#[inline(always)]
fn tiles<S: Simd, T: Tile>(s: S, bytes: [S::I; 8], scale: S::F) -> [S::I; LANES] {
    let high_bits = s.splat_i(i32::from_ne_bytes([0x80; 4]));
    let ones = s.splat_i(i32::from_ne_bytes([1; 4]));
    // With 128 added no byte borrows from the next.
    let bytes = array_of!(8, bytes[0], i => s.add_i(bytes[i], high_bits));
    let start = s.splat_i(s.zero_factor::<true>(128) * LANES as i32);
    let mut sums = [start; 3];
    for half in 0..2 {
        for i in 0..4 {
            sums[half] = s.dot4::<true>(sums[half], bytes[4 * half + i], ones);
        }
    }
    sums[2] = s.add_i(sums[0], sums[1]);
    let mut words = [s.cast_i(scale); LANES];
    for i in 0..8 {
        words[i] = if T::BIASED { bytes[i] } else { s.xor(bytes[i], high_bits) };
    }
    words[9..].copy_from_slice(&T::tail(s, scale, sums));
    s.transpose(words)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::reference::floats;
    use crate::isa::{Isa, run};
    use fastrand::Rng;

    fn quantised<T: Tile + Clone + Default>(isa: Isa, x: &[f32]) -> Vec<T> {
        let cols = x.len() / TILE_COLS;
        let mut tiles = vec![T::default(); cols];
        let out = tiles.as_mut_ptr();
        run(isa, Quantise { x, first: 0, cols, out, stride: 1 });
        tiles
    }

    #[test]
    fn quantisation_is_the_same_on_every_instruction_set_and_close() {
        // Seventeen tiles: a whole group, and a single one.
        let fill = |value: fn(usize) -> f32| (0..17 * TILE_COLS).map(value).collect::<Vec<f32>>();
        let cases = [
            ("random", floats(&mut Rng::with_seed(3), 17 * TILE_COLS)),
            ("waves", fill(|k| (k as f32 * 0.37).sin() * (k as f32))),
            ("subnormal", fill(|k| k as f32 * 1e-40)),
            ("tiny", fill(|k| k as f32 * 4e-36)),
            ("huge", fill(|k| if k % 3 == 0 { -3e38 } else { 1e30 * k as f32 })),
            ("one outlier", fill(|k| if k == 17 { 1e6 } else { 0.5 })),
            ("equal", fill(|_| -0.3)),
        ];
        for (name, x) in &cases {
            let expected: Vec<SkinnyTile> = quantised(Isa::Scalar, x);
            for isa in Isa::available() {
                let (few, many) = (quantised::<SkinnyTile>(isa, x), quantised::<GemmTile>(isa, x));
                for ((few, many), expected) in few.iter().zip(&many).zip(&expected) {
                    let SkinnyTile { q, scale, sums, scaled_sum } = *expected;
                    assert_eq!(few.q, q, "{name} on {}", isa.name());
                    assert_eq!(few.scale.to_bits(), scale.to_bits());
                    assert_eq!(few.sums, sums);
                    assert_eq!(few.scaled_sum.to_bits(), scaled_sum.to_bits());
                    assert_eq!(scaled_sum, many.scaled_sums[2]);
                    assert_eq!(many.q, q.map(|q| q as u8 ^ 0x80), "{name} on {}", isa.name());
                    assert_eq!(many.scale.to_bits(), scale.to_bits());
                    let [left, right] = sums.map(i32::from);
                    assert_eq!(many.sums, [left, right, left + right]);
                    assert_eq!(many.scaled_sums, many.sums.map(|sum| scale * sum as f32));
                }
            }
            for (tile, x) in expected.iter().zip(x.chunks(TILE_COLS)) {
                let q = tile.q.map(i16::from);
                assert!(q.iter().all(|q| i32::from(q.abs()) <= MOST_STEPS));
                assert_eq!(tile.sums, [q[..LANES].iter().sum(), q[LANES..].iter().sum::<i16>()]);
                for (q, x) in q.iter().zip(x) {
                    // Half a step, plus the effect of the final scale on an element.
                    let error = (f64::from(*q) * f64::from(tile.scale) - f64::from(*x)).abs();
                    let limit = f64::from(tile.scale) * 0.7 + f64::from(SMALLEST_MAX);
                    assert!(error <= limit, "{name}: {x} became {q} x {}", tile.scale);
                }
            }
        }
    }

    #[test]
    fn a_number_that_is_not_finite_leaves_its_tile_no_scale() {
        let healthy = floats(&mut Rng::with_seed(9), 3 * TILE_COLS);
        for bad in [f32::NAN, -f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            for (at, isa) in (0..healthy.len())
                .flat_map(|at| Isa::available().into_iter().map(move |isa| (at, isa)))
            {
                let mut x = healthy.clone();
                x[at] = bad;
                let due: Vec<bool> = (0..3).map(|tile| tile == at / TILE_COLS).collect();
                let few = quantised::<SkinnyTile>(isa, &x);
                let found = few.iter().map(|tile| tile.scale.is_nan() && tile.scaled_sum.is_nan());
                assert_eq!(found.collect::<Vec<_>>(), due, "{bad} at {at} on {}", isa.name());
                let many = quantised::<GemmTile>(isa, &x);
                let sums = |tile: &GemmTile| tile.scaled_sums.iter().all(|sum| sum.is_nan());
                let found = many.iter().map(|tile| tile.scale.is_nan() && sums(tile));
                assert_eq!(found.collect::<Vec<_>>(), due, "{bad} at {at} on {}", isa.name());
            }
        }
    }

    #[test]
    fn less_is_left_than_by_127_steps() {
        let x = floats(&mut Rng::with_seed(7), 512 * TILE_COLS);
        let tiles: Vec<SkinnyTile> = quantised(Isa::Scalar, &x);
        let (mut taken, mut plain) = (0.0, 0.0);
        for (tile, x) in tiles.iter().zip(x.chunks(TILE_COLS)) {
            let step = x.iter().fold(0.0_f32, |top, x| top.max(x.abs())) / MOST_STEPS as f32;
            let rest = |x: f32, value: f32| f64::from(x - value).powi(2);
            let rests = |value: &dyn Fn(usize) -> f32| {
                x.iter().enumerate().map(|(k, x)| rest(*x, value(k))).sum::<f64>()
            };
            let own = rests(&|k| tile.scale * f32::from(tile.q[k]));
            let most = rests(&|k| step * (x[k] / step).round_ties_even());
            assert!(own <= most * 1.001, "{own} is left, and {most} by 127 steps");
            (taken, plain) = (taken + own, plain + most);
        }
        assert!(taken < 0.85 * plain, "{taken} of {plain}");
    }
}

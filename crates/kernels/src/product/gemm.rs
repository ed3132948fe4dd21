//! Many input rows: bound by arithmetic. A task unpacks 512 columns of two panels into its
//! first-level cache, then runs over its input rows in register tiles; then the next two panels
//! with the same inputs, which are now in its second-level cache.
//!
//! Sums are kept as `[rows, panels, 16]` between two such runs. After the last run of a leaf, they
//! are merged in registers with those of the subtrees that the leaf completes. After the last leaf
//! they go directly to the output.

use super::access::{Access, Level};
use super::block::{Block, Sums};
use super::gemm_floats::{FloatSums, UnpackFloats};
use super::gemv::FLOAT_RUN;
use crate::format::{
    Quantised, RECORD_TILES_MAX, TILE, TILE_COLS, read_tile, with_float, with_quantised,
};
use crate::input::Input;
use crate::isa::{Isa, Kernel, run};
use crate::simd::{LANES, Simd, VECTOR_BYTES, array_of};
use crate::tile::GemmTile;
use std::cell::RefCell;
use std::hint::black_box;
use std::marker::PhantomData;
use std::ops::Range;

/// Panels side by side in a register tile.
pub(super) const PANELS: usize = 2;

/// Tiles of 32 columns between two updates of the sums. Unpacked for two panels they take about 20
/// KB of the first-level cache and leave room for the inputs.
const RUN_TILES: usize = 16;
const _: () = assert!(RUN_TILES.is_multiple_of(RECORD_TILES_MAX), "runs are of whole records");

/// Weights are prefetched while others are unpacked, long before their use.
pub(super) const ACCESS: Access = Access { streams: PANELS, ahead: 2048, level: Level::L2 };

/// Unpacked weights of two panels by up to [`RUN_TILES`] tiles, with their scales.
#[repr(C, align(64))]
pub(super) struct Unpacked {
    weights: [[[[u8; VECTOR_BYTES]; TILE]; RUN_TILES]; PANELS],
    scales: [[[[f32; LANES]; 2]; RUN_TILES]; PANELS],
    offsets: [[[[f32; LANES]; 2]; RUN_TILES]; PANELS],
    /// The start of sums, for signed weights.
    starts: [[[[i32; LANES]; 2]; RUN_TILES]; PANELS],
    pub(super) floats: [[[f32; LANES]; FLOAT_RUN]; PANELS],
}

thread_local! {
    static UNPACKED: RefCell<Box<Unpacked>> = RefCell::new(Box::new(Unpacked {
        weights: [[[[0; VECTOR_BYTES]; TILE]; RUN_TILES]; PANELS],
        scales: [[[[0.0; LANES]; 2]; RUN_TILES]; PANELS],
        offsets: [[[[0.0; LANES]; 2]; RUN_TILES]; PANELS],
        starts: [[[[0; LANES]; 2]; RUN_TILES]; PANELS],
        floats: [[[0.0; LANES]; FLOAT_RUN]; PANELS],
    }));
}

/// Sums a block's leaf, and merges it.
///
/// # Safety
/// As for [`Sums::store`].
pub(super) unsafe fn sum_leaf(isa: Isa, block: Block, mut sums: Sums) {
    let Block { matrix, input, panels, rows, cols } = block;
    assert!(!cols.is_empty());
    let pairs = panels.clone().step_by(PANELS).map(|first| Pair {
        data: std::array::from_fn(|p| matrix.panel((first + p).min(panels.end - 1))),
        count: PANELS.min(panels.end - first),
        at: first - panels.start,
    });
    UNPACKED.with_borrow_mut(|unpacked| {
        with_quantised!(matrix.ty(), T => {
            let tiles = cols.start / TILE_COLS..cols.end / TILE_COLS;
            for first in tiles.clone().step_by(RUN_TILES) {
                let tiles = first..tiles.end.min(first + RUN_TILES);
                sums.is_last = tiles.end * TILE_COLS == cols.end;
                for pair in pairs.clone() {
                    run(isa, UnpackTiles::<T> {
                        pair, factor: matrix.factor(), tiles: tiles.clone(), unpacked,
                        format: PhantomData,
                    });
                    const {
                        assert!(!T::BIASED || T::OFFSETS || T::ZERO == BIASED_ZERO);
                        assert!(!(T::BIASED && T::OFFSETS) || T::HALVES == 1);
                        assert!(!T::OFFSETS || T::ZERO == 0);
                    }
                    run(isa, TileSums::<
                        { T::BIASED }, { T::HALVES }, { T::OFFSETS }, { pairs_that_fit(T::REACH) }
                    > {
                        unpacked, pair, tiles: tiles.clone(), zero: T::ZERO,
                        centre: T::CENTRE, x: input, rows: rows.clone(), sums: sums.reborrow(),
                        run: black_box(run_len(TILE / T::HALVES, pairs_that_fit(T::REACH))),
                    });
                }
                sums.is_first = false;
            }
        }, _ => with_float!(matrix.ty(), T => {
            let end = cols.end;
            for first in cols.clone().step_by(FLOAT_RUN) {
                let cols = first..end.min(first + FLOAT_RUN);
                sums.is_last = cols.end == end;
                for pair in pairs.clone() {
                    run(isa, UnpackFloats::<T> {
                        pair, cols: cols.clone(), unpacked, format: PhantomData,
                    });
                    run(isa, FloatSums {
                        unpacked, pair, cols: cols.clone(), x: input, rows: rows.clone(),
                        sums: sums.reborrow(),
                    });
                }
                sums.is_first = false;
            }
        }, _ => unreachable!("no matrix of type {} can be made", matrix.ty())));
    });
}

/// The weight that represents zero if weights may exceed 127.
const BIASED_ZERO: i32 = 128;

/// The number of sums of two products of a weight up to `reach` and an input up to 255 that fit 16
/// bits, as a power of two, at most a tile's; 0 if there are no two to add.
const fn pairs_that_fit(reach: i32) -> usize {
    let mut count = TILE as i32;
    while count * 2 * 255 * reach > i16::MAX as i32 {
        count /= 2;
    }
    if count == 1 { 0 } else { count as usize }
}

/// The number of `quads` vectors of weights between two updates of their 32-bit sums.
const fn run_len(quads: usize, pairs: usize) -> usize {
    if pairs <= 2 || pairs > quads { quads } else { pairs }
}

/// Four bytes of 128.
const ALL_128: i32 = i32::from_ne_bytes([128; 4]);

/// One or two neighbouring panels.
#[derive(Clone, Copy)]
pub(super) struct Pair<'a> {
    pub(super) data: [&'a [u8]; PANELS],
    pub(super) count: usize,
    /// The first one's index among the task's panels.
    pub(super) at: usize,
}

/// Unpacks tiles `tiles` (within one leaf) of a pair.
struct UnpackTiles<'a, T> {
    pair: Pair<'a>,
    /// Of the matrix.
    factor: f32,
    tiles: Range<usize>,
    unpacked: &'a mut Unpacked,
    format: PhantomData<T>,
}

impl<T: Quantised> Kernel for UnpackTiles<'_, T> {
    type Out = ();
    const INT_DOTS: bool = true;
    const LOOKUPS: bool = T::CODEBOOK;
    const MATRICES: bool = true;

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let records = self.tiles.start / T::TILES..self.tiles.end / T::TILES;
        for p in 0..self.pair.count {
            let panel = self.pair.data[p];
            assert!(panel.len() >= records.end * T::RECORD);
            let Unpacked { weights, scales, offsets, starts, .. } = &mut *self.unpacked;
            let (weights, scales) = (&mut weights[p], &mut scales[p]);
            let (offsets, starts) = (&mut offsets[p], &mut starts[p]);
            for index in records.clone() {
                // SAFETY: the record lies inside the panel, as asserted above, and every stored
                // vector has its place in an array.
                unsafe {
                    let record = panel.as_ptr().add(index * T::RECORD);
                    let head = T::head(s, record);
                    for tile in 0..T::TILES {
                        let slot = (index - records.start) * T::TILES + tile;
                        let share = T::RECORD / T::TILES;
                        ACCESS.fetch(s, record.wrapping_add(tile * share), share);
                        let (unpacked, found) =
                            read_tile::<S, T>(s, record, &head, tile, self.factor);
                        let centred = S::PAIR_SUMS || T::BIASED;
                        let centre = if centred { T::CENTRE } else { T::ZERO };
                        let unpacked = array_of!(
                            TILE, unpacked[0], i => s.gemm_weights(unpacked[i], centre)
                        );
                        let arranged = s.gemm_arrange(unpacked);
                        let mut sums = [s.splat_i(0); 2];
                        for i in 0..TILE {
                            s.store_i(weights[slot][i].as_mut_ptr(), arranged[i]);
                            if S::SIGNED_WEIGHTS && !S::SIGNED_INPUTS {
                                let sum = &mut sums[i * T::HALVES / TILE];
                                let ones = s.splat_i(ALL_128);
                                *sum = if T::BIASED {
                                    s.gemm_dot4::<true>(*sum, unpacked[i], ones)
                                } else {
                                    s.gemm_dot4::<false>(*sum, unpacked[i], ones)
                                };
                            }
                        }
                        for half in 0..T::HALVES {
                            s.store(scales[slot][half].as_mut_ptr(), found.scale[half]);
                            s.store(offsets[slot][half].as_mut_ptr(), found.offset[half]);
                            if S::SIGNED_WEIGHTS && !S::SIGNED_INPUTS {
                                let start = s.sub_i(s.splat_i(0), sums[half]);
                                s.store_i(starts[slot][half].as_mut_ptr().cast(), start);
                            }
                        }
                    }
                }
            }
        }
    }
}

/// Adds the products of the unpacked tiles with the same tiles of each input row. Once unpacked,
/// types differ only by three of the constants of [`Quantised`] and by `PAIRS`, the number of
/// [`Simd::pair_sums`] that fit 16 bits, and share their code.
struct TileSums<
    'a,
    const BIASED: bool,
    const HALVES: usize,
    const OFFSETS: bool,
    const PAIRS: usize,
> {
    unpacked: &'a Unpacked,
    pair: Pair<'a>,
    tiles: Range<usize>,
    /// [`Quantised::ZERO`] and [`Quantised::CENTRE`].
    zero: i32,
    centre: i32,
    x: &'a Input,
    rows: Range<usize>,
    sums: Sums<'a>,
    /// [`run_len`], hidden from the compiler: it would unroll that loop, and go row by row with
    /// more weights than there are registers.
    run: usize,
}

impl<const BIASED: bool, const HALVES: usize, const OFFSETS: bool, const PAIRS: usize> Kernel
    for TileSums<'_, BIASED, HALVES, OFFSETS, PAIRS>
{
    type Out = ();
    const INT_DOTS: bool = true;
    const MATRICES: bool = true;

    #[inline(always)]
    fn run<S: Simd>(mut self, s: S) {
        if S::WIDE_TILES && self.pair.count == 2 {
            self.row_tiles::<S, 2>(s, 0);
        } else {
            for panel in 0..self.pair.count {
                self.row_tiles::<S, 1>(s, panel);
            }
        }
        self.sums.end(s);
    }
}

impl<const BIASED: bool, const HALVES: usize, const OFFSETS: bool, const PAIRS: usize>
    TileSums<'_, BIASED, HALVES, OFFSETS, PAIRS>
{
    /// All input rows over panels `panel..panel + P`.
    #[inline(always)]
    fn row_tiles<S: Simd, const P: usize>(&mut self, s: S, panel: usize) {
        let rows = self.rows.len();
        let mut row = 0;
        // A single panel is the last of a matrix with an odd number of them.
        if S::WIDE_TILES && P == PANELS {
            while row + 6 <= rows {
                self.register_tile::<S, P, 6>(s, panel, row);
                row += 6;
            }
        }
        if S::GEMM_ROWS >= 4 {
            while row + 4 <= rows {
                self.register_tile::<S, P, 4>(s, panel, row);
                row += 4;
            }
        }
        if S::GEMM_ROWS >= 2 {
            while row + 2 <= rows {
                self.register_tile::<S, P, 2>(s, panel, row);
                row += 2;
            }
        }
        while row < rows {
            self.register_tile::<S, P, 1>(s, panel, row);
            row += 1;
        }
    }

    /// `R` input rows from the `first`-th on, over panels `panel..panel + P`.
    #[inline(always)]
    fn register_tile<S: Simd, const P: usize, const R: usize>(
        &mut self,
        s: S,
        panel: usize,
        first: usize,
    ) {
        let inputs = self.x.rows();
        let tiles = self.x.gemm_tiles();
        assert!(tiles.len() >= self.tiles.end * inputs && self.rows.end <= inputs);
        assert!(first + R <= self.rows.len() && panel + P <= self.pair.count);
        let at = self.pair.at + panel;
        let mut acc: [[S::F; P]; R] = self.sums.load(s, first, at);
        // SAFETY: every input tile lies inside its slice, as asserted above; the caller of
        // `sum_leaf` promises the output.
        unsafe {
            for (slot, tile) in self.tiles.clone().enumerate() {
                let x = tiles.as_ptr().add(tile * inputs + self.rows.start + first);
                self.add_tile::<S, P, R>(s, panel, slot, x, &mut acc);
            }
            self.sums.store(s, first, at, acc);
        }
    }

    /// Adds the products of the tile's vectors from `first` on, `self.run` of them.
    ///
    /// # Safety
    /// As for [`Self::add_tile`].
    #[inline(always)]
    unsafe fn add_pairs<S: Simd, const P: usize, const R: usize>(
        &self,
        s: S,
        panel: usize,
        slot: usize,
        first: usize,
        x: *const GemmTile,
        dots: &mut [[S::I; P]; R],
    ) {
        let zero = s.splat_i(0);
        if PAIRS == 2 {
            for i in (first..first + self.run).step_by(2) {
                // SAFETY: as below.
                unsafe {
                    let weights = array_of!(P, [zero; 2], p => {
                        let from = self.unpacked.weights[panel + p][slot].as_ptr().add(i);
                        [s.load_i(from.cast()), s.load_i(from.add(1).cast())]
                    });
                    for r in 0..R {
                        let from = (*x.add(r)).q.as_ptr().add(4 * i);
                        let bytes = [s.gemm_splat_x4(from), s.gemm_splat_x4(from.add(4))];
                        for p in 0..P {
                            let first = s.pair_sums(weights[p][0], bytes[0]);
                            let second = s.pair_sums(weights[p][1], bytes[1]);
                            dots[r][p] = s.add_pair_sums(dots[r][p], s.add_i16(first, second));
                        }
                    }
                }
            }
            return;
        }
        let mut pairs = [[zero; P]; R];
        for i in first..first + self.run {
            // SAFETY: the caller promises the input tiles; the rest is an array of the right size.
            unsafe {
                let weights = array_of!(P, zero, p => {
                    s.load_i(self.unpacked.weights[panel + p][slot].as_ptr().add(i).cast())
                });
                for r in 0..R {
                    let bytes = s.gemm_splat_x4((*x.add(r)).q.as_ptr().add(4 * i));
                    for p in 0..P {
                        if PAIRS > 0 {
                            let sums = s.pair_sums(weights[p], bytes);
                            pairs[r][p] = s.add_i16(pairs[r][p], sums);
                        } else {
                            dots[r][p] = s.gemm_dot4::<BIASED>(dots[r][p], weights[p], bytes);
                        }
                    }
                }
            }
        }
        if PAIRS > 0 {
            for r in 0..R {
                for p in 0..P {
                    dots[r][p] = s.add_pair_sums(dots[r][p], pairs[r][p]);
                }
            }
        }
    }

    /// Adds one tile's products; the twin of the one in `gemv`.
    ///
    /// # Safety
    /// `x` points to `R` input tiles, one a row.
    #[inline(always)]
    unsafe fn add_tile<S: Simd, const P: usize, const R: usize>(
        &self,
        s: S,
        panel: usize,
        slot: usize,
        x: *const GemmTile,
        acc: &mut [[S::F; P]; R],
    ) {
        // Without the sum of the inputs, the compiler can omit it.
        let factor = match (BIASED, OFFSETS) {
            (_, true) => 0,
            (true, false) => s.zero_factor::<true>(BIASED_ZERO),
            (false, false) => s.zero_factor::<false>(self.zero),
        };
        // The centre was subtracted from weights whose zero is another number.
        let is_moved = S::PAIR_SUMS || BIASED;
        let centred = S::SIGNED_WEIGHTS && is_moved && OFFSETS && HALVES == 1;
        let quads = TILE / HALVES;
        let mut scaled = [[s.splat(0.0); P]; R];
        for half in 0..HALVES {
            let whole = if HALVES == 1 { 2 } else { half };
            // SAFETY: the caller promises the input tiles; everything else is an array of the
            // right size.
            unsafe {
                let mut dots = [[s.splat_i(0); P]; R];
                for r in 0..R {
                    for p in 0..P {
                        let start = if S::SIGNED_INPUTS {
                            s.splat_i(0)
                        } else if S::SIGNED_WEIGHTS {
                            let start = self.unpacked.starts[panel + p][slot][half].as_ptr();
                            s.load_i(start.cast())
                        } else {
                            s.splat_i(factor * (*x.add(r)).sums[whole])
                        };
                        dots[r][p] = if centred {
                            let sum = (*x.add(r)).sums[whole];
                            s.add_i(start, s.splat_i(self.centre * sum))
                        } else {
                            start
                        };
                    }
                }
                let run = half * quads..(half + 1) * quads;
                if S::PAIR_SUMS {
                    for first in run.step_by(run_len(quads, PAIRS)) {
                        self.add_pairs::<S, P, R>(s, panel, slot, first, x, &mut dots);
                    }
                } else {
                    let weights = array_of!(P, std::ptr::null(), p => {
                        self.unpacked.weights[panel + p][slot][run.start].as_ptr()
                    });
                    let bytes = array_of!(R, std::ptr::null(), r => {
                        (*x.add(r)).q.as_ptr().add(4 * run.start)
                    });
                    s.gemm_dots::<BIASED, P, R>(&mut dots, weights, bytes, quads);
                }
                for p in 0..P {
                    let scale = s.load(self.unpacked.scales[panel + p][slot][half].as_ptr());
                    for r in 0..R {
                        let dot = s.to_f(dots[r][p]);
                        scaled[r][p] = match half {
                            0 => s.mul(dot, scale),
                            _ => s.fma(dot, scale, scaled[r][p]),
                        };
                        if half + 1 == HALVES {
                            let input_scale = s.splat((*x.add(r)).scale);
                            acc[r][p] = s.fma(scaled[r][p], input_scale, acc[r][p]);
                        }
                    }
                    if OFFSETS {
                        let offset = s.load(self.unpacked.offsets[panel + p][slot][half].as_ptr());
                        for r in 0..R {
                            let sum = s.splat((*x.add(r)).scaled_sums[whole]);
                            acc[r][p] = s.fma(offset, sum, acc[r][p]);
                        }
                    }
                }
            }
        }
    }
}

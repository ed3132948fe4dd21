//! Lookups in a codebook by a gather of the index in each lane: the definition, and what is left
//! for instruction sets without permutations of many bytes.

use super::{LANES, Simd};
use crate::format::{Codebook, TILE};

/// [`Simd::gather`], a lane at a time.
#[inline(always)]
pub(super) fn gather_by_lane<S: Simd, const N: usize>(s: S, table: &[u32; N], index: S::I) -> S::I {
    let (mut indices, mut entries) = ([0_u32; LANES], [0_u32; LANES]);
    // SAFETY: both arrays are one vector.
    unsafe {
        s.store_i(indices.as_mut_ptr().cast(), index);
        for lane in 0..LANES {
            entries[lane] = table[indices[lane] as usize % N];
        }
        s.load_i(entries.as_ptr().cast())
    }
}

/// Index `g` of each lane.
#[inline(always)]
fn index<S: Simd, const N: usize>(s: S, low: S::I, high: S::I, g: usize) -> S::I {
    let byte = s.splat_i(255);
    let low = s.and(s.shr(low, 8 * g as u32), byte);
    if N == 256 {
        return low;
    }
    s.or(low, s.shl(s.and(s.shr(high, 8 * g as u32), byte), 8))
}

/// The bit of a code that says whether its sign is set.
const SIGN: i32 = i32::from_ne_bytes([0b1000; 4]);

/// The sign bits of vector `i` of a tile, as bit 3 of each byte; other bits mean nothing.
#[inline(always)]
pub(super) fn signs_of<S: Simd>(s: S, signs: S::I, i: usize) -> S::I {
    match i / 2 + 4 * (i % 2) {
        bit @ 0..3 => s.shl(signs, 3 - bit as u32),
        bit => s.shr(signs, bit as u32 - 3),
    }
}

/// The weights of vector `i` of a tile.
#[inline(always)]
fn weights<S: Simd, const N: usize>(
    s: S,
    book: &Codebook<N>,
    levels: S::I,
    signs: S::I,
    i: usize,
) -> S::I {
    let sign = s.and(signs_of(s, signs, i), s.splat_i(SIGN));
    s.lookup(&book.weights, s.or(levels, sign))
}

/// [`Simd::eights`].
#[inline(always)]
pub(super) fn eights<S: Simd, const N: usize>(
    s: S,
    book: &Codebook<N>,
    low: S::I,
    high: S::I,
    signs: S::I,
) -> [S::I; TILE] {
    let nibble = s.splat_i(0x0f0f_0f0f);
    let mut out = [nibble; TILE];
    for g in 0..4 {
        let levels = s.gather(&book.words, index::<S, N>(s, low, high, g));
        let (first, last) = (s.and(levels, nibble), s.and(s.shr(levels, 4), nibble));
        out[2 * g] = weights(s, book, first, signs, 2 * g);
        out[2 * g + 1] = weights(s, book, last, signs, 2 * g + 1);
    }
    out
}

/// [`Simd::fours`].
#[inline(always)]
pub(super) fn fours<S: Simd, const N: usize>(
    s: S,
    book: &Codebook<N>,
    low: [S::I; 2],
    high: [S::I; 2],
    signs: S::I,
) -> [S::I; TILE] {
    let mut out = [signs; TILE];
    for i in 0..TILE {
        let levels = s.gather(&book.words, index::<S, N>(s, low[i / 4], high[i / 4], i % 4));
        out[i] = weights(s, book, levels, signs, i);
    }
    out
}

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

/// The eight bits of byte `g`: of column `j` as bit 3 of byte `j`, of column `4 + j` as bit 7.
#[inline(always)]
fn spread_signs<S: Simd>(s: S, signs: S::I, g: usize) -> S::I {
    let byte = s.and(s.shr(signs, 8 * g as u32), s.splat_i(255));
    let first = s.or(s.shl(byte, 3), s.shl(byte, 10));
    let last = s.or(s.shl(byte, 17), s.shl(byte, 24));
    s.and(s.or(first, last), s.splat_i(i32::from_ne_bytes([0x88; 4])))
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
        let codes = s.or(levels, spread_signs(s, signs, g));
        out[2 * g] = s.lookup(&book.weights, s.and(codes, nibble));
        out[2 * g + 1] = s.lookup(&book.weights, s.and(s.shr(codes, 4), nibble));
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
    let sign = s.splat_i(0x0808_0808);
    let mut out = [sign; TILE];
    for g in 0..4 {
        let signs = spread_signs(s, signs, g);
        for (i, signs) in [(2 * g, signs), (2 * g + 1, s.shr(signs, 4))] {
            let index = index::<S, N>(s, low[i / 4], high[i / 4], i % 4);
            let codes = s.or(s.gather(&book.words, index), s.and(signs, sign));
            out[i] = s.lookup(&book.weights, codes);
        }
    }
    out
}

//! Lookups in a codebook, one index after the other: the definition, and what is left for
//! instruction sets without permutations of many bytes.

use super::TILE;
use super::{Simd, VECTOR_BYTES};
use crate::format::Codebook;

/// The entry of lane `lane`, see [`Simd::entries`].
///
/// # Safety
/// As there, for this lane.
#[inline(always)]
pub(super) unsafe fn entry<const N: usize>(
    table: &[u32; N],
    low: *const u8,
    high: *const u8,
    lane: usize,
) -> u32 {
    // SAFETY: as the caller promises.
    let index = unsafe {
        let low = usize::from(*low.add(4 * lane));
        if N == 256 { low } else { low | usize::from(*high.add(4 * lane)) << 8 }
    };
    table[index % N]
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
///
/// # Safety
/// As there.
#[inline(always)]
pub(super) unsafe fn eights<S: Simd, const N: usize>(
    s: S,
    book: &Codebook<N>,
    low: *const u8,
    high: S::I,
    signs: S::I,
) -> [S::I; TILE] {
    let nibble = s.splat_i(0x0f0f_0f0f);
    let (mut bytes, mut out) = ([0_u8; VECTOR_BYTES], [nibble; TILE]);
    // SAFETY: the caller promises the low bytes, and the array is one vector.
    unsafe {
        s.store_i(bytes.as_mut_ptr(), high);
        for g in 0..4 {
            let levels = s.entries(&book.words, low.add(g), bytes.as_ptr().add(g));
            let (first, last) = (s.and(levels, nibble), s.and(s.shr(levels, 4), nibble));
            out[2 * g] = weights(s, book, first, signs, 2 * g);
            out[2 * g + 1] = weights(s, book, last, signs, 2 * g + 1);
        }
    }
    out
}

/// [`Simd::fours`].
///
/// # Safety
/// As there.
#[inline(always)]
pub(super) unsafe fn fours<S: Simd, const N: usize>(
    s: S,
    book: &Codebook<N>,
    low: *const u8,
    high: [S::I; 2],
    signs: S::I,
) -> [S::I; TILE] {
    let (mut bytes, mut out) = ([0_u8; 2 * VECTOR_BYTES], [signs; TILE]);
    // SAFETY: the caller promises the low bytes, and the array is two vectors.
    unsafe {
        for k in 0..2 {
            s.store_i(bytes.as_mut_ptr().add(k * VECTOR_BYTES), high[k]);
        }
        for i in 0..TILE {
            let at = i / 4 * VECTOR_BYTES + i % 4;
            let levels = s.entries(&book.words, low.add(at), bytes.as_ptr().add(at));
            out[i] = weights(s, book, levels, signs, i);
        }
    }
    out
}

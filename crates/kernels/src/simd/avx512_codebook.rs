//! Lookups in a codebook with AVX-512's permutations of bytes (VBMI): 64 indices at once, each in a
//! table of 128 bytes; larger tables are several of those.

use super::TILE;
use super::codebook::signs_of;
use super::{Simd, VECTOR_BYTES, array_of};
use crate::format::Codebook;
use std::arch::x86_64::*;

/// Bytes of a table that one permutation reads.
const PART: usize = 2 * VECTOR_BYTES;

/// The bit of a code that says whether its sign is set.
const SIGN: i32 = i32::from_ne_bytes([0b1000; 4]);

/// For `vpternlogd`: the second vector's bits where the first one's are set, else the third one's.
const SELECT: i32 = 0b1100_1010;

/// For `vpmultishiftqb`, which fills each byte with eight bits of 64 from a given bit on: bit
/// `first + step * j` of each half, a row, for its byte `j`.
const fn shifts(first: i32, step: i32) -> i64 {
    let mut bytes = [0; 8];
    let mut j = 0;
    while j < 8 {
        let bit = first + step * (j as i32 % 4) + 32 * (j as i32 / 4);
        bytes[j] = bit.rem_euclid(64) as u8;
        j += 1;
    }
    i64::from_le_bytes(bytes)
}

/// Eight bits of each row from bit `first + step * j` on, as byte `j`. Beyond the row's 32 bits are
/// another row's.
///
/// # Safety
/// The machine has AVX-512 with VBMI.
#[inline(always)]
unsafe fn fields(rows: __m512i, first: i32, step: i32) -> __m512i {
    // SAFETY: as the caller promises.
    unsafe { _mm512_multishift_epi64_epi8(_mm512_set1_epi64(shifts(first, step)), rows) }
}

/// The halves of a table for indices whose high bit, of a byte or beyond, is set.
struct Halves {
    /// Bits 7, 8, 9 and 10 of each index.
    bits: [__mmask64; 4],
}

impl Halves {
    /// # Safety
    /// The machine has AVX-512 with BW.
    #[inline(always)]
    unsafe fn of(low: __m512i, high: __m512i) -> Self {
        // SAFETY: as the caller promises.
        unsafe {
            let bit = |bit| _mm512_test_epi8_mask(high, _mm512_set1_epi8(bit));
            Self { bits: [_mm512_movepi8_mask(low), bit(1), bit(2), bit(4)] }
        }
    }

    /// The table's byte for each index.
    ///
    /// # Safety
    /// The machine has AVX-512 with VBMI.
    #[inline(always)]
    unsafe fn look_up<const N: usize>(&self, table: &[u8; N], low: __m512i) -> __m512i {
        let parts = N / PART;
        let mut found = [low; 2048 / PART];
        // SAFETY: the caller promises the instructions; every part lies inside the table.
        unsafe {
            for part in 0..parts {
                let at = table.as_ptr().add(part * PART);
                let first = _mm512_loadu_si512(at.cast());
                let last = _mm512_loadu_si512(at.add(VECTOR_BYTES).cast());
                found[part] = _mm512_permutex2var_epi8(first, low, last);
            }
            let mut left = parts;
            for bit in 0..4 {
                left /= 2;
                for i in 0..left {
                    let (clear, set) = (found[2 * i], found[2 * i + 1]);
                    found[i] = _mm512_mask_blend_epi8(self.bits[bit], clear, set);
                }
            }
        }
        found[0]
    }
}

/// The weights of codes with sign bits from `signs` and other bits from `levels`.
///
/// # Safety
/// The machine has AVX-512 with VBMI.
#[inline(always)]
unsafe fn weights<const N: usize>(book: &Codebook<N>, levels: __m512i, signs: __m512i) -> __m512i {
    // SAFETY: the caller promises the instructions; the table is one vector.
    unsafe {
        let mask = _mm512_set1_epi32(SIGN);
        let codes = _mm512_ternarylogic_epi32::<SELECT>(mask, signs, levels);
        let table = _mm512_loadu_si512(book.weights_of_six.as_ptr().cast());
        _mm512_permutexvar_epi8(codes, table)
    }
}

/// [`super::Simd::eights`].
///
/// # Safety
/// The machine has AVX-512 with VBMI.
#[inline(always)]
pub(super) unsafe fn eights<S: Simd<I = __m512i>, const N: usize>(
    s: S,
    book: &Codebook<N>,
    low: __m512i,
    high: __m512i,
    signs: __m512i,
) -> [__m512i; TILE] {
    // SAFETY: as the caller promises.
    unsafe {
        let halves = Halves::of(low, high);
        let levels = [halves.look_up(&book.bytes[0], low), halves.look_up(&book.bytes[1], low)];
        array_of!(TILE, low, i => {
            let levels = fields(levels[i % 2], 8 * (i as i32 / 2), 2);
            weights(book, levels, signs_of(s, signs, i))
        })
    }
}

/// [`super::Simd::fours`].
///
/// # Safety
/// The machine has AVX-512 with VBMI.
#[inline(always)]
pub(super) unsafe fn fours<S: Simd<I = __m512i>, const N: usize>(
    s: S,
    book: &Codebook<N>,
    low: [__m512i; 2],
    high: [__m512i; 2],
    signs: __m512i,
) -> [__m512i; TILE] {
    let mut out = [signs; TILE];
    // SAFETY: as the caller promises.
    unsafe {
        for k in 0..2 {
            let halves = Halves::of(low[k], high[k]);
            let levels = halves.look_up(&book.bytes[0], low[k]);
            // The third bit of each level.
            let tops = halves.look_up(&book.bytes[1], low[k]);
            for i in 0..4 {
                let byte = 8 * i as i32;
                let (levels, tops) = (fields(levels, byte, 2), fields(tops, byte - 2, 2));
                let third = _mm512_set1_epi32(SIGN >> 1);
                let levels = _mm512_ternarylogic_epi32::<SELECT>(third, tops, levels);
                out[4 * k + i] = weights(book, levels, signs_of(s, signs, 4 * k + i));
            }
        }
    }
    out
}

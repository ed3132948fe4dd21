//! TQ1_0: five trits a byte. A packed byte has the same digits as GGUF's, of other columns: those
//! of one place in five unpacked vectors.
//!
//! ```text
//! vector p of 13     digit n is of
//! 0 to 7             tile n, vector p
//! 8 to 12            the tiles 5 to 7 in a row, vector p - 8 + 5 n
//! ```

use super::k_quants::HALVES_BYTES;
use super::simple::gather;
use super::tiles::TILE;
use super::{Quantised, RowBlocks, Scales};
use crate::simd::{Simd, VECTOR_BYTES};
use gguf::TensorType;

/// Digits of a byte.
const DIGITS: usize = 5;

/// Tiles whose vectors are one digit of the first eight packed vectors.
const WHOLE: usize = DIGITS;

/// The powers of three, in both halves of a lane.
const POWERS: [i32; DIGITS] = [0x0001_0001, 0x0003_0003, 0x0009_0009, 0x001b_001b, 0x0051_0051];

/// `(w - 1) * d`, w a trit.
pub(crate) struct Tq1_0;

/// The packed vector and the digit of vector `i` of tile `tile`.
#[inline(always)]
fn place(tile: usize, i: usize) -> (usize, usize) {
    if tile < WHOLE {
        return (i, tile);
    }
    let at = (tile - WHOLE) * TILE + i;
    (TILE + at % DIGITS, at / DIGITS)
}

/// The column of digit `n` of byte `byte` in packed vector `vector`, if there is one.
fn column(vector: usize, byte: usize, n: usize) -> Option<usize> {
    let unpacked = match vector.checked_sub(TILE) {
        None => n * TILE + vector,
        Some(rest) => WHOLE * TILE + rest + DIGITS * n,
    };
    (unpacked < 8 * TILE).then_some(4 * unpacked + byte)
}

/// Digit `n` of a byte: it holds a fraction in base three, rounded up.
fn digit(byte: u8, n: usize) -> u16 {
    (u16::from(byte.wrapping_mul(3_u8.pow(n as u32))) * 3) >> 8
}

/// Trit `k` of one GGUF block, 0 to 2.
fn trit(block: &[u8], k: usize) -> u16 {
    match k {
        0..160 => digit(block[k % 32], k / 32),
        160..240 => digit(block[32 + k % 16], (k - 160) / 16),
        _ => digit(block[48 + k % 4], (k - 240) / 4),
    }
}

impl Quantised for Tq1_0 {
    const TYPE: TensorType = TensorType::TQ1_0;
    const TILES: usize = 8;
    const BITS: usize = 2;
    const ZERO: i32 = 1;
    const BIASED: bool = false;
    const HALVES: usize = 1;
    const OFFSETS: bool = false;
    const HEADER: usize = HALVES_BYTES;
    /// An eighth of the packed vectors, which belong to all tiles.
    const TILE_BYTES: usize = 13 * VECTOR_BYTES / 8;
    type Head<S: Simd> = S::F;

    #[inline(always)]
    fn pack_header(blocks: &RowBlocks, header: &mut [u8]) {
        gather::<2>(blocks, 52, header);
    }
    fn pack_tile(blocks: &RowBlocks, tile: usize, out: &mut [u8]) {
        for (index, out) in out.iter_mut().enumerate() {
            let at = tile * Self::TILE_BYTES + index;
            let (vector, lane, byte) = (at / VECTOR_BYTES, at % VECTOR_BYTES / 4, at % 4);
            let digits = (0..DIGITS).fold(0, |all, n| {
                all * 3 + column(vector, byte, n).map_or(0, |k| trit(blocks[lane], k))
            });
            *out = (digits * 256).div_ceil(243) as u8;
        }
    }
    #[inline(always)]
    unsafe fn head<S: Simd>(s: S, record: *const u8) -> S::F {
        // SAFETY: a whole record starts with its header.
        unsafe { s.load_f16(record.cast()) }
    }
    #[inline(always)]
    unsafe fn scales<S: Simd>(s: S, _record: *const u8, head: &S::F, _tile: usize) -> Scales<S> {
        Scales { scale: [*head; 2], offset: [s.splat(0.0); 2] }
    }
    #[inline(always)]
    unsafe fn unpack<S: Simd>(s: S, record: *const u8, tile: usize) -> [S::I; TILE] {
        let (bytes, three) = (s.splat_i(0x00ff_00ff), s.splat_i(0x0003_0003));
        let mut out = [bytes; TILE];
        for i in 0..TILE {
            let (vector, n) = place(tile, i);
            // SAFETY: the packed vector lies inside the record.
            let packed = unsafe { s.load_i(record.add(Self::HEADER + vector * VECTOR_BYTES)) };
            // Every second byte, as 16 bits; what the power moves beyond a byte was earlier digits.
            let power = s.splat_i(POWERS[n]);
            let even = s.and(s.mul_i16(s.and(packed, bytes), power), bytes);
            let odd = s.and(s.mul_i16(s.and(s.shr(packed, 8), bytes), power), bytes);
            let (even, odd) = (s.mul_i16(even, three), s.mul_i16(odd, three));
            let odd = s.and(odd, s.shl(three, 8));
            out[i] = s.or(s.and(s.shr(even, 8), three), odd);
        }
        out
    }
}

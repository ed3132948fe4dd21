//! Tiles of 16 rows by 32 columns as bit planes; the layout is in the parent module's text.

use super::TILE_COLS;
use crate::simd::{Simd, VECTOR_BYTES, array_of};

/// Vectors of an unpacked tile: one byte a weight.
pub(crate) const TILE: usize = TILE_COLS / 4;

/// Bytes of a tile of `bits`-bit weights.
pub(crate) const fn tile_bytes(bits: usize) -> usize {
    bits * VECTOR_BYTES
}

/// The widths of the one or two planes that make up `bits` bits, the low bits first.
const fn planes(bits: usize) -> (usize, usize) {
    match bits {
        3 => (2, 1),
        5 => (4, 1),
        6 => (4, 2),
        _ => (bits, 0),
    }
}

/// One row's weights of a tile, a byte each: four a word, in order of the columns.
pub(crate) type Words = [u32; TILE];

/// Writes one row's weights to a tile, as lane `lane`.
#[inline(always)]
pub(super) fn pack_row(weights: &Words, bits: usize, lane: usize, tile: &mut [u8]) {
    let (low, high) = planes(bits);
    let (low_plane, high_plane) = tile.split_at_mut(tile_bytes(low));
    pack_plane(weights, low, 0, lane, low_plane);
    if high > 0 {
        pack_plane(weights, high, low, lane, high_plane);
    }
}

/// `byte` in each of the four bytes of a word.
#[inline(always)]
pub(super) const fn in_each_byte(byte: u8) -> u32 {
    byte as u32 * 0x0101_0101
}

/// Writes `width` bits of each weight, from bit `from` on, as one plane.
#[inline(always)]
fn pack_plane(weights: &Words, width: usize, from: usize, lane: usize, out: &mut [u8]) {
    let slots = 8 / width;
    let mask = in_each_byte(0xff >> (8 - width));
    for (v, vector) in out.chunks_exact_mut(VECTOR_BYTES).enumerate() {
        let mut joined = 0;
        for slot in 0..slots {
            // Nibbles pair column k with column k + 16, narrower weights with the next words.
            let at = if width == 4 { v + 4 * slot } else { v * slots + slot };
            joined |= ((weights[at] >> from) & mask) << (slot * width);
        }
        vector[4 * lane..4 * lane + 4].copy_from_slice(&joined.to_le_bytes());
    }
}

/// The eight vectors of a tile, one byte a weight.
///
/// # Safety
/// `tile` points to [`tile_bytes`]`(bits)` bytes.
#[inline(always)]
pub(crate) unsafe fn unpack_tile<S: Simd>(s: S, tile: *const u8, bits: usize) -> [S::I; TILE] {
    // SAFETY: the planes of the tile lie one behind the other.
    unsafe {
        match bits {
            2 => two_bits(s, tile, 0),
            3 => merge(s, two_bits(s, tile, 0), one_bit(s, tile.add(tile_bytes(2)), 2)),
            4 => nibbles(s, tile),
            5 => merge(s, nibbles(s, tile), one_bit(s, tile.add(tile_bytes(4)), 4)),
            6 => merge(s, nibbles(s, tile), two_bits(s, tile.add(tile_bytes(4)), 4)),
            _ => array_of!(TILE, s.splat_i(0), i => s.load_i(tile.add(i * VECTOR_BYTES))),
        }
    }
}

#[inline(always)]
fn merge<S: Simd>(s: S, low: [S::I; TILE], high: [S::I; TILE]) -> [S::I; TILE] {
    array_of!(TILE, low[0], i => s.or(low[i], high[i]))
}

/// # Safety
/// `plane` points to four vectors.
#[inline(always)]
unsafe fn nibbles<S: Simd>(s: S, plane: *const u8) -> [S::I; TILE] {
    let mask = s.splat_i(0x0f0f_0f0f);
    array_of!(TILE, mask, i => {
        // SAFETY: the caller promises four vectors.
        let pair = unsafe { s.load_i(plane.add(i % 4 * VECTOR_BYTES)) };
        s.and(if i < 4 { pair } else { s.shr(pair, 4) }, mask)
    })
}

/// Two bits a weight, moved up to bit `to`.
///
/// # Safety
/// `plane` points to two vectors.
#[inline(always)]
unsafe fn two_bits<S: Simd>(s: S, plane: *const u8, to: u32) -> [S::I; TILE] {
    let mask = s.splat_i(0x0303_0303 << to);
    array_of!(TILE, mask, i => {
        // SAFETY: the caller promises two vectors.
        let quad = unsafe { s.load_i(plane.add(i / 4 * VECTOR_BYTES)) };
        s.and(move_bits(s, quad, 2 * (i as u32 % 4), to), mask)
    })
}

/// One bit a weight, moved up to bit `to`.
///
/// # Safety
/// `plane` points to one vector.
#[inline(always)]
unsafe fn one_bit<S: Simd>(s: S, plane: *const u8, to: u32) -> [S::I; TILE] {
    let mask = s.splat_i(0x0101_0101 << to);
    // SAFETY: the caller promises the vector.
    let all = unsafe { s.load_i(plane) };
    array_of!(TILE, mask, i => s.and(move_bits(s, all, i as u32, to), mask))
}

/// Shifts so that bit `from` becomes bit `to`.
#[inline(always)]
fn move_bits<S: Simd>(s: S, v: S::I, from: u32, to: u32) -> S::I {
    if from >= to { s.shr(v, from - to) } else { s.shl(v, to - from) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::simd::{LANES, scalar::Scalar};

    #[test]
    fn packing_and_unpacking_are_inverse() {
        for bits in [2, 3, 4, 5, 6, 8] {
            let weight = |row: usize, col: usize| ((row * 37 + col * 11) % (1 << bits)) as u8;
            let mut tile = vec![0; tile_bytes(bits)];
            for row in 0..LANES {
                let four = |i: usize| std::array::from_fn(|j| weight(row, 4 * i + j));
                let words = std::array::from_fn(|i| u32::from_le_bytes(four(i)));
                pack_row(&words, bits, row, &mut tile);
            }
            // SAFETY: the tile is whole.
            let unpacked = unsafe { unpack_tile(Scalar, tile.as_ptr(), bits) };
            for row in 0..LANES {
                for col in 0..TILE_COLS {
                    let byte = unpacked[col / 4][row].to_le_bytes()[col % 4];
                    assert_eq!(byte, weight(row, col), "{bits} bits, row {row}, column {col}");
                }
            }
        }
    }
}

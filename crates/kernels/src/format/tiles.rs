//! Tiles of 16 rows by 32 columns in one vector for each bit of a weight; the parent module
//! describes the layout.

use crate::simd::{Simd, VECTOR_BYTES, array_of};
pub(crate) use crate::simd::{TILE, TILE_COLS};

/// Bytes of a tile of `bits`-bit weights.
pub(crate) const fn tile_bytes(bits: usize) -> usize {
    bits * VECTOR_BYTES
}

/// Runs `$body` with the constant `$BITS`, for all existing widths.
macro_rules! with_bits {
    ($bits:expr, $BITS:ident => $body:expr) => {
        with_bits!(@ $bits, $BITS, $body, 1 2 3 4 5 6 8)
    };
    (@ $bits:expr, $BITS:ident, $body:expr, $($width:literal)*) => {
        match $bits {
            $($width => {
                const $BITS: usize = $width;
                $body
            })*
            bits => unreachable!("no type has {bits} bits"),
        }
    };
}

/// One row's weights of a tile, a byte each: four a word, in order of the columns.
pub(crate) type Words = [u32; TILE];

/// `byte` in each of the four bytes of a word.
#[inline(always)]
pub(super) const fn in_each_byte(byte: u8) -> u32 {
    byte as u32 * 0x0101_0101
}

/// Some bits of a weight, in a packed vector.
#[derive(Clone, Copy)]
struct Piece {
    vector: usize,
    /// Their lowest bit there.
    at: usize,
    /// Their lowest bit in the weight.
    to: usize,
    /// Their number; 0 if there is no such piece.
    width: usize,
}

impl Piece {
    /// Its bits in each byte of a word, moved to the lowest ones.
    #[inline(always)]
    const fn mask(self) -> u32 {
        in_each_byte(((1 << self.width) - 1) as u8)
    }
}

/// The most pieces of a weight.
const PIECES_MAX: usize = 3;

/// Weights of `BITS` bits.
struct Layout<const BITS: usize>;

impl<const BITS: usize> Layout<BITS> {
    /// The pieces of the weights of each unpacked vector. A table, because loops over it have
    /// constant bounds for the compiler.
    const PIECES: [[Piece; PIECES_MAX]; TILE] = {
        let mut pieces = [[Piece { vector: 0, at: 0, to: 0, width: 0 }; PIECES_MAX]; TILE];
        let whole = 8 / BITS * BITS;
        let mut index = 0;
        while index < TILE {
            pieces[index] = match index < whole {
                true => {
                    let (vector, at) = (index % BITS, index / BITS * BITS);
                    let none = pieces[index][0];
                    [Piece { vector, at, to: 0, width: BITS }, none, none]
                }
                false => Self::spare_pieces(whole, (index - whole) * BITS),
            };
            index += 1;
        }
        pieces
    };

    /// The pieces of a weight that starts with bit `bit` of the spare bits, where each vector has
    /// `whole` used bits.
    const fn spare_pieces(whole: usize, bit: usize) -> [Piece; PIECES_MAX] {
        let spare = 8 - whole;
        let mut pieces = [Piece { vector: 0, at: 0, to: 0, width: 0 }; PIECES_MAX];
        let (mut index, mut to) = (0, 0);
        while to < BITS {
            let (vector, from) = ((bit + to) / spare, (bit + to) % spare);
            let width = if spare - from < BITS - to { spare - from } else { BITS - to };
            pieces[index] = Piece { vector, at: whole + from, to, width };
            to += width;
            index += 1;
        }
        pieces
    }
}

/// Writes one row's weights to a tile, as lane `lane`.
#[inline(always)]
pub(super) fn pack_row(weights: &Words, bits: usize, lane: usize, tile: &mut [u8]) {
    with_bits!(bits, BITS => pack::<BITS>(weights, lane, tile))
}

#[inline(always)]
fn pack<const BITS: usize>(weights: &Words, lane: usize, tile: &mut [u8]) {
    let mut packed = [0; BITS];
    for index in 0..TILE {
        for piece in Layout::<BITS>::PIECES[index] {
            if piece.width > 0 {
                packed[piece.vector] |= ((weights[index] >> piece.to) & piece.mask()) << piece.at;
            }
        }
    }
    for v in 0..BITS {
        let lane = v * VECTOR_BYTES + 4 * lane;
        tile[lane..lane + 4].copy_from_slice(&packed[v].to_le_bytes());
    }
}

/// The eight vectors of a tile, one byte a weight.
///
/// # Safety
/// `tile` points to [`tile_bytes`]`(bits)` bytes.
#[inline(always)]
pub(crate) unsafe fn unpack_tile<S: Simd>(s: S, tile: *const u8, bits: usize) -> [S::I; TILE] {
    // SAFETY: as the caller promises.
    with_bits!(bits, BITS => unsafe { unpack::<S, BITS>(s, tile) })
}

/// # Safety
/// `tile` points to [`tile_bytes`]`(BITS)` bytes.
#[inline(always)]
unsafe fn unpack<S: Simd, const BITS: usize>(s: S, tile: *const u8) -> [S::I; TILE] {
    let packed = array_of!(BITS, s.splat_i(0), v => {
        // SAFETY: the caller promises one vector for each bit of a weight.
        unsafe { s.load_i(tile.add(v * VECTOR_BYTES)) }
    });
    array_of!(TILE, packed[0], index => {
        let [first, rest @ ..] = Layout::<BITS>::PIECES[index];
        let mut weights = field(s, &packed, first);
        for piece in rest {
            if piece.width > 0 {
                weights = s.or(weights, field(s, &packed, piece));
            }
        }
        weights
    })
}

/// The bits of a piece, at their place in the weights.
#[inline(always)]
fn field<S: Simd, const BITS: usize>(s: S, packed: &[S::I; BITS], piece: Piece) -> S::I {
    let Piece { vector, at, to, width } = piece;
    if width == 8 {
        return packed[vector];
    }
    let moved = match at >= to {
        true => s.shr(packed[vector], (at - to) as u32),
        false => s.shl(packed[vector], (to - at) as u32),
    };
    s.and(moved, s.splat_i((piece.mask() << to) as i32))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::simd::{LANES, scalar::Scalar};

    #[test]
    fn packing_and_unpacking_are_inverse() {
        for bits in [1, 2, 3, 4, 5, 6, 8] {
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

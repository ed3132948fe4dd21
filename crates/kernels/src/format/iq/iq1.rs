//! IQ1_S and IQ1_M: an index stands for eight numbers of -1, 0 and 1, all moved by an eighth up or
//! down. Weights are eight times that, integers from -9 to 9.

use super::codebook::Codebook;
use super::grids;
use super::record::{constants, in_bytes, odd_scale, scales, unit};
use crate::format::k_quants::HALVES_BYTES;
use crate::format::simple::gather;
use crate::format::{Quantised, RowBlocks, Scales, TILE};
use crate::simd::{LANES, Simd, VECTOR_BYTES, array_of};

const ZERO: u8 = 9;

/// A set sign bit moves down.
const WEIGHTS: [u8; 16] = {
    let mut weights = [ZERO; 16];
    let mut level = 0;
    while level < 3 {
        weights[level] = 8 * level as u8 + ZERO - 8 + 1;
        weights[8 + level] = 8 * level as u8 + ZERO - 8 - 1;
        level += 1;
    }
    weights
};

static CODEBOOK: Codebook<2048> = Codebook::of_eights(&grids::IQ1, WEIGHTS);

/// Bytes of 16 words of high bits.
const HIGH_BYTES: usize = 2 * LANES;

/// `d / 8 * (2 scale + 1) * w`: 32 columns have four indices of 11 bits, a scale of 3 and a sign.
pub(crate) struct Iq1S;

impl Quantised for Iq1S {
    constants!(
        IQ1_S, weights WEIGHTS, zero ZERO as i32, halves 1,
        header HALVES_BYTES, tile_header HIGH_BYTES, vectors 1
    );
    type Head<S: Simd> = S::F;

    #[inline(always)]
    fn pack_header(blocks: &RowBlocks, header: &mut [u8]) {
        gather::<2>(blocks, 0, header);
    }
    #[inline(always)]
    fn pack_tile(blocks: &RowBlocks, tile: usize, out: &mut [u8]) {
        let (header, indices) = out.split_at_mut(HIGH_BYTES);
        gather::<2>(blocks, 34 + 2 * tile, header);
        gather::<4>(blocks, 2 + 4 * tile, indices);
    }
    #[inline(always)]
    unsafe fn head<S: Simd>(s: S, record: *const u8) -> S::F {
        // SAFETY: a whole record starts with its header.
        unsafe { unit(s, record, 0.125) }
    }
    #[inline(always)]
    unsafe fn scales<S: Simd>(s: S, record: *const u8, head: &S::F, tile: usize) -> Scales<S> {
        // SAFETY: the tile's header lies inside the record.
        let words = unsafe { s.load_u16(record.add(Self::HEADER + tile * Self::TILE_BYTES)) };
        let scale = s.and(s.shr(words, 12), s.splat_i(7));
        scales(s, [odd_scale(s, *head, scale); 2])
    }
    #[inline(always)]
    unsafe fn unpack<S: Simd>(s: S, record: *const u8, tile: usize) -> [S::I; TILE] {
        let tile = record.wrapping_add(Self::HEADER + tile * Self::TILE_BYTES);
        // SAFETY: the words and the vector lie inside the tile.
        unsafe {
            let (words, low) = (s.load_u16(tile), tile.add(HIGH_BYTES));
            // The sign in all bits.
            let signs = s.sub_i(s.splat_i(0), s.shr(words, 15));
            s.eights(&CODEBOOK, low, in_bytes(s, words, 3), signs)
        }
    }
}

/// `d / 8 * (2 scale + 1) * w`: indices of 11 bits with a sign each; 16 columns have a scale of 3
/// bits.
pub(crate) struct Iq1M;

/// The decoded header of a record: d / 8, and 48 bits of scales in two words, as they are packed.
type Iq1MHead<S> = (<S as Simd>::F, <S as Simd>::I, <S as Simd>::I);

/// The four words of a block's scales.
#[inline(always)]
fn scale_words(block: &[u8]) -> [u16; 4] {
    std::array::from_fn(|i| u16::from_le_bytes([block[48 + 2 * i], block[49 + 2 * i]]))
}

impl Quantised for Iq1M {
    constants!(
        IQ1_M, weights WEIGHTS, zero ZERO as i32, halves 2,
        header 2 * HALVES_BYTES + VECTOR_BYTES, tile_header HIGH_BYTES, vectors 1
    );
    type Head<S: Simd> = Iq1MHead<S>;

    /// The top four bits of each word of scales make d. The other 12 are two tiles; tiles 0 to 4
    /// and two bits of tile 7 fill a word of 32 bits, and one of 16 has the rest.
    #[inline(always)]
    fn pack_header(blocks: &RowBlocks, header: &mut [u8]) {
        for (lane, block) in blocks.iter().enumerate() {
            let words = scale_words(block);
            let d = words.iter().rev().fold(0, |d, word| d << 4 | word >> 12);
            let tiles = words.iter().rev().fold(0, |all, word| all << 12 | u64::from(word & 0xfff));
            let (five, rest) = (tiles & 0x3fff_ffff, tiles >> 30);
            let low = five as u32 | (rest >> 16 << 30) as u32;
            header[2 * lane..][..2].copy_from_slice(&d.to_le_bytes());
            header[HALVES_BYTES + 2 * lane..][..2].copy_from_slice(&(rest as u16).to_le_bytes());
            header[2 * HALVES_BYTES + 4 * lane..][..4].copy_from_slice(&low.to_le_bytes());
        }
    }
    #[inline(always)]
    fn pack_tile(blocks: &RowBlocks, tile: usize, out: &mut [u8]) {
        let (header, indices) = out.split_at_mut(HIGH_BYTES);
        gather::<2>(blocks, 32 + 2 * tile, header);
        gather::<4>(blocks, 4 * tile, indices);
    }
    #[inline(always)]
    unsafe fn head<S: Simd>(s: S, record: *const u8) -> Iq1MHead<S> {
        // SAFETY: a whole record starts with its header.
        unsafe {
            let rest = s.load_u16(record.add(HALVES_BYTES));
            (unit(s, record, 0.125), s.load_i(record.add(2 * HALVES_BYTES)), rest)
        }
    }
    #[inline(always)]
    unsafe fn scales<S: Simd>(
        s: S,
        _record: *const u8,
        (unit, five, rest): &Iq1MHead<S>,
        tile: usize,
    ) -> Scales<S> {
        let six = match tile {
            0..5 => s.shr(*five, 6 * tile as u32),
            5..7 => s.shr(*rest, 6 * (tile as u32 - 5)),
            _ => s.or(s.shr(*rest, 12), s.shl(s.shr(*five, 30), 4)),
        };
        let three = s.splat_i(7);
        let first = odd_scale(s, *unit, s.and(six, three));
        scales(s, [first, odd_scale(s, *unit, s.and(s.shr(six, 3), three))])
    }
    #[inline(always)]
    unsafe fn unpack<S: Simd>(s: S, record: *const u8, tile: usize) -> [S::I; TILE] {
        let tile = record.wrapping_add(Self::HEADER + tile * Self::TILE_BYTES);
        // SAFETY: the words lie inside the tile.
        let words = unsafe { s.load_u16(tile) };
        let fours = in_bytes(s, words, 4);
        // Bits 3, 7, 11 and 15, the groups' signs, as bits 0 to 3; then for all their columns.
        let bits = array_of!(4, words, g => {
            s.and(s.shr(words, 3 * g as u32 + 3), s.splat_i(1 << g))
        });
        let signs = s.or(s.or(bits[0], bits[1]), s.or(bits[2], bits[3]));
        let signs = s.or(signs, s.shl(signs, 4));
        let signs = s.or(signs, s.shl(signs, 8));
        let signs = s.or(signs, s.shl(signs, 16));
        let high = s.and(fours, s.splat_i(0x0707_0707));
        // SAFETY: the indices lie inside the tile.
        unsafe { s.eights(&CODEBOOK, tile.add(HIGH_BYTES), high, signs) }
    }
}

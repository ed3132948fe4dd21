//! IQ3_XXS and IQ3_S: an index stands for four numbers of eight magnitudes.

use super::codebook::{Codebook, signed};
use super::grids;
use super::record::{
    constants, even_signs, in_bytes, odd_scale, pack_sevens, pack_signs, scales, unit,
};
use crate::format::k_quants::{HALVES_BYTES, gather_bytes};
use crate::format::simple::gather;
use crate::format::{Quantised, RowBlocks, Scales, TILE};
use crate::simd::{LANES, Simd, VECTOR_BYTES};

const XXS_ZERO: u8 = 62;
const XXS_WEIGHTS: [u8; 16] = signed(&[4, 12, 20, 28, 36, 44, 52, 62], XXS_ZERO);
static XXS_BOOK: Codebook<256> = Codebook::of_fours(&grids::IQ3_XXS, XXS_WEIGHTS);

const S_ZERO: u8 = 15;
const S_WEIGHTS: [u8; 16] = signed(&[1, 3, 5, 7, 9, 11, 13, 15], S_ZERO);
static S_BOOK: Codebook<512> = Codebook::of_fours(&grids::IQ3_S, S_WEIGHTS);

/// Eight indices of each row, in two vectors.
#[inline(always)]
fn pack_indices(blocks: &RowBlocks, tile: usize, out: &mut [u8]) {
    gather::<4>(blocks, 2 + 8 * tile, &mut out[..VECTOR_BYTES]);
    gather::<4>(blocks, 2 + 8 * tile + 4, &mut out[VECTOR_BYTES..]);
}

/// `d / 4 * (2 scale + 1) * w`: 32 columns have eight indices of 8 bits, four times seven signs and
/// a scale of 4 bits.
pub(crate) struct Iq3Xxs;

impl Quantised for Iq3Xxs {
    constants!(
        IQ3_XXS, weights XXS_WEIGHTS, zero XXS_ZERO as i32, halves 1,
        header HALVES_BYTES, tile_header 0, vectors 3
    );
    type Head<S: Simd> = S::F;

    #[inline(always)]
    fn pack_header(blocks: &RowBlocks, header: &mut [u8]) {
        gather::<2>(blocks, 0, header);
    }
    #[inline(always)]
    fn pack_tile(blocks: &RowBlocks, tile: usize, out: &mut [u8]) {
        let (indices, signs) = out.split_at_mut(2 * VECTOR_BYTES);
        pack_indices(blocks, tile, indices);
        pack_sevens(blocks, 66 + 4 * tile, signs);
    }
    #[inline(always)]
    unsafe fn head<S: Simd>(s: S, record: *const u8) -> S::F {
        // SAFETY: a whole record starts with its header.
        unsafe { unit(s, record, 0.25) }
    }
    #[inline(always)]
    unsafe fn scales<S: Simd>(s: S, record: *const u8, head: &S::F, tile: usize) -> Scales<S> {
        let at = Self::HEADER + tile * Self::TILE_BYTES + 2 * VECTOR_BYTES;
        // SAFETY: the vector of signs lies inside the record.
        let signs = unsafe { s.load_i(record.add(at)) };
        scales(s, [odd_scale(s, *head, s.shr(signs, 28)); 2])
    }
    #[inline(always)]
    unsafe fn unpack<S: Simd>(s: S, record: *const u8, tile: usize) -> [S::I; TILE] {
        let tile = record.wrapping_add(Self::HEADER + tile * Self::TILE_BYTES);
        // SAFETY: a tile is three vectors.
        unsafe {
            let signs = even_signs(s, s.load_i(tile.add(2 * VECTOR_BYTES)));
            s.fours(&XXS_BOOK, tile, [s.splat_i(0); 2], signs)
        }
    }
}

/// `d * (2 scale + 1) * w`: 32 columns have eight indices of 9 bits, eight signs for each two, and
/// a scale of 4 bits.
pub(crate) struct Iq3S;

impl Quantised for Iq3S {
    constants!(
        IQ3_S, weights S_WEIGHTS, zero S_ZERO as i32, halves 1,
        header HALVES_BYTES + 4 * LANES, tile_header LANES, vectors 3
    );
    type Head<S: Simd> = S::F;

    #[inline(always)]
    fn pack_header(blocks: &RowBlocks, header: &mut [u8]) {
        let (d, scales) = header.split_at_mut(HALVES_BYTES);
        gather::<2>(blocks, 0, d);
        gather_bytes(blocks, 106, 4, scales);
    }
    #[inline(always)]
    fn pack_tile(blocks: &RowBlocks, tile: usize, out: &mut [u8]) {
        let (header, vectors) = out.split_at_mut(LANES);
        gather::<1>(blocks, 66 + tile, header);
        let (indices, signs) = vectors.split_at_mut(2 * VECTOR_BYTES);
        pack_indices(blocks, tile, indices);
        pack_signs(blocks, 74 + 4 * tile, signs);
    }
    #[inline(always)]
    unsafe fn head<S: Simd>(s: S, record: *const u8) -> S::F {
        // SAFETY: a whole record starts with its header.
        unsafe { unit(s, record, 1.0) }
    }
    #[inline(always)]
    unsafe fn scales<S: Simd>(s: S, record: *const u8, head: &S::F, tile: usize) -> Scales<S> {
        // SAFETY: the header has 16 bytes for each two tiles.
        let bytes = unsafe { s.load_u8(record.add(HALVES_BYTES + tile / 2 * LANES)) };
        let scale = s.and(s.shr(bytes, tile as u32 % 2 * 4), s.splat_i(15));
        scales(s, [odd_scale(s, *head, scale); 2])
    }
    #[inline(always)]
    unsafe fn unpack<S: Simd>(s: S, record: *const u8, tile: usize) -> [S::I; TILE] {
        let tile = record.wrapping_add(Self::HEADER + tile * Self::TILE_BYTES);
        // SAFETY: the bytes and the three vectors lie inside the tile.
        unsafe {
            let (high, low) = (s.load_u8(tile), tile.add(LANES));
            let high = [in_bytes(s, high, 1), in_bytes(s, s.shr(high, 4), 1)];
            s.fours(&S_BOOK, low, high, s.load_i(low.add(2 * VECTOR_BYTES)))
        }
    }
}

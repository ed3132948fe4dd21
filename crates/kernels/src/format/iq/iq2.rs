//! IQ2_XXS, IQ2_XS and IQ2_S: an index stands for eight numbers of the magnitudes 8, 25 and 43.

use super::codebook::{Codebook, signed};
use super::grids;
use super::record::{
    by_column, constants, even_signs, in_bytes, odd_scale, pack_sevens, pack_signs, scales, unit,
};
use crate::format::k_quants::{HALVES_BYTES, gather_bytes};
use crate::format::simple::gather;
use crate::format::{Quantised, RowBlocks, Scales, TILE};
use crate::simd::{LANES, Simd, VECTOR_BYTES, array_of};

const ZERO: u8 = 43;
const WEIGHTS: [u8; 16] = signed(&[8, 25, 43], ZERO);
static XXS_BOOK: Codebook<256> = Codebook::of_eights(&grids::IQ2_XXS, WEIGHTS);
static XS_BOOK: Codebook<512> = Codebook::of_eights(&grids::IQ2_XS, WEIGHTS);
static S_BOOK: Codebook<1024> = Codebook::of_eights(&grids::IQ2_S, WEIGHTS);

/// The scales of both halves of a tile, from the nibbles of each row's byte.
///
/// # Safety
/// `bytes` points to 16 bytes.
#[inline(always)]
unsafe fn nibble_scales<S: Simd>(s: S, unit: S::F, bytes: *const u8) -> Scales<S> {
    // SAFETY: as the caller promises.
    let bytes = unsafe { s.load_u8(bytes) };
    let first = odd_scale(s, unit, s.and(bytes, s.splat_i(15)));
    scales(s, [first, odd_scale(s, unit, s.shr(bytes, 4))])
}

/// `d / 8 * (2 scale + 1) * w`: 32 columns have four indices of 8 bits, four times seven signs and
/// a scale of 4 bits.
pub(crate) struct Iq2Xxs;

impl Quantised for Iq2Xxs {
    constants!(
        IQ2_XXS, weights WEIGHTS, zero ZERO as i32, halves 1,
        header HALVES_BYTES, tile_header 0, vectors 2
    );
    type Head<S: Simd> = S::F;

    #[inline(always)]
    fn pack_header(blocks: &RowBlocks, header: &mut [u8]) {
        gather::<2>(blocks, 0, header);
    }
    #[inline(always)]
    fn pack_tile(blocks: &RowBlocks, tile: usize, out: &mut [u8]) {
        let (indices, signs) = out.split_at_mut(VECTOR_BYTES);
        gather::<4>(blocks, 2 + 8 * tile, indices);
        pack_sevens(blocks, 2 + 8 * tile + 4, signs);
    }
    #[inline(always)]
    unsafe fn head<S: Simd>(s: S, record: *const u8) -> S::F {
        // SAFETY: a whole record starts with its header.
        unsafe { unit(s, record, 0.125) }
    }
    #[inline(always)]
    unsafe fn scales<S: Simd>(s: S, record: *const u8, head: &S::F, tile: usize) -> Scales<S> {
        let at = Self::HEADER + tile * Self::TILE_BYTES + VECTOR_BYTES;
        // SAFETY: the vector of signs lies inside the record.
        let signs = unsafe { s.load_i(record.add(at)) };
        scales(s, [odd_scale(s, *head, s.shr(signs, 28)); 2])
    }
    #[inline(always)]
    unsafe fn unpack<S: Simd>(s: S, record: *const u8, tile: usize) -> [S::I; TILE] {
        let tile = record.wrapping_add(Self::HEADER + tile * Self::TILE_BYTES);
        // SAFETY: a tile is two vectors.
        unsafe {
            let signs = s.load_i(tile.add(VECTOR_BYTES));
            s.eights(&XXS_BOOK, tile, s.splat_i(0), even_signs(s, signs))
        }
    }
}

/// `d / 8 * (2 scale + 1) * w`: an index of 9 bits and seven signs are a word, and 16 columns have
/// a scale of 4 bits. Packed signs have the indices' high bits in place of the eighth ones.
pub(crate) struct Iq2Xs;

impl Quantised for Iq2Xs {
    constants!(
        IQ2_XS, weights WEIGHTS, zero ZERO as i32, halves 2,
        header HALVES_BYTES, tile_header LANES, vectors 2
    );
    type Head<S: Simd> = S::F;

    #[inline(always)]
    fn pack_header(blocks: &RowBlocks, header: &mut [u8]) {
        gather::<2>(blocks, 0, header);
    }
    #[inline(always)]
    fn pack_tile(blocks: &RowBlocks, tile: usize, out: &mut [u8]) {
        let (header, vectors) = out.split_at_mut(LANES);
        gather::<1>(blocks, 66 + tile, header);
        let (low, signs) = vectors.split_at_mut(VECTOR_BYTES);
        for (lane, block) in blocks.iter().enumerate() {
            let words = &block[2 + 8 * tile..][..8];
            let sevens = array_of!(4, 0, i => words[2 * i + 1] >> 1);
            let high = (0..4).fold(0, |high, i| high | u32::from(words[2 * i + 1] & 1) << i);
            for i in 0..4 {
                low[4 * lane + i] = words[2 * i];
            }
            let all = by_column(sevens) | high << 28;
            signs[4 * lane..][..4].copy_from_slice(&all.to_le_bytes());
        }
    }
    #[inline(always)]
    unsafe fn head<S: Simd>(s: S, record: *const u8) -> S::F {
        // SAFETY: a whole record starts with its header.
        unsafe { unit(s, record, 0.125) }
    }
    #[inline(always)]
    unsafe fn scales<S: Simd>(s: S, record: *const u8, head: &S::F, tile: usize) -> Scales<S> {
        // SAFETY: the tile's header lies inside the record.
        unsafe { nibble_scales(s, *head, record.add(Self::HEADER + tile * Self::TILE_BYTES)) }
    }
    #[inline(always)]
    unsafe fn unpack<S: Simd>(s: S, record: *const u8, tile: usize) -> [S::I; TILE] {
        let tile = record.wrapping_add(Self::HEADER + tile * Self::TILE_BYTES);
        // SAFETY: both vectors lie inside the tile.
        unsafe {
            let low = tile.add(LANES);
            let signs = s.load_i(low.add(VECTOR_BYTES));
            s.eights(&XS_BOOK, low, in_bytes(s, s.shr(signs, 28), 1), even_signs(s, signs))
        }
    }
}

/// `d / 8 * (2 scale + 1) * w`: indices of 10 bits, eight signs each, and 16 columns have a scale
/// of 4 bits.
pub(crate) struct Iq2S;

impl Quantised for Iq2S {
    constants!(
        IQ2_S, weights WEIGHTS, zero ZERO as i32, halves 2,
        header HALVES_BYTES, tile_header 2 * LANES, vectors 2
    );
    type Head<S: Simd> = S::F;

    #[inline(always)]
    fn pack_header(blocks: &RowBlocks, header: &mut [u8]) {
        gather::<2>(blocks, 0, header);
    }
    #[inline(always)]
    fn pack_tile(blocks: &RowBlocks, tile: usize, out: &mut [u8]) {
        let (header, vectors) = out.split_at_mut(2 * LANES);
        gather_bytes(blocks, 74 + tile, 1, &mut header[..LANES]);
        gather_bytes(blocks, 66 + tile, 1, &mut header[LANES..]);
        gather::<4>(blocks, 2 + 4 * tile, &mut vectors[..VECTOR_BYTES]);
        pack_signs(blocks, 34 + 4 * tile, &mut vectors[VECTOR_BYTES..]);
    }
    #[inline(always)]
    unsafe fn head<S: Simd>(s: S, record: *const u8) -> S::F {
        // SAFETY: a whole record starts with its header.
        unsafe { unit(s, record, 0.125) }
    }
    #[inline(always)]
    unsafe fn scales<S: Simd>(s: S, record: *const u8, head: &S::F, tile: usize) -> Scales<S> {
        // SAFETY: the tile's header lies inside the record.
        unsafe { nibble_scales(s, *head, record.add(Self::HEADER + tile * Self::TILE_BYTES)) }
    }
    #[inline(always)]
    unsafe fn unpack<S: Simd>(s: S, record: *const u8, tile: usize) -> [S::I; TILE] {
        let tile = record.wrapping_add(Self::HEADER + tile * Self::TILE_BYTES);
        // SAFETY: the bytes and both vectors lie inside the tile.
        unsafe {
            let (high, low) = (s.load_u8(tile.add(LANES)), tile.add(2 * LANES));
            let signs = s.load_i(low.add(VECTOR_BYTES));
            s.eights(&S_BOOK, low, in_bytes(s, high, 2), signs)
        }
    }
}

//! The packed layout of each GGUF type, and its decoding.
//!
//! A matrix is cut into *panels* of 16 rows, so that one vector holds the same column of 16 rows
//! and no sum ever runs across lanes. Within a panel, a *record* holds one GGUF block of each of
//! the 16 rows, in exactly the bytes of the 16 blocks:
//!
//! ```text
//! record     = header (scales of the 16 rows), then one tile per 32 columns
//! tile       = scales that no other tile has, if there are any, then 16 rows x 32 columns of
//!              weights of b bits, as b vectors
//! unpacked   = 8 vectors; vector i, lane r, byte j = weight of row r, column 4i + j
//! 2, 4, 8    each byte of vector v has those of unpacked v, v + b, v + 2b ..., the first one in
//!            the lowest bits
//! 3, 5, 6    likewise as many whole ones as fit; the spare bits of all vectors, one after the
//!            other, hold the unpacked vectors that are left
//! ```
//!
//! A weight's value is `(w - ZERO) * scale + offset`, computed in f32 in this order, as GGUF
//! defines it. Float types need no such thing: their record is one column of 16 rows, or 128 of
//! them with their scales.
//!
//! Source: the block structures and `dequantize_row_*` of ggml (ggml-common.h, ggml-quants.c).

mod affine;
mod few_bits;
mod float;
mod iq;
mod k_quants;
#[cfg(test)]
pub(crate) mod reference;
mod simple;
mod tiles;
mod trits;

pub(crate) use affine::*;
pub(crate) use few_bits::{Nvfp4, Q1_0, Q2_0, Tq2_0};
pub(crate) use float::{Bf16, F8E4m3, F16, F32, FloatFormat};
pub(crate) use iq::{Codebook, Iq1M, Iq1S, Iq2S, Iq2Xs, Iq2Xxs, Iq3S, Iq3Xxs};
pub(crate) use k_quants::{Iq4Xs, Q2K, Q3K, Q4K, Q5K, Q6K};
pub(crate) use simple::{Iq4Nl, Mxfp4, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0};
pub(crate) use tiles::{TILE, Words, tile_bytes, unpack_tile};
pub(crate) use trits::Tq1_0;

use crate::simd::{LANES, Simd, array_of};
use gguf::TensorType;

/// Columns of a tile: the range of one activation scale.
pub(crate) const TILE_COLS: usize = 32;

/// Most tiles of one record (256 columns).
pub(crate) const RECORD_TILES_MAX: usize = 8;

/// One GGUF block of each of the 16 rows of a panel.
pub(crate) type RowBlocks<'a> = [&'a [u8]; LANES];

/// The scales of one tile of 16 rows: one for all 32 columns, or one for each half of them.
/// `offset` is used only where [`Quantised::OFFSETS`] says so.
pub(crate) struct Scales<S: Simd> {
    pub scale: [S::F; 2],
    pub offset: [S::F; 2],
}

/// A type of integer weights with scales.
pub(crate) trait Quantised: 'static {
    const TYPE: TensorType;
    /// Tiles of 32 columns in a record: 1, 2, 4 or 8.
    const TILES: usize;
    /// Bits of a stored weight: 1, 2, 3, 4, 5, 6 or 8; 8 with a [`Codebook`].
    const BITS: usize;
    /// The stored weight that represents zero.
    const ZERO: i32;
    /// Whether weights may exceed 127 (after [`Quantised::TABLE`]).
    const BIASED: bool;
    /// Subtracted from weights whose products are added in 16 bits ([`Simd::PAIR_SUMS`]): half
    /// their range if none represents zero, except for types with halves, whose weights are small.
    const CENTRE: i32 =
        if Self::OFFSETS && Self::HALVES == 1 { 1 << (Self::BITS - 1) } else { Self::ZERO };
    /// The largest magnitude of a weight after that.
    const REACH: i32 = {
        let top = match Self::TABLE {
            Some(table) => largest(&table),
            None => (1 << Self::BITS) - 1,
        };
        if Self::CENTRE > top - Self::CENTRE { Self::CENTRE } else { top - Self::CENTRE }
    };
    /// Scales per tile: 1, or 2 for one per 16 columns.
    const HALVES: usize;
    /// Whether offsets are added.
    const OFFSETS: bool;
    /// Whether a tensor of this type may have a factor, [`crate::Matrix::factor`].
    const FACTOR: bool = false;
    /// The value of each stored 4-bit weight or code, if it differs from the number itself.
    const TABLE: Option<[u8; 16]> = None;
    /// Whether tiles are indices of a [`Codebook`], and pack and unpack themselves.
    const CODEBOOK: bool = false;
    /// Bytes of a record in front of its tiles.
    const HEADER: usize;
    /// Bytes of a tile in front of its weights. Data for a single tile is best kept here, so that
    /// memory is read in order (NOTES.md).
    const TILE_HEADER: usize = 0;
    /// Bytes of a tile.
    const TILE_BYTES: usize = Self::TILE_HEADER + tile_bytes(Self::BITS);
    /// Bytes of a record.
    const RECORD: usize = Self::HEADER + Self::TILES * Self::TILE_BYTES;

    /// The decoded data shared by the tiles of one record.
    type Head<S: Simd>: Copy;

    /// Writes the header of a record.
    fn pack_header(blocks: &RowBlocks, header: &mut [u8]);

    /// Writes the header of tile `tile`.
    #[inline(always)]
    fn pack_tile_header(_blocks: &RowBlocks, _tile: usize, _header: &mut [u8]) {}

    /// The stored weights of columns `32 * tile ..` of one GGUF block.
    #[inline(always)]
    fn weights(_block: &[u8], _tile: usize) -> Words {
        unreachable!("{} has indices", Self::TYPE)
    }

    /// Writes tile `tile`.
    #[inline(always)]
    fn pack_tile(blocks: &RowBlocks, tile: usize, out: &mut [u8]) {
        let (header, vectors) = out.split_at_mut(Self::TILE_HEADER);
        Self::pack_tile_header(blocks, tile, header);
        for (lane, block) in blocks.iter().enumerate() {
            tiles::pack_row(&Self::weights(block, tile), Self::BITS, lane, vectors);
        }
    }

    /// The eight vectors of weights of tile `tile`, after the table.
    ///
    /// # Safety
    /// `record` points to a whole record, and `tile` is below [`Quantised::TILES`].
    #[inline(always)]
    unsafe fn unpack<S: Simd>(s: S, record: *const u8, tile: usize) -> [S::I; TILE] {
        let at = Self::HEADER + tile * Self::TILE_BYTES + Self::TILE_HEADER;
        // SAFETY: the tile lies inside the record.
        let weights = unsafe { unpack_tile::<S>(s, record.add(at), Self::BITS) };
        match Self::TABLE {
            Some(table) => array_of!(TILE, weights[0], i => s.lookup(&table, weights[i])),
            None => weights,
        }
    }

    /// # Safety
    /// `record` points to a whole record.
    unsafe fn head<S: Simd>(s: S, record: *const u8) -> Self::Head<S>;

    /// The scales of tile `tile`, which is below [`Quantised::TILES`].
    ///
    /// # Safety
    /// `record` points to a whole record, and `head` was read from it.
    unsafe fn scales<S: Simd>(
        s: S,
        record: *const u8,
        head: &Self::Head<S>,
        tile: usize,
    ) -> Scales<S>;
}

const fn largest(table: &[u8; 16]) -> i32 {
    let (mut top, mut i) = (0, 0);
    while i < table.len() {
        if table[i] as i32 > top {
            top = table[i] as i32;
        }
        i += 1;
    }
    top
}

/// Packs one GGUF block of each of 16 rows.
#[inline(always)]
pub(crate) fn pack_record<T: Quantised>(blocks: &RowBlocks, record: &mut [u8]) {
    let (header, tiles) = record.split_at_mut(T::HEADER);
    T::pack_header(blocks, header);
    for (index, tile) in tiles.chunks_exact_mut(T::TILE_BYTES).enumerate() {
        T::pack_tile(blocks, index, tile);
    }
}

/// The scales of tile `tile`, times the tensor's factor.
///
/// # Safety
/// As for [`Quantised::scales`].
#[inline(always)]
pub(crate) unsafe fn tile_scales<S: Simd, T: Quantised>(
    s: S,
    record: *const u8,
    head: &T::Head<S>,
    tile: usize,
    factor: f32,
) -> Scales<S> {
    // SAFETY: as the caller promises.
    let mut scales = unsafe { T::scales(s, record, head, tile) };
    if T::FACTOR {
        scales.scale = array_of!(2, scales.scale[0], half => {
            s.mul(scales.scale[half], s.splat(factor))
        });
    }
    scales
}

/// Runs `$body` with `$Format` as the quantised type of `$ty`, or `$other`.
macro_rules! with_quantised {
    ($ty:expr, $Format:ident => $body:expr, _ => $other:expr) => {
        $crate::format::with_quantised!(@ $ty, $Format, $body, $other,
            Q8_0 Q8_0, Q4_0 Q4_0, Q4_1 Q4_1, Q5_0 Q5_0, Q5_1 Q5_1, IQ4_NL Iq4Nl, MXFP4 Mxfp4,
            Q4_K Q4K, Q5_K Q5K, Q6_K Q6K, Q2_K Q2K, Q3_K Q3K, IQ4_XS Iq4Xs,
            IQ1_S Iq1S, IQ1_M Iq1M, IQ2_XXS Iq2Xxs, IQ2_XS Iq2Xs, IQ2_S Iq2S, IQ3_XXS Iq3Xxs,
            IQ3_S Iq3S, NVFP4 Nvfp4, Q1_0 Q1_0, Q2_0 Q2_0, TQ1_0 Tq1_0, TQ2_0 Tq2_0,
            AFFINE2_32 Affine2x32, AFFINE2_64 Affine2x64, AFFINE2_128 Affine2x128,
            AFFINE3_32 Affine3x32, AFFINE3_64 Affine3x64, AFFINE3_128 Affine3x128,
            AFFINE4_32 Affine4x32, AFFINE4_64 Affine4x64, AFFINE4_128 Affine4x128,
            AFFINE5_32 Affine5x32, AFFINE5_64 Affine5x64, AFFINE5_128 Affine5x128,
            AFFINE6_32 Affine6x32, AFFINE6_64 Affine6x64, AFFINE6_128 Affine6x128,
            AFFINE8_32 Affine8x32, AFFINE8_64 Affine8x64, AFFINE8_128 Affine8x128)
    };
    (@ $ty:expr, $Format:ident, $body:expr, $other:expr, $($name:ident $format:ident),*) => {
        match $ty {
            $(gguf::TensorType::$name => {
                type $Format = $crate::format::$format;
                $body
            })*
            _ => $other,
        }
    };
}
pub(crate) use with_quantised;

/// Runs `$body` with `$Format` as the float type of `$ty`, or `$other`.
macro_rules! with_float {
    ($ty:expr, $Format:ident => $body:expr, _ => $other:expr) => {
        match $ty {
            gguf::TensorType::F32 => {
                type $Format = $crate::format::F32;
                $body
            }
            gguf::TensorType::F16 => {
                type $Format = $crate::format::F16;
                $body
            }
            gguf::TensorType::BF16 => {
                type $Format = $crate::format::Bf16;
                $body
            }
            gguf::TensorType::F8_E4M3_128 => {
                type $Format = $crate::format::F8E4m3;
                $body
            }
            _ => $other,
        }
    };
}
pub(crate) use with_float;

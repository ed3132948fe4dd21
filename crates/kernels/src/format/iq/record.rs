//! What the records of all types with codebooks share.

use crate::format::{RowBlocks, Scales};
use crate::simd::{Simd, array_of};

/// The constants of a type with a codebook; `vectors` are those of a tile, behind its header.
macro_rules! constants {
    (
        $ty:ident, weights $weights:expr, zero $zero:expr, halves $halves:expr,
        header $header:expr, tile_header $tile_header:expr, vectors $vectors:expr
    ) => {
        const TYPE: gguf::TensorType = gguf::TensorType::$ty;
        const TILES: usize = 8;
        const BITS: usize = 8;
        const ZERO: i32 = $zero;
        const BIASED: bool = false;
        const HALVES: usize = $halves;
        const OFFSETS: bool = false;
        const TABLE: Option<[u8; 16]> = Some($weights);
        const CODEBOOK: bool = true;
        const HEADER: usize = $header;
        const TILE_HEADER: usize = $tile_header;
        const TILE_BYTES: usize = $tile_header + $vectors * crate::simd::VECTOR_BYTES;
    };
}
pub(super) use constants;

/// Four numbers of `width` bits, the first in the lowest bits of a lane, one in each byte.
#[inline(always)]
pub(super) fn in_bytes<S: Simd>(s: S, fields: S::I, width: u32) -> S::I {
    let mask = (1 << width) - 1;
    let byte = array_of!(4, fields, i => {
        let to = 8 * i as u32;
        s.and(s.shl(fields, to - width * i as u32), s.splat_i(mask << to))
    });
    s.or(s.or(byte[0], byte[1]), s.or(byte[2], byte[3]))
}

/// The eight signs of each of four groups of columns, a byte each, as [`Simd::eights`] wants them:
/// the sign of column `4 * i + j` is bit `i / 2 + 4 * (i % 2)` of byte `j`.
#[inline(always)]
pub(super) fn by_column(groups: [u8; 4]) -> u32 {
    let mut bytes = [0; 4];
    for (group, signs) in groups.iter().enumerate() {
        for k in 0..8 {
            bytes[k % 4] |= (signs >> k & 1) << (group + 4 * (k / 4));
        }
    }
    u32::from_le_bytes(bytes)
}

/// Packs the signs of a tile, four bytes of each row from `at` on.
#[inline(always)]
pub(super) fn pack_signs(blocks: &RowBlocks, at: usize, out: &mut [u8]) {
    for (block, out) in blocks.iter().zip(out.chunks_exact_mut(4)) {
        let groups = *block[at..].first_chunk().expect("a whole block");
        out.copy_from_slice(&by_column(groups).to_le_bytes());
    }
}

/// Packs four times seven signs and a scale of four bits, a word of each row at `at`. The scale
/// takes the place of the eighth signs, which [`even_signs`] restores.
#[inline(always)]
pub(super) fn pack_sevens(blocks: &RowBlocks, at: usize, out: &mut [u8]) {
    for (block, out) in blocks.iter().zip(out.chunks_exact_mut(4)) {
        let word = u32::from_le_bytes(*block[at..].first_chunk().expect("a whole block"));
        let sevens = array_of!(4, 0, i => (word >> (7 * i)) as u8 & 127);
        out.copy_from_slice(&(by_column(sevens) | word >> 28 << 28).to_le_bytes());
    }
}

/// The signs with the eighth ones in the top four bits, whatever those were: of eight, an even
/// number is set.
#[inline(always)]
pub(super) fn even_signs<S: Simd>(s: S, sevens: S::I) -> S::I {
    let sevens = s.and(sevens, s.splat_i(0x0fff_ffff));
    let odd = s.xor(sevens, s.shr(sevens, 16));
    let odd = s.xor(odd, s.shr(odd, 8));
    let odd = s.xor(odd, s.shr(odd, 4));
    s.or(sevens, s.shl(odd, 28))
}

/// `unit * (2 * scale + 1)`, as all these types define their scales.
#[inline(always)]
pub(super) fn odd_scale<S: Simd>(s: S, unit: S::F, scale: S::I) -> S::F {
    s.mul(unit, s.to_f(s.add_i(s.shl(scale, 1), s.splat_i(1))))
}

/// A scale for each half of a tile.
#[inline(always)]
pub(super) fn scales<S: Simd>(s: S, scale: [S::F; 2]) -> Scales<S> {
    Scales { scale, offset: [s.splat(0.0); 2] }
}

/// The first 16 half-precision numbers of a record, times a power of two.
///
/// # Safety
/// `record` points to them.
#[inline(always)]
pub(super) unsafe fn unit<S: Simd>(s: S, record: *const u8, factor: f32) -> S::F {
    // SAFETY: as the caller promises.
    s.mul(unsafe { s.load_f16(record.cast()) }, s.splat(factor))
}

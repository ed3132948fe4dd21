//! The types of one or two bits, of trits, and NVFP4.

use super::k_quants::{HALVES_BYTES, quad_bits};
use super::simple::{MXFP4_TABLE, gather, words};
use super::tiles::{TILE, in_each_byte};
use super::{Quantised, RowBlocks, Scales, Words};
use crate::simd::{LANES, Simd, array_of};
use gguf::TensorType;

/// Declares a type with one half-precision scale in a block.
macro_rules! one_scale {
    (
        $(#[$doc:meta])* $name:ident, $ty:ident, tiles $tiles:expr, bits $bits:expr,
        table $table:expr, scale_at $scale_at:expr,
        weights |$block:ident, $tile:ident| $weights:expr
    ) => {
        $(#[$doc])*
        pub(crate) struct $name;

        impl Quantised for $name {
            const TYPE: TensorType = TensorType::$ty;
            const TILES: usize = $tiles;
            const BITS: usize = $bits;
            const ZERO: i32 = 1;
            const BIASED: bool = false;
            const HALVES: usize = 1;
            const OFFSETS: bool = false;
            const TABLE: Option<[u8; 16]> = $table;
            const HEADER: usize = HALVES_BYTES;
            type Head<S: Simd> = S::F;

            #[inline(always)]
            fn pack_header(blocks: &RowBlocks, header: &mut [u8]) {
                gather::<2>(blocks, $scale_at, header);
            }
            #[inline(always)]
            fn weights($block: &[u8], $tile: usize) -> Words {
                $weights
            }
            #[inline(always)]
            unsafe fn head<S: Simd>(s: S, record: *const u8) -> S::F {
                // SAFETY: a whole record starts with its header.
                unsafe { s.load_f16(record.cast()) }
            }
            #[inline(always)]
            unsafe fn scales<S: Simd>(
                s: S,
                _record: *const u8,
                head: &S::F,
                _tile: usize,
            ) -> Scales<S> {
                Scales { scale: [*head; 2], offset: [s.splat(0.0); 2] }
            }
        }
    };
}

/// Minus and plus one, moved up by one.
const SIGNS: [u8; 16] = {
    let mut table = [0; 16];
    table[1] = 2;
    table
};

one_scale! {
    /// `d` or `-d`.
    Q1_0, Q1_0, tiles 4, bits 1, table Some(SIGNS), scale_at 0,
    weights |block, tile| {
        let [bits] = words(block, 2 + 4 * tile);
        array_of!(TILE, 0, i => spread(bits >> (4 * i), 1))
    }
}

one_scale! {
    /// `(w - 1) * d`, w of 2 bits.
    Q2_0, Q2_0, tiles 2, bits 2, table None, scale_at 0,
    weights |block, tile| {
        array_of!(TILE, 0, i => spread(u32::from(block[2 + TILE * tile + i]), 2))
    }
}

one_scale! {
    /// `(w - 1) * d`, w of 2 bits.
    Tq2_0, TQ2_0, tiles 8, bits 2, table None, scale_at 64,
    weights |block, tile| quad_bits(block, 0, tile)
}

/// Four numbers of `width` bits, one in each byte.
#[inline(always)]
fn spread(bits: u32, width: u32) -> u32 {
    let number = |k: u32| ((bits >> (k * width)) & ((1 << width) - 1)) << (8 * k);
    number(0) | number(1) | number(2) | number(3)
}

/// `table[w] * scale`, w of 4 bits (E2M1), a scale in unsigned E4M3 for 16 columns.
pub(crate) struct Nvfp4;

/// The scale's byte as the kernels read it. The format's own implementation has no sign, and takes
/// NaN as 0.
fn scale_byte(byte: u8) -> u8 {
    match byte & 0x7f {
        0x7f => 0,
        byte => byte,
    }
}

/// Half of each number of E4M3, because [`MXFP4_TABLE`] is doubled.
#[inline(always)]
fn half_e4m3<S: Simd>(s: S, bytes: S::I) -> S::F {
    // The exponent field is 119 more; below 8 there is none, and it would be wrong.
    let number = s.to_f(bytes);
    let normal = s.cast_f(s.add_i(s.shl(bytes, 20), s.splat_i(119 << 23)));
    let normal = s.keep_from(normal, number, s.splat(8.0));
    s.max(normal, s.mul(number, s.splat(1.0 / 1024.0)))
}

impl Quantised for Nvfp4 {
    const TYPE: TensorType = TensorType::NVFP4;
    const TILES: usize = 2;
    const BITS: usize = 4;
    const ZERO: i32 = 12;
    const BIASED: bool = false;
    const HALVES: usize = 2;
    const OFFSETS: bool = false;
    const TABLE: Option<[u8; 16]> = Some(MXFP4_TABLE);
    const FACTOR: bool = true;
    const HEADER: usize = 0;
    const TILE_HEADER: usize = 2 * LANES;
    type Head<S: Simd> = ();

    #[inline(always)]
    fn pack_header(_blocks: &RowBlocks, _header: &mut [u8]) {}
    #[inline(always)]
    fn pack_tile_header(blocks: &RowBlocks, tile: usize, header: &mut [u8]) {
        for (half, scales) in header.chunks_exact_mut(LANES).enumerate() {
            for (block, scale) in blocks.iter().zip(scales) {
                *scale = scale_byte(block[2 * tile + half]);
            }
        }
    }
    #[inline(always)]
    fn weights(block: &[u8], tile: usize) -> Words {
        // Sixteen columns are eight bytes, the first eight in the low nibbles.
        let pairs: [u32; 4] = words(block, 4 + 16 * tile);
        array_of!(TILE, 0, i => (pairs[i / 4 * 2 + i % 2] >> (i / 2 % 2 * 4)) & in_each_byte(15))
    }
    #[inline(always)]
    unsafe fn head<S: Simd>(_: S, _record: *const u8) {}
    #[inline(always)]
    unsafe fn scales<S: Simd>(s: S, record: *const u8, _head: &(), tile: usize) -> Scales<S> {
        let scale = array_of!(2, s.splat(0.0), half => {
            let at = tile * Self::TILE_BYTES + half * LANES;
            // SAFETY: both runs of 16 bytes lie inside the tile's header.
            half_e4m3(s, unsafe { s.load_u8(record.add(at)) })
        });
        Scales { scale, offset: [s.splat(0.0); 2] }
    }
}

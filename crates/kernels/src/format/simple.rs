//! The types with one scale for 32 elements: Q8_0, Q4_0, Q4_1, Q5_0, Q5_1, IQ4_NL and MXFP4. The
//! header of a record is the 16 scales, then the 16 offsets of the types that have them.

use super::tiles::in_each_byte;
use super::{Quantised, RowBlocks, Scales, TILE, Words};
use crate::simd::{LANES, Simd, array_of};
use gguf::TensorType;

/// The values of the 16 codes of IQ4_NL and IQ4_XS, plus 128.
pub(super) const IQ4_TABLE: [u8; 16] =
    [1, 24, 45, 63, 79, 93, 106, 118, 129, 141, 153, 166, 181, 197, 217, 241];

/// The values of the 16 codes of MXFP4 (E2M1), doubled, plus 12.
pub(super) const MXFP4_TABLE: [u8; 16] =
    [12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0];

/// Bytes of the 16 half-precision scales of a panel.
const SCALES: usize = 2 * LANES;

/// Copies `BYTES` bytes at `at` of each row's block to the front of `out`, row after row.
#[inline(always)]
pub(super) fn gather<const BYTES: usize>(blocks: &RowBlocks, at: usize, out: &mut [u8]) {
    for (block, out) in blocks.iter().zip(out.chunks_exact_mut(BYTES)) {
        out.copy_from_slice(bytes::<BYTES>(block, at));
    }
}

/// `LEN` bytes of a block, which is long enough for its type.
#[inline(always)]
fn bytes<const LEN: usize>(block: &[u8], at: usize) -> &[u8; LEN] {
    block[at..].first_chunk().expect("a whole block")
}

/// `LEN` little-endian words of a block.
#[inline(always)]
pub(super) fn words<const LEN: usize>(block: &[u8], at: usize) -> [u32; LEN] {
    array_of!(LEN, 0, i => u32::from_le_bytes(*bytes(block, at + 4 * i)))
}

/// 32 nibbles: bytes hold column k low and column k + 16 high.
#[inline(always)]
pub(super) fn nibbles(pairs: [u32; TILE / 2]) -> Words {
    const MASK: u32 = in_each_byte(15);
    array_of!(TILE, 0, i => (pairs[i % 4] >> (i / 4 * 4)) & MASK)
}

/// Adds bit `k` of `high` to weight `k`, as bit 4.
#[inline(always)]
fn with_fifth_bit(weights: Words, high: u32) -> Words {
    // The product has bit j of four at bit 8j.
    let spread = |i: usize| (((high >> (4 * i)) & 15) * 0x0020_4081) & in_each_byte(1);
    array_of!(TILE, 0, i => weights[i] | spread(i) << 4)
}

/// One scale a row at the front of the record.
///
/// # Safety
/// `record` points to at least 16 half-precision numbers.
#[inline(always)]
unsafe fn scale_only<S: Simd>(s: S, record: *const u8) -> Scales<S> {
    // SAFETY: the caller promises the numbers.
    let scale = unsafe { s.load_f16(record.cast()) };
    Scales { scale: [scale; 2], offset: [s.splat(0.0); 2] }
}

/// One scale and one offset a row.
///
/// # Safety
/// `record` points to at least 32 half-precision numbers.
#[inline(always)]
unsafe fn scale_and_offset<S: Simd>(s: S, record: *const u8) -> Scales<S> {
    // SAFETY: the caller promises the numbers.
    let (scale, offset) =
        unsafe { (s.load_f16(record.cast()), s.load_f16(record.add(SCALES).cast())) };
    Scales { scale: [scale; 2], offset: [offset; 2] }
}

/// Declares a type with one tile a record.
macro_rules! simple {
    (
        $(#[$doc:meta])* $name:ident, $ty:ident, bits $bits:expr, zero $zero:expr,
        biased $biased:expr, offsets $offsets:expr, table $table:expr, header $header:expr,
        pack |$blocks:ident, $out:ident| $pack:expr, weights |$block:ident| $weights:expr,
        scales $scales:ident
    ) => {
        $(#[$doc])*
        pub(crate) struct $name;

        impl Quantised for $name {
            const TYPE: TensorType = TensorType::$ty;
            const TILES: usize = 1;
            const BITS: usize = $bits;
            const ZERO: i32 = $zero;
            const BIASED: bool = $biased;
            const HALVES: usize = 1;
            const OFFSETS: bool = $offsets;
            const TABLE: Option<[u8; 16]> = $table;
            const HEADER: usize = $header;
            type Head<S: Simd> = ();

            #[inline(always)]
            fn pack_header($blocks: &RowBlocks, $out: &mut [u8]) {
                $pack
            }
            #[inline(always)]
            fn weights($block: &[u8], _tile: usize) -> Words {
                $weights
            }
            #[inline(always)]
            unsafe fn head<S: Simd>(_: S, _record: *const u8) {}
            #[inline(always)]
            unsafe fn scales<S: Simd>(
                s: S,
                record: *const u8,
                _head: &(),
                _tile: usize,
            ) -> Scales<S> {
                // SAFETY: a whole record starts with its header.
                unsafe { $scales(s, record) }
            }
        }
    };
}

simple! {
    /// `w * d`, w of 8 bits; stored plus 128.
    Q8_0, Q8_0, bits 8, zero 128, biased true, offsets false, table None, header SCALES,
    pack |blocks, header| gather::<2>(blocks, 0, header),
    weights |block| array_of!(TILE, 0, i => words::<TILE>(block, 2)[i] ^ in_each_byte(128)),
    scales scale_only
}

simple! {
    /// `(w - 8) * d`, w of 4 bits.
    Q4_0, Q4_0, bits 4, zero 8, biased false, offsets false, table None, header SCALES,
    pack |blocks, header| gather::<2>(blocks, 0, header),
    weights |block| nibbles(words(block, 2)),
    scales scale_only
}

simple! {
    /// `w * d + m`, w of 4 bits.
    Q4_1, Q4_1, bits 4, zero 0, biased false, offsets true, table None, header 2 * SCALES,
    pack |blocks, header| {
        gather::<2>(blocks, 0, &mut header[..SCALES]);
        gather::<2>(blocks, 2, &mut header[SCALES..]);
    },
    weights |block| nibbles(words(block, 4)),
    scales scale_and_offset
}

simple! {
    /// `(w - 16) * d`, w of 5 bits.
    Q5_0, Q5_0, bits 5, zero 16, biased false, offsets false, table None, header SCALES,
    pack |blocks, header| gather::<2>(blocks, 0, header),
    weights |block| with_fifth_bit(nibbles(words(block, 6)), u32::from_le_bytes(*bytes(block, 2))),
    scales scale_only
}

simple! {
    /// `w * d + m`, w of 5 bits.
    Q5_1, Q5_1, bits 5, zero 0, biased false, offsets true, table None, header 2 * SCALES,
    pack |blocks, header| {
        gather::<2>(blocks, 0, &mut header[..SCALES]);
        gather::<2>(blocks, 2, &mut header[SCALES..]);
    },
    weights |block| with_fifth_bit(nibbles(words(block, 8)), u32::from_le_bytes(*bytes(block, 4))),
    scales scale_and_offset
}

simple! {
    /// `table[w] * d`, w of 4 bits.
    Iq4Nl, IQ4_NL, bits 4, zero 128, biased true, offsets false, table Some(IQ4_TABLE),
    header SCALES,
    pack |blocks, header| gather::<2>(blocks, 0, header),
    weights |block| nibbles(words(block, 2)),
    scales scale_only
}

simple! {
    /// `table[w] * 2^(e - 128)`, w of 4 bits, e of 8: the Microscaling format of the OCP, with a
    /// doubled table and half the scale.
    Mxfp4, MXFP4, bits 4, zero 12, biased false, offsets false, table Some(MXFP4_TABLE),
    header LANES,
    pack |blocks, header| gather::<1>(blocks, 0, header),
    weights |block| nibbles(words(block, 1)),
    scales exponent_scale
}

/// 2^(e - 128), exact down to its subnormal results.
///
/// # Safety
/// `record` points to at least 16 bytes.
#[inline(always)]
unsafe fn exponent_scale<S: Simd>(s: S, record: *const u8) -> Scales<S> {
    // SAFETY: the caller promises the bytes.
    let e = unsafe { s.load_u8(record) };
    // The exponent field is e - 1; for e of 0 and 1 the result is the subnormal below. As an
    // integer, that is larger than the field's value then, and smaller otherwise.
    let normal = s.shl(s.add_i(e, s.splat_i(-1)), 23);
    let one_if_any = s.min_i(e, s.splat_i(1));
    let subnormal = s.add_i(s.splat_i(0x0020_0000), s.shl(one_if_any, 21));
    let scale = s.cast_f(s.max_i(normal, subnormal));
    Scales { scale: [scale; 2], offset: [s.splat(0.0); 2] }
}

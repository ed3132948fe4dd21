//! The types with one scale for 32 numbers: Q8_0, Q4_0, Q4_1, Q5_0, Q5_1, IQ4_NL and MXFP4.
//! The header of a record is the 16 scales, then the 16 offsets of the types that have them.

use super::{Quantised, RowBlocks, Scales, TILE_COLS};
use crate::simd::{LANES, Simd};
use gguf::TensorType;

/// What the 16 codes of IQ4_NL and IQ4_XS stand for, plus 128.
pub(super) const IQ4_TABLE: [u8; 16] =
    [1, 24, 45, 63, 79, 93, 106, 118, 129, 141, 153, 166, 181, 197, 217, 241];

/// What the 16 codes of MXFP4 (E2M1) stand for, doubled, plus 12.
const MXFP4_TABLE: [u8; 16] = [12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0];

/// Bytes of the 16 half-precision scales of a panel.
const SCALES: usize = 2 * LANES;

/// Copies `bytes` bytes at `at` of each row's block to the front of `out`, row after row.
pub(super) fn gather(blocks: &RowBlocks, at: usize, bytes: usize, out: &mut [u8]) {
    for (block, out) in blocks.iter().zip(out.chunks_exact_mut(bytes)) {
        out.copy_from_slice(&block[at..at + bytes]);
    }
}

/// 32 nibbles: bytes hold column k low and column k + 16 high.
pub(super) fn nibbles(bytes: &[u8]) -> [u8; TILE_COLS] {
    std::array::from_fn(|k| if k < 16 { bytes[k] & 15 } else { bytes[k - 16] >> 4 })
}

/// Adds bit `k` of the little-endian number in `high` to weight `k`, as bit 4.
fn with_fifth_bit(mut weights: [u8; TILE_COLS], high: &[u8]) -> [u8; TILE_COLS] {
    for (k, weight) in weights.iter_mut().enumerate() {
        *weight |= ((high[k / 8] >> (k % 8)) & 1) << 4;
    }
    weights
}

/// One scale a row at the front of the record, and nothing else.
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

/// Declares a type whose tile is its whole record.
macro_rules! simple {
    (
        $(#[$doc:meta])* $name:ident, $ty:ident, bits $bits:expr, zero $zero:expr,
        biased $biased:expr, offsets $offsets:expr, table $table:expr, header $header:expr,
        pack $pack:expr, weights $weights:expr, scales $scales:ident
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

            fn pack_header(blocks: &RowBlocks, header: &mut [u8]) {
                let pack: fn(&RowBlocks, &mut [u8]) = $pack;
                pack(blocks, header);
            }
            fn weights(block: &[u8], _tile: usize) -> [u8; TILE_COLS] {
                let weights: fn(&[u8]) -> [u8; TILE_COLS] = $weights;
                weights(block)
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
    pack |blocks, header| gather(blocks, 0, 2, header),
    weights |block| std::array::from_fn(|k| block[2 + k] ^ 0x80),
    scales scale_only
}

simple! {
    /// `(w - 8) * d`, w of 4 bits.
    Q4_0, Q4_0, bits 4, zero 8, biased false, offsets false, table None, header SCALES,
    pack |blocks, header| gather(blocks, 0, 2, header),
    weights |block| nibbles(&block[2..]),
    scales scale_only
}

simple! {
    /// `w * d + m`, w of 4 bits.
    Q4_1, Q4_1, bits 4, zero 0, biased false, offsets true, table None, header 2 * SCALES,
    pack |blocks, header| {
        gather(blocks, 0, 2, &mut header[..SCALES]);
        gather(blocks, 2, 2, &mut header[SCALES..]);
    },
    weights |block| nibbles(&block[4..]),
    scales scale_and_offset
}

simple! {
    /// `(w - 16) * d`, w of 5 bits.
    Q5_0, Q5_0, bits 5, zero 16, biased false, offsets false, table None, header SCALES,
    pack |blocks, header| gather(blocks, 0, 2, header),
    weights |block| with_fifth_bit(nibbles(&block[6..]), &block[2..6]),
    scales scale_only
}

simple! {
    /// `w * d + m`, w of 5 bits.
    Q5_1, Q5_1, bits 5, zero 0, biased false, offsets true, table None, header 2 * SCALES,
    pack |blocks, header| {
        gather(blocks, 0, 2, &mut header[..SCALES]);
        gather(blocks, 2, 2, &mut header[SCALES..]);
    },
    weights |block| with_fifth_bit(nibbles(&block[8..]), &block[4..8]),
    scales scale_and_offset
}

simple! {
    /// `table[w] * d`, w of 4 bits.
    Iq4Nl, IQ4_NL, bits 4, zero 128, biased true, offsets false, table Some(IQ4_TABLE),
    header SCALES,
    pack |blocks, header| gather(blocks, 0, 2, header),
    weights |block| nibbles(&block[2..]),
    scales scale_only
}

simple! {
    /// `table[w] * 2^(e - 128)`, w of 4 bits, e of 8: the Microscaling format of the OCP, with a
    /// doubled table and half the scale.
    Mxfp4, MXFP4, bits 4, zero 12, biased false, offsets false, table Some(MXFP4_TABLE),
    header LANES,
    pack |blocks, header| gather(blocks, 0, 1, header),
    weights |block| nibbles(&block[1..]),
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
    // The exponent field is e - 1; for e of 0 and 1 the result is the subnormal below, which is
    // larger (as an integer) than what the field gives then, and smaller otherwise.
    let normal = s.shl(s.add_i(e, s.splat_i(-1)), 23);
    let one_if_any = s.min_i(e, s.splat_i(1));
    let subnormal = s.add_i(s.splat_i(0x0020_0000), s.shl(one_if_any, 21));
    let scale = s.cast_f(s.max_i(normal, subnormal));
    Scales { scale: [scale; 2], offset: [s.splat(0.0); 2] }
}

//! The types with two levels of scales over 256 elements: Q2_K to Q6_K and IQ4_XS. Headers keep
//! GGUF's own bits, transposed so that one load gets the same field of 16 rows; bytes that affect
//! only one tile are in front of it.

use super::simple::{IQ4_TABLE, gather, nibbles, words};
use super::tiles::in_each_byte;
use super::{Quantised, RowBlocks, Scales, TILE, TILE_COLS, Words};
use crate::simd::{LANES, Simd, VECTOR_BYTES, array_of};
use gguf::TensorType;

/// Bytes of one half-precision number of each row.
pub(super) const HALVES_BYTES: usize = 2 * LANES;

/// Copies byte `at + i` of each row's block to the i-th run of 16 bytes, `count` of them.
#[inline(always)]
pub(super) fn gather_bytes(blocks: &RowBlocks, at: usize, count: usize, out: &mut [u8]) {
    for (i, out) in out.chunks_exact_mut(LANES).take(count).enumerate() {
        gather::<1>(blocks, at + i, out);
    }
}

/// `width` bits from bit `from` on of each of 32 bytes, starting at `at`.
#[inline(always)]
fn bits(block: &[u8], at: usize, from: usize, width: usize) -> Words {
    let words: Words = words(block, at);
    array_of!(TILE, 0, i => (words[i] >> from) & in_each_byte(0xff >> (8 - width)))
}

/// Adds high bits to the weights, from bit `to` on.
#[inline(always)]
fn with_high(weights: Words, high: Words, to: usize) -> Words {
    array_of!(TILE, 0, i => weights[i] | high[i] << to)
}

/// The 32 nibbles of tile `tile`, if 32 bytes, from `at` on, hold one tile low and the next one
/// high.
#[inline(always)]
fn paired_nibbles(block: &[u8], at: usize, tile: usize) -> Words {
    bits(block, at + tile / 2 * TILE_COLS, tile % 2 * 4, 4)
}

/// The 32 two-bit numbers of tile `tile`, if 32 bytes, from `at` on, hold four tiles.
#[inline(always)]
pub(super) fn quad_bits(block: &[u8], at: usize, tile: usize) -> Words {
    bits(block, at + tile / 4 * TILE_COLS, tile % 4 * 2, 2)
}

/// The decoded header of a Q4_K or Q5_K record's eight tiles: 6-bit scales and minima, four a
/// vector, one byte each.
#[derive(Clone, Copy)]
pub(crate) struct SixBitHead<S: Simd> {
    d: S::F,
    d_min: S::F,
    scales: [S::I; 2],
    minima: [S::I; 2],
}

/// Header of Q4_K and Q5_K: d and dmin of 16 rows, then the 12 scale bytes as three vectors.
const SIX_BIT_HEADER: usize = 2 * HALVES_BYTES + 3 * VECTOR_BYTES;

#[inline(always)]
fn pack_six_bit_header(blocks: &RowBlocks, header: &mut [u8]) {
    let (halves, scales) = header.split_at_mut(2 * HALVES_BYTES);
    gather::<2>(blocks, 0, &mut halves[..HALVES_BYTES]);
    gather::<2>(blocks, 2, &mut halves[HALVES_BYTES..]);
    for (i, vector) in scales.chunks_exact_mut(VECTOR_BYTES).enumerate() {
        gather::<4>(blocks, 4 + 4 * i, vector);
    }
}

/// # Safety
/// `record` points to [`SIX_BIT_HEADER`] bytes.
#[inline(always)]
unsafe fn six_bit_head<S: Simd>(s: S, record: *const u8) -> SixBitHead<S> {
    // SAFETY: all five loads lie inside the header.
    let (d, d_min, [a, b, c]) = unsafe {
        let bytes = record.add(2 * HALVES_BYTES);
        (
            s.load_f16(record.cast()),
            s.load_f16(record.add(HALVES_BYTES).cast()),
            array_of!(3, s.splat_i(0), i => s.load_i(bytes.add(i * VECTOR_BYTES))),
        )
    };
    // Tiles 0-3 have six bits in a (scales) and b (minima); tiles 4-7 have their low four bits in
    // c and their top two in the spare bits of a and b.
    let (six, four, top) = (s.splat_i(0x3f3f_3f3f), s.splat_i(0x0f0f_0f0f), s.splat_i(0x3030_3030));
    SixBitHead {
        d,
        d_min,
        scales: [s.and(a, six), s.or(s.and(c, four), s.and(s.shr(a, 2), top))],
        minima: [s.and(b, six), s.or(s.and(s.shr(c, 4), four), s.and(s.shr(b, 2), top))],
    }
}

#[inline(always)]
fn six_bit_scales<S: Simd>(s: S, head: &SixBitHead<S>, tile: usize) -> Scales<S> {
    let (shift, byte) = (8 * (tile as u32 % 4), s.splat_i(0xff));
    let scale = s.and(s.shr(head.scales[tile / 4], shift), byte);
    let minimum = s.and(s.shr(head.minima[tile / 4], shift), byte);
    let (scale, minimum) = (s.mul(head.d, s.to_f(scale)), s.mul(head.d_min, s.to_f(minimum)));
    Scales { scale: [scale; 2], offset: [s.sub(s.splat(0.0), minimum); 2] }
}

/// `d * scale * w - dmin * minimum`, w of 4 bits, eight scales and minima of 6 bits.
pub(crate) struct Q4K;

impl Quantised for Q4K {
    const TYPE: TensorType = TensorType::Q4_K;
    const TILES: usize = 8;
    const BITS: usize = 4;
    const ZERO: i32 = 0;
    const BIASED: bool = false;
    const HALVES: usize = 1;
    const OFFSETS: bool = true;
    const HEADER: usize = SIX_BIT_HEADER;
    type Head<S: Simd> = SixBitHead<S>;

    #[inline(always)]
    fn pack_header(blocks: &RowBlocks, header: &mut [u8]) {
        pack_six_bit_header(blocks, header);
    }
    #[inline(always)]
    fn weights(block: &[u8], tile: usize) -> Words {
        paired_nibbles(block, 16, tile)
    }
    #[inline(always)]
    unsafe fn head<S: Simd>(s: S, record: *const u8) -> SixBitHead<S> {
        // SAFETY: a whole record starts with its header.
        unsafe { six_bit_head(s, record) }
    }
    #[inline(always)]
    unsafe fn scales<S: Simd>(
        s: S,
        _record: *const u8,
        head: &SixBitHead<S>,
        tile: usize,
    ) -> Scales<S> {
        six_bit_scales(s, head, tile)
    }
}

/// Like Q4_K with w of 5 bits.
pub(crate) struct Q5K;

impl Quantised for Q5K {
    const TYPE: TensorType = TensorType::Q5_K;
    const TILES: usize = 8;
    const BITS: usize = 5;
    const ZERO: i32 = 0;
    const BIASED: bool = false;
    const HALVES: usize = 1;
    const OFFSETS: bool = true;
    const HEADER: usize = SIX_BIT_HEADER;
    type Head<S: Simd> = SixBitHead<S>;

    #[inline(always)]
    fn pack_header(blocks: &RowBlocks, header: &mut [u8]) {
        pack_six_bit_header(blocks, header);
    }
    #[inline(always)]
    fn weights(block: &[u8], tile: usize) -> Words {
        with_high(paired_nibbles(block, 48, tile), bits(block, 16, tile, 1), 4)
    }
    #[inline(always)]
    unsafe fn head<S: Simd>(s: S, record: *const u8) -> SixBitHead<S> {
        // SAFETY: a whole record starts with its header.
        unsafe { six_bit_head(s, record) }
    }
    #[inline(always)]
    unsafe fn scales<S: Simd>(
        s: S,
        _record: *const u8,
        head: &SixBitHead<S>,
        tile: usize,
    ) -> Scales<S> {
        six_bit_scales(s, head, tile)
    }
}

/// `d * scale * (w - 32)`, w of 6 bits, sixteen signed scales of 8 bits.
pub(crate) struct Q6K;

impl Quantised for Q6K {
    const TYPE: TensorType = TensorType::Q6_K;
    const TILES: usize = 8;
    const BITS: usize = 6;
    const ZERO: i32 = 32;
    const BIASED: bool = false;
    const HALVES: usize = 2;
    const OFFSETS: bool = false;
    const HEADER: usize = HALVES_BYTES;
    const TILE_HEADER: usize = 2 * LANES;
    type Head<S: Simd> = S::F;

    #[inline(always)]
    fn pack_header(blocks: &RowBlocks, header: &mut [u8]) {
        gather::<2>(blocks, 208, header);
    }
    #[inline(always)]
    fn pack_tile_header(blocks: &RowBlocks, tile: usize, header: &mut [u8]) {
        gather_bytes(blocks, 192 + 2 * tile, 2, header);
    }
    #[inline(always)]
    fn weights(block: &[u8], tile: usize) -> Words {
        // Each half of the block has 64 bytes of low nibbles (tiles 0 and 1, high: 2 and 3) and
        // 32 bytes of top bits (four tiles).
        let (half, tile) = (tile / 4, tile % 4);
        let low = bits(block, 64 * half + 32 * (tile % 2), tile / 2 * 4, 4);
        with_high(low, bits(block, 128 + 32 * half, 2 * tile, 2), 4)
    }
    #[inline(always)]
    unsafe fn head<S: Simd>(s: S, record: *const u8) -> S::F {
        // SAFETY: a whole record starts with its header.
        unsafe { s.load_f16(record.cast()) }
    }
    #[inline(always)]
    unsafe fn scales<S: Simd>(s: S, record: *const u8, head: &S::F, tile: usize) -> Scales<S> {
        let scale = array_of!(2, *head, half => {
            let at = Self::HEADER + tile * Self::TILE_BYTES + half * LANES;
            // SAFETY: both runs of 16 scales lie inside the tile's header.
            s.mul(*head, s.to_f(unsafe { s.load_i8(record.add(at)) }))
        });
        Scales { scale, offset: [s.splat(0.0); 2] }
    }
}

/// `d * scale * w - dmin * minimum`, w of 2 bits, sixteen scales and minima of 4 bits.
pub(crate) struct Q2K;

impl Quantised for Q2K {
    const TYPE: TensorType = TensorType::Q2_K;
    const TILES: usize = 8;
    const BITS: usize = 2;
    const ZERO: i32 = 0;
    const BIASED: bool = false;
    const HALVES: usize = 2;
    const OFFSETS: bool = true;
    const HEADER: usize = 2 * HALVES_BYTES;
    const TILE_HEADER: usize = 2 * LANES;
    type Head<S: Simd> = (S::F, S::F);

    #[inline(always)]
    fn pack_header(blocks: &RowBlocks, header: &mut [u8]) {
        let (d, d_min) = header.split_at_mut(HALVES_BYTES);
        gather::<2>(blocks, 80, d);
        gather::<2>(blocks, 82, d_min);
    }
    #[inline(always)]
    fn pack_tile_header(blocks: &RowBlocks, tile: usize, header: &mut [u8]) {
        gather_bytes(blocks, 2 * tile, 2, header);
    }
    #[inline(always)]
    fn weights(block: &[u8], tile: usize) -> Words {
        quad_bits(block, 16, tile)
    }
    #[inline(always)]
    unsafe fn head<S: Simd>(s: S, record: *const u8) -> (S::F, S::F) {
        // SAFETY: a whole record starts with its header.
        unsafe { (s.load_f16(record.cast()), s.load_f16(record.add(HALVES_BYTES).cast())) }
    }
    #[inline(always)]
    unsafe fn scales<S: Simd>(
        s: S,
        record: *const u8,
        (d, d_min): &(S::F, S::F),
        tile: usize,
    ) -> Scales<S> {
        let bytes: [S::I; 2] = array_of!(2, s.splat_i(0), half => {
            let at = Self::HEADER + tile * Self::TILE_BYTES + half * LANES;
            // SAFETY: both runs of 16 bytes lie inside the tile's header.
            unsafe { s.load_u8(record.add(at)) }
        });
        let low = s.splat_i(15);
        let scale = array_of!(2, *d, half => s.mul(*d, s.to_f(s.and(bytes[half], low))));
        let offset = array_of!(2, *d, half => {
            s.sub(s.splat(0.0), s.mul(*d_min, s.to_f(s.shr(bytes[half], 4))))
        });

        Scales { scale, offset }
    }
}

/// `d * (scale - 32) * (w - 4)`, w of 3 bits, sixteen scales of 6 bits.
pub(crate) struct Q3K;

impl Quantised for Q3K {
    const TYPE: TensorType = TensorType::Q3_K;
    const TILES: usize = 8;
    const BITS: usize = 3;
    const ZERO: i32 = 4;
    const BIASED: bool = false;
    const HALVES: usize = 2;
    const OFFSETS: bool = false;
    const HEADER: usize = HALVES_BYTES + 12 * LANES;
    type Head<S: Simd> = S::F;

    #[inline(always)]
    fn pack_header(blocks: &RowBlocks, header: &mut [u8]) {
        gather::<2>(blocks, 108, &mut header[..HALVES_BYTES]);
        gather_bytes(blocks, 96, 12, &mut header[HALVES_BYTES..]);
    }
    #[inline(always)]
    fn weights(block: &[u8], tile: usize) -> Words {
        with_high(quad_bits(block, 32, tile), bits(block, 0, tile, 1), 2)
    }
    #[inline(always)]
    unsafe fn head<S: Simd>(s: S, record: *const u8) -> S::F {
        // SAFETY: a whole record starts with its header.
        unsafe { s.load_f16(record.cast()) }
    }
    #[inline(always)]
    unsafe fn scales<S: Simd>(s: S, record: *const u8, head: &S::F, tile: usize) -> Scales<S> {
        let scale = array_of!(2, *head, half => {
            let index = 2 * tile + half;
            // Low four bits: bytes 0-7, low nibbles first. Top two: bytes 8-11.
            // SAFETY: the twelve runs of 16 bytes lie inside the header.
            let (low, high) = unsafe {
                let bytes = record.add(HALVES_BYTES);
                (
                    s.load_u8(bytes.add(index % 8 * LANES)),
                    s.load_u8(bytes.add((8 + index % 4) * LANES)),
                )
            };
            let low = s.and(s.shr(low, 4 * (index as u32 / 8)), s.splat_i(15));
            let high = s.and(s.shr(high, 2 * (index as u32 / 4)), s.splat_i(3));
            let scale = s.add_i(s.or(low, s.shl(high, 4)), s.splat_i(-32));
            s.mul(*head, s.to_f(scale))
        });
        Scales { scale, offset: [s.splat(0.0); 2] }
    }
}

/// `d * (scale - 32) * table[w]`, w of 4 bits, eight scales of 6 bits.
pub(crate) struct Iq4Xs;

impl Quantised for Iq4Xs {
    const TYPE: TensorType = TensorType::IQ4_XS;
    const TILES: usize = 8;
    const BITS: usize = 4;
    const ZERO: i32 = 128;
    const BIASED: bool = true;
    const HALVES: usize = 1;
    const OFFSETS: bool = false;
    const TABLE: Option<[u8; 16]> = Some(IQ4_TABLE);
    const HEADER: usize = 2 * HALVES_BYTES + VECTOR_BYTES;
    type Head<S: Simd> = (S::F, S::I, S::I);

    #[inline(always)]
    fn pack_header(blocks: &RowBlocks, header: &mut [u8]) {
        let (halves, low) = header.split_at_mut(2 * HALVES_BYTES);
        gather::<2>(blocks, 0, &mut halves[..HALVES_BYTES]);
        gather::<2>(blocks, 2, &mut halves[HALVES_BYTES..]);
        gather::<4>(blocks, 4, low);
    }
    #[inline(always)]
    fn weights(block: &[u8], tile: usize) -> Words {
        nibbles(words(block, 8 + 16 * tile))
    }
    #[inline(always)]
    unsafe fn head<S: Simd>(s: S, record: *const u8) -> Self::Head<S> {
        // SAFETY: a whole record starts with its header.
        unsafe {
            (
                s.load_f16(record.cast()),
                s.load_u16(record.add(HALVES_BYTES)),
                s.load_i(record.add(2 * HALVES_BYTES)),
            )
        }
    }
    #[inline(always)]
    unsafe fn scales<S: Simd>(
        s: S,
        _record: *const u8,
        (d, high, low): &Self::Head<S>,
        tile: usize,
    ) -> Scales<S> {
        let low = s.and(s.shr(*low, 4 * tile as u32), s.splat_i(15));
        let high = s.and(s.shr(*high, 2 * tile as u32), s.splat_i(3));
        let scale = s.add_i(s.or(low, s.shl(high, 4)), s.splat_i(-32));
        Scales { scale: [s.mul(*d, s.to_f(scale)); 2], offset: [s.splat(0.0); 2] }
    }
}

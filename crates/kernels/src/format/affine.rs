//! `scale * q + bias` with one scale and one bias for a group of 32, 64 or 128 columns (MLX, AWQ,
//! GPTQ). A header has the upper halves of 16 scales and of 16 biases, as bfloat16 numbers, then
//! the eight bits below of each.

use super::simple::gather;
use super::tiles::TILE;
use super::{Quantised, RowBlocks, Scales, TILE_COLS, Words};
use crate::simd::{LANES, Simd};
use gguf::TensorType;

/// Bytes of a scale and a bias in a block.
const PAIR: usize = 6;

/// Numbers of `BITS` bits in groups of `GROUP`; `TYPE` is a [`TensorType`].
pub(crate) struct Affine<const TYPE: u32, const BITS: usize, const GROUP: usize>;

macro_rules! affine {
    ($($name:ident $ty:ident $bits:literal $group:literal,)*) => {
        $(pub(crate) type $name = Affine<{ TensorType::$ty as u32 }, $bits, $group>;)*
    };
}

affine! {
    Affine2x32 AFFINE2_32 2 32,
    Affine2x64 AFFINE2_64 2 64,
    Affine2x128 AFFINE2_128 2 128,
    Affine3x32 AFFINE3_32 3 32,
    Affine3x64 AFFINE3_64 3 64,
    Affine3x128 AFFINE3_128 3 128,
    Affine4x32 AFFINE4_32 4 32,
    Affine4x64 AFFINE4_64 4 64,
    Affine4x128 AFFINE4_128 4 128,
    Affine5x32 AFFINE5_32 5 32,
    Affine5x64 AFFINE5_64 5 64,
    Affine5x128 AFFINE5_128 5 128,
    Affine6x32 AFFINE6_32 6 32,
    Affine6x64 AFFINE6_64 6 64,
    Affine6x128 AFFINE6_128 6 128,
    Affine8x32 AFFINE8_32 8 32,
    Affine8x64 AFFINE8_64 8 64,
    Affine8x128 AFFINE8_128 8 128,
}

/// 16 numbers of 24 bits.
///
/// # Safety
/// `high` points to 16 numbers of bfloat16, `low` to 16 bytes.
#[inline(always)]
unsafe fn load_f24<S: Simd>(s: S, high: *const u8, low: *const u8) -> S::F {
    // SAFETY: as the caller promises.
    let (high, low) = unsafe { (s.load_bf16(high.cast()), s.load_u8(low)) };
    s.cast_f(s.or(s.cast_i(high), s.shl(low, 8)))
}

impl<const TYPE: u32, const BITS: usize, const GROUP: usize> Quantised
    for Affine<TYPE, BITS, GROUP>
{
    const TYPE: TensorType = TensorType::from_u32(TYPE).expect("a type's number");
    const TILES: usize = GROUP / TILE_COLS;
    const BITS: usize = BITS;
    const ZERO: i32 = 0;
    const BIASED: bool = BITS == 8;
    const HALVES: usize = 1;
    const OFFSETS: bool = true;
    const HEADER: usize = PAIR * LANES;
    type Head<S: Simd> = (S::F, S::F);

    #[inline(always)]
    fn pack_header(blocks: &RowBlocks, header: &mut [u8]) {
        let (high, low) = header.split_at_mut(4 * LANES);
        gather::<2>(blocks, 0, &mut high[..2 * LANES]);
        gather::<2>(blocks, 2, &mut high[2 * LANES..]);
        gather::<1>(blocks, 4, &mut low[..LANES]);
        gather::<1>(blocks, 5, &mut low[LANES..]);
    }
    #[inline(always)]
    fn weights(block: &[u8], tile: usize) -> Words {
        // Four numbers are `BITS / 2` bytes, eight are `BITS`.
        let bytes = &block[PAIR + tile * TILE * BITS / 2..][..TILE * BITS / 2];
        let mut words = [0; TILE];
        for (eight, words) in bytes.chunks_exact(BITS).zip(words.chunks_exact_mut(2)) {
            let mut all = [0; 8];
            all[..BITS].copy_from_slice(eight);
            let all = u64::from_le_bytes(all);
            for k in 0..8 {
                let number = (all >> (k * BITS)) as u32 & ((1 << BITS) - 1);
                words[k / 4] |= number << (8 * (k % 4));
            }
        }
        words
    }
    #[inline(always)]
    unsafe fn head<S: Simd>(s: S, record: *const u8) -> (S::F, S::F) {
        // SAFETY: a whole record starts with its header.
        unsafe {
            let low = record.add(4 * LANES);
            let scale = load_f24(s, record, low);
            (scale, load_f24(s, record.add(2 * LANES), low.add(LANES)))
        }
    }
    #[inline(always)]
    unsafe fn scales<S: Simd>(
        _s: S,
        _record: *const u8,
        (scale, bias): &(S::F, S::F),
        _tile: usize,
    ) -> Scales<S> {
        Scales { scale: [*scale; 2], offset: [*bias; 2] }
    }
}

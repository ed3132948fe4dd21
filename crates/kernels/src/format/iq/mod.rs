//! The types with codebooks: IQ1_S to IQ3_S. A packed tile keeps GGUF's own bits, sorted by use:
//! scales and the high bits of indices, the low bytes of indices, four of each row a vector, then
//! the signs. Indices become weights where they are used, so that a file of two bits takes two
//! bits in memory.

pub(crate) mod codebook;
pub(crate) mod grids;
mod iq1;
mod iq2;
mod iq3;

pub(crate) use codebook::Codebook;
pub(crate) use iq1::{Iq1M, Iq1S};
pub(crate) use iq2::{Iq2S, Iq2Xs, Iq2Xxs};
pub(crate) use iq3::{Iq3S, Iq3Xxs};

use super::Scales;
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
use constants;

/// Four numbers of `width` bits, the first in the lowest bits of a lane, one in each byte.
#[inline(always)]
fn in_bytes<S: Simd>(s: S, fields: S::I, width: u32) -> S::I {
    let mask = (1 << width) - 1;
    let byte = array_of!(4, fields, i => {
        let to = 8 * i as u32;
        s.and(s.shl(fields, to - width * i as u32), s.splat_i(mask << to))
    });
    s.or(s.or(byte[0], byte[1]), s.or(byte[2], byte[3]))
}

/// Eight signs in each byte for seven: an even number of them is set.
#[inline(always)]
fn even_signs<S: Simd>(s: S, sevens: S::I) -> S::I {
    const EIGHTH: [u8; 16] = {
        let mut signs = [0; 16];
        let mut nibble = 0_usize;
        while nibble < 16 {
            signs[nibble] = (nibble.count_ones() % 2 * 128) as u8;
            nibble += 1;
        }
        signs
    };
    let nibble = s.splat_i(0x0f0f_0f0f);
    let (low, high) = (s.and(sevens, nibble), s.and(s.shr(sevens, 4), nibble));
    s.or(sevens, s.xor(s.lookup(&EIGHTH, low), s.lookup(&EIGHTH, high)))
}

/// `unit * (2 * scale + 1)`, as all these types define their scales.
#[inline(always)]
fn odd_scale<S: Simd>(s: S, unit: S::F, scale: S::I) -> S::F {
    s.mul(unit, s.to_f(s.add_i(s.shl(scale, 1), s.splat_i(1))))
}

/// A scale for each half of a tile.
#[inline(always)]
fn scales<S: Simd>(s: S, scale: [S::F; 2]) -> Scales<S> {
    Scales { scale, offset: [s.splat(0.0); 2] }
}

/// The first 16 half-precision numbers of a record, times a power of two.
///
/// # Safety
/// `record` points to them.
#[inline(always)]
unsafe fn unit<S: Simd>(s: S, record: *const u8, factor: f32) -> S::F {
    // SAFETY: as the caller promises.
    s.mul(unsafe { s.load_f16(record.cast()) }, s.splat(factor))
}

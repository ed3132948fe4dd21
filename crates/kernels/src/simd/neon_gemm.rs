//! Products with many rows on Arm, with the processor's instructions for them.
//!
//! ```text
//! sdot     adds to each lane of 32 bits its four weights times four of the input's bytes, which a
//!          lane of another register holds: 16 products
//! smmla    multiplies two rows of eight bytes by two others: 32 products
//! ```
//!
//! A vector has four registers of four weight rows each, as everywhere; only `smmla` takes eight
//! columns of two rows in one register, which [`arrange`] assembles from two vectors when weights
//! are unpacked.

use super::TILE;
use super::VECTOR_BYTES;
use std::arch::aarch64::*;
use std::arch::asm;

type I = [int32x4_t; 4];

/// Bytes of a register.
const REGISTER_BYTES: usize = 16;

/// # Safety
/// The machine has the dot-product extension.
#[inline(always)]
pub(super) unsafe fn sdot(acc: int32x4_t, a: int8x16_t, b: int8x16_t) -> int32x4_t {
    let mut out = acc;
    // SAFETY: one instruction on registers.
    unsafe {
        asm!("sdot {0:v}.4s, {1:v}.16b, {2:v}.16b", inout(vreg) out, in(vreg) a, in(vreg) b,
            options(pure, nomem, nostack, preserves_flags));
    }
    out
}

/// Like [`sdot`], with lane `LANE` of `x` for all lanes.
///
/// # Safety
/// The machine has the dot-product extension.
#[inline(always)]
unsafe fn sdot_lane<const LANE: usize>(acc: int32x4_t, w: int8x16_t, x: int8x16_t) -> int32x4_t {
    let mut out = acc;
    // SAFETY: one instruction on registers.
    unsafe {
        asm!("sdot {0:v}.4s, {1:v}.16b, {2:v}.4b[{3}]", inout(vreg) out, in(vreg) w, in(vreg) x,
            const LANE, options(pure, nomem, nostack, preserves_flags));
    }
    out
}

/// Adds to `[a0 b0, a0 b1, a1 b0, a1 b1]` the products of the rows of eight bytes of `a` and `b`.
///
/// # Safety
/// The machine has the extension for products of matrices.
#[inline(always)]
unsafe fn smmla(acc: int32x4_t, a: int8x16_t, b: int8x16_t) -> int32x4_t {
    let mut out = acc;
    // SAFETY: one instruction on registers.
    unsafe {
        asm!("smmla {0:v}.4s, {1:v}.16b, {2:v}.16b", inout(vreg) out, in(vreg) a, in(vreg) b,
            options(pure, nomem, nostack, preserves_flags));
    }
    out
}

/// The first halves of both; the compiler turns the intrinsic into two instructions.
///
/// # Safety
/// The machine has NEON.
#[inline(always)]
unsafe fn first_halves(a: int32x4_t, b: int32x4_t) -> int32x4_t {
    let out: int32x4_t;
    // SAFETY: one instruction on registers.
    unsafe {
        asm!("zip1 {0:v}.2d, {1:v}.2d, {2:v}.2d", lateout(vreg) out, in(vreg) a, in(vreg) b,
            options(pure, nomem, nostack, preserves_flags));
    }
    out
}

/// Sixteen of the input's bytes, minus 128.
///
/// # Safety
/// `x` points to 16 bytes; the machine has NEON.
#[inline(always)]
unsafe fn signed(x: *const u8) -> int8x16_t {
    // SAFETY: as the caller promises.
    unsafe { vreinterpretq_s8_u8(veorq_u8(vld1q_u8(x), vdupq_n_u8(0x80))) }
}

/// The first eight of both rows' sixteen bytes, minus 128, and the others.
///
/// # Safety
/// As for [`signed`].
#[inline(always)]
unsafe fn two_rows(a: *const u8, b: *const u8) -> [int8x16_t; 2] {
    // SAFETY: as the caller promises.
    unsafe {
        let (a, b) = (vreinterpretq_s64_s8(signed(a)), vreinterpretq_s64_s8(signed(b)));
        [vreinterpretq_s8_s64(vzip1q_s64(a, b)), vreinterpretq_s8_s64(vzip2q_s64(a, b))]
    }
}

/// Adds the products of `vectors` vectors of weights at `weights` and the bytes at `x[r]`, minus
/// 128, to the sums of each row.
///
/// # Safety
/// The machine has the dot-product extension; there are `vectors` vectors, a multiple of four, and
/// four bytes of each row for each.
#[inline(always)]
pub(super) unsafe fn dots_by_lanes<const R: usize>(
    sums: &mut [I; R],
    weights: *const u8,
    x: [*const u8; R],
    vectors: usize,
) {
    for first in (0..vectors).step_by(4) {
        // SAFETY: as the caller promises.
        unsafe {
            let mut bytes = [vdupq_n_s8(0); R];
            for r in 0..R {
                bytes[r] = signed(x[r].add(4 * first));
            }
            macro_rules! column {
                ($lane:literal) => {
                    for q in 0..4 {
                        let at = (first + $lane) * VECTOR_BYTES + q * REGISTER_BYTES;
                        let w = vld1q_s8(weights.add(at).cast());
                        for r in 0..R {
                            sums[r][q] = sdot_lane::<$lane>(sums[r][q], w, bytes[r]);
                        }
                    }
                };
            }
            column!(0);
            column!(1);
            column!(2);
            column!(3);
        }
    }
}

/// Rearranges each two vectors of weights to registers of eight columns of two rows, in the rows'
/// order.
///
/// # Safety
/// The machine has NEON.
#[inline(always)]
pub(super) unsafe fn arrange(weights: [I; TILE]) -> [I; TILE] {
    let mut out = weights;
    for i in (0..TILE).step_by(2) {
        for q in 0..4 {
            let (even, odd) = (weights[i][q], weights[i + 1][q]);
            // SAFETY: the caller promises the instructions.
            let two = unsafe { [vzip1q_s32(even, odd), vzip2q_s32(even, odd)] };
            for half in 0..2 {
                let at = 2 * q + half;
                out[i + at / 4][at % 4] = two[half];
            }
        }
    }
    out
}

/// Like [`dots_by_lanes`], for arranged weights.
///
/// # Safety
/// The machine has the extension for products of matrices; the rest is as there.
#[inline(always)]
pub(super) unsafe fn dots_by_matrices<const R: usize>(
    sums: &mut [I; R],
    weights: *const u8,
    x: [*const u8; R],
    vectors: usize,
) {
    // Each two input rows, an odd one counting twice, and each two weight rows give four sums.
    let pairs = R.div_ceil(2);
    // SAFETY: as the caller promises.
    unsafe {
        let mut acc = [[vdupq_n_s32(0); 8]; R];
        for first in (0..vectors).step_by(4) {
            let mut bytes = [[vdupq_n_s8(0); 2]; R];
            for pair in 0..pairs {
                let [a, b] = rows_of(pair, R);
                bytes[pair] = two_rows(x[a].add(4 * first), x[b].add(4 * first));
            }
            macro_rules! eight_columns {
                ($half:literal) => {
                    for at in 0..8 {
                        let at_bytes = (first + 2 * $half) * VECTOR_BYTES + at * REGISTER_BYTES;
                        let w = vld1q_s8(weights.add(at_bytes).cast());
                        for pair in 0..pairs {
                            acc[pair][at] = smmla(acc[pair][at], bytes[pair][$half], w);
                        }
                    }
                };
            }
            eight_columns!(0);
            eight_columns!(1);
        }
        for pair in 0..pairs {
            let [a, b] = rows_of(pair, R);
            for q in 0..4 {
                let (low, high) = (acc[pair][2 * q], acc[pair][2 * q + 1]);
                sums[a][q] = vaddq_s32(sums[a][q], first_halves(low, high));
                if a != b {
                    let (low, high) = (vreinterpretq_s64_s32(low), vreinterpretq_s64_s32(high));
                    let of_b = vreinterpretq_s32_s64(vzip2q_s64(low, high));
                    sums[b][q] = vaddq_s32(sums[b][q], of_b);
                }
            }
        }
    }
}

/// The rows of a pair among `rows`.
#[inline(always)]
fn rows_of(pair: usize, rows: usize) -> [usize; 2] {
    [2 * pair, (2 * pair + 1).min(rows - 1)]
}

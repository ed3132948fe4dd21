//! NEON, with the extensions for products of bytes if present: four registers a vector.
//!
//! Operations without a stable intrinsic are one assembly instruction each: the 8-bit products
//! (those of many rows are in [`super::neon_gemm`]) and the conversions of half precision.

use super::TILE;
use super::neon_gemm::{arrange, dots_by_lanes, dots_by_matrices, sdot};
use super::{LANES, Simd, VECTOR_BYTES, array_of};
use std::arch::aarch64::*;
use std::arch::asm;

/// Proof that the machine has NEON and, if `DOT`, its dot-product extension (Arm's cores from 2017
/// on; a Raspberry Pi 4 is older), and if `MATRIX` that for products of small matrices as well
/// (`i8mm`: Apple's from the M2 on, Arm's from 2021 on; a Raspberry Pi 5 is older).
#[derive(Clone, Copy)]
pub(crate) struct Neon<const DOT: bool, const MATRIX: bool>(());

impl<const DOT: bool, const MATRIX: bool> Neon<DOT, MATRIX> {
    /// # Safety
    /// The machine has the instructions named above.
    #[inline(always)]
    pub unsafe fn new_unchecked() -> Self {
        Self(())
    }
}

type F = [float32x4_t; 4];
type I = [int32x4_t; 4];

/// One expression for each of the four registers; a closure might stay a call.
macro_rules! quads {
    ($i:ident => $body:expr) => {{
        let first = {
            let $i = 0;
            $body
        };
        let mut out = [first; 4];
        for $i in 1..4 {
            out[$i] = $body;
        }
        out
    }};
}

/// Wraps intrinsics whose only precondition is the instruction set.
macro_rules! ops {
    ($($name:ident($($arg:ident: $ty:ty),*) -> $out:ty = $body:expr;)*) => {
        $(
            #[inline(always)]
            fn $name(self, $($arg: $ty),*) -> $out {
                // SAFETY: `self` proves that the machine has the instructions.
                unsafe { $body }
            }
        )*
    };
}

/// Wraps intrinsics that also read or write 16 elements at a pointer.
macro_rules! memory_ops {
    ($($name:ident($($arg:ident: $ty:ty),*) -> $out:ty = $body:expr;)*) => {
        $(
            #[inline(always)]
            unsafe fn $name(self, $($arg: $ty),*) -> $out {
                // SAFETY: `self` proves the instructions, the caller the memory.
                unsafe { $body }
            }
        )*
    };
}

/// # Safety
/// The machine has NEON.
#[inline(always)]
unsafe fn widen_f16(bits: uint16x4_t) -> float32x4_t {
    let out: float32x4_t;
    // SAFETY: one instruction on registers.
    unsafe {
        asm!("fcvtl {0:v}.4s, {1:v}.4h", out(vreg) out, in(vreg) bits,
            options(pure, nomem, nostack, preserves_flags));
    }
    out
}

/// # Safety
/// The machine has NEON.
#[inline(always)]
unsafe fn narrow_f16(v: float32x4_t) -> uint16x4_t {
    let out: uint16x4_t;
    // SAFETY: one instruction on registers.
    unsafe {
        asm!("fcvtn {0:v}.4h, {1:v}.4s", out(vreg) out, in(vreg) v,
            options(pure, nomem, nostack, preserves_flags));
    }
    out
}

/// The bits of E4M3 as those of half precision, which has the same fields and one bit of exponent
/// more.
///
/// # Safety
/// The machine has NEON.
#[inline(always)]
unsafe fn e4m3_as_f16(wide: int16x8_t) -> uint16x8_t {
    // SAFETY: the caller promises the instructions.
    unsafe {
        let bits = vreinterpretq_u16_s16(vshlq_n_s16::<7>(wide));
        vandq_u16(bits, vdupq_n_u16(!0x4000))
    }
}

/// Transposes a square of four: `v[i][quad]` of four vectors from `first`.
///
/// # Safety
/// The machine has NEON.
#[inline(always)]
unsafe fn transpose_square(v: &[I; LANES], first: usize, quad: usize) -> [int32x4_t; 4] {
    let (a, b) = (v[first][quad], v[first + 1][quad]);
    let (c, d) = (v[first + 2][quad], v[first + 3][quad]);
    // SAFETY: the caller promises the instructions.
    unsafe {
        let (even, odd) = (vtrn1q_s32(a, b), vtrn2q_s32(a, b));
        let (even2, odd2) = (vtrn1q_s32(c, d), vtrn2q_s32(c, d));
        let low = |a, b| {
            vreinterpretq_s32_s64(vtrn1q_s64(vreinterpretq_s64_s32(a), vreinterpretq_s64_s32(b)))
        };
        let high = |a, b| {
            vreinterpretq_s32_s64(vtrn2q_s64(vreinterpretq_s64_s32(a), vreinterpretq_s64_s32(b)))
        };
        [low(even, even2), low(odd, odd2), high(even, even2), high(odd, odd2)]
    }
}

/// [`sdot`] without the extension. Products of two bytes fit 16 bits, sums of four 32.
///
/// # Safety
/// The machine has NEON.
#[inline(always)]
unsafe fn dot_by_parts(acc: int32x4_t, a: int8x16_t, b: int8x16_t) -> int32x4_t {
    // SAFETY: as the caller promises.
    unsafe {
        let low = vpaddlq_s16(vmull_s8(vget_low_s8(a), vget_low_s8(b)));
        let high = vpaddlq_s16(vmull_high_s8(a, b));
        vaddq_s32(acc, vpaddq_s32(low, high))
    }
}

impl<const DOT: bool, const MATRIX: bool> Simd for Neon<DOT, MATRIX> {
    type F = F;
    type I = I;
    const WIDE_TILES: bool = false;
    const SIGNED_WEIGHTS: bool = true;
    const SIGNED_INPUTS: bool = true;
    const GEMM_ROWS: usize = if DOT { 4 } else { 2 };

    memory_ops! {
        load(from: *const f32) -> F = quads!(i => vld1q_f32(from.add(4 * i)));
        store(to: *mut f32, v: F) -> () = {
            for i in 0..4 {
                vst1q_f32(to.add(4 * i), v[i]);
            }
        };
        load_f16(from: *const u16) -> F = quads!(i => widen_f16(vld1_u16(from.add(4 * i))));
        store_f16(to: *mut u16, v: F) -> () = {
            for i in 0..4 {
                vst1_u16(to.add(4 * i), narrow_f16(v[i]));
            }
        };
        load_bf16(from: *const u16) -> F =
            quads!(i => vreinterpretq_f32_u32(vshll_n_u16::<16>(vld1_u16(from.add(4 * i)))));
        load_e4m3(from: *const u8) -> F = {
            let bytes = vld1q_s8(from.cast());
            let (low, high) = (vmovl_s8(vget_low_s8(bytes)), vmovl_s8(vget_high_s8(bytes)));
            let (low, high) = (e4m3_as_f16(low), e4m3_as_f16(high));
            [
                widen_f16(vget_low_u16(low)),
                widen_f16(vget_high_u16(low)),
                widen_f16(vget_low_u16(high)),
                widen_f16(vget_high_u16(high)),
            ]
        };
        load_i(from: *const u8) -> I =
            quads!(i => vreinterpretq_s32_u8(vld1q_u8(from.add(16 * i))));
        store_i(to: *mut u8, v: I) -> () = {
            for i in 0..4 {
                vst1q_u8(to.add(16 * i), vreinterpretq_u8_s32(v[i]));
            }
        };
        load_u8(from: *const u8) -> I = {
            let bytes = vld1q_u8(from);
            let (low, high) = (vmovl_u8(vget_low_u8(bytes)), vmovl_u8(vget_high_u8(bytes)));
            [
                vreinterpretq_s32_u32(vmovl_u16(vget_low_u16(low))),
                vreinterpretq_s32_u32(vmovl_u16(vget_high_u16(low))),
                vreinterpretq_s32_u32(vmovl_u16(vget_low_u16(high))),
                vreinterpretq_s32_u32(vmovl_u16(vget_high_u16(high))),
            ]
        };
        load_i8(from: *const u8) -> I = {
            let bytes = vld1q_s8(from.cast());
            let (low, high) = (vmovl_s8(vget_low_s8(bytes)), vmovl_s8(vget_high_s8(bytes)));
            [
                vmovl_s16(vget_low_s16(low)),
                vmovl_s16(vget_high_s16(low)),
                vmovl_s16(vget_low_s16(high)),
                vmovl_s16(vget_high_s16(high)),
            ]
        };
        load_u16(from: *const u8) -> I = quads!(i => {
            let words = vreinterpret_u16_u8(vld1_u8(from.add(8 * i)));
            vreinterpretq_s32_u32(vmovl_u16(words))
        });
        store_i8(to: *mut i8, v: I) -> () = {
            let low = vcombine_s16(vmovn_s32(v[0]), vmovn_s32(v[1]));
            let high = vcombine_s16(vmovn_s32(v[2]), vmovn_s32(v[3]));
            vst1q_s8(to, vcombine_s8(vmovn_s16(low), vmovn_s16(high)));
        };
        store_i16(to: *mut i16, v: I) -> () = {
            for i in 0..4 {
                vst1_s16(to.add(4 * i), vmovn_s32(v[i]));
            }
        };
        splat_x4(from: *const u8) -> I =
            [vdupq_n_s32(from.cast::<i32>().read_unaligned()); 4];
        gemm_splat_x4(from: *const u8) -> I =
            [vdupq_n_s32(from.cast::<i32>().read_unaligned()); 4];
    }

    ops! {
        splat(x: f32) -> F = [vdupq_n_f32(x); 4];
        add(a: F, b: F) -> F = quads!(i => vaddq_f32(a[i], b[i]));
        sub(a: F, b: F) -> F = quads!(i => vsubq_f32(a[i], b[i]));
        mul(a: F, b: F) -> F = quads!(i => vmulq_f32(a[i], b[i]));
        div(a: F, b: F) -> F = quads!(i => vdivq_f32(a[i], b[i]));
        fma(a: F, b: F, c: F) -> F = quads!(i => vfmaq_f32(c[i], a[i], b[i]));
        // NEON's own maximum treats NaN differently from the definition.
        max(a: F, b: F) -> F = quads!(i => vbslq_f32(vcgtq_f32(a[i], b[i]), a[i], b[i]));
        min(a: F, b: F) -> F = quads!(i => vbslq_f32(vcltq_f32(a[i], b[i]), a[i], b[i]));
        abs(v: F) -> F = quads!(i => vabsq_f32(v[i]));
        keep_from(v: F, x: F, limit: F) -> F = quads!(i => {
            let bits = vbicq_u32(vreinterpretq_u32_f32(v[i]), vcltq_f32(x[i], limit[i]));
            vreinterpretq_f32_u32(bits)
        });
        sum(v: F) -> f32 = {
            let v4 = vaddq_f32(vaddq_f32(v[0], v[2]), vaddq_f32(v[1], v[3]));
            let v2 = vadd_f32(vget_low_f32(v4), vget_high_f32(v4));
            vget_lane_f32::<0>(v2) + vget_lane_f32::<1>(v2)
        };
        top(v: F) -> f32 = vmaxvq_f32(vmaxq_f32(vmaxq_f32(v[0], v[1]), vmaxq_f32(v[2], v[3])));
        splat_i(x: i32) -> I = [vdupq_n_s32(x); 4];
        and(a: I, b: I) -> I = quads!(i => vandq_s32(a[i], b[i]));
        or(a: I, b: I) -> I = quads!(i => vorrq_s32(a[i], b[i]));
        xor(a: I, b: I) -> I = quads!(i => veorq_s32(a[i], b[i]));
        add_i(a: I, b: I) -> I = quads!(i => vaddq_s32(a[i], b[i]));
        sub_i(a: I, b: I) -> I = quads!(i => vsubq_s32(a[i], b[i]));
        max_i(a: I, b: I) -> I = quads!(i => vmaxq_s32(a[i], b[i]));
        min_i(a: I, b: I) -> I = quads!(i => vminq_s32(a[i], b[i]));
        shl(v: I, bits: u32) -> I = quads!(i => vshlq_s32(v[i], vdupq_n_s32(bits as i32)));
        shr(v: I, bits: u32) -> I = quads!(i => {
            let shifted = vshlq_u32(vreinterpretq_u32_s32(v[i]), vdupq_n_s32(-(bits as i32)));
            vreinterpretq_s32_u32(shifted)
        });
        mul_i16(a: I, b: I) -> I = quads!(i => {
            let (a, b) = (vreinterpretq_s16_s32(a[i]), vreinterpretq_s16_s32(b[i]));
            vreinterpretq_s32_s16(vmulq_s16(a, b))
        });
        lookup(table: &[u8; 16], v: I) -> I = {
            let table = vld1q_u8(table.as_ptr());
            quads!(i => vreinterpretq_s32_u8(vqtbl1q_u8(table, vreinterpretq_u8_s32(v[i]))))
        };
        to_f(v: I) -> F = quads!(i => vcvtq_f32_s32(v[i]));
        to_i(v: F) -> I = quads!(i => vcvtnq_s32_f32(v[i]));
        cast_f(v: I) -> F = quads!(i => vreinterpretq_f32_s32(v[i]));
        cast_i(v: F) -> I = quads!(i => vreinterpretq_s32_f32(v[i]));
        dot2(acc: I, a: I, b: I) -> I = quads!(i => {
            let (a, b) = (vreinterpretq_s16_s32(a[i]), vreinterpretq_s16_s32(b[i]));
            let low = vmull_s16(vget_low_s16(a), vget_low_s16(b));
            vaddq_s32(acc[i], vpaddq_s32(low, vmull_high_s16(a, b)))
        });
    }

    #[inline(always)]
    fn shr_i16<const BITS: u32>(self, v: I) -> I {
        quads!(i => {
            // SAFETY: `self` proves that the machine has the instructions.
            unsafe {
                let right = vdupq_n_s16(-(BITS as i16));
                vreinterpretq_s32_s16(vshlq_s16(vreinterpretq_s16_s32(v[i]), right))
            }
        })
    }

    #[inline(always)]
    fn transpose(self, v: [I; LANES]) -> [I; LANES] {
        let mut out = v;
        for to in 0..4 {
            for from in 0..4 {
                // SAFETY: `self` proves that the machine has the instructions.
                let square = unsafe { transpose_square(&v, 4 * to, from) };
                for j in 0..4 {
                    out[4 * from + j][to] = square[j];
                }
            }
        }
        out
    }

    /// The instruction takes signed weights: those up to 127 are, others are shifted by 128.
    #[inline(always)]
    fn dot4<const BIASED: bool>(self, acc: I, weights: I, x: I) -> I {
        quads!(i => {
            // SAFETY: `self` proves that the machine has the instructions.
            unsafe {
                let weights = vreinterpretq_u8_s32(weights[i]);
                let weights = if BIASED { veorq_u8(weights, vdupq_n_u8(0x80)) } else { weights };
                let (weights, x) = (vreinterpretq_s8_u8(weights), vreinterpretq_s8_s32(x[i]));
                if DOT { sdot(acc[i], weights, x) } else { dot_by_parts(acc[i], weights, x) }
            }
        })
    }

    #[inline(always)]
    fn zero_factor<const BIASED: bool>(self, zero: i32) -> i32 {
        if BIASED { 128 - zero } else { -zero }
    }

    #[inline(always)]
    fn gemm_weights(self, weights: I, zero: i32) -> I {
        quads!(i => {
            // SAFETY: `self` proves that the machine has the instructions.
            unsafe {
                let zero = vdupq_n_s8(zero as i8);
                vreinterpretq_s32_s8(vsubq_s8(vreinterpretq_s8_s32(weights[i]), zero))
            }
        })
    }

    #[inline(always)]
    fn gemm_dot4<const BIASED: bool>(self, acc: I, weights: I, x: I) -> I {
        let x = self.xor(x, self.splat_i(i32::from_ne_bytes([0x80; 4])));
        self.dot4::<false>(acc, weights, x)
    }

    #[inline(always)]
    fn gemm_arrange(self, weights: [I; TILE]) -> [I; TILE] {
        // SAFETY: `self` proves that the machine has the instructions.
        if MATRIX { unsafe { arrange(weights) } } else { weights }
    }

    #[inline(always)]
    unsafe fn gemm_dots<const BIASED: bool, const P: usize, const R: usize>(
        self,
        dots: &mut [[I; P]; R],
        weights: [*const u8; P],
        x: [*const u8; R],
        vectors: usize,
    ) {
        for p in 0..P {
            let mut sums = array_of!(R, dots[0][0], r => dots[r][p]);
            // SAFETY: `self` proves the instructions, the caller the memory.
            unsafe {
                if MATRIX {
                    dots_by_matrices(&mut sums, weights[p], x, vectors);
                } else if DOT {
                    dots_by_lanes(&mut sums, weights[p], x, vectors);
                } else {
                    for i in 0..vectors {
                        let weights = self.load_i(weights[p].add(i * VECTOR_BYTES));
                        for r in 0..R {
                            let bytes = self.gemm_splat_x4(x[r].add(4 * i));
                            sums[r] = self.gemm_dot4::<BIASED>(sums[r], weights, bytes);
                        }
                    }
                }
            }
            for r in 0..R {
                dots[r][p] = sums[r];
            }
        }
    }

    #[inline(always)]
    fn prefetch(self, from: *const u8) {
        // SAFETY: a prefetch hint, which no address can make fail.
        unsafe {
            asm!("prfm pldl1keep, [{0}]", in(reg) from,
                options(readonly, nostack, preserves_flags));
        }
    }

    #[inline(always)]
    fn prefetch_l2(self, from: *const u8) {
        // SAFETY: a prefetch hint, which no address can make fail.
        unsafe {
            asm!("prfm pldl2keep, [{0}]", in(reg) from,
                options(readonly, nostack, preserves_flags));
        }
    }
}

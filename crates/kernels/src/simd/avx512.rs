//! AVX-512 with VNNI: one register a vector.

use super::TILE;
use super::avx2::four_entries;
use super::{LANES, Simd, VECTOR_BYTES, array_of, avx512_codebook, codebook};
use crate::format::Codebook;
use std::arch::asm;
use std::arch::x86_64::*;

/// Proof that the machine has AVX-512 F, BW, VL, DQ and VNNI, and VBMI if `VBMI`.
#[derive(Clone, Copy)]
pub(crate) struct Avx512<const VBMI: bool>(());

impl<const VBMI: bool> Avx512<VBMI> {
    /// # Safety
    /// The machine has the instructions named above.
    #[inline(always)]
    pub unsafe fn new_unchecked() -> Self {
        Self(())
    }
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

/// `_mm512_dpwssd_epi32`. The compiler replaces it by a multiplication and an addition if it
/// expects to wait for sums; in a register tile that takes twice the time.
///
/// # Safety
/// The machine has AVX-512 with VNNI.
#[inline]
#[target_feature(enable = "avx512f,avx512vnni")]
unsafe fn dpwssd(acc: __m512i, a: __m512i, b: __m512i) -> __m512i {
    let mut out = acc;
    // SAFETY: one instruction on registers.
    unsafe {
        asm!("vpdpwssd {0}, {1}, {2}", inout(zmm_reg) out, in(zmm_reg) a, in(zmm_reg) b,
            options(pure, nomem, nostack, preserves_flags));
    }
    out
}

/// Reduces the lanes of each of four vectors: halves are combined until one lane is left, those of
/// two vectors, then of four, in one register.
macro_rules! by_four {
    ($v:ident, $op:ident) => {{
        // SAFETY: `self` proves that the machine has the instructions; `lanes` is one vector.
        unsafe {
            let pair = |a, b| {
                let low = _mm512_shuffle_f32x4::<0b01_00_01_00>(a, b);
                $op(low, _mm512_shuffle_f32x4::<0b11_10_11_10>(a, b))
            };
            let (a, b) = (pair($v[0], $v[1]), pair($v[2], $v[3]));
            let low = _mm512_shuffle_f32x4::<0b10_00_10_00>(a, b);
            let v4 = $op(low, _mm512_shuffle_f32x4::<0b11_01_11_01>(a, b));
            let v2 = $op(v4, _mm512_permute_ps::<0b01_00_11_10>(v4));
            let v1 = $op(v2, _mm512_permute_ps::<0b10_11_00_01>(v2));
            let mut lanes = [0.0; LANES];
            _mm512_storeu_ps(lanes.as_mut_ptr(), v1);
            array_of!(R, 0.0, r => lanes[4 * r])
        }
    }};
}

impl<const VBMI: bool> Simd for Avx512<VBMI> {
    type F = __m512;
    type I = __m512i;
    const WIDE_TILES: bool = true;
    const SIGNED_WEIGHTS: bool = true;

    memory_ops! {
        load(from: *const f32) -> __m512 = _mm512_loadu_ps(from);
        store(to: *mut f32, v: __m512) -> () = _mm512_storeu_ps(to, v);
        stream(to: *mut f32, v: __m512) -> () = _mm512_stream_ps(to, v);
        load_f16(from: *const u16) -> __m512 =
            _mm512_cvtph_ps(_mm256_loadu_si256(from.cast()));
        store_f16(to: *mut u16, v: __m512) -> () = _mm256_storeu_si256(
            to.cast(),
            _mm512_cvtps_ph::<{ _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC }>(v),
        );
        load_bf16(from: *const u16) -> __m512 = _mm512_castsi512_ps(_mm512_slli_epi32::<16>(
            _mm512_cvtepu16_epi32(_mm256_loadu_si256(from.cast())),
        ));
        load_e4m3(from: *const u8) -> __m512 = {
            // Half precision has the same fields, and one bit of exponent more.
            let bits = _mm256_slli_epi16::<7>(_mm256_cvtepi8_epi16(_mm_loadu_si128(from.cast())));
            _mm512_cvtph_ps(_mm256_and_si256(bits, _mm256_set1_epi16(!0x4000)))
        };
        load_i(from: *const u8) -> __m512i = _mm512_loadu_si512(from.cast());
        store_i(to: *mut u8, v: __m512i) -> () = _mm512_storeu_si512(to.cast(), v);
        load_u8(from: *const u8) -> __m512i =
            _mm512_cvtepu8_epi32(_mm_loadu_si128(from.cast()));
        load_i8(from: *const u8) -> __m512i =
            _mm512_cvtepi8_epi32(_mm_loadu_si128(from.cast()));
        load_u16(from: *const u8) -> __m512i =
            _mm512_cvtepu16_epi32(_mm256_loadu_si256(from.cast()));
        store_i8(to: *mut i8, v: __m512i) -> () =
            _mm_storeu_si128(to.cast(), _mm512_cvtepi32_epi8(v));
        store_i16(to: *mut i16, v: __m512i) -> () =
            _mm256_storeu_si256(to.cast(), _mm512_cvtepi32_epi16(v));
        splat_x4(from: *const u8) -> __m512i =
            _mm512_set1_epi32(from.cast::<i32>().read_unaligned());
        gemm_splat_x4(from: *const u8) -> __m512i =
            _mm512_set1_epi32(from.cast::<i32>().read_unaligned());
    }

    ops! {
        splat(x: f32) -> __m512 = _mm512_set1_ps(x);
        add(a: __m512, b: __m512) -> __m512 = _mm512_add_ps(a, b);
        sub(a: __m512, b: __m512) -> __m512 = _mm512_sub_ps(a, b);
        mul(a: __m512, b: __m512) -> __m512 = _mm512_mul_ps(a, b);
        div(a: __m512, b: __m512) -> __m512 = _mm512_div_ps(a, b);
        fma(a: __m512, b: __m512, c: __m512) -> __m512 = _mm512_fmadd_ps(a, b, c);
        max(a: __m512, b: __m512) -> __m512 = _mm512_max_ps(a, b);
        min(a: __m512, b: __m512) -> __m512 = _mm512_min_ps(a, b);
        abs(v: __m512) -> __m512 = _mm512_abs_ps(v);
        keep_from(v: __m512, x: __m512, limit: __m512) -> __m512 =
            _mm512_maskz_mov_ps(_mm512_cmp_ps_mask::<_CMP_NLT_UQ>(x, limit), v);
        top(v: __m512) -> f32 = _mm512_reduce_max_ps(v);
        splat_i(x: i32) -> __m512i = _mm512_set1_epi32(x);
        and(a: __m512i, b: __m512i) -> __m512i = _mm512_and_si512(a, b);
        or(a: __m512i, b: __m512i) -> __m512i = _mm512_or_si512(a, b);
        xor(a: __m512i, b: __m512i) -> __m512i = _mm512_xor_si512(a, b);
        add_i(a: __m512i, b: __m512i) -> __m512i = _mm512_add_epi32(a, b);
        sub_i(a: __m512i, b: __m512i) -> __m512i = _mm512_sub_epi32(a, b);
        max_i(a: __m512i, b: __m512i) -> __m512i = _mm512_max_epi32(a, b);
        min_i(a: __m512i, b: __m512i) -> __m512i = _mm512_min_epi32(a, b);
        shl(v: __m512i, bits: u32) -> __m512i =
            _mm512_sllv_epi32(v, _mm512_set1_epi32(bits as i32));
        shr(v: __m512i, bits: u32) -> __m512i =
            _mm512_srlv_epi32(v, _mm512_set1_epi32(bits as i32));
        mul_i16(a: __m512i, b: __m512i) -> __m512i = _mm512_mullo_epi16(a, b);
        lookup(table: &[u8; 16], v: __m512i) -> __m512i = _mm512_shuffle_epi8(
            _mm512_broadcast_i32x4(_mm_loadu_si128(table.as_ptr().cast())),
            v,
        );
        to_f(v: __m512i) -> __m512 = _mm512_cvtepi32_ps(v);
        to_i(v: __m512) -> __m512i = _mm512_cvtps_epi32(v);
        cast_f(v: __m512i) -> __m512 = _mm512_castsi512_ps(v);
        cast_i(v: __m512) -> __m512i = _mm512_castps_si512(v);
        dot2(acc: __m512i, a: __m512i, b: __m512i) -> __m512i = dpwssd(acc, a, b);
        end_streams() -> () = _mm_sfence();
        prefetch(from: *const u8) -> () = _mm_prefetch::<_MM_HINT_T0>(from.cast());
        prefetch_l2(from: *const u8) -> () = _mm_prefetch::<_MM_HINT_T1>(from.cast());
    }

    /// Written out, so that the order equals the definition's.
    #[inline(always)]
    fn sum(self, v: __m512) -> f32 {
        // SAFETY: `self` proves that the machine has the instructions.
        unsafe {
            let high = _mm512_extractf32x8_ps::<1>(v);
            let v8 = _mm256_add_ps(_mm512_castps512_ps256(v), high);
            let v4 = _mm_add_ps(_mm256_castps256_ps128(v8), _mm256_extractf128_ps::<1>(v8));
            let v2 = _mm_add_ps(v4, _mm_movehl_ps(v4, v4));
            _mm_cvtss_f32(_mm_add_ss(v2, _mm_movehdup_ps(v2)))
        }
    }

    #[inline(always)]
    fn sums<const R: usize>(self, v: [__m512; R]) -> [f32; R] {
        if R != 4 {
            return array_of!(R, 0.0, r => self.sum(v[r]));
        }
        by_four!(v, _mm512_add_ps)
    }

    #[inline(always)]
    fn tops<const R: usize>(self, v: [__m512; R]) -> [f32; R] {
        if R != 4 {
            return array_of!(R, 0.0, r => self.top(v[r]));
        }
        by_four!(v, _mm512_max_ps)
    }

    #[inline(always)]
    fn shr_i16<const BITS: u32>(self, v: __m512i) -> __m512i {
        // SAFETY: `self` proves that the machine has the instructions.
        unsafe { _mm512_srai_epi16::<BITS>(v) }
    }

    #[inline(always)]
    fn transpose(self, v: [__m512i; LANES]) -> [__m512i; LANES] {
        let mut out = v;
        // SAFETY: `self` proves that the machine has the instructions.
        unsafe {
            // Squares of four lanes first: `quads[4 * g + j]` has column `4 * q + j` of the vectors
            // from `4 * g` in its quarter `q`.
            let mut quads = v;
            for g in (0..LANES).step_by(4) {
                let low = _mm512_unpacklo_epi32(v[g], v[g + 1]);
                let high = _mm512_unpackhi_epi32(v[g], v[g + 1]);
                let low2 = _mm512_unpacklo_epi32(v[g + 2], v[g + 3]);
                let high2 = _mm512_unpackhi_epi32(v[g + 2], v[g + 3]);
                quads[g] = _mm512_unpacklo_epi64(low, low2);
                quads[g + 1] = _mm512_unpackhi_epi64(low, low2);
                quads[g + 2] = _mm512_unpacklo_epi64(high, high2);
                quads[g + 3] = _mm512_unpackhi_epi64(high, high2);
            }
            for j in 0..4 {
                let (a, b, c, d) = (quads[j], quads[4 + j], quads[8 + j], quads[12 + j]);
                let ab = _mm512_shuffle_i32x4::<0b01_00_01_00>(a, b);
                let cd = _mm512_shuffle_i32x4::<0b01_00_01_00>(c, d);
                let ab2 = _mm512_shuffle_i32x4::<0b11_10_11_10>(a, b);
                let cd2 = _mm512_shuffle_i32x4::<0b11_10_11_10>(c, d);
                out[j] = _mm512_shuffle_i32x4::<0b10_00_10_00>(ab, cd);
                out[4 + j] = _mm512_shuffle_i32x4::<0b11_01_11_01>(ab, cd);
                out[8 + j] = _mm512_shuffle_i32x4::<0b10_00_10_00>(ab2, cd2);
                out[12 + j] = _mm512_shuffle_i32x4::<0b11_01_11_01>(ab2, cd2);
            }
        }
        out
    }

    #[inline(always)]
    fn dot4<const BIASED: bool>(self, acc: __m512i, weights: __m512i, x: __m512i) -> __m512i {
        // SAFETY: `self` proves that the machine has the instructions.
        unsafe { _mm512_dpbusd_epi32(acc, weights, x) }
    }

    #[inline(always)]
    fn zero_factor<const BIASED: bool>(self, zero: i32) -> i32 {
        -zero
    }

    #[inline(always)]
    fn gemm_weights(self, weights: __m512i, zero: i32) -> __m512i {
        // SAFETY: `self` proves that the machine has the instructions.
        unsafe { _mm512_sub_epi8(weights, _mm512_set1_epi8(zero as i8)) }
    }

    #[inline(always)]
    fn gemm_dot4<const BIASED: bool>(self, acc: __m512i, weights: __m512i, x: __m512i) -> __m512i {
        // SAFETY: `self` proves that the machine has the instructions.
        unsafe { _mm512_dpbusd_epi32(acc, x, weights) }
    }

    #[inline(always)]
    unsafe fn entries<const N: usize>(
        self,
        table: &[u32; N],
        low: *const u8,
        high: *const u8,
    ) -> __m512i {
        // SAFETY: `self` proves the instructions, the caller the memory.
        unsafe {
            let all = _mm512_castsi128_si512(four_entries(table, low, high, 0));
            let all = _mm512_inserti32x4::<1>(all, four_entries(table, low, high, 4));
            let all = _mm512_inserti32x4::<2>(all, four_entries(table, low, high, 8));
            _mm512_inserti32x4::<3>(all, four_entries(table, low, high, 12))
        }
    }

    #[inline(always)]
    unsafe fn eights<const N: usize>(
        self,
        book: &Codebook<N>,
        low: *const u8,
        high: __m512i,
        signs: __m512i,
    ) -> [__m512i; TILE] {
        // SAFETY: `self` proves the instructions, the caller the memory.
        unsafe {
            if VBMI {
                avx512_codebook::eights(self, book, self.load_i(low), high, signs)
            } else {
                codebook::eights(self, book, low, high, signs)
            }
        }
    }

    #[inline(always)]
    unsafe fn fours<const N: usize>(
        self,
        book: &Codebook<N>,
        low: *const u8,
        high: [__m512i; 2],
        signs: __m512i,
    ) -> [__m512i; TILE] {
        // SAFETY: `self` proves the instructions, the caller the memory.
        unsafe {
            if VBMI {
                let low = [self.load_i(low), self.load_i(low.add(VECTOR_BYTES))];
                avx512_codebook::fours(self, book, low, high, signs)
            } else {
                codebook::fours(self, book, low, high, signs)
            }
        }
    }
}

//! AVX2 with FMA and F16C: two registers a vector. `VNNI`: the machine also has the 256-bit integer
//! dot product (AVX-VNNI).

use super::codebook::entry;
use super::{LANES, Simd, array_of};
use std::arch::x86_64::*;

/// Proof that the machine has AVX2, FMA and F16C, and AVX-VNNI if `VNNI`.
#[derive(Clone, Copy)]
pub(crate) struct Avx2<const VNNI: bool>(());

impl<const VNNI: bool> Avx2<VNNI> {
    /// # Safety
    /// The machine has the instructions named above.
    #[inline(always)]
    pub unsafe fn new_unchecked() -> Self {
        Self(())
    }
}

type F = [__m256; 2];
type I = [__m256i; 2];

/// Applies an intrinsic to each half of its vector arguments.
macro_rules! halves {
    ($op:path, $($arg:expr),*) => { [$op($($arg[0]),*), $op($($arg[1]),*)] };
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

/// Eight bfloat16 numbers as f32.
///
/// # Safety
/// The machine has AVX2.
#[inline(always)]
unsafe fn bf16_half(bits: __m128i) -> __m256 {
    // SAFETY: the caller promises the instructions.
    unsafe { _mm256_castsi256_ps(_mm256_slli_epi32::<16>(_mm256_cvtepu16_epi32(bits))) }
}

/// Transposes squares of eight: `v[i][half]` of eight vectors from `first`.
///
/// # Safety
/// The machine has AVX2.
#[inline(always)]
unsafe fn transpose_square(v: &[I; LANES], first: usize, half: usize) -> [__m256i; 8] {
    let mut quads = [v[0][0]; 8];
    let mut out = quads;
    // SAFETY: the caller promises the instructions.
    unsafe {
        for g in [0, 4] {
            let at = first + g;
            let (a, b) = (v[at][half], v[at + 1][half]);
            let (c, d) = (v[at + 2][half], v[at + 3][half]);
            let (low, high) = (_mm256_unpacklo_epi32(a, b), _mm256_unpackhi_epi32(a, b));
            let (low2, high2) = (_mm256_unpacklo_epi32(c, d), _mm256_unpackhi_epi32(c, d));
            quads[g] = _mm256_unpacklo_epi64(low, low2);
            quads[g + 1] = _mm256_unpackhi_epi64(low, low2);
            quads[g + 2] = _mm256_unpacklo_epi64(high, high2);
            quads[g + 3] = _mm256_unpackhi_epi64(high, high2);
        }
        for j in 0..4 {
            out[j] = _mm256_permute2x128_si256::<0x20>(quads[j], quads[4 + j]);
            out[4 + j] = _mm256_permute2x128_si256::<0x31>(quads[j], quads[4 + j]);
        }
    }
    out
}

/// [`Simd::entries`], four of them from lane `first` on. The instruction that gathers takes longer
/// on AMD's processors, and far longer on Intel's with the fix of Downfall.
///
/// # Safety
/// The machine has AVX2; the rest is as there.
#[inline(always)]
pub(super) unsafe fn four_entries<const N: usize>(
    table: &[u32; N],
    low: *const u8,
    high: *const u8,
    first: usize,
) -> __m128i {
    // SAFETY: as the caller promises.
    unsafe {
        let all = array_of!(4, 0, i => entry(table, low, high, first + i) as i32);
        _mm_setr_epi32(all[0], all[1], all[2], all[3])
    }
}

const ROUND: i32 = _MM_FROUND_TO_NEAREST_INT;

impl<const VNNI: bool> Simd for Avx2<VNNI> {
    type F = F;
    type I = I;
    const WIDE_TILES: bool = false;
    const SIGNED_WEIGHTS: bool = true;
    const PAIR_SUMS: bool = !VNNI;
    const GEMM_ROWS: usize = if VNNI { 2 } else { 4 };

    memory_ops! {
        load(from: *const f32) -> F = [_mm256_loadu_ps(from), _mm256_loadu_ps(from.add(8))];
        store(to: *mut f32, v: F) -> () = {
            _mm256_storeu_ps(to, v[0]);
            _mm256_storeu_ps(to.add(8), v[1]);
        };
        stream(to: *mut f32, v: F) -> () = {
            _mm256_stream_ps(to, v[0]);
            _mm256_stream_ps(to.add(8), v[1]);
        };
        load_f16(from: *const u16) -> F = [
            _mm256_cvtph_ps(_mm_loadu_si128(from.cast())),
            _mm256_cvtph_ps(_mm_loadu_si128(from.add(8).cast())),
        ];
        store_f16(to: *mut u16, v: F) -> () = {
            _mm_storeu_si128(to.cast(), _mm256_cvtps_ph::<ROUND>(v[0]));
            _mm_storeu_si128(to.add(8).cast(), _mm256_cvtps_ph::<ROUND>(v[1]));
        };
        load_bf16(from: *const u16) -> F = [
            bf16_half(_mm_loadu_si128(from.cast())),
            bf16_half(_mm_loadu_si128(from.add(8).cast())),
        ];
        load_e4m3(from: *const u8) -> F = {
            // Half precision has the same fields, and one bit of exponent more.
            let bits = _mm256_slli_epi16::<7>(_mm256_cvtepi8_epi16(_mm_loadu_si128(from.cast())));
            let bits = _mm256_and_si256(bits, _mm256_set1_epi16(!0x4000));
            let high = _mm256_extracti128_si256::<1>(bits);
            [_mm256_cvtph_ps(_mm256_castsi256_si128(bits)), _mm256_cvtph_ps(high)]
        };
        load_i(from: *const u8) -> I =
            [_mm256_loadu_si256(from.cast()), _mm256_loadu_si256(from.add(32).cast())];
        store_i(to: *mut u8, v: I) -> () = {
            _mm256_storeu_si256(to.cast(), v[0]);
            _mm256_storeu_si256(to.add(32).cast(), v[1]);
        };
        load_u8(from: *const u8) -> I = {
            let bytes = _mm_loadu_si128(from.cast());
            [_mm256_cvtepu8_epi32(bytes), _mm256_cvtepu8_epi32(_mm_srli_si128::<8>(bytes))]
        };
        load_i8(from: *const u8) -> I = {
            let bytes = _mm_loadu_si128(from.cast());
            [_mm256_cvtepi8_epi32(bytes), _mm256_cvtepi8_epi32(_mm_srli_si128::<8>(bytes))]
        };
        load_u16(from: *const u8) -> I = [
            _mm256_cvtepu16_epi32(_mm_loadu_si128(from.cast())),
            _mm256_cvtepu16_epi32(_mm_loadu_si128(from.add(16).cast())),
        ];
        store_i8(to: *mut i8, v: I) -> () = {
            // Only the low byte of each lane is used, so saturating packs need a mask first.
            let low = _mm256_set1_epi32(0xff);
            let v = [_mm256_and_si256(v[0], low), _mm256_and_si256(v[1], low)];
            let words = _mm256_permute4x64_epi64::<0b11_01_10_00>(_mm256_packus_epi32(v[0], v[1]));
            let (first, last) =
                (_mm256_castsi256_si128(words), _mm256_extracti128_si256::<1>(words));
            _mm_storeu_si128(to.cast(), _mm_packus_epi16(first, last));
        };
        store_i16(to: *mut i16, v: I) -> () = {
            // As above: the sign bit of the low half decides how the pack would saturate.
            let low = _mm256_set1_epi32(0xffff);
            let v = [_mm256_and_si256(v[0], low), _mm256_and_si256(v[1], low)];
            let words = _mm256_packus_epi32(v[0], v[1]);
            let words = _mm256_permute4x64_epi64::<0b11_01_10_00>(words);
            _mm256_storeu_si256(to.cast(), words);
        };
        splat_x4(from: *const u8) -> I =
            [_mm256_set1_epi32(from.cast::<i32>().read_unaligned()); 2];
    }

    ops! {
        splat(x: f32) -> F = [_mm256_set1_ps(x); 2];
        add(a: F, b: F) -> F = halves!(_mm256_add_ps, a, b);
        sub(a: F, b: F) -> F = halves!(_mm256_sub_ps, a, b);
        mul(a: F, b: F) -> F = halves!(_mm256_mul_ps, a, b);
        div(a: F, b: F) -> F = halves!(_mm256_div_ps, a, b);
        fma(a: F, b: F, c: F) -> F = halves!(_mm256_fmadd_ps, a, b, c);
        max(a: F, b: F) -> F = halves!(_mm256_max_ps, a, b);
        min(a: F, b: F) -> F = halves!(_mm256_min_ps, a, b);
        abs(v: F) -> F = {
            let sign = _mm256_set1_ps(-0.0);
            [_mm256_andnot_ps(sign, v[0]), _mm256_andnot_ps(sign, v[1])]
        };
        keep_from(v: F, x: F, limit: F) -> F = [
            _mm256_and_ps(v[0], _mm256_cmp_ps::<_CMP_NLT_UQ>(x[0], limit[0])),
            _mm256_and_ps(v[1], _mm256_cmp_ps::<_CMP_NLT_UQ>(x[1], limit[1])),
        ];
        sum(v: F) -> f32 = {
            let v8 = _mm256_add_ps(v[0], v[1]);
            let v4 = _mm_add_ps(_mm256_castps256_ps128(v8), _mm256_extractf128_ps::<1>(v8));
            let v2 = _mm_add_ps(v4, _mm_movehl_ps(v4, v4));
            _mm_cvtss_f32(_mm_add_ss(v2, _mm_movehdup_ps(v2)))
        };
        top(v: F) -> f32 = {
            let v8 = _mm256_max_ps(v[0], v[1]);
            let v4 = _mm_max_ps(_mm256_castps256_ps128(v8), _mm256_extractf128_ps::<1>(v8));
            let v2 = _mm_max_ps(v4, _mm_movehl_ps(v4, v4));
            _mm_cvtss_f32(_mm_max_ss(v2, _mm_movehdup_ps(v2)))
        };
        splat_i(x: i32) -> I = [_mm256_set1_epi32(x); 2];
        and(a: I, b: I) -> I = halves!(_mm256_and_si256, a, b);
        or(a: I, b: I) -> I = halves!(_mm256_or_si256, a, b);
        xor(a: I, b: I) -> I = halves!(_mm256_xor_si256, a, b);
        add_i(a: I, b: I) -> I = halves!(_mm256_add_epi32, a, b);
        sub_i(a: I, b: I) -> I = halves!(_mm256_sub_epi32, a, b);
        max_i(a: I, b: I) -> I = halves!(_mm256_max_epi32, a, b);
        min_i(a: I, b: I) -> I = halves!(_mm256_min_epi32, a, b);
        shl(v: I, bits: u32) -> I = {
            let bits = [_mm256_set1_epi32(bits as i32); 2];
            halves!(_mm256_sllv_epi32, v, bits)
        };
        shr(v: I, bits: u32) -> I = {
            let bits = [_mm256_set1_epi32(bits as i32); 2];
            halves!(_mm256_srlv_epi32, v, bits)
        };
        mul_i16(a: I, b: I) -> I = halves!(_mm256_mullo_epi16, a, b);
        lookup(table: &[u8; 16], v: I) -> I = {
            let table = _mm256_broadcastsi128_si256(_mm_loadu_si128(table.as_ptr().cast()));
            [_mm256_shuffle_epi8(table, v[0]), _mm256_shuffle_epi8(table, v[1])]
        };
        to_f(v: I) -> F = halves!(_mm256_cvtepi32_ps, v);
        to_i(v: F) -> I = halves!(_mm256_cvtps_epi32, v);
        cast_f(v: I) -> F = halves!(_mm256_castsi256_ps, v);
        cast_i(v: F) -> I = halves!(_mm256_castps_si256, v);
        end_streams() -> () = _mm_sfence();
        prefetch(from: *const u8) -> () = _mm_prefetch::<_MM_HINT_T0>(from.cast());
        prefetch_l2(from: *const u8) -> () = _mm_prefetch::<_MM_HINT_T1>(from.cast());
    }

    #[inline(always)]
    fn shr_i16<const BITS: u32>(self, v: I) -> I {
        // SAFETY: `self` proves that the machine has the instructions.
        unsafe {
            let bits = _mm_cvtsi32_si128(BITS as i32);
            [_mm256_sra_epi16(v[0], bits), _mm256_sra_epi16(v[1], bits)]
        }
    }

    #[inline(always)]
    fn transpose(self, v: [I; LANES]) -> [I; LANES] {
        let mut out = v;
        for half in 0..2 {
            for from in 0..2 {
                // SAFETY: `self` proves that the machine has the instructions.
                let square = unsafe { transpose_square(&v, 8 * half, from) };
                for j in 0..8 {
                    out[8 * from + j][half] = square[j];
                }
            }
        }
        out
    }

    /// Without VNNI, `maddubs` adds pairs of products in 16 bits and saturates beyond; weights up
    /// to 127 are safe (2 * 127 * 127 < 2^15), larger ones go through signs and magnitudes.
    #[inline(always)]
    fn dot4<const BIASED: bool>(self, acc: I, weights: I, x: I) -> I {
        let mut out = acc;
        for half in 0..2 {
            let (w, x) = (weights[half], x[half]);
            // SAFETY: `self` proves that the machine has the instructions.
            out[half] = unsafe {
                if VNNI {
                    _mm256_dpbusd_avx_epi32(out[half], w, x)
                } else {
                    let pairs = if BIASED {
                        let signed = _mm256_xor_si256(w, _mm256_set1_epi8(-128));
                        _mm256_maddubs_epi16(_mm256_abs_epi8(signed), _mm256_sign_epi8(x, signed))
                    } else {
                        _mm256_maddubs_epi16(w, x)
                    };
                    let quads = _mm256_madd_epi16(pairs, _mm256_set1_epi16(1));
                    _mm256_add_epi32(out[half], quads)
                }
            };
        }
        out
    }

    #[inline(always)]
    fn dot2(self, acc: I, a: I, b: I) -> I {
        // SAFETY: `self` proves that the machine has the instructions.
        unsafe {
            if VNNI {
                halves!(_mm256_dpwssd_avx_epi32, acc, a, b)
            } else {
                let products = halves!(_mm256_madd_epi16, a, b);
                halves!(_mm256_add_epi32, acc, products)
            }
        }
    }

    #[inline(always)]
    fn zero_factor<const BIASED: bool>(self, zero: i32) -> i32 {
        if BIASED && !VNNI { 128 - zero } else { -zero }
    }

    #[inline(always)]
    fn gemm_weights(self, weights: I, zero: i32) -> I {
        // SAFETY: `self` proves that the machine has the instructions.
        unsafe {
            let zero = [_mm256_set1_epi8(zero as i8); 2];
            halves!(_mm256_sub_epi8, weights, zero)
        }
    }

    #[inline(always)]
    unsafe fn gemm_splat_x4(self, from: *const u8) -> I {
        // SAFETY: `self` proves the instructions, the caller the memory.
        unsafe { self.splat_x4(from) }
    }

    /// Without VNNI, weights beyond 64 go through signs and magnitudes, and inputs are signed.
    #[inline(always)]
    fn gemm_dot4<const BIASED: bool>(self, acc: I, weights: I, x: I) -> I {
        // SAFETY: `self` proves that the machine has the instructions.
        unsafe {
            if VNNI {
                halves!(_mm256_dpbusd_avx_epi32, acc, x, weights)
            } else if BIASED {
                let x = halves!(_mm256_xor_si256, x, [_mm256_set1_epi8(-128); 2]);
                let x = halves!(_mm256_sign_epi8, x, weights);
                let weights = halves!(_mm256_abs_epi8, weights);
                self.add_pair_sums(acc, halves!(_mm256_maddubs_epi16, weights, x))
            } else {
                self.add_pair_sums(acc, self.pair_sums(weights, x))
            }
        }
    }

    #[inline(always)]
    fn pair_sums(self, weights: I, x: I) -> I {
        // SAFETY: `self` proves that the machine has the instructions.
        unsafe { halves!(_mm256_maddubs_epi16, x, weights) }
    }

    #[inline(always)]
    fn add_i16(self, a: I, b: I) -> I {
        // SAFETY: `self` proves that the machine has the instructions.
        unsafe { halves!(_mm256_add_epi16, a, b) }
    }

    #[inline(always)]
    fn add_pair_sums(self, acc: I, pairs: I) -> I {
        // SAFETY: `self` proves that the machine has the instructions.
        unsafe {
            let sums = halves!(_mm256_madd_epi16, pairs, [_mm256_set1_epi16(1); 2]);
            halves!(_mm256_add_epi32, acc, sums)
        }
    }

    #[inline(always)]
    unsafe fn entries<const N: usize>(
        self,
        table: &[u32; N],
        low: *const u8,
        high: *const u8,
    ) -> I {
        // SAFETY: `self` proves the instructions, the caller the memory.
        unsafe {
            let lanes = array_of!(4, _mm_setzero_si128(), i => {
                four_entries(table, low, high, 4 * i)
            });
            let halves = [_mm256_castsi128_si256(lanes[0]), _mm256_castsi128_si256(lanes[2])];
            [
                _mm256_inserti128_si256::<1>(halves[0], lanes[1]),
                _mm256_inserti128_si256::<1>(halves[1], lanes[3]),
            ]
        }
    }
}

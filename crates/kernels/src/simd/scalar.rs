//! The definition of every vector operation, in plain Rust; also the fallback for machines without
//! vectors. Fused multiply-add without hardware takes ten operations, so this is slow but exact,
//! and functions that cost more than a call stay calls: kernels stay small.

use super::fused::fused;
use super::{LANES, Simd};
use half::{bf16, f16};

/// Plain Rust: any machine has it.
#[derive(Clone, Copy)]
pub(crate) struct Scalar;

type F = [f32; LANES];
type I = [i32; LANES];

#[inline(always)]
fn zip<T: Copy, R: Copy + Default>(
    a: [T; LANES],
    b: [T; LANES],
    op: impl Fn(T, T) -> R,
) -> [R; LANES] {
    let mut out = [R::default(); LANES];
    for lane in 0..LANES {
        out[lane] = op(a[lane], b[lane]);
    }
    out
}

/// Reads `LANES` elements.
///
/// # Safety
/// `from` points to that many readable elements.
#[inline(always)]
unsafe fn read<T: Copy>(from: *const T) -> [T; LANES] {
    // SAFETY: the caller promises the elements; no alignment is assumed.
    unsafe { from.cast::<[T; LANES]>().read_unaligned() }
}

impl Simd for Scalar {
    type F = F;
    type I = I;
    const WIDE_TILES: bool = false;
    const CALLS: bool = true;
    const ROW_TILES: bool = false;
    const GEMM_ROWS: usize = 1;

    #[inline(always)]
    fn splat(self, x: f32) -> F {
        [x; LANES]
    }
    #[inline(always)]
    unsafe fn load(self, from: *const f32) -> F {
        // SAFETY: as the trait says.
        unsafe { read(from) }
    }
    #[inline(always)]
    unsafe fn store(self, to: *mut f32, v: F) {
        // SAFETY: as the trait says.
        unsafe { to.cast::<F>().write_unaligned(v) }
    }
    #[inline(never)]
    unsafe fn load_f16(self, from: *const u16) -> F {
        // SAFETY: as the trait says.
        unsafe { read(from) }.map(|bits| f16::from_bits(bits).to_f32())
    }
    #[inline(never)]
    unsafe fn store_f16(self, to: *mut u16, v: F) {
        let bits = v.map(|x| f16::from_f32(x).to_bits());
        // SAFETY: as the trait says.
        unsafe { to.cast::<[u16; LANES]>().write_unaligned(bits) }
    }
    #[inline(never)]
    unsafe fn load_bf16(self, from: *const u16) -> F {
        // SAFETY: as the trait says.
        unsafe { read(from) }.map(|bits| bf16::from_bits(bits).to_f32())
    }
    #[inline(never)]
    unsafe fn load_e4m3(self, from: *const u8) -> F {
        // SAFETY: as the trait says. The exponents of half precision are 8 more.
        unsafe { read(from) }.map(|byte: u8| {
            f16::from_bits(u16::from(byte & 0x80) << 8 | u16::from(byte & 0x7f) << 7).to_f32()
        })
    }
    #[inline(always)]
    fn add(self, a: F, b: F) -> F {
        zip(a, b, |a, b| a + b)
    }
    #[inline(always)]
    fn sub(self, a: F, b: F) -> F {
        zip(a, b, |a, b| a - b)
    }
    #[inline(always)]
    fn mul(self, a: F, b: F) -> F {
        zip(a, b, |a, b| a * b)
    }
    #[inline(never)]
    fn div(self, a: F, b: F) -> F {
        zip(a, b, |a, b| a / b)
    }
    #[inline(never)]
    fn fma(self, a: F, b: F, c: F) -> F {
        let mut out = c;
        for lane in 0..LANES {
            out[lane] = fused(a[lane], b[lane], c[lane]);
        }
        out
    }
    #[inline(always)]
    fn max(self, a: F, b: F) -> F {
        zip(a, b, |a, b| if a > b { a } else { b })
    }
    #[inline(always)]
    fn min(self, a: F, b: F) -> F {
        zip(a, b, |a, b| if a < b { a } else { b })
    }
    #[inline(always)]
    fn abs(self, v: F) -> F {
        v.map(f32::abs)
    }
    #[inline(never)]
    fn keep_from(self, v: F, x: F, limit: F) -> F {
        let mut out = v;
        for lane in 0..LANES {
            if x[lane] < limit[lane] {
                out[lane] = 0.0;
            }
        }
        out
    }
    #[inline(never)]
    fn sum(self, v: F) -> f32 {
        let mut v = v;
        for half in [8, 4, 2, 1] {
            for lane in 0..half {
                v[lane] += v[lane + half];
            }
        }
        v[0]
    }
    #[inline(never)]
    fn top(self, v: F) -> f32 {
        v.into_iter().fold(v[0], |top, x| if x > top { x } else { top })
    }
    #[inline(always)]
    fn splat_i(self, x: i32) -> I {
        [x; LANES]
    }
    #[inline(always)]
    unsafe fn load_i(self, from: *const u8) -> I {
        // SAFETY: as the trait says.
        unsafe { read(from.cast::<[u8; 4]>()) }.map(i32::from_le_bytes)
    }
    #[inline(always)]
    unsafe fn store_i(self, to: *mut u8, v: I) {
        // SAFETY: as the trait says.
        unsafe { to.cast::<[[u8; 4]; LANES]>().write_unaligned(v.map(i32::to_le_bytes)) }
    }
    #[inline(always)]
    unsafe fn load_u8(self, from: *const u8) -> I {
        // SAFETY: as the trait says.
        unsafe { read(from) }.map(i32::from)
    }
    #[inline(always)]
    unsafe fn load_i8(self, from: *const u8) -> I {
        // SAFETY: as the trait says.
        unsafe { read(from.cast::<i8>()) }.map(i32::from)
    }
    #[inline(always)]
    unsafe fn load_u16(self, from: *const u8) -> I {
        // SAFETY: as the trait says.
        unsafe { read(from.cast::<[u8; 2]>()) }.map(|bytes| i32::from(u16::from_le_bytes(bytes)))
    }
    #[inline(always)]
    unsafe fn store_i8(self, to: *mut i8, v: I) {
        // SAFETY: as the trait says.
        unsafe { to.cast::<[i8; LANES]>().write_unaligned(v.map(|x| x as i8)) }
    }
    #[inline(always)]
    unsafe fn store_i16(self, to: *mut i16, v: I) {
        // SAFETY: as the trait says.
        unsafe { to.cast::<[i16; LANES]>().write_unaligned(v.map(|x| x as i16)) }
    }
    #[inline(always)]
    fn and(self, a: I, b: I) -> I {
        zip(a, b, |a, b| a & b)
    }
    #[inline(always)]
    fn or(self, a: I, b: I) -> I {
        zip(a, b, |a, b| a | b)
    }
    #[inline(always)]
    fn xor(self, a: I, b: I) -> I {
        zip(a, b, |a, b| a ^ b)
    }
    #[inline(always)]
    fn add_i(self, a: I, b: I) -> I {
        zip(a, b, i32::wrapping_add)
    }
    #[inline(always)]
    fn sub_i(self, a: I, b: I) -> I {
        zip(a, b, i32::wrapping_sub)
    }
    #[inline(always)]
    fn max_i(self, a: I, b: I) -> I {
        zip(a, b, i32::max)
    }
    #[inline(always)]
    fn min_i(self, a: I, b: I) -> I {
        zip(a, b, i32::min)
    }
    #[inline(always)]
    fn shl(self, v: I, bits: u32) -> I {
        v.map(|x| x << bits)
    }
    #[inline(always)]
    fn shr(self, v: I, bits: u32) -> I {
        v.map(|x| (x as u32 >> bits) as i32)
    }
    #[inline(never)]
    fn mul_i16(self, a: I, b: I) -> I {
        zip(a, b, |a, b| {
            let (low, high) = (a.wrapping_mul(b), (a >> 16).wrapping_mul(b >> 16));
            low & 0xffff | high << 16
        })
    }
    #[inline(never)]
    fn shr_i16<const BITS: u32>(self, v: I) -> I {
        v.map(|x| i32::from(x as i16 >> BITS) & 0xffff | (x >> 16 >> BITS) << 16)
    }
    #[inline(never)]
    fn transpose(self, v: [I; LANES]) -> [I; LANES] {
        let mut out = v;
        for i in 0..LANES {
            for j in 0..LANES {
                out[j][i] = v[i][j];
            }
        }
        out
    }
    #[inline(never)]
    fn lookup(self, table: &[u8; 16], v: I) -> I {
        v.map(|x| i32::from_le_bytes(x.to_le_bytes().map(|byte| table[usize::from(byte & 15)])))
    }
    #[inline(always)]
    fn to_f(self, v: I) -> F {
        v.map(|x| x as f32)
    }
    #[inline(never)]
    fn to_i(self, v: F) -> I {
        v.map(|x| x.round_ties_even() as i32)
    }
    #[inline(always)]
    fn cast_f(self, v: I) -> F {
        v.map(|x| f32::from_bits(x as u32))
    }
    #[inline(always)]
    fn cast_i(self, v: F) -> I {
        v.map(|x| x.to_bits() as i32)
    }
    #[inline(never)]
    fn dot4<const BIASED: bool>(self, acc: I, weights: I, x: I) -> I {
        let mut out = acc;
        for lane in 0..LANES {
            let (weights, x) = (weights[lane].to_le_bytes(), x[lane].to_le_bytes());
            for byte in 0..4 {
                out[lane] += i32::from(weights[byte]) * i32::from(x[byte] as i8);
            }
        }
        out
    }
    #[inline(never)]
    fn dot2(self, acc: I, a: I, b: I) -> I {
        let mut out = acc;
        for lane in 0..LANES {
            let low = i32::from(a[lane] as i16) * i32::from(b[lane] as i16);
            let high = (a[lane] >> 16) * (b[lane] >> 16);
            out[lane] = out[lane].wrapping_add(low).wrapping_add(high);
        }
        out
    }
    #[inline(always)]
    unsafe fn splat_x4(self, from: *const u8) -> I {
        // SAFETY: as the trait says; four bytes are read.
        [i32::from_le_bytes(unsafe { from.cast::<[u8; 4]>().read() }); LANES]
    }
    #[inline(always)]
    unsafe fn gemm_splat_x4(self, from: *const u8) -> I {
        // SAFETY: as the trait says; four bytes are read.
        let bytes = unsafe { from.cast::<[u8; 4]>().read() };
        [i32::from_le_bytes(bytes.map(|byte| byte ^ 0x80)); LANES]
    }
    #[inline(always)]
    fn zero_factor<const BIASED: bool>(self, zero: i32) -> i32 {
        -zero
    }
    #[inline(always)]
    fn prefetch(self, _from: *const u8) {}

    #[inline(always)]
    fn prefetch_l2(self, _from: *const u8) {}
}

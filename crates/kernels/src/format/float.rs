//! F32, F16 and BF16: a record is one column of 16 rows.

use crate::simd::Simd;
use gguf::TensorType;

/// A type of float weights.
pub(crate) trait FloatFormat: 'static {
    const TYPE: TensorType;
    /// Bytes of one number.
    const BYTES: usize;

    /// # Safety
    /// `from` points to 16 numbers of this type.
    unsafe fn load<S: Simd>(s: S, from: *const u8) -> S::F;
}

pub(crate) struct F32;
pub(crate) struct F16;
pub(crate) struct Bf16;

impl FloatFormat for F32 {
    const TYPE: TensorType = TensorType::F32;
    const BYTES: usize = 4;
    #[inline(always)]
    unsafe fn load<S: Simd>(s: S, from: *const u8) -> S::F {
        // SAFETY: the caller promises 16 numbers.
        unsafe { s.load(from.cast()) }
    }
}

impl FloatFormat for F16 {
    const TYPE: TensorType = TensorType::F16;
    const BYTES: usize = 2;
    #[inline(always)]
    unsafe fn load<S: Simd>(s: S, from: *const u8) -> S::F {
        // SAFETY: the caller promises 16 numbers.
        unsafe { s.load_f16(from.cast()) }
    }
}

impl FloatFormat for Bf16 {
    const TYPE: TensorType = TensorType::BF16;
    const BYTES: usize = 2;
    #[inline(always)]
    unsafe fn load<S: Simd>(s: S, from: *const u8) -> S::F {
        // SAFETY: the caller promises 16 numbers.
        unsafe { s.load_bf16(from.cast()) }
    }
}

//! F32, F16 and BF16, of which a record is one column of 16 rows, and FP8 with a scale for 128
//! columns.

use super::RowBlocks;
use super::simple::gather;
use crate::simd::{LANES, Simd};
use gguf::TensorType;

/// A type of float weights.
pub(crate) trait FloatFormat: 'static {
    const TYPE: TensorType;
    /// Bytes of one number.
    const BYTES: usize;
    /// Columns of a record.
    const COLS: usize = 1;
    /// Bytes of a record in front of its columns.
    const HEADER: usize = 0;
    /// Bytes of a record.
    const RECORD: usize = Self::HEADER + Self::COLS * Self::BYTES * LANES;

    /// Packs one GGUF block of each of 16 rows.
    #[inline(always)]
    fn pack(blocks: &RowBlocks, record: &mut [u8]) {
        for (block, number) in blocks.iter().zip(record.chunks_exact_mut(Self::BYTES)) {
            number.copy_from_slice(&block[..Self::BYTES]);
        }
    }

    /// The address of column `col` of a panel; any number is allowed.
    #[inline(always)]
    fn at(panel: *const u8, col: usize) -> *const u8 {
        let record = panel.wrapping_add(col / Self::COLS * Self::RECORD);
        record.wrapping_add(Self::HEADER + col % Self::COLS * Self::BYTES * LANES)
    }

    /// The numbers of column `col`.
    ///
    /// # Safety
    /// The panel has this column.
    unsafe fn column<S: Simd>(s: S, panel: *const u8, col: usize) -> S::F;
}

pub(crate) struct F32;
pub(crate) struct F16;
pub(crate) struct Bf16;

impl FloatFormat for F32 {
    const TYPE: TensorType = TensorType::F32;
    const BYTES: usize = 4;
    #[inline(always)]
    unsafe fn column<S: Simd>(s: S, panel: *const u8, col: usize) -> S::F {
        // SAFETY: the caller promises the column.
        unsafe { s.load(Self::at(panel, col).cast()) }
    }
}

impl FloatFormat for F16 {
    const TYPE: TensorType = TensorType::F16;
    const BYTES: usize = 2;
    #[inline(always)]
    unsafe fn column<S: Simd>(s: S, panel: *const u8, col: usize) -> S::F {
        // SAFETY: the caller promises the column.
        unsafe { s.load_f16(Self::at(panel, col).cast()) }
    }
}

impl FloatFormat for Bf16 {
    const TYPE: TensorType = TensorType::BF16;
    const BYTES: usize = 2;
    #[inline(always)]
    unsafe fn column<S: Simd>(s: S, panel: *const u8, col: usize) -> S::F {
        // SAFETY: the caller promises the column.
        unsafe { s.load_bf16(Self::at(panel, col).cast()) }
    }
}

/// E4M3 with one scale for 128 columns of a row. A row with a NaN there gets a NaN for its scale.
pub(crate) struct F8E4m3;

/// A byte's bits as half precision are its number divided by this.
const E4M3_UNIT: f32 = 256.0;

impl FloatFormat for F8E4m3 {
    const TYPE: TensorType = TensorType::F8_E4M3_128;
    const BYTES: usize = 1;
    const COLS: usize = 128;
    const HEADER: usize = 4 * LANES;

    #[inline(always)]
    fn pack(blocks: &RowBlocks, record: &mut [u8]) {
        let (scales, columns) = record.split_at_mut(Self::HEADER);
        for (block, scale) in blocks.iter().zip(scales.chunks_exact_mut(4)) {
            let (own, bytes) = block.split_first_chunk::<4>().expect("a whole block");
            let has_nan = bytes.iter().any(|byte| byte & 0x7f == 0x7f);
            let own = if has_nan { f32::NAN } else { f32::from_le_bytes(*own) };
            scale.copy_from_slice(&(own * E4M3_UNIT).to_le_bytes());
        }
        for (k, column) in columns.chunks_exact_mut(LANES).enumerate() {
            gather::<1>(blocks, 4 + k, column);
        }
    }
    #[inline(always)]
    unsafe fn column<S: Simd>(s: S, panel: *const u8, col: usize) -> S::F {
        let record = panel.wrapping_add(col / Self::COLS * Self::RECORD);
        // SAFETY: the caller promises the column, and its record starts with 16 scales.
        unsafe { s.mul(s.load_e4m3(Self::at(panel, col)), s.load(record.cast())) }
    }
}

//! The packed layout of each GGUF type, and its decoding.
//!
//! A matrix is cut into *panels* of 16 rows, so that one vector holds the same column of 16 rows
//! and no sum ever runs across lanes. Within a panel, a *record* holds one GGUF block of each of
//! the 16 rows, in exactly the bytes of the 16 blocks:
//!
//! ```text
//! record     = header (scales of the 16 rows), then one tile per 32 columns
//! tile       = scales that no other tile has, if there are any, then 16 rows x 32 columns of
//!              weights of b bits, as b vectors
//! unpacked   = 8 vectors; vector i, lane r, byte j = weight of row r, column 4i + j
//! 2, 4, 8    each byte of vector v has those of unpacked v, v + b, v + 2b ..., the first one in
//!            the lowest bits
//! 3, 5, 6    likewise as many whole ones as fit; the spare bits of all vectors, one after the
//!            other, hold the unpacked vectors that are left
//! ```
//!
//! A weight's value is `(w - ZERO) * scale + offset`, computed in f32 in this order, as GGUF
//! defines it. Float types need no such thing: their record is one column of 16 rows, or 128 of
//! them with their scales.
//!
//! Source: the block structures and `dequantize_row_*` of ggml (ggml-common.h, ggml-quants.c).

mod affine;
mod few_bits;
mod float;
mod iq;
mod k_quants;
mod quantised;
#[cfg(test)]
pub(crate) mod reference;
mod simple;
mod tiles;
mod trits;

pub(crate) use affine::*;
pub(crate) use few_bits::{Nvfp4, Q1_0, Q2_0, Tq2_0};
pub(crate) use float::{Bf16, F8E4m3, F16, F32, FloatFormat};
pub(crate) use iq::{Codebook, Iq1M, Iq1S, Iq2S, Iq2Xs, Iq2Xxs, Iq3S, Iq3Xxs};
pub(crate) use k_quants::{Iq4Xs, Q2K, Q3K, Q4K, Q5K, Q6K};
pub(crate) use quantised::{
    Quantised, RECORD_TILES_MAX, RowBlocks, Scales, pack_record, read_tile,
};
pub(crate) use simple::{Iq4Nl, Mxfp4, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0};
pub(crate) use tiles::{TILE, TILE_COLS, Words};
pub(crate) use trits::Tq1_0;

/// Runs `$body` with `$Format` as the quantised type of `$ty`, or `$other`.
macro_rules! with_quantised {
    ($ty:expr, $Format:ident => $body:expr, _ => $other:expr) => {
        $crate::format::with_quantised!(@ $ty, $Format, $body, $other,
            Q8_0 Q8_0, Q4_0 Q4_0, Q4_1 Q4_1, Q5_0 Q5_0, Q5_1 Q5_1, IQ4_NL Iq4Nl, MXFP4 Mxfp4,
            Q4_K Q4K, Q5_K Q5K, Q6_K Q6K, Q2_K Q2K, Q3_K Q3K, IQ4_XS Iq4Xs,
            IQ1_S Iq1S, IQ1_M Iq1M, IQ2_XXS Iq2Xxs, IQ2_XS Iq2Xs, IQ2_S Iq2S, IQ3_XXS Iq3Xxs,
            IQ3_S Iq3S, NVFP4 Nvfp4, Q1_0 Q1_0, Q2_0 Q2_0, TQ1_0 Tq1_0, TQ2_0 Tq2_0,
            AFFINE2_32 Affine2x32, AFFINE2_64 Affine2x64, AFFINE2_128 Affine2x128,
            AFFINE3_32 Affine3x32, AFFINE3_64 Affine3x64, AFFINE3_128 Affine3x128,
            AFFINE4_32 Affine4x32, AFFINE4_64 Affine4x64, AFFINE4_128 Affine4x128,
            AFFINE5_32 Affine5x32, AFFINE5_64 Affine5x64, AFFINE5_128 Affine5x128,
            AFFINE6_32 Affine6x32, AFFINE6_64 Affine6x64, AFFINE6_128 Affine6x128,
            AFFINE8_32 Affine8x32, AFFINE8_64 Affine8x64, AFFINE8_128 Affine8x128)
    };
    (@ $ty:expr, $Format:ident, $body:expr, $other:expr, $($name:ident $format:ident),*) => {
        match $ty {
            $(gguf::TensorType::$name => {
                type $Format = $crate::format::$format;
                $body
            })*
            _ => $other,
        }
    };
}
pub(crate) use with_quantised;

/// Runs `$body` with `$Format` as the float type of `$ty`, or `$other`.
macro_rules! with_float {
    ($ty:expr, $Format:ident => $body:expr, _ => $other:expr) => {
        match $ty {
            gguf::TensorType::F32 => {
                type $Format = $crate::format::F32;
                $body
            }
            gguf::TensorType::F16 => {
                type $Format = $crate::format::F16;
                $body
            }
            gguf::TensorType::BF16 => {
                type $Format = $crate::format::Bf16;
                $body
            }
            gguf::TensorType::F8_E4M3_128 => {
                type $Format = $crate::format::F8E4m3;
                $body
            }
            _ => $other,
        }
    };
}
pub(crate) use with_float;

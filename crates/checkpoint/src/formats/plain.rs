//! Quantised weights as plain numbers, where a model needs those: routers, and the up-projections
//! of latent attention, which are transposed.

use gguf::TensorType;
use half::bf16;

use crate::element::power_of_two;
use crate::recipe::{Map, Recipe};

/// Numbers of E2M1 without their sign.
const E2M1: [f32; 8] = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0];

/// A string of blocks as f32; `None` for types that no checkpoint becomes.
pub(crate) fn f32_of(of: Recipe, ty: TensorType) -> Option<Recipe> {
    let bits = (ty.block_bytes().checked_sub(6)? * 8) / ty.block_len();
    let map: Map = match ty {
        TensorType::F8_E4M3_128 => E4M3,
        TensorType::MXFP4 => MXFP4,
        _ if !ty.is_own() => return None,
        _ => match bits {
            2 => |parts, out| affine(parts[0], out, 2),
            3 => |parts, out| affine(parts[0], out, 3),
            4 => |parts, out| affine(parts[0], out, 4),
            5 => |parts, out| affine(parts[0], out, 5),
            6 => |parts, out| affine(parts[0], out, 6),
            8 => |parts, out| affine(parts[0], out, 8),
            _ => return None,
        },
    };
    let block = ty.block_bytes() as u64;
    Some(Recipe::mapped(vec![(of, block)], 4 * ty.block_len() as u64, map))
}

/// A string of f32 as bf16, rounded to the nearest.
pub(crate) fn bf16_of_f32(of: Recipe) -> Recipe {
    Recipe::mapped(vec![(of, 4)], 2, |parts, out| {
        let numbers = parts[0].as_chunks::<4>().0;
        for (out, number) in out.as_chunks_mut::<2>().0.iter_mut().zip(numbers) {
            *out = bf16::from_f32(f32::from_le_bytes(*number)).to_le_bytes();
        }
    })
}

const E4M3: Map = |parts, out| {
    for (out, block) in out.chunks_exact_mut(4 * 128).zip(parts[0].chunks_exact(132)) {
        let scale = f32::from_le_bytes([block[0], block[1], block[2], block[3]]);
        for (out, byte) in out.as_chunks_mut::<4>().0.iter_mut().zip(&block[4..]) {
            *out = (e4m3(*byte) * scale).to_le_bytes();
        }
    }
};

/// A number of E4M3 without infinities.
pub(super) fn e4m3(byte: u8) -> f32 {
    let (exponent, fraction) = (u32::from(byte >> 3 & 15), f32::from(byte & 7));
    // The power of two of an exponent, as bits.
    let power = f32::from_bits((exponent.max(1) + 127 - 10) << 23);
    let size = match (exponent, byte & 7) {
        (15, 7) => f32::NAN,
        (0, _) => fraction * power,
        _ => (8.0 + fraction) * power,
    };
    if byte & 0x80 == 0 { size } else { -size }
}

const MXFP4: Map = |parts, out| {
    for (out, block) in out.chunks_exact_mut(4 * 32).zip(parts[0].chunks_exact(17)) {
        let scale = power_of_two(block[0]);
        for (at, out) in out.as_chunks_mut::<4>().0.iter_mut().enumerate() {
            let code = block[1 + at % 16] >> (at / 16 * 4) & 15;
            let size = E2M1[usize::from(code & 7)] * scale;
            *out = if code & 8 == 0 { size } else { -size }.to_le_bytes();
        }
    }
};

/// Blocks of scale, bias, and quants of `bits` bits.
fn affine(blocks: &[u8], out: &mut [u8], bits: usize) {
    let numbers = out.len() / 4;
    let count = (blocks.len() - numbers * bits / 8) / 6;
    let (block, group) = (blocks.len() / count, numbers / count);
    for (out, block) in out.chunks_exact_mut(4 * group).zip(blocks.chunks_exact(block)) {
        let float = |high: usize, low: usize| {
            f32::from_le_bytes([0, block[low], block[high], block[high + 1]])
        };
        let (scale, bias, quants) = (float(0, 4), float(2, 5), &block[6..]);
        for (at, out) in out.as_chunks_mut::<4>().0.iter_mut().enumerate() {
            let (byte, shift) = (at * bits / 8, at * bits % 8);
            let next = quants.get(byte + 1).copied().unwrap_or(0);
            let q = u16::from_le_bytes([quants[byte], next]) >> shift & ((1 << bits) - 1);
            *out = (scale * f32::from(q) + bias).to_le_bytes();
        }
    }
}

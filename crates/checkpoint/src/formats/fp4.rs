//! Weights in E2M1, four bits: MXFP4 with a power of two for 32 numbers, and NVFP4 with a scale in
//! E4M3 for 16 and a factor for the whole.
//!
//! Checkpoints pack neighbours into a byte, the first in the low bits. GGUF packs the two halves of
//! a group. Sources: OCP's microscaling formats; gpt-oss; compressed-tensors and ModelOpt.

use gguf::TensorType;

use super::Parts;
use crate::Error;
use crate::dtype::Dtype;
use crate::recipe::{Map, Recipe};
use crate::weight::Weight;

pub(super) const MXFP4_GROUP: u64 = 32;
pub(super) const NVFP4_GROUP: u64 = 16;
/// Numbers in a block of NVFP4, with their scales in front.
const NVFP4_BLOCK: u64 = 64;

impl Parts<'_, '_> {
    /// gpt-oss: `NAME_blocks` of 16 bytes, and `NAME_scales`.
    pub(super) fn mxfp4_blocks(&mut self) -> Result<Weight, Error> {
        let (blocks, quants) = self.take("_blocks")?;
        let (scales_stored, scales) = self.take("_scales")?;
        let is_bytes = blocks.dtype == Dtype::U8 && scales_stored.dtype == Dtype::U8;
        let (groups, bytes) = blocks.shape.split_at(blocks.shape.len().saturating_sub(1));
        if !is_bytes || bytes != [16] || groups.is_empty() || scales_stored.shape != groups {
            return Err(self.wrong(blocks, "a scale for each 16 bytes".to_owned()));
        }
        let (leading, last) = groups.split_at(groups.len() - 1);
        let shape = [leading, &[last[0] * MXFP4_GROUP]].concat();
        let recipe = Recipe::mapped(vec![(scales, 1), (quants, 16)], 17, MXFP4_FROM_PAIRS);
        Ok(Weight::quantised(self.stem.to_owned(), shape, TensorType::MXFP4, recipe))
    }

    /// Packed bytes with `weight_scale`, or DeepSeek V4's `scale`: MXFP4 if that is in E8M0 or of
    /// bytes, NVFP4 if in E4M3.
    pub(super) fn fp4(&mut self, head: &str) -> Result<Weight, Error> {
        let (packed, quants) = self.take(head)?;
        let is_v4 = self.has(".scale") && !self.has(".weight_scale");
        let scale = if is_v4 { ".scale" } else { ".weight_scale" };
        let (stored, scales) = self.take(scale)?;
        let (leading, bytes) = packed.shape.split_at(packed.shape.len().saturating_sub(1));
        let columns = 2 * bytes.first().copied().unwrap_or(0);
        let is_nvfp4 = stored.dtype == Dtype::F8_E4M3;
        let group = if is_nvfp4 { NVFP4_GROUP } else { MXFP4_GROUP };
        let block = if is_nvfp4 { NVFP4_BLOCK } else { MXFP4_GROUP };
        let has_scales = stored.shape[..] == [leading, &[columns / group]].concat();
        if !columns.is_multiple_of(block) || columns == 0 || !has_scales {
            return Err(self.wrong(packed, format!("columns in blocks of {block} with scales")));
        }
        let shape = [leading, &[columns]].concat();
        if !is_nvfp4 {
            let recipe = Recipe::mapped(vec![(scales, 1), (quants, 16)], 17, MXFP4_FROM_PAIRS);
            return Ok(Weight::quantised(self.name(), shape, TensorType::MXFP4, recipe));
        }
        let recipe = Recipe::mapped(vec![(scales, 4), (quants, 32)], 36, NVFP4_FROM_PAIRS);
        let weight = Weight::quantised(self.name(), shape, TensorType::NVFP4, recipe);
        self.with_factor(weight)
    }

    /// NVFP4's factor: `weight_scale_2`, or the inverse of `weight_global_scale`.
    fn with_factor(&mut self, weight: Weight) -> Result<Weight, Error> {
        let inverse = self.has(".weight_global_scale");
        let ending = if inverse { ".weight_global_scale" } else { ".weight_scale_2" };
        let (stored, recipe) = self.take_f32(ending)?;
        if recipe.len() != 4 {
            return Err(self.wrong(stored, "one number".to_owned()));
        }
        let factor = if inverse { Recipe::mapped(vec![(recipe, 4)], 4, INVERSE) } else { recipe };
        Ok(Weight { factor: Some(factor), ..weight })
    }
}

const INVERSE: Map = |parts, out| {
    for (out, number) in out.as_chunks_mut::<4>().0.iter_mut().zip(parts[0].as_chunks::<4>().0) {
        *out = (1.0 / f32::from_le_bytes(*number)).to_le_bytes();
    }
};

/// Number `at` of bytes that hold two each, the first in the low bits.
fn nibble(bytes: &[u8], at: usize) -> u8 {
    bytes[at / 2] >> (at % 2 * 4) & 15
}

/// Packs a group so that byte `i` holds numbers `i` and `i + half`.
fn by_halves(pairs: &[u8], out: &mut [u8]) {
    let half = pairs.len();
    for (at, out) in out.iter_mut().enumerate() {
        *out = nibble(pairs, at) | nibble(pairs, at + half) << 4;
    }
}

/// Blocks of a scale and 16 bytes of pairs.
pub(super) const MXFP4_FROM_PAIRS: Map = |parts, out| {
    let pairs = parts[1].chunks_exact(16);
    for ((out, scale), pairs) in out.chunks_exact_mut(17).zip(parts[0]).zip(pairs) {
        out[0] = *scale;
        by_halves(pairs, &mut out[1..]);
    }
};

/// Blocks of four scales and four groups of 8 bytes of pairs. Scales have no sign in GGUF.
pub(super) const NVFP4_FROM_PAIRS: Map = |parts, out| {
    let blocks = parts[0].chunks_exact(4).zip(parts[1].chunks_exact(32));
    for (out, (scales, pairs)) in out.chunks_exact_mut(36).zip(blocks) {
        for (out, scale) in out.iter_mut().zip(scales) {
            *out = scale & 0x7f;
        }
        for (out, pairs) in out[4..].chunks_exact_mut(8).zip(pairs.chunks_exact(8)) {
            by_halves(pairs, out);
        }
    }
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_are_packed_by_halves() {
        // Numbers 0 to 15, twice.
        let pairs: Vec<u8> = (0..16).map(|at| (2 * at % 16) | (((2 * at + 1) % 16) << 4)).collect();
        let mut block = [0; 17];
        MXFP4_FROM_PAIRS(&[&[7], &pairs], &mut block);
        assert_eq!(block[0], 7);
        for (at, byte) in block[1..].iter().enumerate() {
            assert_eq!((byte & 15, byte >> 4), (at as u8, at as u8));
        }
        let mut block = [0; 36];
        NVFP4_FROM_PAIRS(&[&[0x81, 2, 3, 4], &[pairs.clone(), pairs].concat()], &mut block);
        assert_eq!(block[..4], [1, 2, 3, 4]);
        assert_eq!(block[4..12], [0x80, 0x91, 0xa2, 0xb3, 0xc4, 0xd5, 0xe6, 0xf7]);
    }
}

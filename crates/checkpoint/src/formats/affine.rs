//! MLX's weights: groups of 2 to 8 bits with a scale and a bias each, MXFP4, MXFP8 or NVFP4.
//!
//! Source: the format of mlx (`mx.quantize`) and `quantization` in mlx-lm's config.json.

use gguf::TensorType;

use super::Parts;
use super::fp4::{MXFP4_FROM_PAIRS, MXFP4_GROUP, NVFP4_FROM_PAIRS, NVFP4_GROUP};
use super::fp8::MXFP8_GROUP;
use crate::Error;
use crate::config::Config;
use crate::dtype::Dtype;
use crate::recipe::{Map, Recipe};
use crate::weight::Weight;

/// Of a block, in front of its quants: scale and bias.
const HEAD_BYTES: usize = 6;

impl Parts<'_, '_> {
    /// `weight` of packed words, `scales` and `biases`, a group of each in a row.
    pub(super) fn mlx(&mut self) -> Result<Weight, Error> {
        let (words, quants) = self.take(".weight")?;
        let (mode, group) = self.mlx_options()?;
        if words.dtype != Dtype::U32 {
            let why = format!("has the type {}; U32 is needed beside scales", words.dtype.name());
            return Err(Error::tensor(&words.name, why));
        }
        let (leading, row) = words.shape.split_at(words.shape.len().saturating_sub(1));
        let row_bits = 32 * row.first().copied().unwrap_or(0);
        let scales_shape = self.take(".scales")?.0;
        let groups = scales_shape.shape.last().copied().unwrap_or(0);
        let columns = groups.saturating_mul(group);
        if scales_shape.shape[..] != [leading, &[groups]].concat() || columns == 0 {
            return Err(self.wrong(scales_shape, format!("groups of the rows {leading:?}")));
        }
        let shape = [leading, &[columns]].concat();
        if mode == "mxfp4" && group == MXFP4_GROUP && row_bits == 4 * columns {
            let (_, scales) = self.take(".scales")?;
            let recipe = Recipe::mapped(vec![(scales, 1), (quants, 16)], 17, MXFP4_FROM_PAIRS);
            return Ok(Weight::quantised(self.name(), shape, TensorType::MXFP4, recipe));
        }
        if mode == "nvfp4" && group == NVFP4_GROUP && row_bits == 4 * columns && columns % 64 == 0 {
            let (_, scales) = self.take(".scales")?;
            let recipe = Recipe::mapped(vec![(scales, 4), (quants, 32)], 36, NVFP4_FROM_PAIRS);
            return Ok(Weight::quantised(self.name(), shape, TensorType::NVFP4, recipe));
        }
        if mode == "mxfp8" && group == MXFP8_GROUP && row_bits == 8 * columns {
            return self.mxfp8(".weight", ".scales");
        }
        let bits = row_bits / columns;
        let ty = affine(bits, group).filter(|_| mode == "affine" && bits * columns == row_bits);
        let ty = ty.ok_or_else(|| {
            let wanted = "2 to 6 or 8 bits in groups of 32, 64 or 128, MXFP4, MXFP8 or NVFP4";
            let found =
                format!("{row_bits} bits for {columns} columns in groups of {group}, {mode}");
            Error::tensor(&words.name, format!("has {found}; {wanted} can be read"))
        })?;
        let (scales, biases) = (self.halves(".scales")?, self.halves(".biases")?);
        let parts = vec![(scales, 4), (biases, 4), (quants, bits * group / 8)];
        let recipe = Recipe::mapped(parts, ty.block_bytes() as u64, AFFINE);
        Ok(Weight::quantised(self.name(), shape, ty, recipe))
    }

    /// Scales or biases, which must have at most 16 bits to be kept exactly.
    pub(super) fn halves(&mut self, ending: &str) -> Result<Recipe, Error> {
        let (stored, recipe) = self.take_f32(ending)?;
        match stored.dtype {
            Dtype::BF16 | Dtype::F16 => Ok(recipe),
            dtype => {
                let why = format!("has the type {}; BF16 or F16 is needed", dtype.name());
                Err(Error::tensor(&stored.name, why))
            }
        }
    }

    /// Mode and length of groups: the weight's own, or those of all.
    fn mlx_options(&self) -> Result<(String, u64), Error> {
        let all = ["quantization", "quantization_config"].map(|key| self.config.object(key));
        let all = all.into_iter().find(|one| one.get("group_size").is_some());
        let all = all.unwrap_or_else(|| Config::new(Default::default()));
        let own = all.object(self.stem);
        let of = |one: &Config| -> Result<_, Error> {
            Ok((one.find_str(&["mode"])?, one.find_u64(&["group_size"])?))
        };
        let ((own_mode, own_group), (mode, group)) = (of(&own)?, of(&all)?);
        let mode = own_mode.or(mode).unwrap_or_else(|| "affine".to_owned());
        let usual = match mode.as_str() {
            "mxfp4" => MXFP4_GROUP,
            "mxfp8" => MXFP8_GROUP,
            "nvfp4" => NVFP4_GROUP,
            _ => 64,
        };
        Ok((mode, own_group.or(group).unwrap_or(usual)))
    }
}

/// The type of groups of `group` numbers of `bits` bits.
pub(super) fn affine(bits: u64, group: u64) -> Option<TensorType> {
    let number =
        gguf::OWN_TYPES + u32::try_from(bits.checked_mul(1000)?.checked_add(group)?).ok()?;
    let ty = (bits > 1).then(|| TensorType::from_u32(number)).flatten()?;
    (ty.block_len() as u64 == group && ty != TensorType::F8_E4M3_128).then_some(ty)
}

/// Blocks of scales (f32), biases (f32) and quants.
pub(super) const AFFINE: Map = |parts, out| {
    let (scales, _) = parts[0].as_chunks::<4>();
    let (biases, _) = parts[1].as_chunks::<4>();
    let (block, quants) = (out.len() / scales.len(), parts[2].len() / scales.len());
    for (at, out) in out.chunks_exact_mut(block).enumerate() {
        let (scale, bias) = (scales[at], biases[at]);
        out[..HEAD_BYTES]
            .copy_from_slice(&[scale[2], scale[3], bias[2], bias[3], scale[1], bias[1]]);
        out[HEAD_BYTES..].copy_from_slice(&parts[2][at * quants..][..quants]);
    }
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn types_are_found_by_bits_and_group() {
        assert_eq!(affine(4, 64), Some(TensorType::AFFINE4_64));
        assert_eq!(affine(8, 128), Some(TensorType::AFFINE8_128));
        for (bits, group) in [(7, 64), (4, 16), (0, 128), (1, 64), (u64::MAX, 64), (4, u64::MAX)] {
            assert_eq!(affine(bits, group), None, "{bits} {group}");
        }
    }
}

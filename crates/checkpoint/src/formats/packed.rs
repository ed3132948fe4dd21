//! Weights of integers packed into 32-bit words, with a scale and perhaps a zero point for each
//! group: compressed-tensors, and GPTQ without reordered columns.

use gguf::TensorType;

use super::Parts;
use super::affine::{AFFINE, affine};
use crate::Error;
use crate::dtype::Dtype;
use crate::recipe::{Map, Recipe, View};
use crate::weight::Weight;

impl Parts<'_, '_> {
    /// `weight_packed` along rows, `weight_scale`, and `weight_zero_point` packed along columns.
    pub(super) fn packed(&mut self) -> Result<Weight, Error> {
        let (words, quants) = self.take(".weight_packed")?;
        let (stored, scales) = self.take_f32(".weight_scale")?;
        let ([rows, row], [scale_rows, groups]) = (&words.shape[..], &stored.shape[..]) else {
            return Err(self.wrong(words, "a matrix".to_owned()));
        };
        let (rows, groups) = (*rows, *groups);
        if rows != *scale_rows {
            return Err(self.wrong(stored, format!("{rows} rows")));
        }
        let (bits, group) = self.packed_options()?;
        let ty = self.affine(bits, group, 32 * row, groups)?;
        if self.has(".weight_zero_point") {
            let (_, zeros) = self.zeros(".weight_zero_point", bits, [rows, groups], true)?;
            return self.with_zeros(ty, [rows, groups], (scales, zeros, quants));
        }
        let biases = Recipe::mapped(vec![(scales.clone(), 4)], 4, middle(bits));
        self.with_biases(ty, [rows, groups], (scales, biases, quants))
    }

    /// GPTQ: `qweight` packed along the columns of its transpose, `scales`, `qzeros`.
    pub(super) fn gptq(&mut self) -> Result<Weight, Error> {
        let options = self.config.object("quantization_config");
        let method = options.find_str(&["quant_method"])?.unwrap_or_default();
        let is_reordered = options.find_bool("desc_act")? == Some(true);
        if method != "gptq" || is_reordered {
            let how = if is_reordered { "with reordered columns (desc_act)" } else { &method };
            let why =
                format!("is quantised {how}, which is not read. Use a GGUF file of this model");
            return Err(Error::tensor(&format!("{}.qweight", self.stem), why));
        }
        let bits = options.u64(&["bits"])?;
        let (words, quants) = self.take(".qweight")?;
        let (stored, scales) = self.take_f32(".scales")?;
        let ([row, rows], [groups, _]) = (&words.shape[..], &stored.shape[..]) else {
            return Err(self.wrong(words, "a matrix".to_owned()));
        };
        let (row, rows, groups) = (*row, *rows, *groups);
        if stored.shape[..] != [groups, rows] || words.dtype != Dtype::I32 {
            return Err(self.wrong(stored, format!("{rows} columns")));
        }
        let group = options.u64(&["group_size"])?;
        let ty = self.affine(bits, group, 32 * row, groups)?;
        let transposed = |of, dims: [u64; 2]| {
            let (dims, strides) = (vec![dims[1], dims[0]], vec![1, dims[1]]);
            Recipe::view(View { of, unit: 4, dims, strides, base: 0 })
        };
        let quants = transposed(quants, [row, rows]);
        let scales = transposed(scales, [groups, rows]);
        let is_v2 = options.find_str(&["checkpoint_format"])?.as_deref() == Some("gptq_v2");
        let (_, zeros) = self.zeros(".qzeros", bits, [rows, groups], false)?;
        let zeros = if is_v2 { zeros } else { Recipe::mapped(vec![(zeros, 1)], 1, NEXT) };
        self.with_zeros(ty, [rows, groups], (scales, zeros, quants))
    }

    /// Bits and length of groups of compressed-tensors.
    fn packed_options(&self) -> Result<(u64, u64), Error> {
        let groups = self.config.object("quantization_config").object("config_groups");
        let weights = groups.object("group_0").object("weights");
        Ok((weights.u64(&["num_bits"])?, weights.u64(&["group_size"])?))
    }

    fn affine(
        &self,
        bits: u64,
        group: u64,
        row_bits: u64,
        groups: u64,
    ) -> Result<TensorType, Error> {
        let ty = affine(bits, group).filter(|_| groups.checked_mul(group * bits) == Some(row_bits));
        ty.filter(|_| matches!(bits, 4 | 8)).ok_or_else(|| {
            let found = format!("{bits} bits in {groups} groups of {group}, {row_bits} bits a row");
            let why = format!("has {found}; 4 or 8 bits in whole groups of 32, 64 or 128 are read");
            Error::tensor(&self.name(), why)
        })
    }

    /// Zero points, a byte each: `[rows, groups]`. They are packed along the rows of
    /// `[rows, groups]`, or of its transpose along the columns.
    fn zeros(
        &mut self,
        ending: &str,
        bits: u64,
        [rows, groups]: [u64; 2],
        is_by_row: bool,
    ) -> Result<(u64, Recipe), Error> {
        let (stored, words) = self.take(ending)?;
        let per = 32 / bits;
        let wanted = match is_by_row {
            true => [rows.div_ceil(per), groups],
            false => [groups, rows.div_ceil(per)],
        };
        if stored.shape != wanted || stored.dtype != Dtype::I32 || !rows.is_multiple_of(per) {
            return Err(self.wrong(stored, format!("{wanted:?} of I32")));
        }
        // Bytes of a word, unpacked: [words, per].
        let map = if bits == 4 { NIBBLES } else { BYTES };
        let unpacked = Recipe::mapped(vec![(words, 4)], per, map);
        let (dims, strides) = match is_by_row {
            true => (vec![rows / per, per, groups], vec![groups * per, 1, per]),
            false => (vec![rows, groups], vec![1, rows]),
        };
        let view = View { of: unpacked, unit: 1, dims, strides, base: 0 };
        Ok((per, Recipe::view(view)))
    }

    fn with_zeros(
        &self,
        ty: TensorType,
        sizes: [u64; 2],
        (scales, zeros, quants): (Recipe, Recipe, Recipe),
    ) -> Result<Weight, Error> {
        let biases =
            Recipe::mapped(vec![(scales.clone(), 4), (zeros, 1)], 4, MINUS_SCALE_TIMES_ZERO);
        self.with_biases(ty, sizes, (scales, biases, quants))
    }

    fn with_biases(
        &self,
        ty: TensorType,
        [rows, groups]: [u64; 2],
        (scales, biases, quants): (Recipe, Recipe, Recipe),
    ) -> Result<Weight, Error> {
        let block = ty.block_bytes() as u64;
        let quants = (quants, block - 6);
        let recipe = Recipe::mapped(vec![(scales, 4), (biases, 4), quants], block, AFFINE);
        let shape = vec![rows, groups * ty.block_len() as u64];
        Ok(Weight::quantised(self.name(), shape, ty, recipe))
    }
}

const NIBBLES: Map = |parts, out| {
    for (at, out) in out.iter_mut().enumerate() {
        *out = parts[0][at / 2] >> (at % 2 * 4) & 15;
    }
};

const BYTES: Map = |parts, out| out.copy_from_slice(parts[0]);

/// GPTQ's first form stores zero points less one.
const NEXT: Map = |parts, out| {
    out.iter_mut().zip(parts[0]).for_each(|(out, zero)| *out = zero.wrapping_add(1));
};

const MINUS_SCALE_TIMES_ZERO: Map = |parts, out| {
    let scales = parts[0].as_chunks::<4>().0.iter();
    for ((out, scale), zero) in out.as_chunks_mut::<4>().0.iter_mut().zip(scales).zip(parts[1]) {
        *out = (-f32::from_le_bytes(*scale) * f32::from(*zero)).to_le_bytes();
    }
};

/// The bias of quants whose zero point is the middle of their range.
fn middle(bits: u64) -> Map {
    match bits {
        4 => |parts, out| times(parts[0], out, -8.0),
        _ => |parts, out| times(parts[0], out, -128.0),
    }
}

fn times(numbers: &[u8], out: &mut [u8], factor: f32) {
    for (out, number) in out.as_chunks_mut::<4>().0.iter_mut().zip(numbers.as_chunks::<4>().0) {
        *out = (f32::from_le_bytes(*number) * factor).to_le_bytes();
    }
}

//! Weights in E4M3, eight bits, with a scale for each block of 128 rows and columns, for each row,
//! or for all. MXFP8, with a power of two for 32 numbers, becomes bf16, which holds the same
//! numbers.
//!
//! Source: DeepSeek V3 (`weight_scale_inv`, a factor despite its name) and V4 (`scale`, a power of
//! two), compressed-tensors.

use gguf::TensorType;
use half::bf16;

use super::Parts;
use super::plain::e4m3;
use crate::Error;
use crate::dtype::Dtype;
use crate::element::power_of_two;
use crate::recipe::{Map, Recipe, View};
use crate::shard::Stored;
use crate::weight::Weight;

const BLOCK: u64 = 128;
pub(super) const MXFP8_GROUP: u64 = 32;

impl Parts<'_, '_> {
    pub(super) fn fp8(&mut self) -> Result<Weight, Error> {
        let names = [".weight_scale_inv", ".weight_scale", ".scale"];
        let ending = names.into_iter().find(|name| self.has(name)).unwrap_or(names[1]);
        if [Dtype::U8, Dtype::F8_E8M0].iter().any(|dtype| self.is(ending, *dtype))
            && !self.has_blocks_of_128(ending)
        {
            return self.mxfp8(".weight", ending);
        }
        let (bytes, quants) = self.take(".weight")?;
        let (stored, scales) = self.take_f32(ending)?;
        let [.., columns] = bytes.shape[..] else {
            return Err(self.wrong(bytes, "a matrix".to_owned()));
        };
        let rows: u64 = bytes.shape.iter().rev().skip(1).product();
        if !columns.is_multiple_of(BLOCK) {
            return Err(self.wrong(bytes, format!("columns in blocks of {BLOCK}")));
        }
        let blocks = columns / BLOCK;
        let scales = by_block(scales, stored, rows, blocks).ok_or_else(|| {
            let wanted = format!("a scale for each {BLOCK} rows and columns, each row, or all");
            self.wrong(stored, wanted)
        })?;
        let recipe = Recipe::mapped(vec![(scales, 4), (quants, BLOCK)], BLOCK + 4, F8_BLOCK);
        Ok(Weight::quantised(self.name(), bytes.shape.clone(), TensorType::F8_E4M3_128, recipe))
    }

    /// Whether scales are one for each block of rows, not several for each row.
    fn has_blocks_of_128(&self, ending: &str) -> bool {
        let rows =
            |ending| self.stored(ending).map_or(0, |it| it.shape.iter().rev().skip(1).product());
        let (of_weight, of_scales): (u64, u64) = (rows(".weight"), rows(ending));
        of_scales < of_weight
    }

    /// Bytes of E4M3 in groups of 32, each with an exponent.
    pub(super) fn mxfp8(&mut self, head: &str, ending: &str) -> Result<Weight, Error> {
        let (bytes, quants) = self.take(head)?;
        let (stored, scales) = self.take(ending)?;
        let (leading, groups) = stored.shape.split_at(stored.shape.len().saturating_sub(1));
        let columns = groups.first().map_or(0, |groups| groups * MXFP8_GROUP);
        let is_whole = quants.len() == scales.len() * MXFP8_GROUP
            && bytes.shape.split_last().is_some_and(|(_, rows)| rows == leading);
        if !is_whole || columns == 0 {
            return Err(self.wrong(stored, format!("an exponent for each {MXFP8_GROUP} columns")));
        }
        let shape = [leading, &[columns]].concat();
        let recipe = Recipe::mapped(vec![(scales, 1), (quants, MXFP8_GROUP)], 64, BF16_OF_MXFP8);
        Ok(Weight::quantised(self.name(), shape, TensorType::BF16, recipe))
    }
}

/// Groups of 32 numbers times a power of two.
const BF16_OF_MXFP8: Map = |parts, out| {
    let groups = parts[0].iter().zip(parts[1].chunks_exact(MXFP8_GROUP as usize));
    for (out, (exponent, group)) in out.chunks_exact_mut(2 * MXFP8_GROUP as usize).zip(groups) {
        let scale = power_of_two(*exponent);
        for (out, byte) in out.as_chunks_mut::<2>().0.iter_mut().zip(group) {
            *out = bf16::from_f32(e4m3(*byte) * scale).to_le_bytes();
        }
    }
};

/// Scales, one for each block of each row.
fn by_block(scales: Recipe, stored: &Stored, rows: u64, blocks: u64) -> Option<Recipe> {
    let view = |dims: Vec<u64>, strides: Vec<u64>, base| {
        Recipe::view(View { of: scales.clone(), unit: 4, dims, strides, base })
    };
    let count: u64 = stored.shape.iter().product();
    if count == 1 {
        return Some(view(vec![rows, blocks], vec![0, 0], 0));
    }
    if stored.shape[..] == [rows.div_ceil(BLOCK), blocks] {
        let (whole, rest) = (rows / BLOCK, rows % BLOCK);
        let whole_blocks = view(vec![whole, BLOCK, blocks], vec![blocks, 0, 1], 0);
        let last = view(vec![rest, blocks], vec![0, 1], whole * blocks);
        let parts = [(whole, whole_blocks), (rest, last)];
        let parts = parts.into_iter().filter(|(rows, _)| *rows > 0).map(|(_, part)| part);
        return Some(Recipe::joined(parts));
    }
    (count == rows).then(|| view(vec![rows, blocks], vec![1, 0], 0))
}

/// Blocks of a scale and 128 numbers.
const F8_BLOCK: Map = |parts, out| {
    let blocks = parts[0].chunks_exact(4).zip(parts[1].chunks_exact(BLOCK as usize));
    for (out, (scale, numbers)) in out.chunks_exact_mut(BLOCK as usize + 4).zip(blocks) {
        out[..4].copy_from_slice(scale);
        out[4..].copy_from_slice(numbers);
    }
};

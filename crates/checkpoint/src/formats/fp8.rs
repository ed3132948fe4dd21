//! Weights in E4M3, eight bits, with a scale for each block of 128 rows and columns, for each row,
//! or for all.
//!
//! Source: DeepSeek V3 (`weight_scale_inv`, a factor despite its name) and V4 (`scale`, a power of
//! two), compressed-tensors.

use gguf::TensorType;

use super::Parts;
use crate::Error;
use crate::recipe::{Map, Recipe, View};
use crate::shard::Stored;
use crate::weight::Weight;

const BLOCK: u64 = 128;

impl Parts<'_, '_> {
    pub(super) fn fp8(&mut self) -> Result<Weight, Error> {
        let (bytes, quants) = self.take(".weight")?;
        let names = [".weight_scale_inv", ".scale", ".weight_scale"];
        let ending = names.into_iter().find(|name| self.has(name)).unwrap_or(names[2]);
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
}

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

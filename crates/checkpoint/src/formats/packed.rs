//! Weights of integers packed into 32-bit words, with a scale and perhaps a zero point for each
//! group: compressed-tensors, GPTQ with columns in order, and AWQ.

use gguf::TensorType;

use super::affine::{AFFINE, affine};
use super::{Parts, method};
use crate::Error;
use crate::config::Config;
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
        let bits = self.packed_bits()?;
        let cut = self.cut(bits, [rows, 32 * row / bits.max(1)], groups)?;
        if self.has(".weight_zero_point") {
            let (_, zeros) = self.zeros(".weight_zero_point", bits, [rows, groups], true)?;
            return Ok(self.with_zeros(cut, (scales, zeros, quants)));
        }
        let biases = Recipe::mapped(vec![(scales.clone(), 4)], 4, middle(bits));
        Ok(self.with_biases(cut, (scales, biases, quants)))
    }

    /// `weight` of signed bytes, and `weight_scale` of each row or of groups in it.
    pub(super) fn int8(&mut self) -> Result<Weight, Error> {
        let (stored, _) = self.take(".weight_scale")?;
        let scales = self.halves(".weight_scale")?;
        let (bytes, quants) = self.take(".weight")?;
        let ([rows, columns], [scale_rows, groups]) = (&bytes.shape[..], &stored.shape[..]) else {
            return Err(self.wrong(bytes, "a matrix".to_owned()));
        };
        let (rows, columns, groups) = (*rows, *columns, *groups);
        if rows != *scale_rows {
            return Err(self.wrong(stored, format!("{rows} rows")));
        }
        let cut = self.cut(8, [rows, columns], groups)?;
        let biases = Recipe::mapped(vec![(scales.clone(), 4)], 4, middle(8));
        let quants = Recipe::mapped(vec![(quants, 1)], 1, UNSIGNED);
        Ok(self.with_biases(cut, (scales, biases, quants)))
    }

    /// `qweight`, `scales` and `qzeros` of GPTQ or AWQ.
    pub(super) fn transposed(&mut self) -> Result<Weight, Error> {
        let options = self.config.object("quantization_config");
        match method(&options)?.as_deref() {
            Some("awq") => self.awq(&options),
            _ => self.gptq(),
        }
    }

    /// AWQ: all matrices are transposed, and packed along their rows in an order of their own.
    fn awq(&mut self, options: &Config) -> Result<Weight, Error> {
        let bits = options.u64(&["bits", "w_bit"])?;
        let version = options.find_str(&["version"])?.unwrap_or_else(|| "gemm".to_owned());
        let (words, quants) = self.take(".qweight")?;
        let (stored, scales) = self.take_f32(".scales")?;
        let (packed_zeros, zeros) = self.take(".qzeros")?;
        let ([columns, per_row], [groups, rows]) = (&words.shape[..], &stored.shape[..]) else {
            return Err(self.wrong(words, "a matrix".to_owned()));
        };
        let (columns, groups, rows) = (*columns, *groups, *rows);
        let is_whole = 8 * per_row == rows && packed_zeros.shape[..] == [groups, *per_row];
        if !version.eq_ignore_ascii_case("gemm") || bits != 4 || !is_whole {
            let wanted = "4 bits in AWQ's form for gemm, with scales and zeros for each group";
            return Err(self.wrong(words, wanted.to_owned()));
        }
        let cut = self.cut(bits, [rows, columns], groups)?;
        let unpacked = |of| Recipe::mapped(vec![(of, 4)], 8, AWQ_NIBBLES);
        let transposed = |of, unit, count| {
            let (dims, strides) = (vec![rows, count], vec![1, rows]);
            Recipe::view(View { of, unit, dims, strides, base: 0 })
        };
        let quants = transposed(unpacked(quants), 1, columns);
        let quants = Recipe::mapped(vec![(quants, 2)], 1, PAIRS);
        let zeros = transposed(unpacked(zeros), 1, groups);
        let scales = transposed(scales, 4, groups);
        Ok(self.with_zeros(cut, (scales, zeros, quants)))
    }

    /// GPTQ: `qweight` packed along the columns of its transpose, `scales`, `qzeros`.
    fn gptq(&mut self) -> Result<Weight, Error> {
        let options = self.config.object("quantization_config");
        let method = method(&options)?.unwrap_or_default();
        if method != "gptq" {
            return Err(self.not_read(&method));
        }
        let bits = options.u64(&["bits"])?.max(1);
        let (words, quants) = self.take(".qweight")?;
        let (stored, scales) = self.take_f32(".scales")?;
        let ([row, rows], [groups, _]) = (&words.shape[..], &stored.shape[..]) else {
            return Err(self.wrong(words, "a matrix".to_owned()));
        };
        let (row, rows, groups) = (*row, *rows, *groups);
        if stored.shape[..] != [groups, rows] || words.dtype != Dtype::I32 {
            return Err(self.wrong(stored, format!("{rows} columns")));
        }
        let columns = 32 * row / bits;
        let cut = self.cut(bits, [rows, columns], groups)?;
        let may_differ = options.find_bool("desc_act")? == Some(true);
        if may_differ && !self.is_in_order(columns / groups, columns)? {
            return Err(self.not_read("with reordered columns (desc_act)"));
        }
        let transposed = |of, dims: [u64; 2]| {
            let (dims, strides) = (vec![dims[1], dims[0]], vec![1, dims[1]]);
            Recipe::view(View { of, unit: 4, dims, strides, base: 0 })
        };
        let quants = transposed(quants, [row, rows]);
        let scales = transposed(scales, [groups, rows]);
        let is_v2 = options.find_str(&["checkpoint_format"])?.as_deref() == Some("gptq_v2");
        let (_, zeros) = self.zeros(".qzeros", bits, [rows, groups], false)?;
        let zeros = if is_v2 { zeros } else { Recipe::mapped(vec![(zeros, 1)], 1, NEXT) };
        Ok(self.with_zeros(cut, (scales, zeros, quants)))
    }

    fn not_read(&self, how: &str) -> Error {
        let why = format!("is quantised {how}, which is not read. Use a GGUF file of this model");
        Error::tensor(&format!("{}.qweight", self.stem), why)
    }

    /// Whether the groups of columns lie one after the other, as `g_idx` tells.
    fn is_in_order(&mut self, group: u64, columns: u64) -> Result<bool, Error> {
        let (stored, recipe) = self.take(".g_idx")?;
        if stored.dtype != Dtype::I32 || stored.shape[..] != [columns] {
            return Err(self.wrong(stored, format!("{columns} numbers of I32")));
        }
        let mut bytes = vec![0; recipe.len() as usize];
        let read = recipe.read(self.weights, 0, &mut bytes);
        read.map_err(|error| Error::tensor(&stored.name, format!("cannot be read: {error}")))?;
        let found = bytes.as_chunks().0.iter().map(|it| i64::from(i32::from_le_bytes(*it)));
        Ok(found.eq((0..columns).map(|column| (column / group) as i64)))
    }

    /// Bits of compressed-tensors.
    fn packed_bits(&self) -> Result<u64, Error> {
        let groups = self.config.object("quantization_config").object("config_groups");
        groups.object("group_0").object("weights").u64(&["num_bits"])
    }

    /// Rows with `groups` scales each as blocks.
    fn cut(&self, bits: u64, [rows, columns]: [u64; 2], groups: u64) -> Result<Cut, Error> {
        let group = columns / groups;
        let block = [128, 64, 32].into_iter().find(|block| group.is_multiple_of(*block));
        let ty = block.and_then(|block| affine(bits, block)).filter(|_| matches!(bits, 4 | 8));
        match ty.filter(|_| group > 0 && group * groups == columns) {
            Some(ty) => Ok(Cut { ty, rows, groups, times: group / ty.block_len() as u64 }),
            None => {
                let found = format!("{bits} bits, and {groups} groups in {columns} columns");
                let why =
                    format!("has {found}; 4 or 8 bits in groups of a multiple of 32 are read");
                Err(Error::tensor(&self.name(), why))
            }
        }
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

    fn with_zeros(&self, cut: Cut, (scales, zeros, quants): (Recipe, Recipe, Recipe)) -> Weight {
        let biases =
            Recipe::mapped(vec![(scales.clone(), 4), (zeros, 1)], 4, MINUS_SCALE_TIMES_ZERO);
        self.with_biases(cut, (scales, biases, quants))
    }

    fn with_biases(&self, cut: Cut, (scales, biases, quants): (Recipe, Recipe, Recipe)) -> Weight {
        let Cut { ty, rows, groups, times } = cut;
        let of_blocks = |of| (repeated(of, 4, rows * groups, times), 4);
        let block = ty.block_bytes() as u64;
        let parts = vec![of_blocks(scales), of_blocks(biases), (quants, block - 6)];
        let shape = vec![rows, groups * times * ty.block_len() as u64];
        Weight::quantised(self.name(), shape, ty, Recipe::mapped(parts, block, AFFINE))
    }
}

/// Groups of a row as blocks: a group that is longer than a block becomes several with its scale.
#[derive(Debug, Clone, Copy)]
struct Cut {
    ty: TensorType,
    rows: u64,
    /// Of a row.
    groups: u64,
    /// Blocks of a group.
    times: u64,
}

/// `count` units, each `times` times.
fn repeated(of: Recipe, unit: u64, count: u64, times: u64) -> Recipe {
    Recipe::view(View { of, unit, dims: vec![count, times], strides: vec![1, 0], base: 0 })
}

/// Whether GPTQ has put columns of one group apart, as far as the configuration tells. Groups that
/// were fixed before, or whole rows, stay in order.
pub(super) fn is_reordered(options: &Config) -> Result<bool, Error> {
    let is_set = |key: &str| Ok::<_, Error>(options.find_bool(key)? == Some(true));
    let has_groups = options.get("group_size").and_then(serde_json::Value::as_i64) != Some(-1);
    Ok(is_set("desc_act")? && !is_set("static_groups")? && has_groups)
}

const NIBBLES: Map = |parts, out| {
    for (at, out) in out.iter_mut().enumerate() {
        *out = parts[0][at / 2] >> (at % 2 * 4) & 15;
    }
};

/// The numbers of AWQ's words, in their order.
const AWQ_NIBBLES: Map = |parts, out| {
    const PLACES: [usize; 8] = [0, 4, 1, 5, 2, 6, 3, 7];
    for (out, word) in out.as_chunks_mut::<8>().0.iter_mut().zip(parts[0].as_chunks::<4>().0) {
        let word = u32::from_le_bytes(*word);
        *out = PLACES.map(|place| (word >> (4 * place) & 15) as u8);
    }
};

/// Two numbers to a byte, the first in the low bits.
const PAIRS: Map = |parts, out| {
    for (out, pair) in out.iter_mut().zip(parts[0].as_chunks::<2>().0) {
        *out = pair[0] | pair[1] << 4;
    }
};

/// Signed bytes, of which the lowest becomes 0.
const UNSIGNED: Map = |parts, out| {
    out.iter_mut().zip(parts[0]).for_each(|(out, byte)| *out = byte ^ 0x80);
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

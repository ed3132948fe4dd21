//! Quantised weights of checkpoints: several stored tensors that are one weight.
//!
//! A format is recognised by the names and types of a weight's tensors. What a weight becomes has
//! the same numbers: bits are moved, and scales widened.

mod affine;
mod fp4;
mod fp8;
mod packed;
mod plain;

pub(crate) use plain::{bf16_of_f32, f32_of};

use std::collections::{BTreeMap, BTreeSet};

use crate::Error;
use crate::config::Config;
use crate::dtype::Dtype;
use crate::element::to_f32;
use crate::folder::Weights;
use crate::recipe::Recipe;
use crate::shard::Stored;
use crate::weight::Weight;

/// Tensors of a checkpoint by their names, each with the number of its file.
pub(crate) type Stock<'w> = BTreeMap<&'w str, (usize, &'w Stored)>;

/// A weight's stored tensors.
pub(super) struct Parts<'w, 's> {
    /// The weight's name, without `.weight`.
    stem: &'s str,
    stock: &'s Stock<'w>,
    weights: &'w Weights,
    config: &'s Config,
    used: BTreeSet<String>,
}

/// Endings of tensors that say how activations are quantised, which happens elsewhere here, or
/// which tokens of its model an EAGLE-3 head has.
const UNREAD: [&str; 9] = [
    ".input_scale",
    ".input_global_scale",
    ".activation_scale",
    "_activation_scale",
    ".k_scale",
    ".v_scale",
    ".weight_shape",
    ".g_idx",
    "t2d",
];

/// `quant_method` of weights that can be read, perhaps.
const METHODS: [&str; 6] = ["fp8", "mxfp4", "compressed-tensors", "modelopt", "gptq", "awq"];

/// Endings of the tensor that stands for a quantised weight.
const HEADS: [&str; 4] = [".weight", ".weight_packed", ".qweight", "_blocks"];

/// The needed weights of a checkpoint, quantised ones as one each, in the order of their names.
pub(crate) fn weights(
    weights: &Weights,
    config: &Config,
    is_needed: impl Fn(&str) -> bool,
) -> Result<Vec<Weight>, Error> {
    let all = weights.tensors().map(|(shard, stored)| (stored.name.as_str(), (shard, stored)));
    let stock: Stock<'_> = all.collect();
    let (mut found, mut used) = (Vec::new(), BTreeSet::new());
    for name in stock.keys().filter(|name| is_needed(name)) {
        let head = HEADS.iter().find_map(|head| Some((name.strip_suffix(head)?, *head)));
        let Some((stem, head)) = head else { continue };
        let mut parts = Parts { stem, stock: &stock, weights, config, used: BTreeSet::new() };
        if let Some(weight) = parts.read(head)? {
            found.push(weight);
            used.extend(parts.used);
        }
    }
    let is_left =
        |name: &str| !used.contains(name) && !UNREAD.iter().any(|end| name.ends_with(end));
    let left = stock.iter().filter(|(name, _)| is_left(name) && is_needed(name));
    for (name, (shard, stored)) in left {
        found.push(Weight::stored(*shard, stored).map_err(|error| explained(name, config, error))?);
    }
    Ok(found)
}

/// How weights are quantised, by the name of the method whose form they have.
fn method(options: &Config) -> Result<Option<String>, Error> {
    let named = options.find_str(&["quant_method"])?;
    let of_packing = |format: Option<String>| match format.as_deref() {
        Some("auto_round:auto_gptq") => Some("gptq"),
        Some("auto_round:auto_awq") => Some("awq"),
        _ => None,
    };
    let form = match named.as_deref() {
        Some("auto-round" | "intel/auto-round") => {
            of_packing(options.find_str(&["packing_format"])?)
        }
        // A scale for each row.
        Some("fbgemm_fp8") => Some("fp8"),
        _ => None,
    };
    Ok(form.map(str::to_owned).or(named))
}

/// Refuses a configuration's kind of quantised weights if this version does not read it.
pub(crate) fn check(config: &Config) -> Result<(), Error> {
    let all = config.object("quantization_config");
    let wanted = "fp8, mxfp4, compressed-tensors, modelopt, awq, or gptq without reordered columns"
        .to_owned();
    match method(&all)? {
        Some(found) if !METHODS.contains(&found.as_str()) => {
            Err(Error::Config { key: "quant_method".to_owned(), found, wanted })
        }
        Some(found) if found == "gptq" && packed::is_reordered(&all)? => {
            Err(Error::Config { key: "desc_act".to_owned(), found: "true".to_owned(), wanted })
        }
        _ => Ok(()),
    }
}

/// Names the quantisation that a tensor belongs to, if the configuration tells.
fn explained(name: &str, config: &Config, error: Error) -> Error {
    let method = config.object("quantization_config").find_str(&["quant_method"]);
    match method {
        Ok(Some(method)) => Error::tensor(
            name,
            format!(
                "belongs to weights quantised as {method}, in a form that is not read. These are: \
                 FP8 with scales for blocks, rows or tensors, MXFP4, MXFP8, NVFP4, INT4 and INT8 \
                 of compressed-tensors, GPTQ, AWQ, and MLX's of 2 to 8 bits"
            ),
        ),
        _ => error,
    }
}

impl<'w> Parts<'w, '_> {
    /// The weight whose first tensor ends in `head`; `None` if it is not quantised.
    fn read(&mut self, head: &str) -> Result<Option<Weight>, Error> {
        match head {
            ".weight" if self.has(".scales") => self.mlx().map(Some),
            ".weight" if self.is(".weight", Dtype::F8_E4M3) => self.fp8().map(Some),
            ".weight" if self.is(".weight", Dtype::U8) && self.has(".weight_scale") => {
                self.fp4(".weight").map(Some)
            }
            ".weight" if self.is(".weight", Dtype::I8) && self.has(".scale") => {
                self.fp4(".weight").map(Some)
            }
            ".weight" if self.is(".weight", Dtype::I8) && self.has(".weight_scale") => {
                self.int8().map(Some)
            }
            ".weight_packed" if self.is(head, Dtype::U8) => self.fp4(head).map(Some),
            ".weight_packed" if self.is(head, Dtype::I32) => self.packed().map(Some),
            ".qweight" => self.transposed().map(Some),
            "_blocks" => self.mxfp4_blocks().map(Some),
            _ => Ok(None),
        }
    }

    fn has(&self, ending: &str) -> bool {
        self.stock.contains_key(format!("{}{ending}", self.stem).as_str())
    }

    fn stored(&self, ending: &str) -> Option<&'w Stored> {
        self.stock.get(format!("{}{ending}", self.stem).as_str()).map(|(_, stored)| *stored)
    }

    fn is(&self, ending: &str, dtype: Dtype) -> bool {
        self.stored(ending).is_some_and(|stored| stored.dtype == dtype)
    }

    /// A tensor of the weight, if it is there; it is then used.
    fn find(&mut self, ending: &str) -> Option<(&'w Stored, Recipe)> {
        let name = format!("{}{ending}", self.stem);
        let (shard, stored) = *self.stock.get(name.as_str())?;
        self.used.insert(name);
        let recipe = Recipe::Stored { shard, start: stored.start, len: stored.len };
        Some((stored, recipe))
    }

    fn take(&mut self, ending: &str) -> Result<(&'w Stored, Recipe), Error> {
        let missing = || Error::tensor(&format!("{}{ending}", self.stem), "is missing");
        let missing = missing();
        self.find(ending).ok_or(missing)
    }

    /// A tensor of numbers as f32, with its shape.
    fn take_f32(&mut self, ending: &str) -> Result<(&'w Stored, Recipe), Error> {
        let (stored, recipe) = self.take(ending)?;
        let floats = to_f32(recipe, stored.dtype);
        let why = || format!("has the type {}; floats are needed", stored.dtype.name());
        Ok((stored, floats.ok_or_else(|| Error::tensor(&stored.name, why()))?))
    }

    fn wrong(&self, stored: &Stored, wanted: String) -> Error {
        let Stored { name, shape, .. } = stored;
        Error::tensor(name, format!("is {shape:?}; {wanted} is needed"))
    }

    /// The name that the weight has if it is not quantised.
    fn name(&self) -> String {
        format!("{}.weight", self.stem)
    }
}

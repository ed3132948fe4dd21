//! Which tensors of GGUF a checkpoint's weights become: names them, and joins those that are one.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};

use gguf::TensorType;

use crate::Error;
use crate::config::Config;
use crate::dtype::Dtype;
use crate::families::{Family, Words};
use crate::folder::Weights;
use crate::formats;
use crate::place::{Join, Named, Place};
use crate::shard::Stored;
use crate::weight::{Tensors, Weight};

/// The most tensors that are joined; published models have up to 896 experts.
const PARTS_MAX: usize = 1 << 14;
/// The longest list of integers that becomes metadata. Published ones have some 20.
const INTEGERS_MAX: u64 = 1 << 12;
/// The most tokens of an EAGLE-3 head. Published ones have 32,000.
const TOKENS_MAX: u64 = 1 << 20;
/// The most blocks of multi-token prediction. Published models have up to 3.
const BLOCKS_MAX: u64 = 16;

/// What a checkpoint's weights become.
#[derive(Debug, Default)]
pub(crate) struct Collected {
    pub tensors: Tensors,
    /// The blocks of multi-token prediction behind the layers.
    pub blocks: u64,
    /// Metadata that a checkpoint keeps as tensors.
    pub integers: Vec<(&'static str, Vec<i64>)>,
}

impl Collected {
    pub fn of(family: &Family, config: &Config, weights: &Weights) -> Result<Self, Error> {
        let layers = config.layers()?;
        let is_tied = config.find_bool("tie_word_embeddings")? == Some(true)
            && !has_own_head(weights, layers);
        // Layers behind the last that are no such blocks.
        let extra: BTreeSet<u64> = extra_layers(weights, layers);
        let is_read = |place: &Place| {
            place.layer.is_none_or(|layer| !extra.contains(&layer))
                && place.is_read(family, layers)
                && !(is_tied && place.name == "lm_head.weight")
        };
        check_absent(weights, |name| {
            // A block behind the layers is left out if all of it is missing.
            let is_layer = |place: &Place| place.layer.is_none_or(|layer| layer < layers);
            Place::of(name, layers).is_some_and(|place| is_read(&place) && is_layer(&place))
        })?;
        let mut collection = Collection::default();
        let is_needed = |name: &str| Place::of(name, layers).as_ref().is_some_and(is_read);
        for weight in formats::weights(weights, config, is_needed)? {
            let Some(place) = Place::of(&weight.name, layers).filter(is_read) else { continue };
            check_switched_off(config, family, &place)?;
            collection.count_block(&place, layers, &weight.name)?;
            let stored = weight.name.clone();
            let named = place.named(family, config, weight)?;
            let named = named.ok_or_else(|| unknown(&stored, family))?;
            collection.take(named, place.number.unwrap_or(0), weights)?;
        }
        collection.joined(family)
    }
}

/// The layers behind the first `layers` without what a block of multi-token prediction has.
fn extra_layers(weights: &Weights, layers: u64) -> BTreeSet<u64> {
    let is_of_block = |name: &str| name.contains("eh_proj") || name.contains("mtp.");
    let (mut blocks, mut behind) = (BTreeSet::new(), BTreeSet::new());
    for (_, stored) in weights.tensors() {
        let layer = Place::of(&stored.name, layers).and_then(|place| place.layer);
        let Some(layer) = layer.filter(|layer| *layer >= layers) else { continue };
        behind.insert(layer);
        if is_of_block(&stored.name) {
            blocks.insert(layer);
        }
    }
    behind.retain(|layer| !blocks.contains(layer));
    behind
}

/// Refuses tensors that the configuration switches off.
fn check_switched_off(config: &Config, family: &Family, place: &Place) -> Result<(), Error> {
    /// An architecture that has these biases whatever the key says.
    const ALWAYS: &str = "qwen2";
    /// Architectures of classes that have no biases of attention unless the key says so.
    const WITHOUT_BIASES: [&str; 10] = [
        "arcee",
        "deepseek2",
        "glm-dsa",
        "glm4moe",
        "granite",
        "llama",
        "olmo2",
        "qwen3",
        "qwen3moe",
        "smollm3",
    ];
    let attends = place.name.starts_with("self_attn.");
    let key = match &*place.name {
        name if attends && name.ends_with("_proj.bias") && family.arch == "qwen2moe" => "qkv_bias",
        name if attends && name.ends_with("_proj.bias") => "attention_bias",
        name if name.starts_with("mlp.") && name.ends_with("_proj.bias") => "mlp_bias",
        "self_attn.q_norm.weight" | "self_attn.k_norm.weight" => "use_qk_norm",
        _ => return Ok(()),
    };
    if place.layer.is_none() || family.arch == ALWAYS {
        return Ok(());
    }
    let found = config.find_bool(key)?;
    let is_off = found == Some(false)
        || found.is_none() && key == "attention_bias" && WITHOUT_BIASES.contains(&family.arch);
    match is_off {
        true => Err(Error::Config {
            key: key.to_owned(),
            found: found.map_or("missing", |_| "false").to_owned(),
            wanted: format!("true for a folder with {}", place.name),
        }),
        false => Ok(()),
    }
}

/// Whether a matrix of the output is there that is not the embedding's, whatever the configuration
/// says. It is compared in samples; the two are equal or have nothing in common.
fn has_own_head(weights: &Weights, layers: u64) -> bool {
    const SAMPLES: u64 = 64;
    const SAMPLE_BYTES: u64 = 1024;
    let find = |wanted: &str| {
        weights.tensors().find(|(_, stored)| {
            let place = Place::of(&stored.name, layers);
            place.is_some_and(|place| place.layer.is_none() && place.name == wanted)
        })
    };
    let Some(head) = find("lm_head.weight") else { return false };
    let Some(embedding) = find("model.embed_tokens.weight") else { return true };
    let len = head.1.len;
    if (head.1.dtype, &head.1.shape) != (embedding.1.dtype, &embedding.1.shape) {
        return true;
    }
    let sample = |(shard, stored): (usize, &Stored), at: u64| {
        let mut bytes = vec![0; SAMPLE_BYTES.min(len - at) as usize];
        weights.shards[shard].bytes.read(stored.start + at, &mut bytes).map(|()| bytes).ok()
    };
    (0..SAMPLES)
        .map(|number| len / SAMPLES * number)
        .any(|at| sample(head, at) != sample(embedding, at))
}

/// Refuses a folder that lacks a tensor which is needed, or has one of a type that is not read.
fn check_absent(weights: &Weights, is_needed: impl Fn(&str) -> bool) -> Result<(), Error> {
    let mut foreign = weights.left_out().filter_map(|(name, ty)| Some((name, ty?)));
    if let Some((name, ty)) = foreign.find(|(name, _)| is_needed(name)) {
        let known = Dtype::names();
        let why = format!("has the type {ty}, which is not read. These are: {known}");
        return Err(Error::tensor(name, why));
    }
    match weights.absent.iter().find(|(name, _)| is_needed(name)) {
        Some((name, why)) => Err(Error::tensor(name, why.clone())),
        None => Ok(()),
    }
}

/// What a checkpoint's weights become, before those that are one tensor are joined.
#[derive(Default)]
struct Collection {
    found: BTreeMap<String, Weight>,
    /// Parts of a tensor, with their numbers.
    parts: BTreeMap<String, (Join, Vec<(usize, Weight)>)>,
    blocks: u64,
    integers: Vec<(&'static str, Vec<i64>)>,
}

impl Collection {
    fn count_block(&mut self, place: &Place, layers: u64, stored: &str) -> Result<(), Error> {
        let block = place.layer.and_then(|layer| layer.checked_sub(layers));
        let count = block.map_or(0, |block| block.saturating_add(1));
        if count > BLOCKS_MAX {
            let why =
                format!("belongs to block {count} behind {layers} layers; {BLOCKS_MAX} are read");
            return Err(Error::tensor(stored, why));
        }
        self.blocks = self.blocks.max(count);
        Ok(())
    }

    fn take(&mut self, named: Named, number: usize, weights: &Weights) -> Result<(), Error> {
        match named {
            Named::Integers(key, weight) => {
                self.integers.push((key, integers(&weight, weights, INTEGERS_MAX)?));
                Ok(())
            }
            Named::Distances(name, weight) => {
                let found = integers(&weight, weights, TOKENS_MAX)?.into_iter();
                let sums = found.zip(0..).map(|(distance, at)| distance.wrapping_add(at));
                self.add(name.to_owned(), Weight::integers(&weight.name, sums))
            }
            Named::Parts(name, join, weight) => {
                let parts = self.parts.entry(name).or_insert((join, Vec::new()));
                parts.1.push((number, weight));
                Ok(())
            }
            Named::Tensors(all) => all.into_iter().try_for_each(|(name, one)| self.add(name, one)),
        }
    }

    fn add(&mut self, name: String, weight: Weight) -> Result<(), Error> {
        match self.found.entry(name) {
            Entry::Vacant(free) => {
                free.insert(weight);
                Ok(())
            }
            Entry::Occupied(other) => {
                let (name, other) = (other.key(), &other.get().name);
                let why = format!("becomes {name}, and so does \"{other}\"");
                Err(Error::tensor(&weight.name, why))
            }
        }
    }

    fn joined(mut self, family: &Family) -> Result<Collected, Error> {
        for (name, (join, parts)) in std::mem::take(&mut self.parts) {
            let whole = joined(&name, join, parts)?;
            self.add(name, whole)?;
        }
        let mut tensors = Tensors::new();
        for (name, weight) in self.found {
            tensors.extend(factor_of(&name, &weight));
            let weight = of_gguf(&name, family, weight)?;
            tensors.push((name, weight));
        }
        Ok(Collected { tensors, blocks: self.blocks, integers: self.integers })
    }
}

/// The integers of a tensor of at most `most`.
fn integers(weight: &Weight, weights: &Weights, most: u64) -> Result<Vec<i64>, Error> {
    let len = weight.recipe.len();
    if weight.ty != TensorType::I64 || len > 8 * most {
        return Err(weight.wrong_shape(&format!("at most {most} numbers of I64")));
    }
    let mut bytes = vec![0; len as usize];
    let read = weight.recipe.read(weights, 0, &mut bytes);
    read.map_err(|error| Error::tensor(&weight.name, format!("cannot be read: {error}")))?;
    Ok(bytes.as_chunks().0.iter().map(|it| i64::from_le_bytes(*it)).collect())
}

/// A weight's factor as a tensor of its own.
fn factor_of(name: &str, weight: &Weight) -> Option<(String, Weight)> {
    let (recipe, stem) = (weight.factor.clone()?, name.strip_suffix(".weight")?);
    let shape = vec![recipe.len() / 4];
    let (ty, name) = (TensorType::F32, weight.name.clone());
    Some((format!("{stem}.scale"), Weight { name, shape, ty, recipe, factor: None }))
}

fn unknown(name: &str, family: &Family) -> Error {
    let why = format!(
        "is not known of models of the class {}, and results would be wrong without it. Use a \
         GGUF file of this model instead",
        family.classes[0]
    );
    Error::tensor(name, why)
}

/// One tensor of several.
fn joined(name: &str, join: Join, mut all: Vec<(usize, Weight)>) -> Result<Weight, Error> {
    if let Join::Product = join {
        return product(name, all.into_iter().map(|(_, weight)| weight).collect());
    }
    all.sort_by_key(|(number, _)| *number);
    if !all.iter().map(|(number, _)| *number).eq(0..all.len()) || all.len() > PARTS_MAX {
        let what = if join == Join::Stack { "experts" } else { "parts" };
        let why = format!("has {} {what}, of which some are missing", all.len());
        return Err(Error::tensor(name, why));
    }
    let all = all.into_iter().map(|(_, weight)| weight).collect();
    if join == Join::Stack { Weight::stacked(all) } else { Weight::concatenated(all) }
}

/// Two tensors multiplied, as one vector.
fn product(name: &str, all: Vec<Weight>) -> Result<Weight, Error> {
    let [one, other] = <[Weight; 2]>::try_from(all).map_err(|all| {
        Error::tensor(name, format!("is a product of two tensors, not {}", all.len()))
    })?;
    one.times(other)
}

/// A tensor in the type that GGUF has it in. GGUF holds vectors and norms in f32.
fn of_gguf(name: &str, family: &Family, weight: Weight) -> Result<Weight, Error> {
    let is_small = weight.shape.len() <= 1 || name.ends_with("_norm.weight");
    let is_odd = !name.ends_with(".weight");
    let is_listed = family.in_f32.iter().any(|part| name.contains(part));
    let is_float = matches!(weight.ty, TensorType::F16 | TensorType::BF16);
    if weight.ty == TensorType::I64 && family.words == Words::OfModel {
        return Ok(weight);
    }
    if weight.ty == TensorType::I64 {
        return Err(Error::tensor(&weight.name, "has the type I64, which is not a weight's"));
    }
    match is_listed || is_float && (is_small || is_odd) {
        true => weight.f32(),
        false => Ok(weight),
    }
}

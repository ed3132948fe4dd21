//! Puts a model together: which tensors of GGUF its weights become, and its metadata.

use std::collections::BTreeMap;
use std::path::Path;

use gguf::TensorType;
use serde_json::{Map, Value};

use crate::Error;
use crate::config::Config;
use crate::families::{self, Family, To};
use crate::folder::Weights;
use crate::formats;
use crate::header::Header;
use crate::json::{CONFIG_BYTES_MAX, find_json};
use crate::tokenizer;
use crate::weight::{Tensors, Weight};

/// Far above any published model; `layout` has the same limit.
const LAYERS_MAX: u64 = 1024;
/// The most experts of a layer; published models have up to 896.
const EXPERTS_MAX: usize = 1 << 14;

/// Names of tensors that belong to other senses than text, to multi-token prediction, or to
/// nothing.
const UNREAD: [&str; 10] = [
    "visual.",
    "vision",
    "audio",
    "multi_modal_projector",
    "mm_projector",
    "patch_merg",
    "image_newline",
    "mtp.",
    "masked_bias",
    "rotary_emb.inv_freq",
];

/// Tensors that GGUF keeps in f32 whatever the checkpoint has.
const IN_F32: [&str; 8] = [
    "ffn_gate_inp.weight",
    "ffn_gate_inp_shexp.weight",
    "ssm_conv1d.weight",
    "ssm_conv1d_q.weight",
    "ssm_conv1d_k.weight",
    "ssm_conv1d_v.weight",
    "shortconv.conv.weight",
    "indexer.proj.weight",
];

/// Reads a folder's metadata, and plans its tensors.
pub(crate) fn read(folder: &Path, weights: &Weights) -> Result<(Header, Tensors), Error> {
    let mut config = config(folder)?;
    config.is_mlx = is_mlx(weights);
    let family = families::find(&config)?;
    let mut tensors = tensors(family, &config, weights)?;
    let header = header(folder, family, &config, vocab(&tensors)?)?;
    tensors.extend((family.computed)(&config)?);
    tensors.sort_by_cached_key(|(name, weight)| (weight.recipe.first_byte(), name.clone()));
    Ok((header, tensors))
}

/// Checks that a folder can be read as far as its small files tell; its weights need not be there.
///
/// # Errors
/// Its class, its quantisation or its tokenizer cannot be read.
pub fn check(folder: &Path) -> Result<(), Error> {
    let config = config(folder)?;
    formats::check(&config)?;
    // Some configurations leave it out; the embedding tells it later.
    let vocab = config.find_u64(&["vocab_size"])?.unwrap_or(0);
    header(folder, families::find(&config)?, &config, vocab).map(drop)
}

fn config(folder: &Path) -> Result<Config, Error> {
    let root: Option<Map<String, Value>> =
        find_json(&folder.join("config.json"), CONFIG_BYTES_MAX)?;
    let config = Config::new(root.ok_or(Error::MissingFile { what: "config.json" })?);
    check_sizes(&config)?;
    Ok(config)
}

/// The metadata of a model with so many tokens.
fn header(folder: &Path, family: &Family, config: &Config, vocab: u64) -> Result<Header, Error> {
    let generation: Option<Map<String, Value>> =
        find_json(&folder.join("generation_config.json"), CONFIG_BYTES_MAX)?;
    let generation = Config::new(generation.unwrap_or_default());
    let mut header = Header::new(family.arch);
    header.common(config)?;
    header.sampling(&generation)?;
    (family.keys)(config, &mut header)?;
    tokenizer::read(folder, family.words, vocab, (config, &generation), &mut header)?;
    Ok(header)
}

/// Checks the sizes by which lists are made and rows are counted here; `layout` checks the others.
fn check_sizes(config: &Config) -> Result<(), Error> {
    const HEADS_MAX: u64 = 1 << 16;
    let of_heads = [
        "head_dim",
        "global_head_dim",
        "num_attention_heads",
        "num_key_value_heads",
        "linear_num_key_heads",
        "linear_num_value_heads",
        "linear_key_head_dim",
        "linear_value_head_dim",
        "qk_nope_head_dim",
        "qk_rope_head_dim",
        "v_head_dim",
    ];
    let of_heads = of_heads.map(|key| (key, HEADS_MAX));
    let others =
        [("num_hidden_layers", LAYERS_MAX), ("n_layers", LAYERS_MAX), ("hidden_size", 1 << 20)];
    for (key, max) in of_heads.into_iter().chain(others) {
        if let Some(found) = config.find_u64(&[key])?.filter(|found| *found > max) {
            let wanted = format!("a count of at most {max}");
            return Err(Error::Config { key: key.to_owned(), found: found.to_string(), wanted });
        }
    }
    Ok(())
}

/// Whether MLX has converted a checkpoint: its convolutions have their channels last.
fn is_mlx(weights: &Weights) -> bool {
    let is_its =
        |name: &str, shape: &[u64]| name.contains("conv1d.weight") && shape.last() == Some(&1);
    weights.tensors().any(|(_, stored)| is_its(&stored.name, &stored.shape))
}

/// The tokens that the embedding has rows for.
fn vocab(tensors: &Tensors) -> Result<u64, Error> {
    let embedding = tensors.iter().find(|(name, _)| name == "token_embd.weight");
    let missing = || Error::tensor("model.embed_tokens.weight", "is missing");
    Ok(embedding.ok_or_else(missing)?.1.rows())
}

/// Names tensors, and stacks those of experts.
fn tensors(family: &Family, config: &Config, weights: &Weights) -> Result<Tensors, Error> {
    let layers = config.u64(&["num_hidden_layers", "n_layers"])?;
    let is_tied = config.find_bool("tie_word_embeddings")? == Some(true);
    let (mut found, mut experts) = (BTreeMap::new(), BTreeMap::<String, Vec<_>>::new());
    for weight in formats::weights(weights, config)? {
        let stored = weight.name.clone();
        let place = Place::of(&stored).filter(|place| place.is_read(layers));
        let Some(place) = place.filter(|place| !(is_tied && place.name == "lm_head.weight")) else {
            continue;
        };
        let unknown = || unknown(&stored, family);
        for (name, weight) in place.named(family, config, weight)?.ok_or_else(unknown)? {
            match place.expert {
                Some(expert) => experts.entry(name).or_default().push((expert, weight)),
                None => add(&mut found, name, weight)?,
            }
        }
    }
    for (name, all) in experts {
        let stacked = stack(&name, all)?;
        add(&mut found, name, stacked)?;
    }
    let mut all = Vec::new();
    for (name, weight) in found {
        all.extend(factor_of(&name, &weight));
        let weight = of_gguf(&name, weight)?;
        all.push((name, weight));
    }
    Ok(all)
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

fn add(found: &mut BTreeMap<String, Weight>, name: String, weight: Weight) -> Result<(), Error> {
    match found.get(&name) {
        Some(other) => {
            let why = format!("becomes {name}, and so does \"{}\"", other.name);
            Err(Error::tensor(&weight.name, why))
        }
        None => {
            found.insert(name, weight);
            Ok(())
        }
    }
}

/// The tensors of experts 0, 1, 2 and so on as one.
fn stack(name: &str, mut all: Vec<(usize, Weight)>) -> Result<Weight, Error> {
    all.sort_by_key(|(expert, _)| *expert);
    if !all.iter().map(|(expert, _)| *expert).eq(0..all.len()) || all.len() > EXPERTS_MAX {
        let why = format!("has {} experts, of which some are missing", all.len());
        return Err(Error::tensor(name, why));
    }
    Weight::stacked(all.into_iter().map(|(_, weight)| weight).collect())
}

/// A tensor in the type that GGUF has it in. GGUF holds vectors and norms in f32.
fn of_gguf(name: &str, weight: Weight) -> Result<Weight, Error> {
    let is_small = weight.shape.len() <= 1 || name.ends_with("_norm.weight");
    let is_odd = !name.ends_with(".weight");
    let is_listed = IN_F32.iter().any(|suffix| name.ends_with(suffix));
    let is_float = matches!(weight.ty, TensorType::F16 | TensorType::BF16);
    match is_listed || is_float && (is_small || is_odd) {
        true => weight.f32(),
        false => Ok(weight),
    }
}

/// Where a tensor belongs, by its name.
#[derive(Debug, PartialEq, Eq)]
struct Place {
    layer: Option<u64>,
    expert: Option<usize>,
    /// The rest of the name, with `{}` for the expert's number.
    name: String,
}

impl Place {
    /// `None` for tensors that no model of text reads.
    fn of(stored: &str) -> Option<Self> {
        // Models that also see or hear keep their text model under a name of its own.
        let name = stored.replace("language_model.", "");
        let name = name.replacen("backbone.", "model.", 1).replacen("model.model.", "model.", 1);
        if UNREAD.iter().any(|part| name.contains(part)) {
            return None;
        }
        let inside = name.strip_prefix("model.layers.").and_then(|rest| rest.split_once('.'));
        let Some((layer, inside)) = inside else {
            return Some(Self { layer: None, expert: None, name });
        };
        let layer = layer.parse().ok()?;
        let is_number =
            |part: &&str| !part.is_empty() && part.bytes().all(|it| it.is_ascii_digit());
        let expert = inside.split('.').find(is_number);
        let name = match expert {
            Some(number) => inside.replacen(&format!(".{number}."), ".{}.", 1),
            None => inside.to_owned(),
        };
        let expert = expert.and_then(|number| number.parse().ok());
        Some(Self { layer: Some(layer), expert, name })
    }

    /// Whether the tensor belongs to the model proper: blocks of multi-token prediction follow its
    /// layers.
    fn is_read(&self, layers: u64) -> bool {
        self.layer.is_none_or(|layer| layer < layers)
    }

    /// What a tensor becomes; `None` if the family does not know it.
    fn named(
        &self,
        family: &Family,
        config: &Config,
        weight: Weight,
    ) -> Result<Option<Tensors>, Error> {
        let (stem, suffix) = split_suffix(&self.name);
        let is_in_layer = self.layer.is_some();
        let of_stem = family.row(is_in_layer, stem).map(|row| (row, suffix));
        let row = of_stem.or_else(|| family.row(is_in_layer, &self.name).map(|row| (row, "")));
        let Some((row, suffix)) = row else { return Ok(None) };
        let full = |name: &str, suffix: &str| {
            // A row may name a weight of a tensor without `.weight`.
            let stem = if suffix.is_empty() { name } else { split_suffix(name).0 };
            match self.layer {
                Some(layer) => format!("blk.{layer}.{stem}{suffix}"),
                None => format!("{stem}{suffix}"),
            }
        };
        Ok(Some(match row {
            To::Name(name) => vec![(full(name, suffix), weight)],
            To::Edited(name, edit) => vec![(full(name, suffix), edit(config, weight)?)],
            To::Cut(cut) => {
                let all = cut(config, weight)?.into_iter();
                all.map(|(name, weight)| (full(name, ""), weight)).collect()
            }
        }))
    }
}

/// A name without `.weight` or `.bias`, and that.
fn split_suffix(name: &str) -> (&str, &str) {
    let cut = [".weight", ".bias"].iter().find_map(|suffix| name.strip_suffix(suffix));
    cut.map_or((name, ""), |stem| name.split_at(stem.len()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_tell_layers_and_experts() {
        let of = |name: &str| Place::of(name).map(|it| (it.layer, it.expert, it.name));
        let place = |layer, expert, name: &str| Some((layer, expert, name.to_owned()));
        for name in ["model.layers.3.mlp.x", "model.language_model.layers.3.mlp.x"] {
            assert_eq!(of(name), place(Some(3), None, "mlp.x"));
        }
        let expert = "language_model.model.layers.12.mlp.experts.7.up.weight";
        assert_eq!(of(expert), place(Some(12), Some(7), "mlp.experts.{}.up.weight"));
        assert_eq!(of("language_model.lm_head.weight"), place(None, None, "lm_head.weight"));
        assert_eq!(of("model.visual.blocks.0.x"), None);
        assert_eq!(of("mtp.layers.0.x"), None);
        assert_eq!(split_suffix("a.weight"), ("a", ".weight"));
        assert_eq!(split_suffix("A_log"), ("A_log", ""));
    }
}

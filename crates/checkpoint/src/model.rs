//! Puts a model together: its tensors and its metadata.

use std::path::Path;

use serde_json::{Map, Value};

use crate::Error;
use crate::config::Config;
use crate::families::{self, Family, Words};
use crate::folder::Weights;
use crate::formats;
use crate::header::Header;
use crate::json::{CONFIG_BYTES_MAX, find_config};
use crate::tensors::Collected;
use crate::tokenizer;
use crate::weight::Tensors;

/// Far above any published model; `layout` has the same limit.
const LAYERS_MAX: u64 = 1024;

/// Reads a folder's metadata, and plans its tensors.
pub(crate) fn read(folder: &Path, weights: &Weights) -> Result<(Header, Tensors), Error> {
    let mut config = config(folder)?;
    config.is_mlx = is_mlx(weights);
    let family = families::find(&config)?;
    let Collected { mut tensors, blocks, integers } = Collected::of(family, &config, weights)?;
    config.blocks = blocks;
    let vocab = if family.words == Words::OfModel { 0 } else { vocab(&tensors)? };
    check_head(&config, &tensors)?;
    let mut header = header(folder, family, &config, vocab)?;
    for (key, numbers) in integers {
        header.integers(key, &numbers);
    }
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
        find_config(&folder.join("config.json"), CONFIG_BYTES_MAX)?;
    let mut config = Config::new(root.ok_or(Error::MissingFile { what: "config.json" })?);
    families::unread::complete(&mut config)?;
    check_sizes(&config)?;
    Ok(config)
}

/// The metadata of a model with so many tokens.
fn header(folder: &Path, family: &Family, config: &Config, vocab: u64) -> Result<Header, Error> {
    // A broken file of defaults is no reason to refuse a model.
    let path = folder.join("generation_config.json");
    let generation: Option<Map<String, Value>> = match find_config(&path, CONFIG_BYTES_MAX) {
        Err(Error::Json { .. }) => None,
        found => found?,
    };
    let generation = Config::new(generation.unwrap_or_default());
    let mut header = Header::new(family.arch);
    header.common(config)?;
    header.sampling(&generation);
    (family.keys)(config, &mut header)?;
    families::unread::check(config, family.arch, &mut header)?;
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
        "kv_lora_rank",
        "mamba_num_heads",
        "mamba_n_heads",
        "mamba_head_dim",
        "mamba_d_head",
        "hc_mult",
        "indexer_n_heads",
        "indexer_head_dim",
        "indexer_compress_ratio",
    ];
    let of_heads = of_heads.map(|key| (key, HEADS_MAX));
    let others =
        [("num_hidden_layers", LAYERS_MAX), ("n_layers", LAYERS_MAX), ("hidden_size", 1 << 20)];
    for key in ["max_position_embeddings", "num_hidden_layers", "hidden_size"] {
        if config.find_u64(&[key])? == Some(0) {
            let (found, wanted) = ("0".to_owned(), "a count of at least 1".to_owned());
            return Err(Error::Config { key: key.to_owned(), found, wanted });
        }
    }
    for (key, max) in of_heads.into_iter().chain(others) {
        if let Some(found) = config.find_u64(&[key])?.filter(|found| *found > max) {
            let wanted = format!("a count of at most {max}");
            return Err(Error::Config { key: key.to_owned(), found: found.to_string(), wanted });
        }
    }
    Ok(())
}

/// Refuses a model whose own output matrix is not there: the embedding would be taken for it.
fn check_head(config: &Config, tensors: &Tensors) -> Result<(), Error> {
    let has_head = tensors.iter().any(|(name, _)| name == "output.weight");
    let is_own = config.find_bool("tie_word_embeddings")? == Some(false);
    let is_model = tensors.iter().any(|(name, _)| name == "token_embd.weight");
    if is_model && is_own && !has_head {
        let why = "is missing, and tie_word_embeddings is false: fetch the whole repository";
        return Err(Error::tensor("lm_head.weight", why));
    }
    Ok(())
}

/// Whether MLX has converted a checkpoint: its convolutions have their channels last, and its
/// experts are stacked under a name of their own.
fn is_mlx(weights: &Weights) -> bool {
    let is_its = |name: &str, shape: &[u64]| {
        name.contains("conv1d.weight") && shape.last() == Some(&1) || name.contains(".switch_mlp.")
    };
    weights.tensors().any(|(_, stored)| is_its(&stored.name, &stored.shape))
}

/// The tokens that the embedding has rows for.
fn vocab(tensors: &Tensors) -> Result<u64, Error> {
    let embedding = tensors.iter().find(|(name, _)| name == "token_embd.weight");
    let missing = || Error::tensor("model.embed_tokens.weight", "is missing");
    Ok(embedding.ok_or_else(missing)?.1.rows())
}

//! A model's sizes and switches, read from its file's metadata.

use backend::RopeStyle;
use gguf::Directory;

use crate::ModelError;
use crate::arch::{self, Arch};

/// No published model comes near these; a file that does is broken or hostile.
const LAYERS_MAX: u64 = 1024;
const WIDTH_MAX: u64 = 1 << 20;
const VOCAB_MAX: u64 = 1 << 24;
const CONTEXT_MAX: u64 = 1 << 30;

/// Everything about a model that is not a weight.
#[derive(Debug, Clone)]
pub struct Config {
    pub arch: &'static Arch,
    pub layers: usize,
    /// Numbers of the residual stream.
    pub width: usize,
    pub heads: usize,
    pub kv_heads: usize,
    /// Numbers of one head's query and key.
    pub k_dim: usize,
    /// Numbers of one head's value.
    pub v_dim: usize,
    /// Hidden numbers of the feed-forward block.
    pub feed_forward: usize,
    pub vocab: usize,
    /// Positions that it was trained for.
    pub context_max: usize,
    pub rms_eps: f32,
    pub rope: Rope,
}

/// Rotary position embedding.
#[derive(Debug, Clone)]
pub struct Rope {
    pub style: RopeStyle,
    /// How many numbers of each head are rotated.
    pub dims: usize,
    pub base: f32,
    /// Positions are divided by this (linear scaling).
    pub linear_factor: f32,
}

impl Config {
    /// # Errors
    /// The architecture is not supported, or its metadata is missing or impossible.
    pub fn read(directory: &Directory) -> Result<Self, ModelError> {
        let arch = arch::find(directory.str("general.architecture")?)?;
        let metadata = Metadata { directory, arch };
        let width = metadata.size("embedding_length", WIDTH_MAX)?;
        let heads = metadata.size("attention.head_count", WIDTH_MAX)?;
        let kv_heads = metadata.size_or("attention.head_count_kv", WIDTH_MAX, heads)?;
        let k_dim = metadata.size_or("attention.key_length", WIDTH_MAX, width / heads)?;
        let v_dim = metadata.size_or("attention.value_length", WIDTH_MAX, k_dim)?;
        let config = Self {
            arch,
            layers: metadata.size("block_count", LAYERS_MAX)?,
            width,
            heads,
            kv_heads,
            k_dim,
            v_dim,
            feed_forward: metadata.size("feed_forward_length", WIDTH_MAX)?,
            vocab: vocab(directory)?,
            context_max: metadata.size("context_length", CONTEXT_MAX)?,
            rms_eps: directory.f32(&metadata.key("attention.layer_norm_rms_epsilon"))?,
            rope: metadata.rope(k_dim)?,
        };
        config.check()?;
        Ok(config)
    }

    fn check(&self) -> Result<(), ModelError> {
        let impossible = |what: String| Err(ModelError::Impossible { what });
        if self.heads % self.kv_heads != 0 {
            let (heads, kv) = (self.heads, self.kv_heads);
            return impossible(format!("{heads} heads cannot share {kv} key/value heads evenly"));
        }
        if self.rope.dims % 2 != 0 || self.rope.dims > self.k_dim {
            let (dims, k_dim) = (self.rope.dims, self.k_dim);
            return impossible(format!("{dims} of {k_dim} numbers of a head cannot be rotated"));
        }
        Ok(())
    }
}

/// Metadata of one architecture: its keys begin with its name.
struct Metadata<'a> {
    directory: &'a Directory,
    arch: &'static Arch,
}

impl Metadata<'_> {
    fn key(&self, name: &str) -> String {
        format!("{}.{name}", self.arch.name)
    }

    fn size(&self, name: &str, max: u64) -> Result<usize, ModelError> {
        let key = self.key(name);
        let found = self.directory.u64(&key)?;
        in_range(&key, found, max)
    }

    fn size_or(&self, name: &str, max: u64, default: usize) -> Result<usize, ModelError> {
        let key = self.key(name);
        let found = self.directory.find_u64(&key)?.unwrap_or(default as u64);
        in_range(&key, found, max)
    }

    fn rope(&self, k_dim: usize) -> Result<Rope, ModelError> {
        const BASE_DEFAULT: f32 = 10_000.0;
        let scaling = self.directory.find_str(&self.key("rope.scaling.type"))?.unwrap_or("none");
        let factor = self.directory.find_f32(&self.key("rope.scaling.factor"))?;
        let linear_factor = match scaling {
            "none" => 1.0,
            "linear" => factor.unwrap_or(1.0),
            other => {
                let what = format!("rope scaling \"{other}\"");
                return Err(ModelError::Unsupported { what });
            }
        };
        let base = self.directory.find_f32(&self.key("rope.freq_base"))?.unwrap_or(BASE_DEFAULT);
        if !(base.is_finite() && base > 0.0 && linear_factor.is_finite() && linear_factor > 0.0) {
            let what = format!("rope base {base} with factor {linear_factor}");
            return Err(ModelError::Impossible { what });
        }
        Ok(Rope {
            style: self.arch.rope_style,
            dims: self.size_or("rope.dimension_count", WIDTH_MAX, k_dim)?,
            base,
            linear_factor,
        })
    }
}

fn in_range(key: &str, found: u64, max: u64) -> Result<usize, ModelError> {
    if (1..=max).contains(&found) {
        return Ok(found as usize);
    }
    Err(ModelError::Impossible { what: format!("{key} is {found}; it must be from 1 to {max}") })
}

/// Tokens, counted by the embedding matrix: the one place that every file has.
fn vocab(directory: &Directory) -> Result<usize, ModelError> {
    let rows = directory.tensor(crate::names::EMBEDDING)?.rows() as u64;
    in_range("the number of tokens", rows, VOCAB_MAX)
}

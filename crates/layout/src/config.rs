//! A model's sizes and switches, read from its file's metadata.

use gguf::Directory;

use crate::arch::{self, Arch, LogitScale, QkNorm, Rotation, Windows};
use crate::metadata::{Metadata, in_range};
use crate::recurrence::{LayerHalves, Mixer, Recurrence, halves};
use crate::{Error, Experts, Rope, Temperature};

/// No published model comes near these; a file that does is broken or hostile.
pub(crate) const LAYERS_MAX: u64 = 1024;
pub(crate) const WIDTH_MAX: u64 = 1 << 20;
const VOCAB_MAX: u64 = 1 << 24;
const CONTEXT_MAX: u64 = 1 << 30;

/// Everything about a model that is not a weight.
#[derive(Debug, Clone)]
pub struct Config {
    pub arch: &'static Arch,
    pub layers: usize,
    /// What each layer is made of.
    pub halves: Vec<LayerHalves>,
    /// Numbers of the residual stream.
    pub width: usize,
    pub heads: usize,
    pub kv_heads: usize,
    /// Numbers of one head's query and key.
    pub k_dim: usize,
    /// Numbers of one head's value.
    pub v_dim: usize,
    /// Latent attention's sizes.
    pub latent: Option<Latent>,
    /// The sizes of layers that carry a state.
    pub recurrence: Option<Recurrence>,
    /// Hidden numbers of a dense layer's feed-forward block.
    pub feed_forward: usize,
    pub experts: Option<Experts>,
    pub vocab: usize,
    /// Positions that it was trained for.
    pub context_max: usize,
    pub rms_eps: f32,
    pub rope: Rope,
    rotation: Rotation,
    /// Attention scores are multiplied by this.
    pub attention_scale: f32,
    /// Attention scores become `cap * tanh(score / cap)`, after their scale.
    pub attention_cap: Option<f32>,
    temperature: Option<Temperature>,
    /// How many positions each layer sees; all of them where it is `None`.
    pub windows: Vec<Option<usize>>,
    pub embedding_scale: f32,
    /// What a layer's halves add to the residual stream is multiplied by this.
    pub residual_scale: f32,
    pub logit_scale: f32,
    /// Logits become `cap * tanh(logit / cap)`, after their scale.
    pub logit_cap: Option<f32>,
}

/// Multi-head latent attention (DeepSeek-V2, arXiv 2405.04434): the cache holds one compressed
/// vector a position, which all heads share.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Latent {
    /// Numbers of a compressed query, if queries are compressed.
    pub q_rank: Option<usize>,
    /// Numbers of a compressed key and value.
    pub kv_rank: usize,
    /// Numbers of a head's query that are not rotated, and that are.
    pub plain_dim: usize,
    pub rope_dim: usize,
}

impl Config {
    /// # Errors
    /// The architecture is not supported, or its metadata is missing or impossible.
    pub fn read(directory: &Directory) -> Result<Self, Error> {
        check_is_model(directory)?;
        let arch = arch::find(directory.str("general.architecture")?)?;
        let metadata = Metadata { directory, arch };
        let width = metadata.size("embedding_length", WIDTH_MAX)?;
        let heads = metadata.size("attention.head_count", WIDTH_MAX)?;
        let layers = layers(&metadata)?;
        let kv_heads = match arch.recurrence {
            None => metadata.size_or("attention.head_count_kv", WIDTH_MAX, heads)?,
            Some(_) => {
                let found = metadata.shared_size("attention.head_count_kv", WIDTH_MAX, layers)?;
                found.unwrap_or(heads)
            }
        };
        let halves = halves(&metadata, layers)?;
        let recurrence = Recurrence::read(&metadata, &halves, (width, heads))?;
        let (k_dim, v_dim, latent) = head_sizes(&metadata, width, heads)?;
        let rotated = latent.map_or(k_dim, |latent| latent.rope_dim);
        let rope = Rope::read(&metadata, rotated)?;
        let experts = Experts::read(&metadata, layers)?;
        // Files of which every layer has experts need not say how wide dense ones would be.
        let feed_forward = metadata.shared_size("feed_forward_length", WIDTH_MAX, layers)?;
        let feed_forward = match (feed_forward, &experts) {
            (Some(hidden), _) => hidden,
            (None, Some(experts)) => experts.hidden,
            (None, None) => metadata.size("feed_forward_length", WIDTH_MAX)?,
        };
        // Files write 0 for "not capped".
        let cap = |name| Ok::<_, Error>(metadata.find_f32(name)?.filter(|cap| *cap > 0.0));
        let sqrt_width = (width as f32).sqrt();
        let embedding_scale = if arch.embedding_times_sqrt_width { sqrt_width } else { 1.0 };
        let config = Self {
            arch,
            layers,
            halves,
            width,
            heads,
            kv_heads: if latent.is_some() { 1 } else { kv_heads },
            k_dim,
            v_dim,
            latent,
            recurrence,
            feed_forward,
            experts,
            vocab: vocab(directory)?,
            context_max: metadata.size("context_length", CONTEXT_MAX)?,
            rms_eps: rms_eps(&metadata)?,
            attention_scale: attention_scale(&metadata, &rope, width, heads, k_dim, layers)?,
            attention_cap: cap("attn_logit_softcapping")?,
            temperature: Temperature::read(&metadata, rope.original_context)?,
            rope,
            rotation: rotation(&metadata)?,
            windows: windows(&metadata, layers)?,
            embedding_scale: metadata.positive_or("embedding_scale", embedding_scale)?,
            residual_scale: metadata.positive_or("residual_scale", 1.0)?,
            logit_scale: match arch.logit_scale {
                LogitScale::Divides => 1.0 / metadata.positive_or("logit_scale", 1.0)?,
                LogitScale::Multiplies => metadata.positive_or("logit_scale", 1.0)?,
            },
            logit_cap: cap("final_logit_softcapping")?,
        };
        config.check()?;
        Ok(config)
    }

    /// The experts of layer `layer`, if it has any.
    pub fn experts_of(&self, layer: usize) -> Option<&Experts> {
        let sparse = |experts: &&Experts| experts.are_in(layer);
        self.experts.as_ref().filter(|_| self.halves[layer].feed_forward).filter(sparse)
    }

    /// Whether layer `layer` rotates queries and keys.
    pub fn rotates(&self, layer: usize) -> bool {
        match self.rotation {
            Rotation::Always | Rotation::UnlessUntrained => true,
            Rotation::AllButEvery(every) => !(layer + 1).is_multiple_of(every),
            Rotation::InWindows => self.windows[layer].is_some() || self.window().is_none(),
            Rotation::Never => false,
        }
    }

    /// The attention temperature of layer `layer`, if it has one.
    pub fn temperature_of(&self, layer: usize) -> Option<Temperature> {
        self.temperature.filter(|found| !(found.unrotated_only && self.rotates(layer)))
    }

    /// Whether layer `layer` normalises the heads of queries and keys without a gain (Llama 4).
    pub fn has_l2_qk_norm(&self, layer: usize) -> bool {
        // Llama 4 Maverick has no such norms, and its files have no key for that.
        const WITHOUT: usize = 128;
        let is_without = self.experts.is_some_and(|experts| experts.count == WITHOUT);
        let bare = self.arch.qk_norm == QkNorm::L2AfterRotation;
        bare && self.rotates(layer) && !is_without
    }

    /// How many positions the layers with the widest window see; `None` if no layer has one.
    pub fn window(&self) -> Option<usize> {
        self.windows.iter().flatten().max().copied()
    }

    /// Whether layer `layer` attends over keys and values of its own.
    pub fn attends(&self, layer: usize) -> bool {
        self.halves[layer].mixer == Some(Mixer::Attention)
    }

    /// The sizes of layer `layer`'s state, if it carries one.
    pub fn recurrence_of(&self, layer: usize) -> Option<&Recurrence> {
        let recurs = self.halves[layer].mixer == Some(Mixer::Recurrence);
        self.recurrence.as_ref().filter(|_| recurs)
    }

    /// How many numbers of a key and of a value the cache has, of each head that it has.
    pub fn cached_dims(&self) -> (usize, usize) {
        match self.latent {
            Some(latent) => (latent.kv_rank + latent.rope_dim, latent.kv_rank),
            None => (self.k_dim, self.v_dim),
        }
    }

    fn check(&self) -> Result<(), Error> {
        let impossible = |what: String| Err(Error::Impossible { what });
        if !self.heads.is_multiple_of(self.kv_heads) {
            let (heads, kv) = (self.heads, self.kv_heads);
            return impossible(format!("{heads} heads cannot share {kv} key/value heads evenly"));
        }
        let rotated = self.latent.map_or(self.k_dim, |latent| latent.rope_dim);
        let can_rotate = self.rope.dims.is_multiple_of(2) && self.rope.dims <= rotated;
        if self.rotation != Rotation::Never && !can_rotate {
            let dims = self.rope.dims;
            return impossible(format!("{dims} of {rotated} numbers of a head cannot be rotated"));
        }
        // Products of these are sizes of tensors; none may overflow before it is compared.
        let widest = [self.heads * self.k_dim, self.heads * self.v_dim, self.vocab];
        let limit = WIDTH_MAX as usize * 16;
        if let Some(found) = widest.iter().find(|found| **found > limit) {
            return impossible(format!("a matrix of {found} rows; at most {limit} are possible"));
        }
        Ok(())
    }
}

/// Refuses adapters and vision towers, which repositories hold beside models.
fn check_is_model(directory: &Directory) -> Result<(), Error> {
    let text = |key| directory.find_str(key).ok().flatten().unwrap_or_default();
    let what = match (text("general.type"), text("general.architecture")) {
        ("adapter", _) => "an adapter (LoRA), which has to be merged into its model first",
        (_, "clip") => "the part of one that reads images or sound (mmproj)",
        _ => return Ok(()),
    };
    Err(Error::NoModel { what })
}

/// Layers that are run: those for the prediction of further tokens are not.
fn layers(metadata: &Metadata<'_>) -> Result<usize, Error> {
    let all = metadata.size("block_count", LAYERS_MAX)?;
    let extra = metadata.find_size("nextn_predict_layers", LAYERS_MAX)?.unwrap_or(0);
    let what = || format!("{extra} of {all} layers are for further tokens");
    all.checked_sub(extra)
        .filter(|layers| *layers > 0)
        .ok_or_else(|| Error::Impossible { what: what() })
}

fn rms_eps(metadata: &Metadata<'_>) -> Result<f32, Error> {
    const KEY: &str = "attention.layer_norm_rms_epsilon";
    // Nemotron-H's converter writes the other name, for RMS norms all the same.
    match metadata.find_f32(KEY)?.or(metadata.find_f32("attention.layer_norm_epsilon")?) {
        Some(eps) => Ok(eps),
        None => Ok(metadata.directory.f32(&metadata.key(KEY))?),
    }
}

fn rotation(metadata: &Metadata<'_>) -> Result<Rotation, Error> {
    let untrained = || Ok::<_, Error>(metadata.find_bool("rope.scaling.finetuned")? == Some(false));
    Ok(match metadata.arch.rotation {
        Rotation::UnlessUntrained if untrained()? => Rotation::Never,
        rotation => rotation,
    })
}

/// A head's key and value numbers, and latent attention's sizes.
fn head_sizes(
    metadata: &Metadata<'_>,
    width: usize,
    heads: usize,
) -> Result<(usize, usize, Option<Latent>), Error> {
    let size_or = |name, default| metadata.size_or(name, WIDTH_MAX, default);
    if !metadata.arch.latent {
        let k_dim = size_or("attention.key_length", width / heads)?;
        return Ok((k_dim, size_or("attention.value_length", k_dim)?, None));
    }
    if metadata.get("attention.key_length_mla").is_none() {
        let what = "a DeepSeek file of the old form, without attention.key_length_mla (convert \
                    it again with a llama.cpp of May 2025 or later)";
        return Err(Error::Unsupported { what: what.to_owned() });
    }
    let size = |name| metadata.size(name, WIDTH_MAX);
    let k_dim = size("attention.key_length_mla")?;
    let rope_dim = size("rope.dimension_count")?;
    let Some(plain_dim) = k_dim.checked_sub(rope_dim).filter(|plain| *plain > 0) else {
        let what = format!("{rope_dim} numbers of a key of {k_dim} are rotated");
        return Err(Error::Impossible { what });
    };
    let latent = Latent {
        q_rank: metadata.find_size("attention.q_lora_rank", WIDTH_MAX)?,
        kv_rank: size("attention.kv_lora_rank")?,
        plain_dim,
        rope_dim,
    };
    Ok((k_dim, size("attention.value_length_mla")?, Some(latent)))
}

fn attention_scale(
    metadata: &Metadata<'_>,
    rope: &Rope,
    width: usize,
    heads: usize,
    k_dim: usize,
    layers: usize,
) -> Result<f32, Error> {
    /// Gemma 2 27B and Gemma 3 27B scale by width / heads; their files have no key for that.
    const GEMMAS_27B: [(&str, usize); 2] = [("gemma2", 46), ("gemma3", 62)];
    let gemma_27b = GEMMAS_27B.contains(&(metadata.arch.name, layers));
    let dim = if gemma_27b { width / heads } else { k_dim };
    let scale = metadata.positive_or("attention.scale", 1.0 / (dim as f32).sqrt())?;
    Ok(scale * rope.score_scale)
}

/// The window of each layer; none at all in a file that names none.
fn windows(metadata: &Metadata<'_>, layers: usize) -> Result<Vec<Option<usize>>, Error> {
    const KEY: &str = "attention.sliding_window";
    let window = match metadata.arch.windows {
        // A window of 0 turns chunks off. No file has another size of chunks.
        Windows::ChunksButEvery { size, .. } if metadata.get(KEY).is_none() => Some(size),
        _ => metadata.find_size(KEY, CONTEXT_MAX)?,
    };
    let windowed: Vec<bool> = match metadata.arch.windows {
        _ if window.is_none() => vec![false; layers],
        Windows::Never => vec![false; layers],
        Windows::Always => vec![true; layers],
        Windows::AllButEvery(every) | Windows::ChunksButEvery { every, .. } => {
            pattern(metadata, layers, every)?
        }
    };
    Ok(windowed.into_iter().map(|windowed| window.filter(|_| windowed)).collect())
}

/// Which layers have a window: the file may say so, layer by layer or as a period.
fn pattern(metadata: &Metadata<'_>, layers: usize, every: usize) -> Result<Vec<bool>, Error> {
    const KEY: &str = "attention.sliding_window_pattern";
    let array = metadata.get(KEY).and_then(|value| value.as_array());
    if let Some(flags) = array.and_then(|array| array.integers()) {
        let flags: Vec<bool> = flags.map(|flag| flag != 0).collect();
        if flags.len() < layers {
            let what = format!("{} names {} of {layers} layers", metadata.key(KEY), flags.len());
            return Err(Error::Impossible { what });
        }
        return Ok(flags[..layers].to_vec());
    }
    let every = metadata.size_or(KEY, LAYERS_MAX, every)?;
    Ok((0..layers).map(|layer| !(layer + 1_usize).is_multiple_of(every)).collect())
}

/// Tokens, counted by the embedding matrix: the one place that every file has.
fn vocab(directory: &Directory) -> Result<usize, Error> {
    let rows = directory.tensor(crate::names::EMBEDDING)?.rows() as u64;
    in_range("the number of tokens", rows, VOCAB_MAX)
}

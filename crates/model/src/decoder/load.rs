//! Loading one rank's slice of a model.

use std::sync::Arc;

use backend::{Backend, CacheKind, KvShape, RopeTable};
use gguf::{Directory, Source};

use super::layer::Layer;
use super::scratch::Scratch;
use super::{Capacity, Head, Model};
use crate::loader::{Loader, Progress};
use crate::shard::{Cuts, Hidden};
use crate::{Config, Layout, ModelError, Shard, names};

impl<B: Backend> Model<B> {
    /// Loads rank `rank`'s slice of a model: its share of its stage's layers.
    ///
    /// # Errors
    /// The file is no complete model of a supported kind, it cannot be read, or memory is short.
    pub fn load(
        backend: &mut B,
        source: &Arc<dyn Source>,
        layout: &Layout,
        rank: usize,
        capacity: Capacity,
        progress: Progress<'_>,
    ) -> Result<Self, ModelError> {
        let config = Config::read(source.directory())?;
        let stage = &layout.stages()[layout.stage_of(rank)];
        let head = layout.head_of(rank);
        let rank = rank - stage.ranks.start;
        let cuts = cuts(&config, source.directory(), layout.whole_experts())?;
        let mut shard = Shard::new(&cuts, &stage.split, rank);
        let mut loader = Loader::new(backend, source.as_ref(), progress);
        let load = |layer| Layer::load(&mut loader, &config, &shard, layer);
        let layers = stage.layers.clone().map(load).collect::<Result<Vec<_>, _>>()?;
        loader.check_all_read(config.arch.name, &stage.layers)?;
        shard.vocab = head.map_or(0..0, |at| layout.cut_vocab(config.vocab)[at].clone());
        let head = match head {
            Some(_) => Some(Head::load(&mut loader, &config, &shard)?),
            None => None,
        };
        let rope = rope_tables(&mut loader, &config, capacity.context_tokens)?;
        let weight_bytes = loader.device_bytes;

        let kv_shape = kv_shape(&config, source.directory(), &shard, capacity)?;
        let kv = (0..layers.len())
            .map(|_| backend.kv(kv_shape))
            .collect::<Result<Vec<_>, _>>()
            .map_err(|source| ModelError::Backend { name: "key/value cache".into(), source })?;
        Ok(Self {
            rope,
            scratch: Scratch::new(backend, &config, &shard, capacity),
            weight_bytes,
            kv_bytes: (layers.len() * backend.kv_bytes(&kv_shape)) as u64,
            cache_kind: kv_shape.kind,
            rows_max: capacity.rows_max,
            layers,
            head,
            kv,
            config,
            shard,
        })
    }
}

impl<B: Backend> Head<B> {
    fn load(
        loader: &mut Loader<'_, B>,
        config: &Config,
        shard: &Shard,
    ) -> Result<Self, ModelError> {
        let norm = loader.vector(names::OUTPUT_NORM, config.width)?;
        // A model without an output matrix uses its embedding as one.
        let tied = loader.source.directory().find_tensor(names::OUTPUT).is_none();
        let output = if tied { names::EMBEDDING } else { names::OUTPUT };
        let vocab = shard.vocab.clone();
        let output = loader.rows(output, config.width, config.vocab, vocab)?;
        Ok(Self { norm, output })
    }
}

/// One layer's cache. Latent attention caches the compressed vector and the rotated part of the
/// key, which all heads share, so every rank with heads has all of it.
///
/// Unless something else is asked for, the cache is as exact as the weights that fill it: f32 where
/// the file's are floats, so that such a model computes what its authors' code does, half precision
/// where they are quantised.
fn kv_shape(
    config: &Config,
    directory: &Directory,
    shard: &Shard,
    capacity: Capacity,
) -> Result<KvShape, ModelError> {
    let (k_dim, v_dim) = match config.latent {
        Some(latent) => (latent.kv_rank + latent.rope_dim, latent.kv_rank),
        None => (config.k_dim, config.v_dim),
    };
    let filled_by = match (config.latent.is_some(), config.arch.fused) {
        (true, _) => "attn_kv_a_mqa",
        (false, true) => "attn_qkv",
        (false, false) => "attn_k",
    };
    let ty = directory.tensor(&names::layer(0, filled_by))?.ty;
    let by_file = if ty.block_len() == 1 { CacheKind::F32 } else { CacheKind::I16 };
    let (pages, kind) = (capacity.kv_pages, capacity.cache_kind.unwrap_or(by_file));
    Ok(KvShape { heads: shard.kv_heads.len(), k_dim, v_dim, pages, kind })
}

/// The sizes that decide where this model may be cut.
fn cuts(config: &Config, directory: &Directory, whole: bool) -> Result<Cuts, ModelError> {
    let longest_block = |name: &str, layers: std::ops::Range<usize>| -> Result<_, ModelError> {
        layers.into_iter().try_fold(1, |longest, layer| {
            let tensor = directory.tensor(&names::layer(layer, name))?;
            Ok(longest.max(tensor.ty.block_len()))
        })
    };
    let dense_layers = config.experts.map_or(config.layers, |experts| experts.dense_layers);
    let (dense, sparse) = (0..dense_layers, dense_layers..config.layers);
    let hidden = |name: &str, columns: Option<usize>, layers: &std::ops::Range<usize>| {
        let columns = columns.filter(|_| !layers.is_empty());
        let hidden = columns.map(|columns| -> Result<_, ModelError> {
            Ok(Hidden::columns(columns, longest_block(name, layers.clone())?))
        });
        hidden.transpose()
    };
    let routed = config.experts.map(|experts| experts.hidden);
    let shared = config.experts.and_then(|experts| experts.shared_hidden);
    Ok(Cuts {
        heads: config.heads,
        kv_heads: config.kv_heads,
        v_dim: config.v_dim,
        attention_block: longest_block("attn_output", 0..config.layers)?,
        feed_forward: hidden("ffn_down", Some(config.feed_forward), &dense)?,
        experts: match config.experts.filter(|_| whole) {
            Some(experts) => Some(Hidden::whole(experts.rule.experts)),
            None => hidden("ffn_down_exps", routed, &sparse)?,
        },
        shared_expert: hidden("ffn_down_shexp", shared, &sparse)?,
        whole_experts: whole && config.experts.is_some(),
    })
}

/// The rotations, stretched as the file's tensors say. Longrope has factors for contexts within
/// the original one and for longer ones; a cache cannot change between them, so the longest
/// sequence that there is room for decides.
fn rope_tables<B: Backend>(
    loader: &mut Loader<'_, B>,
    config: &Config,
    context_tokens: usize,
) -> Result<Vec<RopeTable>, ModelError> {
    let long = context_tokens > config.rope.original_context;
    let longrope = if long { names::ROPE_FACTORS_LONG } else { names::ROPE_FACTORS_SHORT };
    let directory = loader.source.directory();
    let name = [names::ROPE_FACTORS, longrope]
        .into_iter()
        .find(|name| directory.find_tensor(name).is_some());
    let factors = match name {
        Some(name) => Some(loader.floats(name, [config.rope.dims / 2, 1])?),
        None => None,
    };
    if factors.iter().flatten().any(|factor| !(factor.is_finite() && *factor > 0.0)) {
        let what = "a factor of its rotation is not above 0".to_owned();
        return Err(ModelError::Impossible { what });
    }
    Ok(config.rope.tables(factors.as_deref()))
}

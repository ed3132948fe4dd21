//! Loads one rank's slice of a model.

use std::sync::Arc;

use backend::{
    Backend, BackendError, CacheKind, EntryShape, KvShape, RecurrentShape, RopeTable, StateRoom,
};
use gguf::Source;
use layout::{Cache, Capacity, Config, EntryCache, Holding, Layout, Outline, Slices, names};
use protocol::{CacheType, ExpertCache};

use super::context::{IndexKept, Kept};
use super::entry::Entry;
use super::layer::Layer;
use super::norm::Norm;
use super::parts::ngrams::ngram_shape;
use super::parts::recurrence::recurrent_shape;
use super::parts::streams::HeadStreams;
use super::projections::Projections;
use super::scratch::Scratch;
use super::taps::Taps;
use super::{Head, Model};
use crate::loader::shelf::Shelf;
use crate::loader::{Loader, Progress};
use crate::operations::routing_rule;
use crate::{ModelError, rope};

impl<B: Backend> Model<B> {
    /// Loads rank `rank`'s slice of a model: its share of its stage's layers. `outline` must be
    /// that of `source`.
    ///
    /// # Errors
    /// The file cannot be read, or memory is short.
    pub fn load(
        backend: &mut B,
        source: &Arc<dyn Source>,
        outline: &Outline,
        layout: &Layout,
        rank: usize,
        capacity: Capacity,
        progress: Progress<'_>,
    ) -> Result<Self, ModelError> {
        let holding = Holding::new(outline, layout, rank);
        Self::load_holding(backend, source, &holding, capacity, None, progress)
    }

    /// The same of a rank's share, with the routed experts on disk if there is a folder for them.
    ///
    /// # Errors
    /// Also if the disk has neither room for the experts nor the model's file, or their memory has
    /// no room for one.
    pub fn load_holding(
        backend: &mut B,
        source: &Arc<dyn Source>,
        holding: &Holding<'_>,
        capacity: Capacity,
        experts: Option<&ExpertCache>,
        progress: Progress<'_>,
    ) -> Result<Self, ModelError> {
        let config = holding.config();
        let shard = &holding.shard;
        check_device(backend, config, holding)?;
        let (kept, kept_bytes) = keep(backend, config, holding, &capacity)?;
        let mut loader = Loader::new(backend, source.as_ref(), progress);
        let experts = experts.filter(|_| config.experts.is_some());
        loader.shelf = match experts {
            Some(spec) => Some(Arc::new(Shelf::open::<B>(spec, holding, source)?)),
            None => None,
        };
        let first = holding.layers.start;
        let load =
            |layer| Layer::load(&mut loader, config, shard, &holding.layer(layer), (layer, first));
        let layers = holding.layers.clone().map(load).collect::<Result<Vec<_>, _>>()?;
        let head =
            holding.head().map(|slices| Head::load(&mut loader, config, &slices)).transpose()?;
        let buffers = holding.buffers(&capacity);
        let (entry, projections) = match holding.head() {
            Some(slices) => (
                Entry::find(&mut loader, config, &slices, buffers.rows)?,
                Projections::find(&mut loader, config, &slices, buffers.rows)?,
            ),
            None => (None, None),
        };
        let shelf = loader.shelf.take();
        let arena = shelf.as_ref().map(|shelf| shelf.arena().clone());
        if let Some(shelf) = &shelf {
            shelf.warm();
        }
        let note = shelf.and_then(|shelf| shelf.note().cloned());
        let weight_bytes = loader.device_bytes + arena.as_ref().map_or(0, |arena| arena.bytes().1);
        let rope = rope_tables(&mut loader, config, capacity.context_tokens)?;

        let (scratch, scratch_bytes) = Scratch::new(backend, &buffers);
        let entry_bytes = entry.as_ref().map_or(0, |entry| entry.buffer_bytes(backend))
            + projections.as_ref().map_or(0, |own| own.buffer_bytes(backend));
        Ok(Self {
            rope,
            buffer_bytes: scratch_bytes + entry_bytes,
            entry,
            projections,
            scratch,
            row: config.row(first),
            next_row: config.row(holding.layers.end),
            handed_on: Vec::new(),
            taps: Taps::default(),
            weight_bytes,
            kv_bytes: kept_bytes,
            // Every layer has the same kind.
            cache_kind: cache_shape(backend, holding.cache(first, &capacity)).kind,
            rows_max: buffers.rows,
            layers,
            head,
            kept,
            arena,
            note,
            config: config.clone(),
            shard: holding.shard.clone(),
        })
    }
}

impl<B: Backend> Head<B> {
    fn load(
        loader: &mut Loader<'_, B>,
        config: &Config,
        slices: &Slices<'_>,
    ) -> Result<Self, ModelError> {
        Ok(Self {
            streams: HeadStreams::load(loader, config, slices)?,
            norm: Norm::find(loader, config, slices, "norm")?,
            output: slices.find("output").map(|slice| loader.matrix(&slice)).transpose()?,
            bias: loader.find_vector(slices.find("output.bias"))?,
        })
    }
}

/// Refuses a model with what this device lacks, before anything is loaded.
fn check_device<B: Backend>(
    backend: &B,
    config: &Config,
    holding: &Holding<'_>,
) -> Result<(), ModelError> {
    for slice in holding.all().flat_map(Slices::iter) {
        let (name, [_, rows, cols]) = (&slice.tensor.name, slice.shape());
        if !slice.tensor.is_vector {
            backend
                .check_matrix(slice.tensor.ty, rows, cols)
                .map_err(|source| ModelError::Backend { name: name.clone(), source })?;
        }
    }
    if config.encoder.is_some() && B::COMPILES {
        return Err(ModelError::EncoderDevice);
    }
    if config.recurrence.is_some() {
        backend.check_recurrence().map_err(ModelError::Device)?;
    }
    if config.indexer.is_some() {
        backend.check_indexer().map_err(ModelError::Device)?;
    }
    if let Some(experts) = &config.experts {
        backend.check_routing(&routing_rule(experts)).map_err(ModelError::Device)?;
    }
    Ok(())
}

/// Allocates the caches of the rank's layers, and returns their bytes.
fn keep<B: Backend>(
    backend: &mut B,
    config: &Config,
    holding: &Holding<'_>,
    capacity: &Capacity,
) -> Result<(Vec<Kept<B>>, u64), ModelError> {
    let mut bytes = 0;
    let mut of_layer = |layer: usize| -> Result<Kept<B>, ModelError> {
        let states = config.recurrence_of(layer).zip(holding.states(capacity));
        if let Some((sizes, states)) = states {
            let layout::States { slots, checkpoints, kept_rows, .. } = states;
            let room = StateRoom { slots, checkpoints, kept_rows };
            let mut make = |shape: RecurrentShape| {
                bytes += backend.states_bytes(&shape, room) as u64;
                backend.states(&shape, room).map_err(failed("states"))
            };
            let own = make(recurrent_shape(sizes, &holding.shard))?;
            return Ok(Kept::States(own, ngram_shape(config, layer).map(make).transpose()?));
        }
        if !config.keeps(layer) || holding.uses_first_cache(layer) {
            return Ok(Kept::Nothing);
        }
        if config.compressed.is_some() {
            let (kept, taken) = keep_compressed(backend, holding, capacity, layer)?;
            bytes += taken;
            return Ok(kept);
        }
        let mut kv = |backend: &mut B, shape| {
            bytes += backend.kv_bytes(&shape) as u64;
            backend.kv(shape).map_err(failed("key/value cache"))
        };
        let shape = cache_shape(backend, holding.cache(layer, capacity));
        let own = kv(backend, shape)?;
        let index = holding.index_cache(layer, capacity);
        let index = index.map(|cache| cache_shape(backend, cache));
        let index = index.map(|shape| kv(backend, shape)).transpose()?;
        let mut kept = index.map(IndexKept::Positions);
        for cache in holding.entry_caches(layer, capacity) {
            let (entries, taken) = make_entries(backend, &cache)?;
            bytes += taken;
            kept = Some(IndexKept::Entries(entries));
        }
        Ok(Kept::KeysAndValues(own, kept))
    };
    let kept = holding.layers.clone().map(&mut of_layer).collect::<Result<Vec<_>, _>>()?;
    Ok((kept, bytes))
}

/// Allocates the cache of a layer that compresses, and returns its bytes.
fn keep_compressed<B: Backend>(
    backend: &mut B,
    holding: &Holding<'_>,
    capacity: &Capacity,
    layer: usize,
) -> Result<(Kept<B>, u64), ModelError> {
    let shape = cache_shape(backend, holding.cache(layer, capacity));
    let of_keys = backend.kv_bytes(&shape) as u64;
    let own = backend.kv(shape).map_err(failed("key/value cache"))?;
    let caches = holding.entry_caches(layer, capacity);
    let made = caches.iter().map(|cache| make_entries(backend, cache));
    let (entries, bytes): (Vec<_>, Vec<_>) =
        made.collect::<Result<Vec<_>, _>>()?.into_iter().unzip();
    Ok((Kept::Compressed(own, entries), of_keys + bytes.iter().sum::<u64>()))
}

/// Allocates entries, and returns their bytes.
fn make_entries<B: Backend>(
    backend: &mut B,
    cache: &EntryCache,
) -> Result<(B::Entries, u64), ModelError> {
    let EntryCache { blocks, dim, cache_type, pages, row_pages } = *cache;
    let shape = EntryShape {
        dim,
        positions: blocks.positions,
        overlap: blocks.overlap,
        pages,
        kind: if cache_type == CacheType::F32 { CacheKind::F32 } else { CacheKind::I16 },
        row_pages,
        row_slots: blocks.row_slots(),
    };
    let bytes = backend.entries_bytes(&shape) as u64;
    Ok((backend.entries(shape).map_err(failed("entries of blocks"))?, bytes))
}

fn failed(name: &'static str) -> impl Fn(BackendError) -> ModelError {
    move |source| ModelError::Backend { name: name.into(), source }
}

fn cache_shape<B: Backend>(backend: &B, cache: Cache) -> KvShape {
    const { assert!(layout::PAGE_POSITIONS == backend::PAGE_POSITIONS) };
    let Cache { heads, k_dim, v_dim, cache_type, is_free, pages } = cache;
    let kind = match cache_type {
        CacheType::Auto | CacheType::I16 => CacheKind::I16,
        CacheType::F16 => CacheKind::F16,
        CacheType::Q8_0 => CacheKind::Q8_0,
        CacheType::F32 => CacheKind::F32,
    };
    let kind = if is_free { backend.cache_kind(kind) } else { kind };
    KvShape { heads, k_dim, v_dim, pages, kind }
}

/// The rotations, stretched by the file's factors. Longrope has factors for contexts within the
/// original one and for longer ones. A cache cannot switch between them, so the longest possible
/// sequence decides.
fn rope_tables<B: Backend>(
    loader: &mut Loader<'_, B>,
    config: &Config,
    context_tokens: usize,
) -> Result<Vec<RopeTable>, ModelError> {
    let long = config.rope.short_context.is_some_and(|short| context_tokens > short);
    let longrope = if long { names::ROPE_FACTORS_LONG } else { names::ROPE_FACTORS_SHORT };
    let directory = loader.source.directory();
    let name = [names::ROPE_FACTORS, longrope]
        .into_iter()
        .find(|name| directory.find_tensor(name).is_some());
    let numbers = config.rope.dims / 2;
    let factors = name.map(|name| layout::checked_vector(directory, name, numbers)).transpose()?;
    let factors = factors.cloned();
    let factors = factors.map(|tensor| loader.floats(&tensor, 0..numbers)).transpose()?;
    if factors.iter().flatten().any(|factor| !(factor.is_finite() && *factor > 0.0)) {
        let what = "a factor of its rotation is not above 0".to_owned();
        return Err(ModelError::Impossible { what });
    }
    let mut tables = rope::tables(&config.rope, factors.as_deref());
    if config.compressed.is_some() {
        tables.extend(tables.iter().map(RopeTable::inverse).collect::<Vec<_>>());
    }
    Ok(tables)
}

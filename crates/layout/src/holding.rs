//! The share of one rank: its slices of tensors, its cache and its buffers, and their bytes.

use std::ops::Range;

use protocol::CacheType;
use serde::{Deserialize, Serialize};

use crate::buffers::{BufferRows, Buffers};
use crate::outline::Outline;
use crate::parts::all::ALL;
use crate::parts::{Blocks, EntryCache, Indexer, Mixer, Recurrence, RecurrentWidths};
use crate::shard::Shard;
use crate::slice::Slices;
use crate::wiring::Share;
use crate::{Capacity, Config, Device, GUESSES_MAX, Layout, Leaves, PAGE_POSITIONS, Split, Window};

/// One rank's share of a model.
#[derive(Debug, Clone)]
pub struct Holding<'a> {
    pub(crate) outline: &'a Outline,
    /// The layers of its stage.
    pub layers: Range<usize>,
    pub shard: Shard,
    has_head: bool,
    pub(crate) stages: usize,
}

/// One layer's cache of keys and values, on one rank.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Cache {
    pub heads: usize,
    pub k_dim: usize,
    pub v_dim: usize,
    /// Never `Auto`: the requested type, or the CPU's default.
    pub cache_type: CacheType,
    /// No type was requested, so each device uses its own default.
    pub is_free: bool,
    /// Pages of [`PAGE_POSITIONS`] positions each.
    pub pages: usize,
}

/// One layer's states, on one rank.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct States {
    /// Slots for the most sequences at once, and copies.
    pub slots: usize,
    pub checkpoints: usize,
    /// Rows kept by each sequence while their tokens are speculated.
    pub kept_rows: usize,
    /// f32 elements of a state, and of the rows that a sequence keeps.
    pub numbers: u64,
    pub kept_numbers: u64,
}

/// The memory of a rank, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Footprint {
    pub weight_bytes: u64,
    pub cache_bytes: u64,
    /// Bytes of a step's activations.
    pub buffer_bytes: u64,
}

impl Footprint {
    pub fn bytes(&self) -> u64 {
        self.weight_bytes.saturating_add(self.cache_bytes).saturating_add(self.buffer_bytes)
    }

    /// Both together.
    pub fn plus(&self, other: &Self) -> Self {
        Self {
            weight_bytes: self.weight_bytes.saturating_add(other.weight_bytes),
            cache_bytes: self.cache_bytes.saturating_add(other.cache_bytes),
            buffer_bytes: self.buffer_bytes.saturating_add(other.buffer_bytes),
        }
    }
}

impl<'a> Holding<'a> {
    /// The share of `rank` in a split.
    pub fn new(outline: &'a Outline, layout: &Layout, rank: usize) -> Self {
        let (stage, stages) = (&layout.stages()[layout.stage_of(rank)], layout.stages().len());
        let at = rank - stage.ranks.start;
        let mut held = Self::of_stage(outline, &stage.split, at, layout.whole_experts(), stages);
        held.layers = stage.layers.clone();
        if let Some(at) = layout.head_of(rank) {
            held.set_vocab(layout.cut_vocab(outline.config.vocab)[at].clone());
        }
        held
    }

    /// The share of rank `at` of a stage in any layer, without a part of the output head so far. It
    /// has no layers of its own: for a planner that has not decided their number. `stages`: the
    /// number of stages.
    pub fn of_stage(
        outline: &'a Outline,
        split: &Split,
        at: usize,
        whole_experts: bool,
        stages: usize,
    ) -> Self {
        let shard = Shard::new(outline.cuts(whole_experts), split, at);
        Self { outline, layers: 0..0, shard, has_head: false, stages }
    }

    pub fn config(&self) -> &'a Config {
        &self.outline.config
    }

    /// Assigns these rows of the output head.
    pub fn set_vocab(&mut self, rows: Range<usize>) {
        (self.shard.vocab, self.has_head) = (rows, true);
    }

    /// The slices of layer `layer`, which must be in this stage.
    pub fn layer(&self, layer: usize) -> Slices<'_> {
        Slices { tensors: &self.outline.layers[layer], shard: &self.shard }
    }

    /// The slices of the output head, if the rank has a part of it.
    pub fn head(&self) -> Option<Slices<'_>> {
        self.has_head.then_some(Slices { tensors: &self.outline.head, shard: &self.shard })
    }

    /// Bytes of its slices in the file.
    pub fn file_bytes(&self) -> u64 {
        self.all().flat_map(Slices::iter).map(|slice| slice.file_bytes()).sum()
    }

    /// The cache of layer `layer`. Latent attention caches the compressed vector and the rotated
    /// part of the key, which all heads share, so every rank with heads has all of it.
    ///
    /// Unless another type is requested, the cache is as exact as the weights that fill it: f32
    /// where the file's are floats, so that such a model computes the same as its authors' code, 16
    /// bits where they are quantised.
    pub fn cache(&self, layer: usize, capacity: &Capacity) -> Cache {
        let config = &self.outline.config;
        let (k_dim, v_dim) = config.cached_dims(config.heads_of(layer));
        let cache_type = match capacity.cache_type {
            CacheType::Auto if self.outline.is_cache_float() => CacheType::F32,
            CacheType::Auto => CacheType::I16,
            asked => asked,
        };
        let has_window = config.windows[layer].is_some();
        let window = self.window(capacity).filter(|_| has_window);
        let pages = window.map_or(capacity.pages(), |window| window.pages);
        let is_free = capacity.cache_type == CacheType::Auto;
        let heads = self.shard.attention[config.heads_kind(layer)].keys.len();
        Cache { heads, k_dim, v_dim, cache_type, is_free, pages }
    }

    /// The key cache of layer `layer`'s indexer, if it has one over every position: at least as
    /// exact as the layer's cache.
    pub fn index_cache(&self, layer: usize, capacity: &Capacity) -> Option<Cache> {
        let config = &self.outline.config;
        let positions = |indexer: &&Indexer| indexer.pool.is_none() && config.compressed.is_none();
        let indexer = config.indexer_of(layer).filter(positions)?;
        let cache = self.cache(layer, capacity);
        let cache_type = match cache.cache_type {
            CacheType::F32 => CacheType::F32,
            _ => CacheType::I16,
        };
        let (k_dim, v_dim) = (indexer.dim, 0);
        Some(Cache { heads: cache.heads.min(1), k_dim, v_dim, cache_type, is_free: false, ..cache })
    }

    /// The block caches of layer `layer`: of its heads, then of its indexer, if it has them.
    pub fn entry_caches(&self, layer: usize, capacity: &Capacity) -> Vec<EntryCache> {
        let config = &self.outline.config;
        let indexer = config.indexer_of(layer);
        let pools = indexer.and_then(|indexer| indexer.pool);
        let pools = pools.map(|positions| Blocks { positions, overlap: false });
        let blocks = config.compressed.as_ref().and_then(|found| found.blocks(layer));
        let cache = self.cache(layer, capacity);
        let of_heads = blocks.map(|_| cache.k_dim);
        let Some(blocks) = blocks.or(pools) else { return Vec::new() };
        // A rank without heads keeps no pages.
        let held = |pages| if cache.heads > 0 { pages } else { 0 };
        let of = |dim: usize| EntryCache {
            blocks,
            dim,
            cache_type: match cache.cache_type {
                CacheType::F32 => CacheType::F32,
                _ => CacheType::I16,
            },
            pages: held(capacity.pages()),
            row_pages: held(cache.pages),
        };
        of_heads.into_iter().chain(indexer.map(|indexer| indexer.dim)).map(of).collect()
    }

    /// The window cache of layers with a window, if it is smaller than all positions.
    pub fn window(&self, capacity: &Capacity) -> Option<Window> {
        capacity.window(self.outline.config.window(), self.stages)
    }

    /// The states of a layer with a state; `None` for models without such layers.
    pub fn states(&self, capacity: &Capacity) -> Option<States> {
        let sizes = self.outline.config.recurrence?;
        let widths = self.recurrent_widths()?;
        Some(Self::states_of(sizes, widths, capacity))
    }

    /// The states of the convolution over n-gram embeddings, in the layer that reads them.
    pub fn ngram_states(&self, layer: usize, capacity: &Capacity) -> Option<States> {
        let config = &self.outline.config;
        let ngrams = config.ngrams.as_ref().filter(|ngrams| ngrams.layer == layer)?;
        let channels = config.stream_width();
        let sizes = Recurrence::convolution(channels, ngrams.reach());
        Some(Self::states_of(sizes, sizes.widths(channels, channels), capacity))
    }

    fn states_of(sizes: Recurrence, widths: RecurrentWidths, capacity: &Capacity) -> States {
        States {
            slots: capacity.sequences_max,
            checkpoints: capacity.checkpoints,
            kept_rows: GUESSES_MAX,
            numbers: sizes.state_numbers(&widths),
            kept_numbers: Recurrence::kept_numbers(&widths, GUESSES_MAX),
        }
    }

    pub(crate) fn recurrent_widths(&self) -> Option<RecurrentWidths> {
        let heads = &self.shard.recurrent_heads;
        let sizes = self.outline.config.recurrence?;
        Some(sizes.widths(heads.keys.len(), heads.value_heads()))
    }

    /// Whether layer `layer` caches where the first layer of the stage does.
    pub fn uses_first_cache(&self, layer: usize) -> bool {
        self.outline.config.shares_caches() && layer != self.layers.start
    }

    /// Bytes of layer `layer`'s cache: keys and values, or states.
    pub fn kept_bytes(&self, layer: usize, capacity: &Capacity, device: Device) -> u64 {
        match self.outline.config.halves[layer].mixer {
            None => 0,
            Some(Mixer::Attention) if !self.outline.config.keeps(layer) => 0,
            Some(_) if self.uses_first_cache(layer) => 0,
            Some(Mixer::Attention) => {
                let index = self.index_cache(layer, capacity).map_or(0, |own| own.bytes(device));
                let entries = self.entry_caches(layer, capacity);
                let more = entries.iter().map(EntryCache::bytes).fold(index, u64::saturating_add);
                self.cache(layer, capacity).bytes(device).saturating_add(more)
            }
            Some(Mixer::Recurrence) => {
                let all = [self.states(capacity), self.ngram_states(layer, capacity)];
                all.iter().flatten().map(States::bytes).fold(0, u64::saturating_add)
            }
        }
    }

    /// The memory that the rank takes on `device`.
    pub fn footprint(&self, capacity: &Capacity, device: Device) -> Footprint {
        self.footprint_with(self.weight_bytes(device), capacity, device)
    }

    /// The bytes of its weights there.
    pub fn weight_bytes(&self, device: Device) -> u64 {
        self.all().flat_map(Slices::iter).map(|slice| slice.memory_bytes(device)).sum()
    }

    /// The footprint when [`weight_bytes`](Self::weight_bytes) is already known.
    pub fn footprint_with(
        &self,
        weight_bytes: u64,
        capacity: &Capacity,
        device: Device,
    ) -> Footprint {
        let kept = self.layers.clone().map(|layer| self.kept_bytes(layer, capacity, device));
        Footprint {
            weight_bytes,
            cache_bytes: kept.fold(0, u64::saturating_add),
            buffer_bytes: self.buffers(capacity).bytes(device),
        }
    }

    /// The activations of its steps.
    pub fn buffers(&self, capacity: &Capacity) -> Buffers {
        let (config, shard) = (&self.outline.config, &self.shard);
        let parts = |leaves: &Leaves| leaves.part_ends(shard.rank).len();
        let mut all = Buffers {
            rows: capacity.rows_max(self.stages),
            outputs: capacity.outputs_max(),
            parts: parts(shard.attention_leaves())
                .max(parts(&shard.feed_forward[0]))
                .max(shard.recurrent.as_ref().map_or(0, parts)),
            positions: (capacity.pages() as u64).saturating_mul(PAGE_POSITIONS as u64),
            ..Buffers::default()
        };
        // The residual streams; a half's input, and then its total; its partial sums.
        all.add([("x", config.stream_width()), ("h", config.width)]);
        all.add_rows(BufferRows::Parts, "sums", config.width);
        // The input of the logits, and this rank's part of them.
        all.add_rows(BufferRows::Outputs, "normed", config.width);
        let logits = if config.encoder.is_some() { 0 } else { shard.vocab.len() };
        all.add_rows(BufferRows::Outputs, "logits", logits);
        let layers = self.layers.clone();
        let share = Share { config, shard, layers, tensors: &self.outline.layers, capacity };
        ALL.iter().for_each(|part| part.buffers(&share, &mut all));
        all
    }

    /// All of its slices.
    pub fn all(&self) -> impl Iterator<Item = Slices<'_>> {
        self.layers.clone().map(|layer| self.layer(layer)).chain(self.head())
    }
}

impl States {
    /// Bytes of one layer.
    pub fn bytes(&self) -> u64 {
        let states = (self.slots as u64).saturating_add(self.checkpoints as u64);
        // Each slot also counts its kept rows.
        let of_slot = self.kept_numbers + 1;
        let kept = (self.slots as u64).saturating_mul(of_slot);
        let numbers = states.saturating_mul(self.numbers).saturating_add(kept);
        numbers.saturating_mul(size_of::<f32>() as u64)
    }
}

impl Cache {
    /// Bytes of one layer.
    pub fn bytes(&self, device: Device) -> u64 {
        let positions = (self.pages as u64).saturating_mul(PAGE_POSITIONS as u64);
        let positions = device.positions(positions);
        positions.saturating_mul(self.heads as u64 * self.position_bytes(device))
    }

    /// Bytes of one position of one head.
    pub fn position_bytes(&self, device: Device) -> u64 {
        let own = || device.cache_type(self.cache_type);
        let cache_type = if self.is_free { own() } else { self.cache_type };
        device.position_bytes(cache_type, self.k_dim, self.v_dim)
    }
}

//! What one rank holds: its slices of tensors, its cache and its buffers, and their bytes.

use std::ops::Range;

use protocol::CacheType;
use serde::{Deserialize, Serialize};

use crate::arch::{GatedAttention, QkNorm};
use crate::{
    Capacity, Device, GUESSES_MAX, Layout, Leaves, Mixer, Outline, PAGE_POSITIONS, Recurrence,
    RecurrentWidths, Shard, Slices, Split, Window,
};

/// What one rank holds of a model.
#[derive(Debug, Clone)]
pub struct Holding<'a> {
    pub(crate) outline: &'a Outline,
    /// Those of its stage.
    pub layers: Range<usize>,
    pub shard: Shard,
    has_head: bool,
    stages: usize,
}

/// One layer's cache of keys and values, on one rank.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Cache {
    pub heads: usize,
    pub k_dim: usize,
    pub v_dim: usize,
    /// Never `Auto`: what was asked for, or else what the CPU takes.
    pub cache_type: CacheType,
    /// None was asked for, so that each device takes its own.
    pub is_free: bool,
    /// Of [`PAGE_POSITIONS`] positions each.
    pub pages: usize,
}

/// One layer's states, on one rank.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct States {
    /// One for each sequence that may run, and copies.
    pub slots: usize,
    pub checkpoints: usize,
    /// Rows that each sequence keeps while their tokens are guesses.
    pub kept_rows: usize,
    /// f32 numbers of a state, and of the rows that a sequence keeps.
    pub numbers: u64,
    pub kept_numbers: u64,
}

/// The widths of the activations of a step, in numbers. Latent attention's are apart.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Buffers {
    /// Rows of the largest step, and those of them whose logits may be wanted.
    pub rows: usize,
    pub outputs: usize,
    /// The residual stream.
    pub width: usize,
    /// Of each kind of heads.
    pub heads: Vec<HeadBuffers>,
    pub latent: Option<LatentBuffers>,
    /// What layers with a state read and write.
    pub recurrent: Option<RecurrentWidths>,
    /// Hidden numbers of a dense block of each width.
    pub hidden: Vec<usize>,
    /// What a dense block gives beside experts, in models that have both in one layer.
    pub beside: Option<usize>,
    pub by_layer: Option<LayerEmbeddingBuffers>,
    pub indexer: Option<IndexerBuffers>,
    /// Experts of a layer, which each row's router has a number for.
    pub experts: Option<usize>,
    /// What experts read and write, if that is not the residual stream.
    pub expert_width: Option<usize>,
    /// Partial sums of the same row.
    pub parts: usize,
    /// This rank's part of the vocabulary.
    pub vocab: usize,
    /// Of the cache.
    pub positions: u64,
}

/// What layers with one kind of heads read and write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HeadBuffers {
    /// This rank's queries, keys and values.
    pub q: usize,
    pub k: usize,
    pub v: usize,
    /// Those of all heads, for models that normalise them together.
    pub all_q: usize,
    pub all_k: usize,
    pub attended: usize,
    /// Gates on what heads attended to, in models that have them.
    pub gate: Option<usize>,
}

impl HeadBuffers {
    fn widths(&self) -> impl Iterator<Item = usize> {
        let Self { q, k, v, all_q, all_k, attended, gate } = *self;
        [q, k, v, all_q, all_k, attended].into_iter().chain(gate)
    }
}

/// What an indexer reads and writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct IndexerBuffers {
    pub q: usize,
    pub k: usize,
    pub weights: usize,
    /// Choices of each row, and pages that each is made of.
    pub groups: usize,
    pub pages: usize,
}

/// What layers with embeddings of their own read and write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LayerEmbeddingBuffers {
    /// Numbers of one layer's.
    pub own: usize,
    /// The embedding that all layers share,
    pub shared: usize,
    /// and those of all layers from the stage's first on.
    pub all: usize,
}

/// What latent attention needs in addition.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LatentBuffers {
    /// Compressed queries, if queries are compressed.
    pub q_down: Option<usize>,
    /// The parts of queries that are not rotated, and that are.
    pub q_plain: usize,
    pub q_rope: usize,
    /// Queries in the compressed space.
    pub q_up: usize,
    /// The compressed keys and values, and the part of the key that is rotated.
    pub kv: usize,
    pub k_rope: usize,
}

/// Bytes that a rank takes in memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Footprint {
    pub weight_bytes: u64,
    pub cache_bytes: u64,
    /// Of the activations of a step.
    pub buffer_bytes: u64,
}

impl Footprint {
    pub fn bytes(&self) -> u64 {
        self.weight_bytes.saturating_add(self.cache_bytes).saturating_add(self.buffer_bytes)
    }
}

impl<'a> Holding<'a> {
    /// What `rank` holds in a split.
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

    /// What rank `at` of a stage holds of any layer, and no part of the output head yet. It has no
    /// layers of its own: for a plan that still asks how many it may have. `stages`: of all.
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

    /// Gives it these rows of the output head.
    pub fn set_vocab(&mut self, rows: Range<usize>) {
        (self.shard.vocab, self.has_head) = (rows, true);
    }

    /// The slices of layer `layer`, which must be one of its own.
    pub fn layer(&self, layer: usize) -> Slices<'_> {
        Slices { tensors: &self.outline.layers[layer], shard: &self.shard }
    }

    /// The slices of the output head, if it has a part of it.
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
    /// Unless something else is asked for, the cache is as exact as the weights that fill it: f32
    /// where the file's are floats, so that such a model computes what its authors' code does, 16
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

    /// The cache of the keys of layer `layer`'s indexer, if it has one: as exact as its cache, or
    /// more.
    pub fn index_cache(&self, layer: usize, capacity: &Capacity) -> Option<Cache> {
        let indexer = self.outline.config.indexer_of(layer)?;
        let cache = self.cache(layer, capacity);
        let cache_type = match cache.cache_type {
            CacheType::F32 => CacheType::F32,
            _ => CacheType::I16,
        };
        let (k_dim, v_dim) = (indexer.dim, 0);
        Some(Cache { heads: cache.heads.min(1), k_dim, v_dim, cache_type, is_free: false, ..cache })
    }

    /// What layers with a window keep, if that is less than all positions.
    pub fn window(&self, capacity: &Capacity) -> Option<Window> {
        capacity.window(self.outline.config.window(), self.stages)
    }

    /// The states of a layer that carries them; `None` for models without such layers.
    pub fn states(&self, capacity: &Capacity) -> Option<States> {
        let sizes = self.outline.config.recurrence?;
        let widths = self.recurrent_widths()?;
        Some(States {
            slots: capacity.sequences_max,
            checkpoints: capacity.checkpoints,
            kept_rows: GUESSES_MAX,
            numbers: sizes.state_numbers(&widths),
            kept_numbers: Recurrence::kept_numbers(&widths, GUESSES_MAX),
        })
    }

    pub(crate) fn recurrent_widths(&self) -> Option<RecurrentWidths> {
        let heads = &self.shard.recurrent_heads;
        let sizes = self.outline.config.recurrence?;
        Some(sizes.widths(heads.keys.len(), heads.value_heads()))
    }

    /// Bytes of what layer `layer` keeps of positions: keys and values, or states.
    pub fn kept_bytes(&self, layer: usize, capacity: &Capacity, device: Device) -> u64 {
        match self.outline.config.halves[layer].mixer {
            None => 0,
            Some(Mixer::Attention) if !self.outline.config.keeps(layer) => 0,
            Some(Mixer::Attention) => {
                let index = self.index_cache(layer, capacity).map_or(0, |own| own.bytes(device));
                self.cache(layer, capacity).bytes(device).saturating_add(index)
            }
            Some(Mixer::Recurrence) => self.states(capacity).map_or(0, |states| states.bytes()),
        }
    }

    /// The activations of its steps.
    pub fn buffers(&self, capacity: &Capacity) -> Buffers {
        let (config, shard) = (&self.outline.config, &self.shard);
        let has_dense = |kind: usize| {
            let mut layers = (0..config.layers).filter(|at| config.halves[*at].feed_forward);
            layers.any(|at| {
                let dense = config.experts_of(at).is_none() || config.arch.dense_beside_experts;
                dense && config.feed_forward_kind(at) == kind
            })
        };
        let hidden = |(kind, leaves): (usize, &Leaves)| match (
            config.experts.and_then(|e| e.latent),
            &shard.shared_expert,
        ) {
            (Some(_), Some(shared)) => shared.columns(shard.rank).len(),
            _ if has_dense(kind) => leaves.columns(shard.rank).len(),
            _ => 0,
        };
        let parts = |leaves: &Leaves| leaves.part_ends(shard.rank).len();
        Buffers {
            rows: capacity.rows_max(self.stages),
            outputs: capacity.outputs_max(),
            width: config.width,
            heads: (0..config.heads().len()).map(|kind| self.head_buffers(kind)).collect(),
            latent: config.latent.map(|latent| {
                let heads = shard.attention[0].queries.len();
                LatentBuffers {
                    q_down: latent.q_rank,
                    q_plain: heads * latent.plain_dim,
                    q_rope: heads * latent.rope_dim,
                    q_up: heads * latent.kv_rank,
                    kv: latent.kv_rank,
                    k_rope: latent.rope_dim,
                }
            }),
            recurrent: self.recurrent_widths(),
            hidden: shard.feed_forward.iter().enumerate().map(hidden).collect(),
            beside: config.arch.dense_beside_experts.then_some(config.width),
            by_layer: config.by_layer.map(|own| LayerEmbeddingBuffers {
                own,
                shared: config.width,
                all: own * (config.layers - self.layers.start),
            }),
            indexer: config.indexer.map(|indexer| {
                let keys = shard.attention[0].keys.len();
                IndexerBuffers {
                    q: indexer.own_heads(keys) * indexer.dim,
                    k: indexer.dim,
                    weights: indexer.own_heads(keys),
                    groups: indexer.groups(keys),
                    pages: capacity.pages_per_sequence(),
                }
            }),
            experts: config.experts.map(|experts| experts.count),
            expert_width: config.experts.and_then(|experts| experts.latent),
            parts: parts(shard.attention_leaves())
                .max(parts(&shard.feed_forward[0]))
                .max(shard.recurrent.as_ref().map_or(0, parts)),
            vocab: shard.vocab.len(),
            positions: (capacity.pages() as u64).saturating_mul(PAGE_POSITIONS as u64),
        }
    }

    fn head_buffers(&self, kind: usize) -> HeadBuffers {
        let (config, heads) = (&self.outline.config, &self.outline.config.heads()[kind]);
        let own = &self.shard.attention[kind];
        let (queries, keys) = (own.queries.len(), own.keys.len());
        let (key, _) = config.cached_dims(heads);
        let whole = config.arch.qk_norm == QkNorm::Whole;
        let all = |heads: usize, dim: usize| if whole { heads * dim } else { 0 };
        let attended = queries * heads.v_dim;
        HeadBuffers {
            q: queries * key,
            k: keys * key,
            v: if config.latent.is_some() { 0 } else { keys * heads.v_dim },
            all_q: all(heads.queries, heads.k_dim),
            all_k: all(heads.keys, heads.k_dim),
            attended,
            gate: match config.arch.gated_attention {
                GatedAttention::Never => self.outline.has("head_gate").then_some(queries),
                GatedAttention::InQueries | GatedAttention::Apart => Some(attended),
            },
        }
    }

    /// What it takes in the memory of `device`.
    pub fn footprint(&self, capacity: &Capacity, device: Device) -> Footprint {
        self.footprint_with(self.weight_bytes(device), capacity, device)
    }

    /// What its weights take there.
    pub fn weight_bytes(&self, device: Device) -> u64 {
        self.all().flat_map(Slices::iter).map(|slice| slice.memory_bytes(device)).sum()
    }

    /// The same where [`weight_bytes`](Self::weight_bytes) is known already.
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

    /// All of its slices.
    pub fn all(&self) -> impl Iterator<Item = Slices<'_>> {
        self.layers.clone().map(|layer| self.layer(layer)).chain(self.head())
    }
}

impl States {
    /// Of one layer.
    pub fn bytes(&self) -> u64 {
        let states = (self.slots as u64).saturating_add(self.checkpoints as u64);
        // Each slot also counts the rows that it keeps.
        let of_slot = self.kept_numbers + 1;
        let kept = (self.slots as u64).saturating_mul(of_slot);
        let numbers = states.saturating_mul(self.numbers).saturating_add(kept);
        numbers.saturating_mul(size_of::<f32>() as u64)
    }
}

impl Cache {
    /// Of one layer.
    pub fn bytes(&self, device: Device) -> u64 {
        let positions = (self.pages as u64).saturating_mul(PAGE_POSITIONS as u64);
        let positions = device.positions(positions);
        positions.saturating_mul(self.heads as u64 * self.position_bytes(device))
    }

    /// Of one position of one head.
    pub fn position_bytes(&self, device: Device) -> u64 {
        let own = || device.cache_type(self.cache_type);
        let cache_type = if self.is_free { own() } else { self.cache_type };
        device.position_bytes(cache_type, self.k_dim, self.v_dim)
    }
}

impl Buffers {
    pub fn bytes(&self, device: Device) -> u64 {
        let Self { rows, outputs, width, .. } = *self;
        let latent = self.latent.map_or(Vec::new(), |l| {
            let q_down = l.q_down.into_iter();
            q_down.chain([l.q_plain, l.q_rope, l.q_up, l.kv, l.k_rope]).collect()
        });
        let router = self.experts.map_or(Vec::new(), |experts| vec![experts, 1]);
        let recurrent = self.recurrent.map_or(Vec::new(), |r| {
            let squares = (r.squares > 0).then_some(r.squares);
            let all = [r.k, r.k, r.v, r.decay, r.beta, r.gate, r.v, r.low_rank];
            all.into_iter().chain(squares).collect()
        });
        let squares = self.recurrent.map(|r| r.squares).filter(|squares| *squares > 0);
        let of_heads = self.heads.iter().flat_map(HeadBuffers::widths);
        let by_layer = self.by_layer.iter().flat_map(|e| [e.shared, e.all, e.own, e.own]);
        let hidden = self.hidden.iter().flat_map(|hidden| [*hidden; 2]);
        let of_rows = [width, width].into_iter().chain(of_heads).chain(hidden);
        let of_rows =
            of_rows.chain(self.beside).chain(by_layer).chain(latent).chain(router).chain(recurrent);
        let of_rows = of_rows.chain(self.expert_width.iter().flat_map(|width| [*width; 2]));
        let of_rows = of_rows.map(|width| device.rows_bytes(rows, width));
        let indexer = self.indexer.map_or(0, |index| {
            let widths = [index.q, index.k, index.k, index.weights, 0];
            let of_rows = widths.map(|width| device.rows_bytes(rows, width)).iter().sum::<u64>();
            // A bit for each position, and a flag for each row.
            of_rows + (rows * (index.groups * index.pages * size_of::<u64>() + 1)) as u64
        });
        let part_rows = rows.saturating_mul(self.parts);
        let of_parts = [Some(width), squares, self.expert_width, self.beside].into_iter().flatten();
        let of_parts = of_parts.map(|width| device.rows_bytes(part_rows, width));
        let of_outputs = [width, self.vocab].map(|width| device.rows_bytes(outputs, width));
        let step = device.step_bytes(rows, self.positions);
        let all = of_rows.chain(of_parts).chain(of_outputs).chain([step, indexer]);
        all.fold(0, u64::saturating_add)
    }
}

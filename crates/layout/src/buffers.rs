//! The activations of a rank's steps, and their bytes.

use crate::arch::{GatedAttention, QkNorm};
use crate::{Capacity, Device, Holding, Leaves, PAGE_POSITIONS, RecurrentWidths};

/// The widths of a step's activations, in elements. Those of latent attention are separate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Buffers {
    /// Rows of the largest step, and how many of them may produce logits.
    pub rows: usize,
    pub outputs: usize,
    /// The residual stream.
    pub width: usize,
    /// The attention's input, if it is wider than that.
    pub joined: Option<usize>,
    /// For each kind of heads.
    pub heads: Vec<HeadBuffers>,
    pub latent: Option<LatentBuffers>,
    /// The buffers of layers with a state.
    pub recurrent: Option<RecurrentWidths>,
    /// Hidden elements of a dense block of each width, then those of a shared expert that is a
    /// separate block, if there is one.
    pub hidden: Vec<usize>,
    /// The output of a dense block beside experts, in models with both in one layer.
    pub beside: Option<usize>,
    pub by_layer: Option<LayerEmbeddingBuffers>,
    /// The buffers of the layer with n-gram embeddings.
    pub ngrams: Option<NgramBuffers>,
    pub indexer: Option<IndexerBuffers>,
    /// The buffers of compression and of several residual streams.
    pub compressed: Option<CompressedBuffers>,
    pub streams: Option<StreamBuffers>,
    /// The buffers of banked residual streams.
    pub banks: Option<BankBuffers>,
    /// Experts of a layer: the router has a logit for each, in every row.
    pub experts: Option<usize>,
    /// The width of experts' inputs and outputs, if it differs from the residual stream.
    pub expert_width: Option<usize>,
    /// Partial sums of the same row.
    pub parts: usize,
    /// This rank's part of the vocabulary.
    pub vocab: usize,
    /// Positions of the cache.
    pub positions: u64,
}

/// The buffers of layers with one kind of heads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HeadBuffers {
    /// This rank's queries, keys and values.
    pub q: usize,
    pub k: usize,
    pub v: usize,
    /// The queries and keys of all heads, for models that normalise them together.
    pub all_q: usize,
    pub all_k: usize,
    pub attended: usize,
    /// Gates on the heads' outputs, in models that have them.
    pub gate: Option<usize>,
}

impl HeadBuffers {
    fn widths(&self) -> impl Iterator<Item = usize> {
        let Self { q, k, v, all_q, all_k, attended, gate } = *self;
        [q, k, v, all_q, all_k, attended].into_iter().chain(gate)
    }
}

/// The buffers of an indexer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct IndexerBuffers {
    pub q: usize,
    pub k: usize,
    pub weights: usize,
    /// Choices of each row, and the pages of each choice.
    pub groups: usize,
    pub pages: usize,
}

/// The buffers of layers with their own embeddings.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LayerEmbeddingBuffers {
    /// Elements of one layer's embedding.
    pub own: usize,
    /// The embedding that all layers share,
    pub shared: usize,
    /// and the embeddings of all layers from the stage's first on.
    pub all: usize,
}

/// The buffers of the layer with n-gram embeddings.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NgramBuffers {
    /// The embeddings of all heads, and the value made from them.
    pub own: usize,
    pub value: usize,
    /// All residual streams, and their number.
    pub all: usize,
    pub count: usize,
}

impl NgramBuffers {
    /// Keys, queries, the gated value, and ones; then nothing.
    fn widths(&self) -> [usize; 8] {
        let Self { own, value, all, count } = *self;
        [own, value, all, all, all, all, count, 0]
    }
}

/// The additional buffers of latent attention.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LatentBuffers {
    /// Compressed queries, if queries are compressed.
    pub q_down: Option<usize>,
    /// The plain and the rotated parts of queries.
    pub q_plain: usize,
    pub q_rope: usize,
    /// Queries in the compressed space.
    pub q_up: usize,
    /// The compressed keys and values, and the rotated part of the key.
    pub kv: usize,
    pub k_rope: usize,
}

/// The buffers of layers that compress the positions before their window.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CompressedBuffers {
    /// Compressed queries, and the compressed outputs of this rank's heads.
    pub q_down: usize,
    pub out: usize,
    /// Inputs of entries: of heads in layers without overlapping blocks, of heads in layers with
    /// them, and of an indexer.
    pub rows: [usize; 3],
}

impl CompressedBuffers {
    /// Rows for entries come in pairs: keys and their weights.
    fn widths(&self) -> impl Iterator<Item = usize> {
        let Self { q_down, out, rows } = *self;
        [q_down, out].into_iter().chain(rows).chain(rows)
    }
}

/// The buffers of several residual streams.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StreamBuffers {
    /// All of them.
    pub all: usize,
    /// The mixing weights of a half, and of the head.
    pub weights: usize,
    pub head: usize,
    /// The gates' input width, and the number of streams, where gates mix them.
    pub gates: Option<[usize; 2]>,
}

impl StreamBuffers {
    /// The streams, their normalised copy, their weights, and the mixed input; then gates, their
    /// inputs, and the streams' squares.
    fn widths(&self, width: usize) -> Vec<usize> {
        let gates = self.gates.iter().flat_map(|[rank, count]| [self.all, *rank, *count]);
        let all = [self.all, self.all, self.weights, self.head, width];
        all.into_iter().chain(gates).collect()
    }
}

/// The buffers of banked residual streams.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BankBuffers {
    /// All of them.
    pub all: usize,
    /// The mixed input.
    pub mixed: usize,
}

impl Holding<'_> {
    /// The activations of this rank's steps.
    pub fn buffers(&self, capacity: &Capacity) -> Buffers {
        let (config, shard) = (&self.outline.config, &self.shard);
        let has_dense = |kind: usize| {
            let mut layers = (0..config.layers).filter(|at| config.halves[*at].feed_forward);
            layers.any(|at| {
                let dense = config.experts_of(at).is_none() || config.arch.dense_beside_experts;
                dense && config.feed_forward_kind(at) == kind
            })
        };
        let hidden = |(kind, leaves): (usize, &Leaves)| match has_dense(kind) {
            true => leaves.columns(shard.rank).len(),
            false => 0,
        };
        let latent = config.experts.and_then(|experts| experts.latent);
        let shared_apart = shard.shared_expert.as_ref().filter(|_| latent.is_some());
        let shared_apart = shared_apart.map(|leaves| leaves.columns(shard.rank).len());
        let parts = |leaves: &Leaves| leaves.part_ends(shard.rank).len();
        Buffers {
            rows: capacity.rows_max(self.stages),
            outputs: capacity.outputs_max(),
            width: config.width,
            joined: config.arch.reads_token.then(|| config.attention_width()),
            heads: {
                let kinds = config.heads().iter().enumerate();
                // The others do not know of an assistant on rank 0.
                let own = kinds.filter(|(_, heads)| shard.rank == 0 || !heads.whole_on_first);
                own.map(|(kind, _)| self.head_buffers(kind)).collect()
            },
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
            hidden: {
                let dense = shard.feed_forward.iter().enumerate().map(hidden);
                dense.chain(shared_apart).collect()
            },
            beside: config.arch.dense_beside_experts.then_some(config.width),
            by_layer: config.by_layer.map(|own| LayerEmbeddingBuffers {
                own,
                shared: config.width,
                all: own * (config.layers - self.layers.start),
            }),
            ngrams: config.ngrams_from(self.layers.start).map(|ngrams| NgramBuffers {
                own: ngrams.width(),
                value: config.width,
                all: config.stream_width(),
                count: config.streams.map_or(1, |streams| streams.count),
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
            compressed: config.compressed.as_ref().map(|compressed| {
                let own = shard.attention[0].groups.len() * compressed.out_rank;
                let layers = || (0..config.layers).filter_map(|layer| compressed.blocks(layer));
                let width = |overlap: bool, dim: usize| {
                    let blocks = layers().find(|blocks| blocks.overlap == overlap);
                    blocks.map_or(0, |blocks| blocks.parts() * dim)
                };
                let (dim, index_dim) = (config.heads()[0].k_dim, config.indexer.map(|i| i.dim));
                CompressedBuffers {
                    q_down: compressed.q_rank,
                    out: own,
                    rows: [
                        width(false, dim),
                        width(true, dim),
                        width(true, index_dim.unwrap_or(0)),
                    ],
                }
            }),
            streams: config.streams.map(|streams| StreamBuffers {
                all: config.stream_width(),
                weights: streams.weights(),
                head: streams.count,
                gates: streams.rank().map(|rank| [rank, streams.count]),
            }),
            banks: config
                .banks
                .map(|banks| BankBuffers { all: banks.count * config.width, mixed: config.width }),
            experts: config.experts.map(|experts| experts.count),
            expert_width: latent,
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
            v: match (&config.latent, &config.compressed) {
                (None, None) => keys * heads.v_dim,
                // Their values are their keys.
                _ => 0,
            },
            all_q: all(heads.queries, heads.k_dim),
            all_k: all(heads.keys, heads.k_dim),
            attended,
            gate: match config.arch.gated_attention {
                GatedAttention::Never => self.outline.has("head_gate").then_some(queries),
                GatedAttention::InQueries | GatedAttention::Apart => Some(attended),
            },
        }
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
        let ngrams = self.ngrams.iter().flat_map(NgramBuffers::widths);
        let hidden = self.hidden.iter().flat_map(|hidden| [*hidden; 2]);
        let compressed = self.compressed.iter().flat_map(CompressedBuffers::widths);
        let (streams, x) = match &self.streams {
            Some(streams) => (streams.widths(width), None),
            None => (Vec::new(), Some(width)),
        };
        let of_rows = x.into_iter().chain(self.joined).chain([width]).chain(of_heads).chain(hidden);
        let banks = self.banks.iter().flat_map(|banks| [banks.all, banks.mixed]);
        let of_rows = of_rows.chain(compressed).chain(streams).chain(banks).chain(ngrams);
        let of_rows =
            of_rows.chain(self.beside).chain(by_layer).chain(latent).chain(router).chain(recurrent);
        let of_rows = of_rows.chain(self.expert_width.iter().flat_map(|width| [*width; 2]));
        let of_rows = of_rows.map(|width| device.rows_bytes(rows, width));
        let indexer = self.indexer.map_or(0, |index| {
            let widths = [index.q, index.k, index.k, index.weights, 0];
            let of_rows = widths.map(|width| device.rows_bytes(rows, width)).iter().sum::<u64>();
            // A bit for each position, and two flags for each row.
            of_rows + (rows * (index.groups * index.pages * size_of::<u64>() + 2)) as u64
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

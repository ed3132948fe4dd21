//! Buffers of one step, made once.

use backend::Backend;

use super::Capacity;
use crate::arch::QkNorm;
use crate::{Config, Latent, Leaves, Shard};

/// Buffers that all layers use one after the other: the token loop allocates nothing.
pub(super) struct Scratch<B: Backend> {
    /// The residual stream, `[rows, width]`; after the last layer's keys and values
    /// `[outputs, width]`.
    pub x: B::Rows,
    /// What a layer's half reads, and then its sum on the way back, `[rows, width]`.
    pub h: B::Rows,
    /// This rank's queries, keys and values.
    pub q: B::Rows,
    pub k: B::Rows,
    pub v: B::Rows,
    /// Those of all heads, for models that normalise them together; else without columns.
    pub all_q: B::Rows,
    pub all_k: B::Rows,
    pub latent: Option<LatentScratch<B>>,
    pub attended: B::Rows,
    pub gate: B::Rows,
    pub up: B::Rows,
    pub routing: Option<Routing<B>>,
    /// Partial sums, `[parts * rows, width]`.
    pub sums: B::Rows,
    /// The outputs after the last norm, `[outputs, width]`.
    pub normed: B::Rows,
    /// This rank's slice of the logits, `[outputs, vocab slice]`.
    pub logits: B::Rows,
}

/// What latent attention needs in addition.
pub(super) struct LatentScratch<B: Backend> {
    sizes: Latent,
    /// Compressed queries, `[rows, q_rank]`.
    pub q_down: Option<B::Rows>,
    /// `[rows, heads * plain_dim]` and `[rows, heads * rope_dim]`.
    pub q_plain: B::Rows,
    pub q_rope: B::Rows,
    /// Queries in the compressed space, and what they attended to, `[rows, heads * kv_rank]`.
    pub q_up: B::Rows,
    /// `[rows, kv_rank]` and `[rows, rope_dim]`.
    pub kv: B::Rows,
    pub k_rope: B::Rows,
}

/// What the choice of experts needs.
pub(super) struct Routing<B: Backend> {
    /// `[rows, experts]`.
    pub logits: B::Rows,
    /// `[rows, 1]`.
    pub shared_gate: B::Rows,
    pub routes: B::Routes,
}

impl<B: Backend> Scratch<B> {
    pub fn new(backend: &mut B, config: &Config, shard: &Shard, capacity: Capacity) -> Self {
        let (width, rank) = (config.width, shard.rank);
        let count = |leaves: &Leaves| leaves.parts(rank).map_or(0, |parts| parts.count());
        let parts = count(&shard.attention).max(count(&shard.feed_forward));
        let dense = config.experts.is_none_or(|experts| experts.dense_layers > 0);
        let hidden = if dense { shard.feed_forward.columns(rank).len() } else { 0 };
        let whole = config.arch.qk_norm == QkNorm::Whole;
        let all = |heads: usize| if whole { heads * config.k_dim } else { 0 };
        let (heads, kv_heads) = (shard.heads.len(), shard.kv_heads.len());
        let key = config.latent.map_or(config.k_dim, |latent| latent.kv_rank + latent.rope_dim);
        let latent =
            config.latent.map(|latent| LatentScratch::new(backend, latent, heads, capacity));
        let routing = config.experts.map(|experts| Routing {
            logits: backend.rows(capacity.rows_max, experts.rule.experts),
            shared_gate: backend.rows(capacity.rows_max, 1),
            routes: backend.routes(),
        });
        let mut rows = |width| backend.rows(capacity.rows_max, width);
        Self {
            x: rows(width),
            h: rows(width),
            q: rows(heads * key),
            k: rows(kv_heads * key),
            v: rows(if latent.is_some() { 0 } else { kv_heads * config.v_dim }),
            all_q: rows(all(config.heads)),
            all_k: rows(all(config.kv_heads)),
            latent,
            attended: rows(heads * config.v_dim),
            gate: rows(hidden),
            up: rows(hidden),
            routing,
            sums: backend.rows(capacity.rows_max * parts, width),
            normed: backend.rows(capacity.outputs_max, width),
            logits: backend.rows(capacity.outputs_max, shard.vocab.len()),
        }
    }
}

impl<B: Backend> LatentScratch<B> {
    fn new(backend: &mut B, sizes: Latent, heads: usize, capacity: Capacity) -> Self {
        let mut rows = |width| backend.rows(capacity.rows_max, width);
        Self {
            sizes,
            q_down: sizes.q_rank.map(&mut rows),
            q_plain: rows(heads * sizes.plain_dim),
            q_rope: rows(heads * sizes.rope_dim),
            q_up: rows(heads * sizes.kv_rank),
            kv: rows(sizes.kv_rank),
            k_rope: rows(sizes.rope_dim),
        }
    }

    pub fn sizes(&self) -> &Latent {
        &self.sizes
    }
}

//! Multi-head latent attention (DeepSeek-V2, arXiv 2405.04434), in its absorbed form.
//!
//! A position's keys and values are up-projections of one compressed vector `c`; a part of the key,
//! the same for all heads, is rotated. Instead of expanding `c` for every head and position,
//! queries are projected into its space: `q · (K c) = (Kᵀ q) · c`, and values are expanded after
//! the sum over positions: `sum w (V c) = V (sum w c)`. So all heads attend over one cached vector
//! of `kv_rank + rope_dim` elements (with its first part again as the value), however many heads
//! there are; 128 expanded heads would take 38 times the memory. Every rank with heads caches all
//! of it.

use backend::{AttentionShape, Backend, Parts, Seen, Temperature};
use layout::{Config, Latent, Shard, Slices};

use super::gate::Gate;
use super::indexer::Indexer;
use crate::ModelError;
use crate::decoder::context::Context;
use crate::decoder::scratch::LatentScratch;
use crate::loader::Loader;
use crate::operations::{attention_range, parts, rope_style, temperature};

/// Added to the mean square in the norms of compressed vectors: the authors' code uses this value
/// whatever the model's epsilon.
const NORM_EPS: f32 = 1e-6;

pub(crate) struct LatentAttention<B: Backend> {
    sizes: Latent,
    /// Compresses and normalises queries, if the model does.
    q_down: Option<(B::Matrix, B::Vector)>,
    /// The plain and the rotated parts of this rank's queries.
    q_plain: B::Matrix,
    q_rope: B::Matrix,
    /// Compresses keys and values.
    kv_down: B::Matrix,
    kv_norm: B::Vector,
    /// The rotated part of the key.
    k_rope: B::Matrix,
    /// For each of this rank's heads: projects queries into the compressed space, and values out of
    /// it.
    k_up: Vec<B::Matrix>,
    v_up: Vec<B::Matrix>,
    rotates: bool,
    temperature: Option<Temperature>,
    indexer: Option<Indexer<B>>,
    /// Whether rows attend to the choice of an indexer, in this layer or an earlier one.
    chooses: bool,
    attend: B::Attention,
    /// The gate of the heads' outputs, applied as a sigmoid.
    gate: Option<Gate<B>>,
    output: B::Matrix,
    parts: Option<Parts>,
}

impl<B: Backend> LatentAttention<B> {
    pub fn load(
        loader: &mut Loader<'_, B>,
        config: &Config,
        latent: &Latent,
        shard: &Shard,
        slices: &Slices<'_>,
        layer: usize,
    ) -> Result<Self, ModelError> {
        let q_down = match slices.find("attn_q_a") {
            Some(slice) => {
                let matrix = loader.matrix(&slice)?;
                Some((matrix, loader.vector(&slices.get("attn_q_a_norm"))?))
            }
            None => None,
        };
        let shape = AttentionShape {
            kv_of_head: vec![0; shard.attention[0].queries.len()],
            k_dim: latent.kv_rank + latent.rope_dim,
            v_dim: latent.kv_rank,
            scale: config.attention_scale(layer),
            range: attention_range(config, layer),
            soft_cap: config.attention_cap,
            sinks: None,
            values_in_keys: true,
        };
        Ok(Self {
            sizes: *latent,
            q_down,
            q_plain: loader.matrix(&slices.get("q_plain"))?,
            q_rope: loader.matrix(&slices.get("q_rope"))?,
            kv_down: loader.matrix(&slices.get("kv_down"))?,
            kv_norm: loader.vector(&slices.get("attn_kv_a_norm"))?,
            k_rope: loader.matrix(&slices.get("k_rope"))?,
            k_up: loader.matrices(&slices.get("attn_k_b"))?,
            v_up: loader.matrices(&slices.get("attn_v_b"))?,
            rotates: config.rotates(layer),
            temperature: temperature(config, layer),
            indexer: Indexer::load(loader, config, shard, slices, layer)?,
            chooses: config.chooser_of(layer).is_some(),
            attend: loader.backend.attention(&shape),
            gate: Gate::load(loader, slices, config.heads_of(layer).v_dim)?,
            output: loader.matrix(&slices.get("attn_output"))?,
            parts: parts(shard.attention_leaves(), shard.rank),
        })
    }

    /// Caches the compressed keys and values of `h`.
    pub fn cache(&self, c: &mut Context<'_, B>) {
        let Context { backend, config, scratch: s, .. } = c;
        let l = s.latent.as_mut().expect("made for models with latent attention");
        let heads = &mut s.heads[0];
        let Latent { kv_rank, rope_dim, .. } = self.sizes;
        backend.linear(&s.h, &mut [(&self.kv_down, &mut l.kv), (&self.k_rope, &mut l.k_rope)]);
        backend.rms_norm_in_place(&mut l.kv, &self.kv_norm, NORM_EPS);
        if self.rotates {
            backend.rope(&mut l.k_rope, rope_dim, rope_style(config), 0);
        }
        backend.join_heads((&l.kv, kv_rank), (&l.k_rope, rope_dim), &mut heads.k);
        backend.store(c.kept.keys_and_values(), c.segments, &heads.k, &l.kv);
        if let Some(indexer) = &self.indexer {
            indexer.cache(c);
        }
    }

    /// `sums = attention(h)` over the cache, this rank's part.
    pub fn attend(&self, c: &mut Context<'_, B>) {
        let Context { backend, config, scratch: s, .. } = c;
        let l = s.latent.as_mut().expect("made for models with latent attention");
        let heads = &mut s.heads[0];
        let Latent { kv_rank, rope_dim, .. } = self.sizes;
        self.queries(backend, &s.h, l);
        if let (Some(indexer), Some(i), Some(chosen)) =
            (&self.indexer, &mut s.indexer, &mut s.chosen)
        {
            let (keys, q_in) = (c.kept.index_keys(), l.q_down.as_ref().unwrap_or(&s.h));
            let inputs = (q_in, &s.h, c.rows);
            indexer.choose(*backend, config, (keys, c.segments), inputs, (i, chosen));
        }
        let chosen = s.chosen.as_ref().filter(|_| self.chooses);
        if self.rotates {
            backend.rope(&mut l.q_rope, rope_dim, rope_style(config), 0);
        }
        backend.linear_heads(&l.q_plain, &self.k_up, &mut l.q_up);
        backend.join_heads((&l.q_up, kv_rank), (&l.q_rope, rope_dim), &mut heads.q);
        if let Some(temperature) = &self.temperature {
            backend.scale_by_temperature(&mut heads.q, temperature);
        }
        // Reuses the queries' buffer: the sums have the same size.
        let kv = c.kept.keys_and_values();
        let seen = Seen { chosen, ..Seen::ALL };
        backend.attend(kv, &self.attend, c.segments, seen, &heads.q, &mut l.q_up);
        backend.linear_heads(&l.q_up, &self.v_up, &mut heads.attended);
        let attended = match (&self.gate, &mut heads.gate) {
            (Some(gate), Some(room)) => gate.apply(*backend, &s.h, room, &mut heads.attended),
            _ => &heads.attended,
        };
        backend.linear_parts(attended, &self.output, self.parts.as_ref(), &mut s.sums);
    }

    /// Computes this rank's queries, with their two parts separate.
    fn queries(&self, backend: &mut B, h: &B::Rows, l: &mut LatentScratch<B>) {
        let q_in = match (&self.q_down, &mut l.q_down) {
            (Some((matrix, norm)), Some(q_down)) => {
                backend.linear(h, &mut [(matrix, &mut *q_down)]);
                backend.rms_norm_in_place(q_down, norm, NORM_EPS);
                &*q_down
            }
            _ => h,
        };
        let outs = &mut [(&self.q_plain, &mut l.q_plain), (&self.q_rope, &mut l.q_rope)];
        backend.linear(q_in, outs);
    }
}

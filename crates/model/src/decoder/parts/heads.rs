//! Attention with separate keys and values for each head or group of heads.

use std::ops::Range;

use backend::{AttentionShape, Backend, Parts, Seen, Temperature};
use layout::{Config, QkNorm, Shard, Slices, Values};

use super::gate::Gate;
use super::indexer::Indexer;
use crate::ModelError;
use crate::decoder::context::Context;
use crate::decoder::projection::Projection;
use crate::decoder::scratch::HeadScratch;
use crate::loader::Loader;
use crate::operations::{attention_range, parts, rope_style, temperature};

pub(crate) struct HeadAttention<B: Backend> {
    /// The index of its kind of heads among the model's.
    kind: usize,
    q: Heads<B>,
    /// The keys and values that it caches; `None` for a layer that reads an earlier layer's cache.
    own: Option<Cached<B>>,
    /// The gate of the heads' outputs, applied as a sigmoid.
    gate: Option<Gate<B>>,
    /// The index of the layer's rotation table, if it rotates.
    rope: Option<usize>,
    temperature: Option<Temperature>,
    indexer: Option<Indexer<B>>,
    attend: B::Attention,
    output: B::Matrix,
    parts: Option<Parts>,
}

/// The keys and values that a layer caches.
struct Cached<B: Backend> {
    k: Heads<B>,
    /// `None` if the keys, before their norm, are also the values.
    v: Option<Projection<B>>,
    /// Columns of this rank's values.
    columns: usize,
    /// A vector of ones, as long as a value, if values are normalised.
    v_norm: Option<B::Vector>,
}

/// The queries or keys of this rank's heads.
struct Heads<B: Backend> {
    projection: Projection<B>,
    norm: Option<B::Vector>,
    /// Elements of one head.
    dim: usize,
    /// If all heads are normalised as one vector, every rank has all queries and keys (half of the
    /// sum of squares would be another rank's) and uses these columns.
    own: Option<Range<usize>>,
}

impl<B: Backend> HeadAttention<B> {
    pub fn load(
        loader: &mut Loader<'_, B>,
        config: &Config,
        shard: &Shard,
        slices: &Slices<'_>,
        layer: usize,
    ) -> Result<Self, ModelError> {
        let (kind, sizes) = (config.heads_kind(layer), config.heads_of(layer));
        let own = &shard.attention[kind];
        let columns = |heads: &Range<usize>| heads.start * sizes.k_dim..heads.end * sizes.k_dim;
        let local = config.windows[layer].is_some() && config.rope.local.is_some();
        let (q, k) = (["attn_q", "attn_q_norm"], ["attn_k", "attn_k_norm"]);
        Ok(Self {
            kind,
            q: Heads::load(loader, config, slices, layer, q, columns(&own.queries))?,
            own: match config.keeps(layer) {
                true => {
                    let k = Heads::load(loader, config, slices, layer, k, columns(&own.keys))?;
                    Some(Cached::load(loader, config, slices, k, (own.keys.len(), sizes.v_dim))?)
                }
                false => None,
            },
            gate: Gate::load(loader, slices, sizes.v_dim)?,
            rope: config.rotates(layer).then_some(usize::from(local)),
            temperature: temperature(config, layer),
            indexer: Indexer::load(loader, config, shard, slices, layer)?,
            attend: {
                let shape = attention_shape(loader, config, shard, slices, layer)?;
                loader.backend.attention(&shape)
            },
            output: loader.matrix(&slices.get("attn_output"))?,
            parts: parts(&own.leaves, shard.rank),
        })
    }

    /// Caches keys and values of `h`, unless it reads another layer's. If all rows go on, the same
    /// product also computes the queries.
    pub fn cache(&self, c: &mut Context<'_, B>) {
        let Context { backend, config, scratch: s, .. } = c;
        let (heads, h) = (&mut s.heads[self.kind], s.joined.as_ref().unwrap_or(&s.h));
        let q = (&self.q.projection.matrix, self.q.room(&mut heads.all_q, &mut heads.q));
        let Some(own) = &self.own else {
            if c.outputs.is_none() {
                backend.linear(h, &mut [q]);
            }
            return;
        };
        let k = (&own.k.projection.matrix, own.k.room(&mut heads.all_k, &mut heads.k));
        let v = own.v.as_ref().map(|v| (&v.matrix, &mut heads.v));
        match (c.outputs, v) {
            (None, Some(v)) => backend.linear(h, &mut [q, k, v]),
            (None, None) => backend.linear(h, &mut [q, k]),
            (Some(_), Some(v)) => backend.linear(h, &mut [k, v]),
            (Some(_), None) => backend.linear(h, &mut [k]),
        }
        own.finish(backend, config, self.rope, heads);
        backend.store(c.kept.keys_and_values(), c.segments, &heads.k, &heads.v);
        if let Some(indexer) = &self.indexer {
            indexer.cache(c);
        }
    }

    /// `sums = attention(h)` over the cache, this rank's part.
    pub fn attend(&self, c: &mut Context<'_, B>) {
        let Context { backend, config, scratch: s, .. } = c;
        let heads = &mut s.heads[self.kind];
        if c.outputs.is_some() {
            let h = s.joined.as_ref().unwrap_or(&s.h);
            let q = (&self.q.projection.matrix, self.q.room(&mut heads.all_q, &mut heads.q));
            backend.linear(h, &mut [q]);
        }
        self.q.finish(backend, config, self.rope, &mut heads.all_q, &mut heads.q);
        if let Some(temperature) = &self.temperature {
            backend.scale_by_temperature(&mut heads.q, temperature);
        }
        if let (Some(indexer), Some(i), Some(chosen)) =
            (&self.indexer, &mut s.indexer, &mut s.chosen)
        {
            let keys = (c.kept.index_keys(), c.segments);
            indexer.choose(*backend, config, keys, (&s.h, &s.h, c.rows), (i, chosen));
        }
        let chosen = s.chosen.as_ref().filter(|_| self.indexer.is_some());
        let (kv, segments) = (c.kept.keys_and_values(), c.segments);
        let seen = Seen { chosen, ..Seen::ALL };
        backend.attend(kv, &self.attend, segments, seen, &heads.q, &mut heads.attended);
        if config.value_scale != 1.0 {
            backend.scale(&mut heads.attended, config.value_scale);
        }
        let attended = match (&self.gate, &mut heads.gate) {
            (Some(gate), Some(room)) => gate.apply(*backend, &s.h, room, &mut heads.attended),
            _ => &heads.attended,
        };
        backend.linear_parts(attended, &self.output, self.parts.as_ref(), &mut s.sums);
    }
}

impl<B: Backend> Cached<B> {
    fn load(
        loader: &mut Loader<'_, B>,
        config: &Config,
        slices: &Slices<'_>,
        k: Heads<B>,
        (keys, v_dim): (usize, usize),
    ) -> Result<Self, ModelError> {
        let normalised = config.arch.values == Values::Normalised;
        Ok(Self {
            k,
            v: match slices.find("attn_v") {
                Some(_) => Some(Projection::load(loader, slices, "attn_v")?),
                None => None,
            },
            columns: keys * v_dim,
            v_norm: normalised.then(|| loader.backend.vector(&vec![1.0; v_dim])),
        })
    }

    /// Finishes `k` and `v` after the products, for the cache; `k` is rotated by table `rope` if
    /// there is one.
    fn finish(
        &self,
        backend: &mut B,
        config: &Config,
        rope: Option<usize>,
        heads: &mut HeadScratch<B>,
    ) {
        match &self.v {
            Some(v) => v.add_bias(backend, &mut heads.v),
            None => backend.columns(&heads.k, 0..self.columns, &mut heads.v),
        }
        self.k.finish(backend, config, rope, &mut heads.all_k, &mut heads.k);
        if let Some(ones) = &self.v_norm {
            backend.rms_norm_in_place(&mut heads.v, ones, config.rms_eps);
        }
    }
}

impl<B: Backend> Heads<B> {
    /// Loads the projection and the norm of these roles; `own`: the columns of the product that
    /// this rank attends with.
    fn load(
        loader: &mut Loader<'_, B>,
        config: &Config,
        slices: &Slices<'_>,
        layer: usize,
        [projection, norm]: [&str; 2],
        own: Range<usize>,
    ) -> Result<Self, ModelError> {
        let dim = config.heads_of(layer).k_dim;
        Ok(Self {
            projection: Projection::load(loader, slices, projection)?,
            norm: match config.has_l2_qk_norm(layer) {
                true => Some(loader.backend.vector(&vec![1.0; dim])),
                false => loader.find_vector(slices.find(norm))?,
            },
            dim,
            own: (config.arch.qk_norm == QkNorm::Whole).then_some(own),
        })
    }

    /// The target of the product: `all` if this rank needs more than its `own`.
    fn room<'a>(&self, all: &'a mut B::Rows, own: &'a mut B::Rows) -> &'a mut B::Rows {
        if self.own.is_some() { all } else { own }
    }

    /// Adds the bias, normalises and rotates by table `rope`, each if present. Afterwards `own` has
    /// this rank's queries or keys.
    fn finish(
        &self,
        backend: &mut B,
        config: &Config,
        rope: Option<usize>,
        all: &mut B::Rows,
        own: &mut B::Rows,
    ) {
        let last = [QkNorm::HeadsAfterRotation, QkNorm::L2AfterRotation];
        let norm_last = last.contains(&config.arch.qk_norm);
        let product = self.room(all, own);
        self.projection.add_bias(backend, product);
        if let Some(norm) = self.norm.as_ref().filter(|_| !norm_last) {
            backend.rms_norm_in_place(product, norm, config.rms_eps);
        }
        if let Some(columns) = &self.own {
            backend.columns(all, columns.clone(), own);
        }
        if let Some(table) = rope {
            backend.rope(own, self.dim, rope_style(config), table);
        }
        if let Some(norm) = self.norm.as_ref().filter(|_| norm_last) {
            backend.rms_norm_in_place(own, norm, config.rms_eps);
        }
    }
}

/// The attention of this rank's heads in layer `layer`.
fn attention_shape<B: Backend>(
    loader: &mut Loader<'_, B>,
    config: &Config,
    shard: &Shard,
    slices: &Slices<'_>,
    layer: usize,
) -> Result<AttentionShape, ModelError> {
    let sizes = config.heads_of(layer);
    let own = &shard.attention[config.heads_kind(layer)];
    let key_of = |query| (query / sizes.group() - own.keys.start) as u32;
    Ok(AttentionShape {
        kv_of_head: own.queries.clone().map(key_of).collect(),
        k_dim: sizes.k_dim,
        v_dim: sizes.v_dim,
        scale: config.attention_scale(layer),
        range: attention_range(config, layer),
        soft_cap: config.attention_cap,
        values_in_keys: false,
        sinks: slices.find("attn_sinks").map(|slice| loader.numbers(&slice)).transpose()?,
    })
}

//! Attention over keys and values of their own for each head or group of heads.

use std::ops::Range;

use backend::{AttentionShape, Backend, Parts};

use super::context::Context;
use super::projection::{Projection, Rows};
use crate::arch::QkNorm;
use crate::loader::Loader;
use crate::{Config, ModelError, Shard, names};

pub(super) struct HeadAttention<B: Backend> {
    q: Heads<B>,
    k: Heads<B>,
    v: Projection<B>,
    /// The table that the layer rotates by, if it does.
    rope: Option<usize>,
    attend: B::Attention,
    output: B::Matrix,
    parts: Option<Parts>,
}

/// The queries or keys of this rank's heads.
struct Heads<B: Backend> {
    projection: Projection<B>,
    norm: Option<B::Vector>,
    /// Where all heads are normalised as one vector, every rank has all queries and keys (half of
    /// the sum of squares would be another rank's) and takes these columns of them.
    own: Option<Range<usize>>,
}

impl<B: Backend> HeadAttention<B> {
    pub fn load(
        loader: &mut Loader<'_, B>,
        config: &Config,
        shard: &Shard,
        layer: usize,
    ) -> Result<Self, ModelError> {
        let (k_dim, v_dim) = (config.k_dim, config.v_dim);
        let own_q = scaled(&shard.heads, k_dim);
        let own_k = scaled(&shard.kv_heads, k_dim);
        let own_v = scaled(&shard.kv_heads, v_dim);
        let [q, k, v] = projections(config);
        let [q_norm, k_norm] = qk_norm(loader, config, layer, [q.all, k.all])?;
        let window = config.windows[layer];
        let local = window.is_some() && config.rope.local_base.is_some();
        Ok(Self {
            q: Heads::load(loader, config, layer, &q, own_q, q_norm)?,
            k: Heads::load(loader, config, layer, &k, own_k, k_norm)?,
            v: Projection::load(loader, config, layer, &v, own_v)?,
            rope: config.rotates(layer).then_some(usize::from(local)),
            attend: {
                let shape = attention_shape(loader, config, shard, layer)?;
                loader.backend.attention(&shape)
            },
            output: loader.columns(
                &names::layer(layer, "attn_output"),
                config.heads * v_dim,
                config.width,
                shard.attention.columns(shard.rank),
            )?,
            parts: shard.attention.parts(shard.rank),
        })
    }

    /// Caches keys and values of `h`. Where all rows go on, the queries are part of the same
    /// product.
    pub fn cache(&self, c: &mut Context<'_, B>) {
        let Context { backend, config, scratch: s, .. } = c;
        let q = (&self.q.projection.matrix, self.q.room(&mut s.all_q, &mut s.q));
        let k = (&self.k.projection.matrix, self.k.room(&mut s.all_k, &mut s.k));
        let v = (&self.v.matrix, &mut s.v);
        match c.outputs {
            None => backend.linear(&s.h, &mut [q, k, v]),
            Some(_) => backend.linear(&s.h, &mut [k, v]),
        }
        self.k.finish(backend, config, &mut s.all_k, &mut s.k);
        self.v.add_bias(backend, &mut s.v);
        if let Some(table) = self.rope {
            backend.rope(&mut s.k, config.k_dim, config.rope.style, table);
        }
        backend.store(c.kv, c.segments, &s.k, &s.v);
    }

    /// `sums = attention(h)` over what is cached, this rank's part.
    pub fn attend(&self, c: &mut Context<'_, B>) {
        let Context { backend, config, scratch: s, .. } = c;
        if c.outputs.is_some() {
            let q = (&self.q.projection.matrix, self.q.room(&mut s.all_q, &mut s.q));
            backend.linear(&s.h, &mut [q]);
        }
        self.q.finish(backend, config, &mut s.all_q, &mut s.q);
        if let Some(table) = self.rope {
            backend.rope(&mut s.q, config.k_dim, config.rope.style, table);
        }
        backend.attend(c.kv, &self.attend, c.segments, &s.q, &mut s.attended);
        backend.linear_parts(&s.attended, &self.output, self.parts.as_ref(), &mut s.sums);
    }
}

impl<B: Backend> Heads<B> {
    /// The rows `own` of a projection, or all where `norm` is over all.
    fn load(
        loader: &mut Loader<'_, B>,
        config: &Config,
        layer: usize,
        rows: &Rows,
        own: Range<usize>,
        norm: Option<B::Vector>,
    ) -> Result<Self, ModelError> {
        let whole = norm.is_some() && config.arch.qk_norm == QkNorm::Whole;
        let loaded = if whole { 0..rows.all } else { own.clone() };
        Ok(Self {
            projection: Projection::load(loader, config, layer, rows, loaded)?,
            norm,
            own: whole.then_some(own),
        })
    }

    /// Where the product goes: to `all` if this rank needs more than its `own`.
    fn room<'a>(&self, all: &'a mut B::Rows, own: &'a mut B::Rows) -> &'a mut B::Rows {
        if self.own.is_some() { all } else { own }
    }

    /// What follows the product, so that `own` has this rank's queries or keys, not yet rotated.
    fn finish(&self, backend: &mut B, config: &Config, all: &mut B::Rows, own: &mut B::Rows) {
        let product = self.room(all, own);
        self.projection.add_bias(backend, product);
        if let Some(norm) = &self.norm {
            backend.rms_norm_in_place(product, norm, config.rms_eps);
        }
        if let Some(columns) = &self.own {
            backend.columns(all, columns.clone(), own);
        }
    }
}

/// Where q, k and v lie: in tensors of their own, or one after the other in one.
fn projections(config: &Config) -> [Rows; 3] {
    let sizes = [
        config.heads * config.k_dim,
        config.kv_heads * config.k_dim,
        config.kv_heads * config.v_dim,
    ];
    let fused = config.arch.fused;
    let mut first = 0;
    [0, 1, 2].map(|at| {
        let name = if fused { "attn_qkv" } else { ["attn_q", "attn_k", "attn_v"][at] };
        let rows = Rows {
            name,
            tensor_rows: if fused { sizes.iter().sum() } else { sizes[at] },
            first: if fused { first } else { 0 },
            all: sizes[at],
        };
        first += sizes[at];
        rows
    })
}

fn qk_norm<B: Backend>(
    loader: &mut Loader<'_, B>,
    config: &Config,
    layer: usize,
    all: [usize; 2],
) -> Result<[Option<B::Vector>; 2], ModelError> {
    let [q, k] = ["attn_q_norm", "attn_k_norm"].map(|name| names::layer(layer, name));
    let present = loader.source.directory().find_tensor(&q).is_some();
    let lens = match config.arch.qk_norm {
        QkNorm::Never => return Ok([None, None]),
        QkNorm::HeadsIfPresent if !present => return Ok([None, None]),
        QkNorm::HeadsIfPresent | QkNorm::Heads => [config.k_dim; 2],
        QkNorm::Whole => all,
    };
    Ok([Some(loader.vector(&q, lens[0])?), Some(loader.vector(&k, lens[1])?)])
}

/// How this rank's heads attend in layer `layer`.
fn attention_shape<B: Backend>(
    loader: &mut Loader<'_, B>,
    config: &Config,
    shard: &Shard,
    layer: usize,
) -> Result<AttentionShape, ModelError> {
    let group = config.heads / config.kv_heads;
    let kv_of_head = shard.heads.clone().map(|head| (head / group - shard.kv_heads.start) as u32);
    let name = names::layer(layer, "attn_sinks");
    let sinks = match loader.source.directory().find_tensor(&name) {
        Some(_) => Some(loader.floats(&name, [config.heads, 1])?[shard.heads.clone()].to_vec()),
        None => None,
    };
    Ok(AttentionShape {
        kv_of_head: kv_of_head.collect(),
        k_dim: config.k_dim,
        v_dim: config.v_dim,
        scale: config.attention_scale,
        window: config.windows[layer],
        sinks,
    })
}

fn scaled(heads: &Range<usize>, dim: usize) -> Range<usize> {
    heads.start * dim..heads.end * dim
}

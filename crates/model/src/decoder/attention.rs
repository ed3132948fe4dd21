//! Attention over keys and values of their own for each head or group of heads.

use std::ops::Range;

use backend::{Activation, AttentionShape, Backend, Parts, Temperature};
use layout::{Config, QkNorm, Shard, Slices};

use super::context::Context;
use super::projection::Projection;
use crate::ModelError;
use crate::loader::Loader;
use crate::operations::{attention_range, parts, rope_style, temperature};

pub(super) struct HeadAttention<B: Backend> {
    q: Heads<B>,
    k: Heads<B>,
    v: Projection<B>,
    /// Multiplies what the heads attended to, by its sigmoid.
    gate: Option<B::Matrix>,
    /// The table that the layer rotates by, if it does.
    rope: Option<usize>,
    temperature: Option<Temperature>,
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
        slices: &Slices<'_>,
        layer: usize,
    ) -> Result<Self, ModelError> {
        let own = |heads: &Range<usize>| heads.start * config.k_dim..heads.end * config.k_dim;
        let window = config.windows[layer];
        let local = window.is_some() && config.rope.local_base.is_some();
        Ok(Self {
            q: Heads::load(
                loader,
                config,
                slices,
                layer,
                ["attn_q", "attn_q_norm"],
                own(&shard.heads),
            )?,
            k: Heads::load(
                loader,
                config,
                slices,
                layer,
                ["attn_k", "attn_k_norm"],
                own(&shard.kv_heads),
            )?,
            v: Projection::load(loader, slices, "attn_v")?,
            gate: match slices.find("attn_gate") {
                Some(slice) => Some(loader.matrix(&slice)?),
                None => None,
            },
            rope: config.rotates(layer).then_some(usize::from(local)),
            temperature: temperature(config, layer),
            attend: {
                let shape = attention_shape(loader, config, shard, slices, layer)?;
                loader.backend.attention(&shape)
            },
            output: loader.matrix(&slices.get("attn_output"))?,
            parts: parts(&shard.attention, shard.rank),
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
        self.k.finish(backend, config, self.rope, &mut s.all_k, &mut s.k);
        self.v.add_bias(backend, &mut s.v);
        backend.store(c.kept.keys_and_values(), c.segments, &s.k, &s.v);
    }

    /// `sums = attention(h)` over what is cached, this rank's part.
    pub fn attend(&self, c: &mut Context<'_, B>) {
        let Context { backend, config, scratch: s, .. } = c;
        if c.outputs.is_some() {
            let q = (&self.q.projection.matrix, self.q.room(&mut s.all_q, &mut s.q));
            backend.linear(&s.h, &mut [q]);
        }
        self.q.finish(backend, config, self.rope, &mut s.all_q, &mut s.q);
        if let Some(temperature) = &self.temperature {
            backend.scale_by_temperature(&mut s.q, temperature);
        }
        backend.attend(c.kept.keys_and_values(), &self.attend, c.segments, &s.q, &mut s.attended);
        let attended = match (&self.gate, &mut s.attention_gate) {
            (Some(matrix), Some(gate)) => {
                backend.linear(&s.h, &mut [(matrix, &mut *gate)]);
                backend.gated(Activation::Sigmoid, gate, &s.attended);
                &*gate
            }
            _ => &s.attended,
        };
        backend.linear_parts(attended, &self.output, self.parts.as_ref(), &mut s.sums);
    }
}

impl<B: Backend> Heads<B> {
    /// The projection and the norm of these roles; `own`: the columns of its product that this
    /// rank attends with.
    fn load(
        loader: &mut Loader<'_, B>,
        config: &Config,
        slices: &Slices<'_>,
        layer: usize,
        [projection, norm]: [&str; 2],
        own: Range<usize>,
    ) -> Result<Self, ModelError> {
        Ok(Self {
            projection: Projection::load(loader, slices, projection)?,
            norm: match config.has_l2_qk_norm(layer) {
                true => Some(loader.backend.vector(&vec![1.0; config.k_dim])),
                false => loader.find_vector(slices.find(norm))?,
            },
            own: (config.arch.qk_norm == QkNorm::Whole).then_some(own),
        })
    }

    /// Where the product goes: to `all` if this rank needs more than its `own`.
    fn room<'a>(&self, all: &'a mut B::Rows, own: &'a mut B::Rows) -> &'a mut B::Rows {
        if self.own.is_some() { all } else { own }
    }

    /// Adds the bias, normalises and rotates by table `rope`, if there are such. `own` then has
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
            backend.rope(own, config.k_dim, rope_style(config), table);
        }
        if let Some(norm) = self.norm.as_ref().filter(|_| norm_last) {
            backend.rms_norm_in_place(own, norm, config.rms_eps);
        }
    }
}

/// How this rank's heads attend in layer `layer`.
fn attention_shape<B: Backend>(
    loader: &mut Loader<'_, B>,
    config: &Config,
    shard: &Shard,
    slices: &Slices<'_>,
    layer: usize,
) -> Result<AttentionShape, ModelError> {
    let group = config.heads / config.kv_heads;
    let kv_of_head = shard.heads.clone().map(|head| (head / group - shard.kv_heads.start) as u32);
    Ok(AttentionShape {
        kv_of_head: kv_of_head.collect(),
        k_dim: config.k_dim,
        v_dim: config.v_dim,
        scale: config.attention_scale,
        range: attention_range(config, layer),
        soft_cap: config.attention_cap,
        sinks: slices.find("attn_sinks").map(|slice| loader.numbers(&slice)).transpose()?,
    })
}

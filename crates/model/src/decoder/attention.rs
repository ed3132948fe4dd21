//! Attention over keys and values of their own for each head or group of heads.

use std::ops::Range;

use backend::{AttendShape, Backend, Parts, Segment};

use super::projection::{Projection, Rows};
use super::scratch::Scratch;
use crate::arch::QkNorm;
use crate::loader::Loader;
use crate::{Config, ModelError, Shard, names};

pub(super) struct HeadAttention<B: Backend> {
    q: Projection<B>,
    k: Projection<B>,
    v: Projection<B>,
    qk_norm: Option<[B::Vector; 2]>,
    /// Where all heads are normalised as one vector, every rank has all queries and keys (half of
    /// the sum of squares would be another rank's) and takes these columns of them.
    own: Option<[Range<usize>; 2]>,
    /// The table that the layer rotates by, if it does.
    rope: Option<usize>,
    attend: AttendShape,
    output: B::Matrix,
    parts: Option<Parts>,
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
        let whole = config.arch.qk_norm == QkNorm::Whole;
        let (q_rows, k_rows) = match whole {
            true => (0..q.all, 0..k.all),
            false => (own_q.clone(), own_k.clone()),
        };
        let window = config.windows[layer];
        let local = window.is_some() && config.rope.local_base.is_some();
        Ok(Self {
            qk_norm: qk_norm(loader, config, layer, [q.all, k.all])?,
            q: Projection::load(loader, config, layer, &q, q_rows)?,
            k: Projection::load(loader, config, layer, &k, k_rows)?,
            v: Projection::load(loader, config, layer, &v, own_v)?,
            own: whole.then_some([own_q, own_k]),
            rope: config.rotates(layer).then_some(usize::from(local)),
            attend: attend_shape(loader, config, shard, layer)?,
            output: loader.columns(
                &names::layer(layer, "attn_output"),
                config.heads * v_dim,
                config.width,
                shard.attention.columns(shard.rank),
            )?,
            parts: shard.attention.parts(shard.rank),
        })
    }

    /// `sums = attention(h)`, this rank's part.
    pub fn forward(
        &self,
        backend: &mut B,
        config: &Config,
        kv: &mut B::Kv,
        segments: &[Segment<'_>],
        s: &mut Scratch<B>,
    ) {
        let (q, k) = match &self.own {
            Some(_) => (&mut s.all_q, &mut s.all_k),
            None => (&mut s.q, &mut s.k),
        };
        let outs = [(&self.q.matrix, &mut *q), (&self.k.matrix, &mut *k)];
        let [q_out, k_out] = outs;
        backend.linear(&s.h, &mut [q_out, k_out, (&self.v.matrix, &mut s.v)]);
        for (projection, out) in [(&self.q, &mut *q), (&self.k, &mut *k), (&self.v, &mut s.v)] {
            projection.add_bias(backend, out);
        }
        if let Some([q_norm, k_norm]) = &self.qk_norm {
            backend.rms_norm_in_place(q, q_norm, config.rms_eps);
            backend.rms_norm_in_place(k, k_norm, config.rms_eps);
        }
        if let Some([own_q, own_k]) = &self.own {
            backend.columns(&s.all_q, own_q.clone(), &mut s.q);
            backend.columns(&s.all_k, own_k.clone(), &mut s.k);
        }
        if let Some(table) = self.rope {
            let (k_dim, style) = (config.k_dim, config.rope.style);
            backend.rope(&mut s.q, k_dim, style, table);
            backend.rope(&mut s.k, k_dim, style, table);
        }
        backend.store(kv, segments, &s.k, &s.v);
        backend.attend(kv, &self.attend, segments, &s.q, &mut s.attended);
        backend.linear_parts(&s.attended, &self.output, self.parts.as_ref(), &mut s.sums);
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
) -> Result<Option<[B::Vector; 2]>, ModelError> {
    let [q, k] = ["attn_q_norm", "attn_k_norm"].map(|name| names::layer(layer, name));
    let present = loader.source.directory().find_tensor(&q).is_some();
    let lens = match config.arch.qk_norm {
        QkNorm::Never => return Ok(None),
        QkNorm::HeadsIfPresent if !present => return Ok(None),
        QkNorm::HeadsIfPresent | QkNorm::Heads => [config.k_dim; 2],
        QkNorm::Whole => all,
    };
    Ok(Some([loader.vector(&q, lens[0])?, loader.vector(&k, lens[1])?]))
}

/// How this rank's heads attend in layer `layer`.
fn attend_shape<B: Backend>(
    loader: &mut Loader<'_, B>,
    config: &Config,
    shard: &Shard,
    layer: usize,
) -> Result<AttendShape, ModelError> {
    let group = config.heads / config.kv_heads;
    let kv_of_head = shard.heads.clone().map(|head| (head / group - shard.kv_heads.start) as u32);
    let kv_of_head: Vec<u32> = kv_of_head.collect();
    let name = names::layer(layer, "attn_sinks");
    let sinks = match loader.source.directory().find_tensor(&name) {
        Some(_) => Some(loader.floats(&name, [config.heads, 1])?[shard.heads.clone()].to_vec()),
        None => None,
    };
    Ok(AttendShape::new(&kv_of_head, config.k_dim, config.v_dim, config.attention_scale)
        .with_window(config.windows[layer])
        .with_sinks(sinks))
}

fn scaled(heads: &Range<usize>, dim: usize) -> Range<usize> {
    heads.start * dim..heads.end * dim
}

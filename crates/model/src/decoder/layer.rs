//! One layer: two halves, each of which adds to the residual stream.

use backend::{Backend, Segment};

use super::attention::HeadAttention;
use super::feed_forward::FeedForward;
use super::latent::LatentAttention;
use super::residual::Residual;
use super::scratch::Scratch;
use super::{Batch, Product, Reduce};
use crate::loader::Loader;
use crate::{Config, ModelError, Shard, names};

pub(super) struct Layer<B: Backend> {
    /// Whether it is the model's last.
    last: bool,
    attention_norm: Option<B::Vector>,
    attention: Attention<B>,
    attention_residual: Residual<B>,
    feed_forward_norm: Option<B::Vector>,
    feed_forward: FeedForward<B>,
    feed_forward_residual: Residual<B>,
}

enum Attention<B: Backend> {
    Heads(HeadAttention<B>),
    Latent(LatentAttention<B>),
}

impl<B: Backend> Layer<B> {
    pub fn load(
        loader: &mut Loader<'_, B>,
        config: &Config,
        shard: &Shard,
        layer: usize,
    ) -> Result<Self, ModelError> {
        let width = config.width;
        let norms = &config.arch.norms;
        let norm = |loader: &mut Loader<'_, B>, name: Option<&str>| {
            name.map(|name| loader.vector(&names::layer(layer, name), width)).transpose()
        };
        let bias = |loader: &mut Loader<'_, B>, name| {
            loader.find_part(&names::bias(layer, name), width, 0..width)
        };
        let latent = config.latent.as_ref();
        Ok(Self {
            last: layer + 1 == config.layers,
            attention_norm: norm(loader, norms.attention)?,
            attention: match latent {
                Some(latent) => {
                    let own = LatentAttention::load(loader, config, latent, shard, layer)?;
                    Attention::Latent(own)
                }
                None => Attention::Heads(HeadAttention::load(loader, config, shard, layer)?),
            },
            attention_residual: Residual {
                bias: bias(loader, "attn_output")?,
                norm: norm(loader, norms.after_attention)?,
            },
            feed_forward_norm: norm(loader, norms.feed_forward)?,
            feed_forward: FeedForward::load(loader, config, shard, layer)?,
            feed_forward_residual: Residual {
                bias: bias(loader, "ffn_down")?,
                norm: norm(loader, norms.after_feed_forward)?,
            },
        })
    }

    /// `x += attention(norm(x))`, then `x += feed_forward(norm(x))`, with norms where the
    /// architecture has them. The last layer has keys and values of every row, and all else of the
    /// outputs alone.
    pub fn forward<R: Reduce>(
        &self,
        backend: &mut B,
        reduce: &mut R,
        config: &Config,
        kv: &mut B::Kv,
        batch: &Batch<'_>,
        s: &mut Scratch<B>,
    ) -> Result<(), R::Error> {
        norm_into_h(backend, config, self.attention_norm.as_ref(), s);
        let outputs = &batch.outputs;
        if self.last && outputs.rows.len() < batch.positions.len() {
            self.attention.cache(backend, config, kv, batch.segments, s);
            if outputs.rows.is_empty() {
                return Ok(());
            }
            backend.keep(&mut s.x, outputs.rows);
            backend.keep(&mut s.h, outputs.rows);
            backend.keep_positions(outputs.rows);
            self.attention.attend(backend, config, kv, outputs.segments, s);
        } else {
            self.attention.forward(backend, config, kv, batch.segments, s);
        }
        self.attention_residual.add(backend, reduce, config, Product::Attention, s)?;
        norm_into_h(backend, config, self.feed_forward_norm.as_ref(), s);
        self.feed_forward.forward(backend, config, s);
        self.feed_forward_residual.add(backend, reduce, config, Product::FeedForward, s)
    }
}

impl<B: Backend> Attention<B> {
    /// `sums = attention(h)`, this rank's part.
    fn forward(
        &self,
        backend: &mut B,
        config: &Config,
        kv: &mut B::Kv,
        segments: &[Segment<'_>],
        s: &mut Scratch<B>,
    ) {
        match self {
            Self::Heads(attention) => attention.forward(backend, config, kv, segments, s),
            Self::Latent(attention) => {
                attention.cache(backend, config, kv, segments, s);
                attention.attend(backend, config, kv, segments, s);
            }
        }
    }

    /// The first half of [`Self::forward`]: caches keys and values of `h`.
    fn cache(
        &self,
        backend: &mut B,
        config: &Config,
        kv: &mut B::Kv,
        segments: &[Segment<'_>],
        s: &mut Scratch<B>,
    ) {
        match self {
            Self::Heads(attention) => attention.cache(backend, config, kv, segments, s),
            Self::Latent(attention) => attention.cache(backend, config, kv, segments, s),
        }
    }

    /// The second half: `sums = attention(h)` over what is cached.
    fn attend(
        &self,
        backend: &mut B,
        config: &Config,
        kv: &B::Kv,
        segments: &[Segment<'_>],
        s: &mut Scratch<B>,
    ) {
        match self {
            Self::Heads(attention) => attention.attend(backend, config, kv, segments, s),
            Self::Latent(attention) => attention.attend(backend, config, kv, segments, s),
        }
    }
}

/// `h = norm(x)`, or `h = x` without a norm.
fn norm_into_h<B: Backend>(
    backend: &mut B,
    config: &Config,
    gain: Option<&B::Vector>,
    s: &mut Scratch<B>,
) {
    match gain {
        Some(gain) => backend.rms_norm(&s.x, gain, config.rms_eps, &mut s.h),
        None => backend.columns(&s.x, 0..config.width, &mut s.h),
    }
}

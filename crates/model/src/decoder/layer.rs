//! One layer: two halves, each of which adds to the residual stream.

use backend::{Backend, Half};

use super::attention::HeadAttention;
use super::context::Context;
use super::feed_forward::FeedForward;
use super::latent::LatentAttention;
use super::residual::Residual;
use super::{Product, Reduce};
use crate::loader::Loader;
use crate::{Config, ModelError, Shard, names};

pub(super) struct Layer<B: Backend> {
    /// In the model.
    pub index: usize,
    /// Whether it is the model's last.
    pub is_last: bool,
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
            index: layer,
            is_last: layer + 1 == config.layers,
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
    /// architecture has them. The last layer caches keys and values of every row, and computes all
    /// else for the outputs alone.
    pub fn forward<R: Reduce>(
        &self,
        c: &mut Context<'_, B>,
        reduce: &mut R,
    ) -> Result<(), R::Error> {
        c.norm(self.attention_norm.as_ref());
        self.attention.cache(c);
        if !c.keep_outputs() {
            return Ok(c.backend.synchronise()?);
        }
        self.attention.attend(c);
        c.end_segment(Half::Attention);
        self.attention_residual.add(c, reduce, Product::Attention)?;
        c.norm(self.feed_forward_norm.as_ref());
        self.feed_forward.forward(c);
        c.end_segment(Half::FeedForward);
        self.feed_forward_residual.add(c, reduce, Product::FeedForward)
    }
}

impl<B: Backend> Attention<B> {
    /// Caches keys and values of `h`.
    fn cache(&self, c: &mut Context<'_, B>) {
        match self {
            Self::Heads(attention) => attention.cache(c),
            Self::Latent(attention) => attention.cache(c),
        }
    }

    /// `sums = attention(h)` over what is cached, this rank's part.
    fn attend(&self, c: &mut Context<'_, B>) {
        match self {
            Self::Heads(attention) => attention.attend(c),
            Self::Latent(attention) => attention.attend(c),
        }
    }
}

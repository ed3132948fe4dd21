//! One layer: two halves, each of which adds to the residual stream.

use backend::{Backend, Half};
use layout::{Config, Shard, Slices};

use super::attention::HeadAttention;
use super::context::Context;
use super::feed_forward::FeedForward;
use super::latent::LatentAttention;
use super::residual::Residual;
use super::{Product, Reduce};
use crate::ModelError;
use crate::loader::Loader;

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
        slices: &Slices<'_>,
        layer: usize,
    ) -> Result<Self, ModelError> {
        let attention = match &config.latent {
            Some(latent) => {
                let own = LatentAttention::load(loader, config, latent, shard, slices, layer)?;
                Attention::Latent(own)
            }
            None => Attention::Heads(HeadAttention::load(loader, config, shard, slices, layer)?),
        };
        let mut vector = |role| loader.find_vector(slices.find(role));
        Ok(Self {
            index: layer,
            is_last: layer + 1 == config.layers,
            attention_norm: vector("attention_norm")?,
            attention,
            attention_residual: Residual {
                bias: vector("attn_output.bias")?,
                norm: vector("after_attention_norm")?,
            },
            feed_forward_norm: vector("feed_forward_norm")?,
            feed_forward_residual: Residual {
                bias: vector("ffn_down.bias")?,
                norm: vector("after_feed_forward_norm")?,
            },
            feed_forward: FeedForward::load(loader, config, shard, slices, layer)?,
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

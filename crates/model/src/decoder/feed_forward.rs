//! The feed-forward half of a layer: one gated block, or a mixture of them.

use backend::{Backend, Parts};

use super::context::Context;
use super::experts::SparseBlock;
use super::projection::{Projection, Rows};
use crate::loader::Loader;
use crate::{Config, ModelError, Shard, names};

pub(super) enum FeedForward<B: Backend> {
    Dense(DenseBlock<B>),
    Sparse(Box<SparseBlock<B>>),
}

/// `down(activation(gate(x)) * up(x))`; the bias of `down`, if there is one, joins the whole sum.
pub(super) struct DenseBlock<B: Backend> {
    gate: Projection<B>,
    up: Projection<B>,
    down: B::Matrix,
    parts: Option<Parts>,
}

impl<B: Backend> FeedForward<B> {
    pub fn load(
        loader: &mut Loader<'_, B>,
        config: &Config,
        shard: &Shard,
        layer: usize,
    ) -> Result<Self, ModelError> {
        Ok(match config.experts_of(layer) {
            Some(experts) => {
                Self::Sparse(Box::new(SparseBlock::load(loader, config, experts, shard, layer)?))
            }
            None => Self::Dense(DenseBlock::load(loader, config, shard, layer)?),
        })
    }

    /// `sums = feed_forward(h)`, this rank's part.
    pub fn forward(&self, c: &mut Context<'_, B>) {
        match self {
            Self::Dense(block) => block.forward(c),
            Self::Sparse(block) => block.forward(c),
        }
    }
}

impl<B: Backend> DenseBlock<B> {
    fn load(
        loader: &mut Loader<'_, B>,
        config: &Config,
        shard: &Shard,
        layer: usize,
    ) -> Result<Self, ModelError> {
        let hidden = config.feed_forward;
        let own = shard.feed_forward.columns(shard.rank);
        let [gate, up] = match config.arch.fused {
            true => [0, hidden].map(|first| Rows {
                name: "ffn_up",
                tensor_rows: 2 * hidden,
                first,
                all: hidden,
            }),
            false => ["ffn_gate", "ffn_up"].map(|name| Rows::whole(name, hidden)),
        };
        let down = names::layer(layer, "ffn_down");
        Ok(Self {
            gate: Projection::load(loader, config, layer, &gate, own.clone())?,
            up: Projection::load(loader, config, layer, &up, own.clone())?,
            down: loader.columns(&down, hidden, config.width, own)?,
            parts: shard.feed_forward.parts(shard.rank),
        })
    }

    fn forward(&self, c: &mut Context<'_, B>) {
        let Context { backend, config, scratch: s, .. } = c;
        let (gate, up) = (&self.gate, &self.up);
        backend.linear(&s.h, &mut [(&gate.matrix, &mut s.gate), (&up.matrix, &mut s.up)]);
        gate.add_bias(backend, &mut s.gate);
        up.add_bias(backend, &mut s.up);
        backend.gated(config.arch.activation, &mut s.gate, &s.up);
        backend.linear_parts(&s.gate, &self.down, self.parts.as_ref(), &mut s.sums);
    }
}

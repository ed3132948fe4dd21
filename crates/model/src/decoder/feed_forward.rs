//! The feed-forward half of a layer: one gated block, or a mixture of them.

use backend::{Backend, Parts};
use layout::{Config, Shard, Slices};

use super::context::Context;
use super::experts::SparseBlock;
use super::projection::Projection;
use crate::ModelError;
use crate::loader::Loader;
use crate::operations::{activation, parts};

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
        slices: &Slices<'_>,
        layer: usize,
    ) -> Result<Self, ModelError> {
        Ok(match config.experts_of(layer) {
            Some(experts) => {
                let block = SparseBlock::load(loader, config, experts, shard, slices)?;
                Self::Sparse(Box::new(block))
            }
            None => Self::Dense(DenseBlock::load(loader, shard, slices)?),
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
        shard: &Shard,
        slices: &Slices<'_>,
    ) -> Result<Self, ModelError> {
        Ok(Self {
            gate: Projection::load(loader, slices, "ffn_gate")?,
            up: Projection::load(loader, slices, "ffn_up")?,
            down: loader.matrix(&slices.get("ffn_down"))?,
            parts: parts(&shard.feed_forward, shard.rank),
        })
    }

    fn forward(&self, c: &mut Context<'_, B>) {
        let Context { backend, config, scratch: s, .. } = c;
        let (gate, up) = (&self.gate, &self.up);
        backend.linear(&s.h, &mut [(&gate.matrix, &mut s.gate), (&up.matrix, &mut s.up)]);
        gate.add_bias(backend, &mut s.gate);
        up.add_bias(backend, &mut s.up);
        backend.gated(activation(config), &mut s.gate, &s.up);
        backend.linear_parts(&s.gate, &self.down, self.parts.as_ref(), &mut s.sums);
    }
}

//! The feed-forward half of a layer: one gated block, or a mixture of them.

use backend::{Backend, Parts};

use super::experts::SparseBlock;
use super::scratch::Scratch;
use crate::loader::Loader;
use crate::{Config, ModelError, Shard, names};

pub(super) enum FeedForward<B: Backend> {
    Dense(DenseBlock<B>),
    Sparse(Box<SparseBlock<B>>),
}

/// `down(activation(gate(x)) * up(x))`
pub(super) struct DenseBlock<B: Backend> {
    gate: B::Matrix,
    up: B::Matrix,
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
    pub fn forward(&self, backend: &mut B, config: &Config, s: &mut Scratch<B>) {
        match self {
            Self::Dense(block) => block.forward(backend, config, s),
            Self::Sparse(block) => block.forward(backend, s),
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
        let name = |name| names::layer(layer, name);
        let (width, hidden) = (config.width, config.feed_forward);
        let own = shard.feed_forward.columns(shard.rank);
        let (gate, up, rows, up_first) = match config.arch.fused {
            true => ("ffn_up", "ffn_up", 2 * hidden, hidden),
            false => ("ffn_gate", "ffn_up", hidden, 0),
        };
        let up_rows = up_first + own.start..up_first + own.end;
        Ok(Self {
            gate: loader.rows(&name(gate), width, rows, own.clone())?,
            up: loader.rows(&name(up), width, rows, up_rows)?,
            down: loader.columns(&name("ffn_down"), hidden, width, own)?,
            parts: shard.feed_forward.parts(shard.rank),
        })
    }

    fn forward(&self, backend: &mut B, config: &Config, s: &mut Scratch<B>) {
        backend.linear(&s.h, &mut [(&self.gate, &mut s.gate), (&self.up, &mut s.up)]);
        backend.gated(config.arch.activation, &s.gate, &s.up, &mut s.hidden);
        backend.linear_parts(&s.hidden, &self.down, self.parts.as_ref(), &mut s.sums);
    }
}

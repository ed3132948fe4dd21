//! The feed-forward half of a layer: one gated block, or a mixture of them.

use backend::{Backend, Parts};
use layout::{Config, Shard, Slices};

use super::Reduce;
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

/// `down(activation(gate(x)) * up(x))`, without a gate `down(activation(up(x)))`; the bias of
/// `down`, if there is one, joins the whole sum.
pub(super) struct DenseBlock<B: Backend> {
    gate: Option<Projection<B>>,
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
            None => {
                let parts = parts(&shard.feed_forward, shard.rank);
                let roles = ["ffn_gate", "ffn_up", "ffn_down"];
                Self::Dense(DenseBlock::load(loader, slices, roles, parts)?)
            }
        })
    }

    /// Computes a dense block's hidden numbers from `h`. Experts leave all to [`Self::contract`].
    pub fn expand(&self, c: &mut Context<'_, B>) {
        if let Self::Dense(block) = self {
            block.expand(c);
        }
    }

    /// `sums = feed_forward(h)`, this rank's part. Follows [`Self::expand`].
    pub fn contract<R: Reduce>(
        &self,
        c: &mut Context<'_, B>,
        reduce: &mut R,
    ) -> Result<(), R::Error> {
        match self {
            Self::Dense(block) => block.contract(c),
            Self::Sparse(block) => return block.forward(c, reduce),
        }
        Ok(())
    }
}

impl<B: Backend> DenseBlock<B> {
    /// The block whose gate, up and down have these roles.
    pub fn load(
        loader: &mut Loader<'_, B>,
        slices: &Slices<'_>,
        [gate, up, down]: [&str; 3],
        parts: Option<Parts>,
    ) -> Result<Self, ModelError> {
        Ok(Self {
            gate: match slices.find(gate) {
                Some(_) => Some(Projection::load(loader, slices, gate)?),
                None => None,
            },
            up: Projection::load(loader, slices, up)?,
            down: loader.matrix(&slices.get(down))?,
            parts,
        })
    }

    pub fn forward(&self, c: &mut Context<'_, B>) {
        self.expand(c);
        self.contract(c);
    }

    /// This rank's hidden numbers.
    fn expand(&self, c: &mut Context<'_, B>) {
        let Context { backend, config, scratch: s, .. } = c;
        let activation = activation(config);
        match &self.gate {
            Some(gate) => {
                let up = (&self.up.matrix, &mut s.up);
                backend.linear(&s.h, &mut [(&gate.matrix, &mut s.gate), up]);
                gate.add_bias(backend, &mut s.gate);
                self.up.add_bias(backend, &mut s.up);
                backend.gated(activation, &mut s.gate, &s.up);
            }
            None => {
                backend.linear(&s.h, &mut [(&self.up.matrix, &mut s.up)]);
                self.up.add_bias(backend, &mut s.up);
                backend.activate(activation, &mut s.up);
            }
        }
    }

    /// `sums = down(hidden numbers)`, this rank's part.
    fn contract(&self, c: &mut Context<'_, B>) {
        let Context { backend, scratch: s, .. } = c;
        let hidden = if self.gate.is_some() { &s.gate } else { &s.up };
        backend.linear_parts(hidden, &self.down, self.parts.as_ref(), &mut s.sums);
    }
}

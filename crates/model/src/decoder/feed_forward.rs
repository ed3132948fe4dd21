//! The feed-forward half of a layer: one gated block, a mixture of them, or one beside a mixture.

use backend::Backend;
use layout::{Config, Shard, Slices};

use super::context::Context;
use super::parts::beside::DenseBeside;
use super::parts::dense::DenseBlock;
use super::parts::experts::SparseBlock;
use super::reduce::Reduce;
use crate::ModelError;
use crate::loader::Loader;

pub(super) enum FeedForward<B: Backend> {
    Dense(DenseBlock<B>),
    Sparse(Box<SparseBlock<B>>),
    Beside(Box<DenseBeside<B>>),
}

impl<B: Backend> FeedForward<B> {
    pub fn load(
        loader: &mut Loader<'_, B>,
        config: &Config,
        shard: &Shard,
        slices: &Slices<'_>,
        layer: usize,
    ) -> Result<Self, ModelError> {
        let Some(experts) = config.experts_of(layer) else {
            return Ok(Self::Dense(DenseBlock::of_layer(loader, config, shard, slices, layer)?));
        };
        let sparse = SparseBlock::load(loader, config, experts, shard, slices, layer)?;
        if !config.arch.dense_beside_experts {
            return Ok(Self::Sparse(Box::new(sparse)));
        }
        let dense = DenseBlock::of_layer(loader, config, shard, slices, layer)?;
        Ok(Self::Beside(Box::new(DenseBeside::load(loader, config, slices, dense, sparse)?)))
    }

    /// Begins to read the experts that these tokens choose by themselves, if they lie on disk.
    pub fn prefetch(&self, tokens: &[u32]) {
        if let Self::Sparse(block) = self {
            block.prefetch(tokens);
        }
    }

    /// Computes a dense block's hidden elements from `h`. Experts do everything in
    /// [`Self::contract`].
    pub fn expand(&self, c: &mut Context<'_, B>) {
        if let Self::Dense(block) = self {
            let Context { backend, scratch: s, .. } = c;
            block.expand(*backend, &s.h, &mut s.hidden);
        }
    }

    /// `sums = feed_forward(h)`, this rank's part. Follows [`Self::expand`].
    pub fn contract<R: Reduce>(
        &self,
        c: &mut Context<'_, B>,
        reduce: &mut R,
    ) -> Result<(), R::Error> {
        match self {
            Self::Dense(block) => {
                let Context { backend, scratch: s, .. } = c;
                block.contract(*backend, &s.hidden, &mut s.sums);
            }
            Self::Sparse(block) => return block.forward(c, reduce),
            Self::Beside(block) => return block.forward(c, reduce),
        }
        Ok(())
    }
}

//! Several residual streams, which each half of a layer mixes (manifold-constrained
//! hyper-connections, arXiv 2512.24880).

use crate::Error;
use crate::metadata::Metadata;

const STREAMS_MAX: u64 = 16;
const ROUNDS_MAX: u64 = 1000;

/// A model's residual streams.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Streams {
    pub count: usize,
    /// How often the rows and columns of a mixing matrix are normalised (Sinkhorn).
    pub rounds: usize,
    /// Added to what they are divided by, and to the weights of what a half reads.
    pub eps: f32,
}

impl Streams {
    /// `None` for models with one.
    pub(crate) fn read(metadata: &Metadata<'_>) -> Result<Option<Self>, Error> {
        if !metadata.arch.streams {
            return Ok(None);
        }
        Ok(Some(Self {
            count: metadata.size("hyper_connection.count", STREAMS_MAX)?,
            rounds: metadata.size("hyper_connection.sinkhorn_iterations", ROUNDS_MAX)?,
            eps: metadata.positive_or("hyper_connection.epsilon", 1e-6)?,
        }))
    }

    /// Numbers that a half's mixture is made of: a weight of each stream for what the half reads,
    /// one for what it gives, and a matrix from streams to streams.
    pub fn weights(&self) -> usize {
        (2 + self.count) * self.count
    }
}

//! Several residual streams, which each half of a layer mixes (hyper-connections).

use crate::Error;
use crate::arch::StreamKind;
use crate::config::WIDTH_MAX;
use crate::metadata::Metadata;

const STREAMS_MAX: u64 = 16;
const ROUNDS_MAX: u64 = 1000;

/// A model's residual streams.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Streams {
    pub count: usize,
    pub mixing: Mixing,
}

/// How halves mix them.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Mixing {
    /// By a matrix whose rows and columns are normalised so often (Sinkhorn). `eps` is added to
    /// what they are divided by, and to the weights of what a half reads.
    Matrix { rounds: usize, eps: f32 },
    /// A half reads the mean of what gates leave of each stream. The gates come from a vector of so
    /// many numbers.
    Gates { rank: usize },
}

impl Streams {
    /// `None` for models with one.
    pub(crate) fn read(metadata: &Metadata<'_>) -> Result<Option<Self>, Error> {
        let Some(kind) = metadata.arch.streams else { return Ok(None) };
        Ok(Some(Self {
            count: metadata.size("hyper_connection.count", STREAMS_MAX)?,
            mixing: match kind {
                StreamKind::Matrix => Mixing::Matrix {
                    rounds: metadata.size("hyper_connection.sinkhorn_iterations", ROUNDS_MAX)?,
                    eps: metadata.positive_or("hyper_connection.epsilon", 1e-6)?,
                },
                StreamKind::Gates => {
                    Mixing::Gates { rank: metadata.size("hyper_connection.low_rank", WIDTH_MAX)? }
                }
            },
        }))
    }

    /// Numbers of a row that a half keeps until it gives: weights for what it gives to each stream,
    /// and with a matrix those of what it reads, and the matrix from streams to streams.
    pub fn weights(&self) -> usize {
        match self.mixing {
            Mixing::Matrix { .. } => (2 + self.count) * self.count,
            Mixing::Gates { .. } => self.count,
        }
    }

    /// Numbers that gates are made of.
    pub fn rank(&self) -> Option<usize> {
        match self.mixing {
            Mixing::Matrix { .. } => None,
            Mixing::Gates { rank } => Some(rank),
        }
    }
}

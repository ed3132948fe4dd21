//! Several residual streams, mixed by each half of a layer (hyper-connections).

pub(crate) mod wiring;

use crate::arch::StreamKind;
use crate::file::limits::WIDTH_MAX;
use crate::file::{Error, Metadata};

const STREAMS_MAX: u64 = 16;
const ROUNDS_MAX: u64 = 1000;

/// A model's residual streams.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Streams {
    pub count: usize,
    pub mixing: Mixing,
}

/// How halves mix the streams.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Mixing {
    /// By a matrix with rows and columns normalised `rounds` times (Sinkhorn). `eps` is added to
    /// the divisors, and to the weights of a half's input.
    Matrix { rounds: usize, eps: f32 },
    /// A half reads the mean of the gated streams. The gates come from a vector of `rank` elements.
    Gates { rank: usize },
}

impl Streams {
    /// `None` for models with one stream.
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

    /// Elements of a row that a half keeps until its output: the output weight of each stream, and
    /// with a matrix also the input weights and the matrix between streams.
    pub fn weights(&self) -> usize {
        match self.mixing {
            Mixing::Matrix { .. } => (2 + self.count) * self.count,
            Mixing::Gates { .. } => self.count,
        }
    }

    /// Elements of the gates' input.
    pub fn rank(&self) -> Option<usize> {
        match self.mixing {
            Mixing::Matrix { .. } => None,
            Mixing::Gates { rank } => Some(rank),
        }
    }
}

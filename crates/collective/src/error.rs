//! What ends a collective, with the rank that caused it.

use link::LinkError;
use thiserror::Error;

/// Cloneable, because a group repeats its first error: its ranks are out of step from then on.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum CollectiveError {
    #[error(
        "rank {rank} sent nothing for {waited_ms} ms: it is stuck, asleep or cut off; the epoch \
         must end"
    )]
    Late { rank: usize, waited_ms: u64 },

    #[error("rank {rank} is lost: {reason}; the epoch must end")]
    Lost { rank: usize, reason: String },

    #[error("stopped, because this instance was told to")]
    Aborted,

    #[error(
        "rank {rank} is at another step: it sent {found} where {expected} was due; all ranks must \
         run the same version on the same plan"
    )]
    Mismatch { rank: usize, expected: String, found: String },

    #[error("{what}: {given} given, {expected} needed")]
    Length { what: &'static str, given: usize, expected: usize },

    #[error("{what} of {bytes} bytes is over the limit of {bytes_max}")]
    TooLong { what: &'static str, bytes: u64, bytes_max: usize },

    #[error("no group from these links: rank {rank} {problem}")]
    Links { rank: usize, problem: &'static str },

    #[error("the ranks' leaves {spans} are not each leaf of 0..{leaves} once")]
    Spans { leaves: usize, spans: String },
}

impl CollectiveError {
    /// The rank that the others should blame, if it is one.
    pub fn rank(&self) -> Option<usize> {
        match self {
            CollectiveError::Late { rank, .. }
            | CollectiveError::Lost { rank, .. }
            | CollectiveError::Mismatch { rank, .. } => Some(*rank),
            _ => None,
        }
    }
}

impl From<LinkError> for CollectiveError {
    fn from(error: LinkError) -> Self {
        match error {
            LinkError::Lost { peer, reason } => CollectiveError::Lost { rank: peer, reason },
            LinkError::Corrupt { peer, .. } | LinkError::Epoch { peer, .. } => {
                CollectiveError::Lost { rank: peer, reason: error.to_string() }
            }
        }
    }
}

//! The errors that end a collective, with the rank that caused them.

use std::net::IpAddr;
use std::time::Duration;

use link::LinkError;
use thiserror::Error;

/// Cloneable, because a group repeats its first error: its ranks are out of step from then on.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum CollectiveError {
    #[error(
        "rank {rank} gave no sign of life for {silent_ms} ms, of {limit_ms} ms allowed: its \
         process is frozen, its machine asleep or cut off"
    )]
    Silent { rank: usize, silent_ms: u64, limit_ms: u64 },

    #[error(
        "the way to rank {rank} is cut: nothing that was sent to it was acknowledged for \
         {unacknowledged_ms} ms, while its machine answers at {answers_at}; \
         the next links take another way"
    )]
    Cut { rank: usize, unacknowledged_ms: u64, answers_at: IpAddr },

    #[error(
        "rank {rank} is late, but alive: its message did not come for {waited_ms} ms, of \
         {limit_ms} ms allowed; it is stuck or far too slow for its share"
    )]
    Late { rank: usize, waited_ms: u64, limit_ms: u64 },

    #[error(
        "this rank itself stood still for {stood_ms} ms (stopped, or its machine slept), and the \
         others went on without it: {reason}"
    )]
    StoodStill { stood_ms: u64, reason: String },

    #[error("rank {rank} is lost: {reason}")]
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
    /// The rank to blame, if there is one.
    pub fn rank(&self) -> Option<usize> {
        match self {
            CollectiveError::Silent { rank, .. }
            | CollectiveError::Cut { rank, .. }
            | CollectiveError::Late { rank, .. }
            | CollectiveError::Lost { rank, .. }
            | CollectiveError::Mismatch { rank, .. } => Some(*rank),
            _ => None,
        }
    }

    /// The fault of that rank, for callers that name it themselves.
    pub fn reason(&self) -> String {
        match self {
            CollectiveError::Silent { silent_ms, .. } => {
                format!("it gave no sign of life for {silent_ms} ms")
            }
            CollectiveError::Cut { answers_at, .. } => {
                format!("the way to it is cut; it answers at {answers_at}")
            }
            CollectiveError::Late { waited_ms, .. } => {
                format!("it is alive, but sent nothing for {waited_ms} ms")
            }
            CollectiveError::Lost { reason, .. } => reason.clone(),
            CollectiveError::Mismatch { .. } => "it is at another step".to_owned(),
            CollectiveError::Aborted => "it was stopped".to_owned(),
            other => other.to_string(),
        }
    }

    /// The error for `rank`, which is alive but has sent nothing for too long.
    pub(crate) fn late(rank: usize, waited: Duration, wait_max: Duration) -> Self {
        let (waited_ms, limit_ms) = (waited.as_millis() as u64, wait_max.as_millis() as u64);
        CollectiveError::Late { rank, waited_ms, limit_ms }
    }

    /// Turns the error into this rank's own fault if it stood still: the others gave it up.
    pub(crate) fn unless_own_fault(self, own_standstill: Option<Duration>) -> Self {
        match (own_standstill, self.rank()) {
            (Some(stood), Some(_)) => CollectiveError::StoodStill {
                stood_ms: stood.as_millis() as u64,
                reason: self.to_string(),
            },
            _ => self,
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

//! Why a request is refused.

use constrain::ConstrainError;
use protocol::{FailureKind, InvalidRequest, RequestId};

use crate::purpose::WrongPurpose;
use crate::sight::Unseen;

/// The most waiting requests; the daemon bounds its own queue lower.
pub(super) const WAITING_MAX: usize = 1024;

/// Why a request is refused.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum Refused {
    #[error(transparent)]
    Invalid(#[from] InvalidRequest),
    #[error(transparent)]
    Grammar(#[from] ConstrainError),
    #[error(transparent)]
    Unseen(#[from] Unseen),
    #[error(transparent)]
    Purpose(#[from] WrongPurpose),
    #[error("{WAITING_MAX} requests are waiting already")]
    Full,
    #[error("request {request} is running already")]
    Duplicate { request: RequestId },
}

impl Refused {
    /// The kind of the failure, for the caller.
    pub fn kind(&self) -> FailureKind {
        match self {
            Self::Grammar(ConstrainError::Busy { .. }) => FailureKind::Busy,
            Self::Invalid(_) | Self::Grammar(_) | Self::Unseen(_) | Self::Purpose(_) => {
                FailureKind::Invalid
            }
            Self::Full => FailureKind::Busy,
            Self::Duplicate { .. } => FailureKind::Lost,
        }
    }
}

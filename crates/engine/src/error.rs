use collective::CollectiveError;
use model::ModelError;

use crate::sampler::NotFinite;
use crate::scheduler::Refused;
use crate::step::BadStep;

/// Why a rank cannot continue.
#[derive(Debug, thiserror::Error)]
pub enum EngineError {
    #[error(transparent)]
    Layout(#[from] layout::Error),
    #[error(transparent)]
    Model(#[from] ModelError),
    #[error(transparent)]
    Backend(#[from] backend::BackendError),
    #[error(transparent)]
    Collective(#[from] CollectiveError),
    #[error(transparent)]
    Mesh(#[from] link::MeshError),
    #[error(transparent)]
    BadStep(#[from] BadStep),
    #[error(transparent)]
    NotFinite(#[from] NotFinite),
    #[error("the model file cannot be used: {0}")]
    File(#[from] gguf::Error),
    #[error("the model cannot be read from the peer that has it: {0}")]
    Peer(std::io::Error),
    #[error("the model's vision tower cannot be used: {0}")]
    Vision(#[from] vision::TowerError),
    #[error(
        "the vision tower gives rows of {found} numbers, and the model takes {wanted}. It is \
         another model's: take the mmproj file of this one"
    )]
    OtherTower { found: usize, wanted: usize },
    #[error("the system refuses a thread: {0}")]
    Thread(String),
    #[error("the draft model cannot be used: {0}")]
    Draft(String),
    #[error("{0}")]
    Request(#[from] Refused),
    #[error("the daemon and this worker do not understand each other: {0}")]
    Protocol(String),
}

impl EngineError {
    /// The rank to blame, if another rank caused the error.
    pub fn rank(&self) -> Option<usize> {
        match self {
            Self::Collective(error) => error.rank(),
            Self::Mesh(link::MeshError::Missing { missing, .. }) => {
                missing.first().map(|missing| missing.rank)
            }
            _ => None,
        }
    }

    /// Why the epoch ended, for callers that name the rank themselves.
    pub fn reason(&self) -> String {
        match self {
            Self::Collective(error) => error.reason(),
            other => other.to_string(),
        }
    }

    /// The ranks without a link.
    pub fn unreached(&self) -> Vec<usize> {
        match self {
            Self::Mesh(link::MeshError::Missing { missing, .. }) => {
                missing.iter().map(|missing| missing.rank).collect()
            }
            _ => Vec::new(),
        }
    }

    /// Whether only the epoch has ended: the shard is fine, and a new epoch may begin.
    pub fn ends_epoch_only(&self) -> bool {
        matches!(self, Self::Collective(_) | Self::Mesh(_) | Self::BadStep(_))
    }
}

use backend::BackendError;

/// Why a model cannot be loaded or run.
#[derive(Debug, thiserror::Error)]
pub enum ModelError {
    #[error(transparent)]
    Layout(#[from] layout::Error),
    #[error("the file describes an impossible model: {what}")]
    Impossible { what: String },
    #[error(transparent)]
    File(#[from] gguf::Error),
    #[error("tensor \"{name}\": {source}")]
    Read { name: String, source: gguf::ReadError },
    #[error("tensor \"{name}\": {source}")]
    Backend { name: String, source: BackendError },
    /// The device does not support the whole model.
    #[error(transparent)]
    Device(BackendError),
}

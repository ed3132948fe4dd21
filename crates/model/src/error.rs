use backend::BackendError;

use crate::SplitError;

/// Why a model cannot be loaded or run.
#[derive(Debug, thiserror::Error)]
pub enum ModelError {
    #[error("architecture \"{found}\" is not supported; these are: {known}")]
    Arch { found: String, known: String },
    #[error("{what} is not supported yet")]
    Unsupported { what: String },
    #[error("the file describes an impossible model: {what}")]
    Impossible { what: String },
    #[error(
        "tensor \"{name}\" is {found_cols} x {found_rows}, but the model's sizes ask for {cols} x {rows}"
    )]
    Shape { name: String, found_cols: usize, found_rows: usize, cols: usize, rows: usize },
    #[error(transparent)]
    Split(#[from] SplitError),
    #[error(transparent)]
    File(#[from] gguf::Error),
    #[error("tensor \"{name}\": {source}")]
    Read { name: String, source: gguf::ReadError },
    #[error("tensor \"{name}\": {source}")]
    Backend { name: String, source: BackendError },
}

use backend::BackendError;

use crate::SplitError;

/// Why a model cannot be loaded or run.
#[derive(Debug, thiserror::Error)]
pub enum ModelError {
    #[error("architecture \"{found}\" is not supported; these are: {known}")]
    Arch { found: String, known: String },
    #[error("{what} is not supported yet")]
    Unsupported { what: String },
    #[error(
        "tensor \"{name}\" is none that this version knows in a model of architecture \"{arch}\", and without it the answers would be wrong. Convert the model again with a current convert_hf_to_gguf.py and its default options, or serve another file"
    )]
    UnknownTensor { name: String, arch: String },
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

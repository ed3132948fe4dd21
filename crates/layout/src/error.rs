use crate::SplitError;

/// Why a file is no model that can be run.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("architecture \"{found}\" is not supported; these are: {known}")]
    Arch { found: String, known: String },
    #[error(
        "tensor \"{name}\" is none that this version knows in a model of architecture \"{arch}\", and without it the answers would be wrong. Convert the model again with a current convert_hf_to_gguf.py and its default options, or serve another file"
    )]
    UnknownTensor { name: String, arch: String },
    #[error(
        "tensor \"{name}\" is {found_cols} x {found_rows}, but the model's sizes ask for {cols} x {rows}"
    )]
    Shape { name: String, found_cols: usize, found_rows: usize, cols: usize, rows: usize },
    #[error("{what} is not supported yet")]
    Unsupported { what: String },
    #[error("the file describes an impossible model: {what}")]
    Impossible { what: String },
    #[error(transparent)]
    Split(#[from] SplitError),
    #[error(transparent)]
    File(#[from] gguf::Error),
}

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
    #[error("experts on disk, in {path}: {source}", path = .path.display())]
    Slabs { path: std::path::PathBuf, source: std::io::Error },
    #[error(
        "the experts take {missing_bytes} bytes of the disk of {folder}, and it has {free_bytes} \
         free, of which {reserve} are kept free: make room, or keep the experts in memory",
        folder = .folder.display(), reserve = .needed_bytes - .missing_bytes
    )]
    SlabRoom { folder: std::path::PathBuf, missing_bytes: u64, needed_bytes: u64, free_bytes: u64 },
    #[error("experts are read from disk by processors only, not by a device of ggml")]
    ExpertDevice,
    /// The device does not support the whole model.
    #[error(transparent)]
    Device(BackendError),
}

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
        "slabs of experts have no room: {0}. Make room, copy the model's file to this machine, or \
         keep the experts in memory"
    )]
    SlabRoom(SlabRoom),
    #[error("experts are read from disk by processors only, not by a device of ggml")]
    ExpertDevice,
    #[error("encoders run on processors only, not on a device of ggml")]
    EncoderDevice,
    /// The device does not support the whole model.
    #[error(transparent)]
    Device(BackendError),
}

/// A disk without room for all files of experts.
#[derive(Debug)]
pub struct SlabRoom {
    pub folder: std::path::PathBuf,
    pub missing_bytes: u64,
    pub free_bytes: u64,
    /// What has to stay free.
    pub reserve_bytes: u64,
}

impl std::fmt::Display for SlabRoom {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { missing_bytes, free_bytes, reserve_bytes, .. } = self;
        let folder = self.folder.display();
        write!(
            f,
            "these take {missing_bytes} bytes of the disk of {folder}, and it has {free_bytes} \
             free, of which {reserve_bytes} are kept free"
        )
    }
}

/// Why a measurement has no figures.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The options are invalid.
    #[error("{0}")]
    Usage(String),
    /// The measured model, device or server refused, or gave wrong results.
    #[error("{0}")]
    Failed(String),
    #[error("{what}: {source}")]
    Io { what: String, source: std::io::Error },
    #[error(transparent)]
    Engine(#[from] engine::EngineError),
    #[error(transparent)]
    Text(#[from] text::TextError),
    #[error(transparent)]
    File(#[from] gguf::Error),
    #[error(transparent)]
    Model(#[from] layout::Error),
}

/// Adds the failed action to an I/O error.
pub(crate) trait Doing<T> {
    fn doing(self, what: impl Into<String>) -> Result<T, Error>;
}

impl<T> Doing<T> for std::io::Result<T> {
    fn doing(self, what: impl Into<String>) -> Result<T, Error> {
        self.map_err(|source| Error::Io { what: what.into(), source })
    }
}

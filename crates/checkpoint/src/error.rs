use std::io;
use std::path::PathBuf;

/// Why a folder cannot be read as a model. Offsets and lengths are in bytes.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("cannot read {path}: {source}", path = .path.display())]
    Io { path: PathBuf, source: io::Error },
    #[error("{path} has {found} bytes; the most that is accepted is {limit}", path = .path.display())]
    TooLong { path: PathBuf, found: u64, limit: u64 },
    #[error("{path} is not what it should be: {why}", path = .path.display())]
    Json { path: PathBuf, why: String },
    #[error("{path} is not a complete safetensors file: {why}", path = .path.display())]
    Shard { path: PathBuf, why: String },
    #[error(
        "{missing} of its {count} files of weights are missing, such as {first}. The download is probably incomplete; fetch it again"
    )]
    MissingShards { missing: usize, count: usize, first: String },
    #[error("it has no {what}. Fetch the whole repository")]
    MissingFile { what: &'static str },
    #[error("config.json: {key} is {found}; {wanted} is needed")]
    Config { key: String, found: String, wanted: String },
    #[error(
        "models of the class {found} cannot be read from safetensors yet. These can: {known}. Use a GGUF file of this model instead"
    )]
    Class { found: String, known: String },
    #[error("tensor \"{name}\" {why}")]
    Tensor { name: String, why: String },
    #[error("its tokenizer cannot be used: {why}")]
    Tokenizer { why: String },
    #[error(transparent)]
    Gguf(#[from] gguf::Error),
}

impl Error {
    pub(crate) fn tensor(name: &str, why: impl Into<String>) -> Self {
        Self::Tensor { name: name.to_owned(), why: why.into() }
    }

    pub(crate) fn tokenizer(why: impl Into<String>) -> Self {
        Self::Tokenizer { why: why.into() }
    }
}

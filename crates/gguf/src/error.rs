use std::path::PathBuf;

/// Why a file cannot be read as GGUF. Offsets and lengths are in bytes.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("cannot read {path}: {source}. Check the path and its permissions", path = .path.display())]
    Io { path: PathBuf, source: std::io::Error },
    #[error(
        "not a GGUF file: it starts with \"{}\" instead of \"GGUF\". Give the path of a .gguf file",
        found.escape_ascii()
    )]
    Magic { found: [u8; 4] },
    #[error(
        "GGUF version {found} is not supported (2 and 3 are). Convert the model again with a current converter"
    )]
    Version { found: u32 },
    #[error(
        "the file is written in big-endian byte order, which is not supported. Serve the model's little-endian file, or convert it with gguf_convert_endian.py FILE little"
    )]
    BigEndian,
    #[error(
        "the file ends inside {what}: {needed} bytes are needed at offset {offset}, {left} are left. The download is probably incomplete; fetch it again"
    )]
    Truncated { what: &'static str, offset: usize, needed: u64, left: usize },
    #[error("{what} at offset {offset} is {found}; the most that is accepted is {limit}")]
    TooMany { what: &'static str, offset: usize, found: u64, limit: u64 },
    #[error(
        "its header is longer than {limit} bytes, the most that is accepted; is it a model at all?"
    )]
    HeaderTooLong { limit: u64 },
    #[error("metadata value type {found} at offset {offset} is unknown")]
    ValueType { found: u32, offset: usize },
    #[error("a bool at offset {offset} is {found} instead of 0 or 1")]
    Bool { found: u8, offset: usize },
    #[error("{what} \"{name}\" appears twice")]
    Duplicate { what: &'static str, name: String },
    #[error("general.alignment is {found}; it must be a power of two from 1 to 65536")]
    Alignment { found: u64 },
    #[error("tensor \"{name}\" has type number {found}, which this version does not know")]
    TensorType { name: String, found: u32 },
    #[error("tensor \"{name}\" has impossible dimensions {dims:?}: {why}")]
    Dims { name: String, dims: Vec<u64>, why: &'static str },
    #[error(
        "tensor \"{name}\" starts at offset {offset}, which is not a multiple of the alignment {alignment}"
    )]
    Misaligned { name: String, offset: u64, alignment: u64 },
    #[error(
        "tensor \"{name}\" lies outside the file: bytes {start}..{end} of {len}. The download is probably incomplete; fetch it again"
    )]
    OutOfFile { name: String, start: u64, end: u64, len: u64 },
    #[error(
        "it is the header of a model and has no weights: {len} bytes, and {needed} belong to it. It can be planned with, and with nothing else; to run the model, fetch all of it"
    )]
    NoWeights { len: u64, needed: u64 },
    #[error("tensors \"{first}\" and \"{second}\" overlap in the file")]
    Overlap { first: String, second: String },
    #[error("{path} is one file of a model in several: {why}", path = .path.display())]
    Split { path: PathBuf, why: String },
    #[error("the model in {path} cannot be used: {why}", path = .path.display())]
    Folder { path: PathBuf, why: String },
    #[error("metadata key \"{key}\" is missing")]
    MissingKey { key: String },
    #[error("metadata key \"{key}\" is {found}; {wanted} is needed")]
    WrongType { key: String, found: String, wanted: &'static str },
    #[error("tensor \"{name}\" is missing")]
    MissingTensor { name: String },
}

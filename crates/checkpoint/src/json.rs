//! Reads small files of a folder with a limit on their length.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use serde::de::DeserializeOwned;

use crate::Error;

/// Limits in bytes. The largest published ones: configurations of 0.3 MB, indices of 24 MB (Kimi
/// K2), tokenizers of 33 MB (Gemma 3), templates of 0.1 MB.
pub(crate) const CONFIG_BYTES_MAX: u64 = 8 << 20;
pub(crate) const INDEX_BYTES_MAX: u64 = 128 << 20;
pub(crate) const TOKENIZER_BYTES_MAX: u64 = 128 << 20;

/// A file's bytes, or `None` if it does not exist.
pub(crate) fn find(path: &Path, limit: u64) -> Result<Option<Vec<u8>>, Error> {
    let io = |source| Error::Io { path: path.to_path_buf(), source };
    let metadata = match std::fs::metadata(path) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        metadata => metadata.map_err(io)?,
    };
    if !metadata.is_file() {
        return Err(io(std::io::Error::other("it is not a regular file")));
    }
    if metadata.len() > limit {
        return Err(Error::TooLong { path: path.to_path_buf(), found: metadata.len(), limit });
    }
    let mut bytes = Vec::new();
    // The file may grow meanwhile.
    File::open(path).and_then(|file| file.take(limit).read_to_end(&mut bytes)).map_err(io)?;
    Ok(Some(bytes))
}

/// A JSON file's value, or `None` if the file does not exist.
pub(crate) fn find_json<T: DeserializeOwned>(path: &Path, limit: u64) -> Result<Option<T>, Error> {
    let Some(bytes) = find(path, limit)? else { return Ok(None) };
    let parsed = serde_json::from_slice(&bytes);
    parsed
        .map(Some)
        .map_err(|error| Error::Json { path: path.to_path_buf(), why: error.to_string() })
}

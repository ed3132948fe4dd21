//! Reads small files of a folder with a limit on their length.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use serde::de::DeserializeOwned;

use crate::{Error, links};

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
    links::check(path).map_err(io)?;
    if metadata.len() > limit {
        return Err(Error::TooLong { path: path.to_path_buf(), found: metadata.len(), limit });
    }
    let mut bytes = Vec::new();
    // The file may grow meanwhile.
    File::open(path).and_then(|file| file.take(limit).read_to_end(&mut bytes)).map_err(io)?;
    Ok(Some(bytes))
}

/// A configuration's value. Python writes numbers into it that JSON does not have, such as
/// `Infinity`; they become null.
pub(crate) fn find_config<T: DeserializeOwned>(
    path: &Path,
    limit: u64,
) -> Result<Option<T>, Error> {
    let Some(bytes) = find(path, limit)? else { return Ok(None) };
    parsed(path, &without_python(&bytes))
}

/// A JSON file's value, or `None` if the file does not exist.
pub(crate) fn find_json<T: DeserializeOwned>(path: &Path, limit: u64) -> Result<Option<T>, Error> {
    let Some(bytes) = find(path, limit)? else { return Ok(None) };
    parsed(path, &bytes)
}

fn parsed<T: DeserializeOwned>(path: &Path, bytes: &[u8]) -> Result<Option<T>, Error> {
    let why = |error: serde_json::Error| error.to_string();
    let parsed = serde_json::from_slice(bytes).map(Some);
    parsed.map_err(|error| Error::Json { path: path.to_path_buf(), why: why(error) })
}

/// A text of JSON with null in place of Python's numbers, outside of strings.
fn without_python(text: &[u8]) -> Vec<u8> {
    const NUMBERS: [&[u8]; 3] = [b"-Infinity", b"Infinity", b"NaN"];
    let (mut out, mut at, mut in_string) = (Vec::with_capacity(text.len()), 0, false);
    while at < text.len() {
        let rest = &text[at..];
        let number = NUMBERS.iter().find(|number| !in_string && rest.starts_with(number));
        let (bytes, len) = match (number, rest[0]) {
            (Some(number), _) => (b"null".as_slice(), number.len()),
            (None, b'\\') => (&rest[..rest.len().min(2)], 2),
            (None, byte) => {
                in_string ^= byte == b'"';
                (&rest[..1], 1)
            }
        };
        out.extend(bytes);
        at += len;
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn python_s_numbers_become_null_outside_of_strings() {
        let text = br#"{"a": [0.0, Infinity, -Infinity], "NaN \\\"Infinity": NaN, "b": "\\"}"#;
        let wanted = br#"{"a": [0.0, null, null], "NaN \\\"Infinity": null, "b": "\\"}"#;
        let found = without_python(text);
        assert_eq!(std::str::from_utf8(&found), std::str::from_utf8(wanted));
        assert!(serde_json::from_slice::<serde_json::Value>(&found).is_ok());
        assert_eq!(without_python(b"{\""), b"{\"");
        assert_eq!(without_python(b"\\"), b"\\");
    }
}

//! One safetensors file: its header, and its bytes.
//!
//! ```text
//! header_len u64 LE | header: JSON { name: { dtype, shape, data_offsets: [start, end] } } | data
//! ```
//!
//! Offsets count from the start of the data. Source: the format of Hugging Face's `safetensors`.

use std::fmt;
use std::path::Path;
use std::sync::Arc;

use gguf::Bytes;
use serde::Deserialize;
use serde::de::{Deserializer, IgnoredAny, MapAccess, Visitor};

use crate::dtype::Dtype;
use crate::{Error, links};

/// The longest accepted header. Published ones stay below 5 MB.
const HEADER_BYTES_MAX: u64 = 64 << 20;
/// Tensors of one file; published ones have up to some 40,000.
const TENSORS_MAX: usize = 1 << 20;
const DIMS_MAX: usize = 8;

/// One file of weights.
#[derive(Debug)]
pub(crate) struct Shard {
    pub bytes: Arc<dyn Bytes>,
    /// In the order of their bytes.
    pub tensors: Vec<Stored>,
    /// Tensors that a model may not need: their names, and their types if these are not read. The
    /// others have no elements.
    pub left_out: Vec<(String, Option<String>)>,
}

/// A tensor in a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Stored {
    pub name: String,
    pub dtype: Dtype,
    /// Slowest-varying dimension first.
    pub shape: Vec<u64>,
    /// Offset of its first byte in the file.
    pub start: u64,
    pub len: u64,
}

impl Shard {
    pub fn open(path: &Path) -> Result<Self, Error> {
        let io = |source| Error::Io { path: path.to_path_buf(), source };
        links::check(path).map_err(io)?;
        let bytes = gguf::on_disk(path).map_err(io)?;
        let read = read(bytes.as_ref());
        let (tensors, left_out) =
            read.map_err(|why| Error::Shard { path: path.to_path_buf(), why })?;
        Ok(Self { bytes, tensors, left_out })
    }
}

/// What a file's header lists: tensors, and what is left out.
type Listed = (Vec<Stored>, Vec<(String, Option<String>)>);

/// Reads and checks a file's header.
fn read(bytes: &dyn Bytes) -> Result<Listed, String> {
    let header = read_header(bytes)?;
    let entries: Entries = serde_json::from_slice(&header)
        .map_err(|error| format!("its header is not the expected JSON: {error}"))?;
    let data_start = 8 + header.len() as u64;
    let (mut tensors, mut left_out) = (Vec::new(), Vec::new());
    for (name, entry) in entries.0 {
        match Dtype::find(&entry.dtype) {
            // Some tools leave such behind.
            _ if entry.is_empty() => left_out.push((name, None)),
            Some(dtype) => tensors.push(place(name, dtype, &entry, (data_start, bytes.len()))?),
            None => left_out.push((name, Some(entry.dtype))),
        }
    }
    tensors.sort_by_key(|tensor| (tensor.start, tensor.len));
    for pair in tensors.windows(2) {
        if pair[0].start + pair[0].len > pair[1].start {
            let (first, second) = (&pair[0].name, &pair[1].name);
            return Err(format!("tensors \"{first}\" and \"{second}\" overlap"));
        }
    }
    Ok((tensors, left_out))
}

fn read_header(bytes: &dyn Bytes) -> Result<Vec<u8>, String> {
    const AGAIN: &str = "The download is probably incomplete; fetch it again";
    let file_len = bytes.len();
    if file_len < 8 {
        return Err(format!(
            "it has {file_len} bytes, and its header's length alone takes 8. {AGAIN}"
        ));
    }
    let mut len = [0; 8];
    bytes.read(0, &mut len).map_err(|error| error.to_string())?;
    if &len == b"version " {
        return Err("it is a pointer of Git LFS. Fetch the file itself: git lfs pull".to_owned());
    }
    let len = u64::from_le_bytes(len);
    if len > HEADER_BYTES_MAX {
        return Err(format!(
            "its header would have {len} bytes; the most that is accepted is {HEADER_BYTES_MAX}"
        ));
    }
    if len > file_len - 8 {
        return Err(format!("its header has {len} bytes, and the file {file_len}. {AGAIN}"));
    }
    let mut header = vec![0; len as usize];
    bytes.read(8, &mut header).map_err(|error| error.to_string())?;
    Ok(header)
}

/// Checks a tensor's sizes against its type and the file.
fn place(
    name: String,
    dtype: Dtype,
    entry: &Entry,
    (data_start, len): (u64, u64),
) -> Result<Stored, String> {
    let Entry { shape, data_offsets: [start, end], .. } = entry;
    let (start, end) = (*start, *end);
    if shape.len() > DIMS_MAX || shape.contains(&0) {
        return Err(format!("tensor \"{name}\" has the impossible shape {shape:?}"));
    }
    let wanted = shape.iter().try_fold(dtype.bytes(), |bytes, dim| bytes.checked_mul(*dim));
    if end.checked_sub(start) != wanted {
        return Err(format!(
            "tensor \"{name}\" lies at {start}..{end}, but {shape:?} of {} has {} bytes",
            dtype.name(),
            wanted.map_or("too many".to_owned(), |bytes| bytes.to_string()),
        ));
    }
    if end > len - data_start {
        return Err(format!(
            "tensor \"{name}\" ends at {}, and the file at {len}. The download is probably \
             incomplete; fetch it again",
            end.saturating_add(data_start)
        ));
    }
    Ok(Stored { name, dtype, shape: shape.clone(), start: start + data_start, len: end - start })
}

#[derive(Deserialize)]
struct Entry {
    dtype: String,
    shape: Vec<u64>,
    data_offsets: [u64; 2],
}

impl Entry {
    fn is_empty(&self) -> bool {
        self.shape.contains(&0) && self.data_offsets[0] == self.data_offsets[1]
    }
}

/// A header's tensors. A map type would hide names that appear twice.
struct Entries(Vec<(String, Entry)>);

impl<'de> Deserialize<'de> for Entries {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(EntriesVisitor)
    }
}

struct EntriesVisitor;

impl<'de> Visitor<'de> for EntriesVisitor {
    type Value = Entries;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object of tensors")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Entries, A::Error> {
        let mut entries = Vec::new();
        while let Some(name) = map.next_key::<String>()? {
            if name == "__metadata__" {
                map.next_value::<IgnoredAny>()?;
                continue;
            }
            if entries.len() == TENSORS_MAX {
                return Err(serde::de::Error::custom("it names more than 1048576 tensors"));
            }
            entries.push((name, map.next_value()?));
        }
        Ok(Entries(entries))
    }
}

use std::collections::HashMap;
use std::ops::Range;

use crate::reader::Reader;
use crate::{Array, Error, TensorType, Value, ValueType};

const MAGIC: [u8; 4] = *b"GGUF";
/// The alignment of a file without an explicit one.
const ALIGNMENT_DEFAULT: u64 = 32;
const ALIGNMENT_MAX: u64 = 65536;
/// The format's own limit on dimensions (`GGML_MAX_DIMS`).
const DIMS_MAX: u32 = 4;
/// The smallest entries that the format allows: they bound the counts in a header.
const KEY_BYTES_MIN: u64 = 8 + 4 + 1;
const TENSOR_BYTES_MIN: u64 = 8 + 4 + 8 + 4 + 8;

/// Everything in front of a GGUF file's tensor data: metadata and the place of each tensor.
#[derive(Debug, Clone)]
pub struct Directory {
    version: u32,
    metadata: Vec<(String, Value)>,
    keys: HashMap<String, usize>,
    tensors: Vec<TensorInfo>,
    names: HashMap<String, usize>,
    header_len: u64,
}

/// One tensor of the file.
#[derive(Debug, Clone, PartialEq)]
pub struct TensorInfo {
    pub name: String,
    /// Fastest-varying first, as in the file: a matrix is `[columns, rows]`.
    pub dims: Vec<u64>,
    pub ty: TensorType,
    /// Its bytes, counted from the start of the file.
    pub range: Range<u64>,
}

impl TensorInfo {
    /// Numbers in one row (the fastest-varying dimension).
    pub fn columns(&self) -> usize {
        self.dims[0] as usize
    }

    /// The product of all dimensions but the first.
    pub fn rows(&self) -> usize {
        self.dims[1..].iter().product::<u64>() as usize
    }

    /// Bytes of one row.
    pub fn row_bytes(&self) -> usize {
        self.ty.row_bytes(self.columns())
    }
}

impl Directory {
    /// Parses the start of a file. `bytes` may hold more than the header (a whole file) or exactly
    /// the header; `file_len` is the length of the whole file, against which tensors are checked.
    ///
    /// # Errors
    /// The input is not a complete, consistent GGUF file.
    pub fn parse(bytes: &[u8], file_len: u64) -> Result<Self, Error> {
        let mut reader = Reader::new(bytes);
        let found = reader.array::<4>("the magic")?;
        if found != MAGIC {
            return Err(Error::Magic { found });
        }
        let version = reader.u32("the version")?;
        if (1..=3).contains(&version.swap_bytes()) {
            return Err(Error::BigEndian);
        }
        if !(2..=3).contains(&version) {
            return Err(Error::Version { found: version });
        }
        let n_tensors = read_count(&mut reader, "the tensor count", TENSOR_BYTES_MIN)?;
        let n_keys = read_count(&mut reader, "the metadata count", KEY_BYTES_MIN)?;

        let (metadata, keys) = read_metadata(&mut reader, n_keys)?;
        let alignment = alignment(&metadata, &keys)?;
        let (mut tensors, names) = read_tensors(&mut reader, n_tensors)?;

        let header_len = (reader.pos() as u64).next_multiple_of(alignment);
        check_weights(&tensors, header_len, file_len)?;
        place_tensors(&mut tensors, header_len, alignment, file_len)?;
        check_overlap(&tensors)?;
        Ok(Self { version, metadata, keys, tensors, names, header_len })
    }

    /// Other metadata and names for tensors of the same file: those of a model inside of it.
    pub fn with(&self, metadata: Vec<(String, Value)>, tensors: Vec<TensorInfo>) -> Self {
        let keys = metadata.iter().enumerate().map(|(at, (key, _))| (key.clone(), at)).collect();
        let names = tensors.iter().enumerate().map(|(at, one)| (one.name.clone(), at)).collect();
        Self { version: self.version, metadata, keys, tensors, names, header_len: self.header_len }
    }

    pub fn version(&self) -> u32 {
        self.version
    }

    /// Bytes in front of the tensor data, padding included.
    pub fn header_len(&self) -> u64 {
        self.header_len
    }

    /// All metadata, in the file's order.
    pub fn metadata(&self) -> impl Iterator<Item = (&str, &Value)> {
        self.metadata.iter().map(|(key, value)| (key.as_str(), value))
    }

    /// All tensors, in the file's order.
    pub fn tensors(&self) -> &[TensorInfo] {
        &self.tensors
    }

    pub fn get(&self, key: &str) -> Option<&Value> {
        self.keys.get(key).map(|at| &self.metadata[*at].1)
    }

    pub fn find_tensor(&self, name: &str) -> Option<&TensorInfo> {
        self.names.get(name).map(|at| &self.tensors[*at])
    }

    /// Like [`Self::find_tensor`], but missing is an error.
    pub fn tensor(&self, name: &str) -> Result<&TensorInfo, Error> {
        self.find_tensor(name).ok_or_else(|| Error::MissingTensor { name: name.to_owned() })
    }

    /// A required integer. An array of equal integers counts as one, as for floats and bools.
    pub fn u64(&self, key: &str) -> Result<u64, Error> {
        needed(key, self.find_u64(key)?)
    }

    /// An integer value, or `None` if the key is absent.
    pub fn find_u64(&self, key: &str) -> Result<Option<u64>, Error> {
        self.find_one(key, "an unsigned integer", Value::as_u64)
    }

    /// A required float.
    pub fn f32(&self, key: &str) -> Result<f32, Error> {
        needed(key, self.find_f32(key)?)
    }

    /// A float value, or `None` if the key is absent.
    pub fn find_f32(&self, key: &str) -> Result<Option<f32>, Error> {
        self.find_one(key, "a float", Value::as_f32)
    }

    /// A bool value, or `None` if the key is absent.
    pub fn find_bool(&self, key: &str) -> Result<Option<bool>, Error> {
        self.find_one(key, "a bool", Value::as_bool)
    }

    /// A required string.
    pub fn str(&self, key: &str) -> Result<&str, Error> {
        needed(key, self.find_str(key)?)
    }

    /// A string value, or `None` if the key is absent.
    pub fn find_str(&self, key: &str) -> Result<Option<&str>, Error> {
        self.find(key, "a string", Value::as_str)
    }

    /// An array value, or `None` if the key is absent.
    pub fn find_array(&self, key: &str) -> Result<Option<&Array>, Error> {
        self.find(key, "an array", Value::as_array)
    }

    /// Accepts an array with an equal entry for each layer, which some converters write for one
    /// value.
    fn find_one<T>(
        &self,
        key: &str,
        wanted: &'static str,
        read: impl Fn(&Value) -> Option<T>,
    ) -> Result<Option<T>, Error> {
        let of_all = |value: &Value| read(&value.as_array()?.same_value()?);
        self.find(key, wanted, |value| read(value).or_else(|| of_all(value)))
    }

    fn find<'a, T>(
        &'a self,
        key: &str,
        wanted: &'static str,
        read: impl Fn(&'a Value) -> Option<T>,
    ) -> Result<Option<T>, Error> {
        let Some(value) = self.get(key) else {
            return Ok(None);
        };
        let wrong = || Error::WrongType { key: key.to_owned(), found: value.kind(), wanted };
        read(value).map(Some).ok_or_else(wrong)
    }
}

fn needed<T>(key: &str, found: Option<T>) -> Result<T, Error> {
    found.ok_or_else(|| Error::MissingKey { key: key.to_owned() })
}

/// No real file counts more tensors, keys or entries of a list. A smaller count that does not fit
/// comes from a truncated file, a larger one is nonsense.
const COUNT_REAL_MAX: u64 = 1 << 24;

/// A count that fits the rest of the input at `bytes_min` an entry.
fn read_count(reader: &mut Reader<'_>, what: &'static str, bytes_min: u64) -> Result<u64, Error> {
    let offset = reader.pos();
    let found = reader.u64(what)?;
    let limit = reader.left() as u64 / bytes_min;
    if (limit + 1..=COUNT_REAL_MAX).contains(&found) {
        let needed = found * bytes_min;
        return Err(Error::Truncated { what, offset, needed, left: reader.left() });
    }
    if found > limit {
        return Err(Error::TooMany { what, offset, found, limit });
    }
    Ok(found)
}

type Metadata = (Vec<(String, Value)>, HashMap<String, usize>);

fn read_metadata(reader: &mut Reader<'_>, n_keys: u64) -> Result<Metadata, Error> {
    let mut metadata = Vec::new();
    let mut keys = HashMap::new();
    for at in 0..n_keys as usize {
        let key = reader.text("a metadata key")?;
        let ty = ValueType::read(reader)?;
        let value = Value::read(reader, ty)?;
        if keys.insert(key.clone(), at).is_some() {
            return Err(Error::Duplicate { what: "metadata key", name: key });
        }
        metadata.push((key, value));
    }
    Ok((metadata, keys))
}

fn alignment(metadata: &[(String, Value)], keys: &HashMap<String, usize>) -> Result<u64, Error> {
    let Some(at) = keys.get("general.alignment") else {
        return Ok(ALIGNMENT_DEFAULT);
    };
    let found = metadata[*at].1.as_u64().unwrap_or(0);
    if !found.is_power_of_two() || found > ALIGNMENT_MAX {
        return Err(Error::Alignment { found });
    }
    Ok(found)
}

type Tensors = (Vec<TensorInfo>, HashMap<String, usize>);

/// Reads the tensor directory; ranges are still relative to the data section.
fn read_tensors(reader: &mut Reader<'_>, n_tensors: u64) -> Result<Tensors, Error> {
    let mut tensors = Vec::new();
    let mut names = HashMap::new();
    for at in 0..n_tensors as usize {
        let tensor = read_tensor(reader)?;
        if names.insert(tensor.name.clone(), at).is_some() {
            return Err(Error::Duplicate { what: "tensor", name: tensor.name });
        }
        tensors.push(tensor);
    }
    Ok((tensors, names))
}

fn read_tensor(reader: &mut Reader<'_>) -> Result<TensorInfo, Error> {
    let name = reader.text("a tensor name")?;
    let offset = reader.pos();
    let n_dims = reader.u32("a tensor's number of dimensions")?;
    if !(1..=DIMS_MAX).contains(&n_dims) {
        let (found, limit) = (n_dims.into(), DIMS_MAX.into());
        return Err(Error::TooMany {
            what: "a tensor's number of dimensions",
            offset,
            found,
            limit,
        });
    }
    let dims = (0..n_dims)
        .map(|_| reader.u64("a tensor dimension"))
        .collect::<Result<Vec<u64>, Error>>()?;
    let number = reader.u32("a tensor type")?;
    let ty = TensorType::from_u32(number)
        .ok_or_else(|| Error::TensorType { name: name.clone(), found: number })?;
    let start = reader.u64("a tensor offset")?;

    let bytes = tensor_bytes(&dims, ty).map_err(|why| Error::Dims {
        name: name.clone(),
        dims: dims.clone(),
        why,
    })?;
    let end = start.checked_add(bytes).ok_or_else(|| Error::Dims {
        name: name.clone(),
        dims: dims.clone(),
        why: "its end overflows 64 bits",
    })?;
    Ok(TensorInfo { name, dims, ty, range: start..end })
}

fn tensor_bytes(dims: &[u64], ty: TensorType) -> Result<u64, &'static str> {
    let numbers = dims.iter().try_fold(1u64, |product, dim| product.checked_mul(*dim));
    let numbers = numbers.ok_or("their product overflows 64 bits")?;
    if numbers == 0 {
        return Err("none may be 0");
    }
    if !dims[0].is_multiple_of(ty.block_len() as u64) {
        return Err("the first is not a multiple of the type's block");
    }
    let blocks = numbers / ty.block_len() as u64;
    blocks.checked_mul(ty.block_bytes() as u64).ok_or("the size overflows 64 bits")
}

/// Rejects a file that ends where its weights would begin.
fn check_weights(tensors: &[TensorInfo], data_start: u64, file_len: u64) -> Result<(), Error> {
    let end = tensors.iter().map(|tensor| tensor.range.end).max().unwrap_or(0);
    match end > 0 && file_len == data_start {
        true => Err(Error::NoWeights { len: file_len, needed: data_start.saturating_add(end) }),
        false => Ok(()),
    }
}

/// Turns relative offsets into absolute ones and checks them against the file.
fn place_tensors(
    tensors: &mut [TensorInfo],
    data_start: u64,
    alignment: u64,
    file_len: u64,
) -> Result<(), Error> {
    for tensor in tensors {
        let Range { start, end } = tensor.range;
        let name = || tensor.name.clone();
        if start % alignment != 0 {
            return Err(Error::Misaligned { name: name(), offset: start, alignment });
        }
        let outside = Error::OutOfFile { name: name(), start, end, len: file_len };
        match end.checked_add(data_start) {
            Some(absolute_end) if absolute_end <= file_len => {
                tensor.range = start + data_start..absolute_end;
            }
            _ => return Err(outside),
        }
    }
    Ok(())
}

fn check_overlap(tensors: &[TensorInfo]) -> Result<(), Error> {
    let mut by_start: Vec<&TensorInfo> = tensors.iter().collect();
    by_start.sort_by_key(|tensor| tensor.range.start);
    for pair in by_start.windows(2) {
        if pair[0].range.end > pair[1].range.start {
            let (first, second) = (pair[0].name.clone(), pair[1].name.clone());
            return Err(Error::Overlap { first, second });
        }
    }
    Ok(())
}

use std::io::{self, Write};

use crate::{Array, Directory, Error, TensorType, Value, ValueType};

const ALIGNMENT: u64 = 32;

/// Writes a GGUF file (version 3): metadata first, then the directory, then each tensor's bytes
/// in the order in which they were declared.
#[derive(Debug, Default)]
pub struct Writer {
    metadata: Vec<(String, Value)>,
    tensors: Vec<(String, Vec<u64>, TensorType)>,
}

impl Writer {
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a metadata value.
    pub fn set(&mut self, key: &str, value: Value) -> &mut Self {
        self.metadata.push((key.to_owned(), value));
        self
    }

    pub fn set_strings<S: AsRef<str>>(&mut self, key: &str, values: &[S]) -> &mut Self {
        self.set(key, Value::Array(Array::from_strings(values)))
    }

    pub fn set_i32s(&mut self, key: &str, values: &[i32]) -> &mut Self {
        self.set(key, Value::Array(Array::from_i32s(values)))
    }

    pub fn set_f32s(&mut self, key: &str, values: &[f32]) -> &mut Self {
        self.set(key, Value::Array(Array::from_f32s(values)))
    }

    /// Declares a tensor; `dims` fastest-varying first.
    pub fn declare(&mut self, name: &str, dims: &[u64], ty: TensorType) -> &mut Self {
        self.tensors.push((name.to_owned(), dims.to_vec(), ty));
        self
    }

    /// Writes the file. Calls `fill` once a tensor, in order; it must write exactly `bytes` bytes.
    ///
    /// # Errors
    /// An error of `out` or `fill`.
    pub fn write<W: Write>(
        &self,
        out: &mut W,
        mut fill: impl FnMut(&str, TensorType, u64, &mut W) -> io::Result<()>,
    ) -> io::Result<()> {
        let header = self.header();
        out.write_all(&header)?;
        pad(out, header.len() as u64)?;
        for (name, dims, ty) in &self.tensors {
            let bytes = tensor_bytes(dims, *ty);
            fill(name, *ty, bytes, out)?;
            pad(out, bytes)?;
        }
        Ok(())
    }

    /// The directory that a reader of the file would get.
    ///
    /// # Errors
    /// The declared tensors make no valid file.
    pub fn directory(&self) -> Result<Directory, Error> {
        let bytes = |(_, dims, ty): &(String, Vec<u64>, TensorType)| tensor_bytes(dims, *ty);
        let tensors: u64 = self.tensors.iter().map(|tensor| Self::padded(bytes(tensor))).sum();
        let header = self.padded_header();
        Directory::parse(&header, header.len() as u64 + tensors)
    }

    /// Everything in front of the first tensor: a file without weights, enough for a plan.
    pub fn padded_header(&self) -> Vec<u8> {
        let mut header = self.header();
        header.resize(Self::padded(header.len() as u64) as usize, 0);
        header
    }

    /// Bytes of a tensor of `len` bytes in the file, with its padding.
    pub(crate) fn padded(len: u64) -> u64 {
        len.next_multiple_of(ALIGNMENT)
    }

    fn header(&self) -> Vec<u8> {
        let mut out = Vec::new();
        out.extend(b"GGUF");
        out.extend(3u32.to_le_bytes());
        out.extend((self.tensors.len() as u64).to_le_bytes());
        out.extend((self.metadata.len() as u64).to_le_bytes());
        for (key, value) in &self.metadata {
            put_string(&mut out, key);
            put_value(&mut out, value);
        }
        let mut offset = 0u64;
        for (name, dims, ty) in &self.tensors {
            put_string(&mut out, name);
            out.extend((dims.len() as u32).to_le_bytes());
            dims.iter().for_each(|dim| out.extend(dim.to_le_bytes()));
            out.extend((*ty as u32).to_le_bytes());
            out.extend(offset.to_le_bytes());
            offset += tensor_bytes(dims, *ty).next_multiple_of(ALIGNMENT);
        }
        out
    }
}

fn tensor_bytes(dims: &[u64], ty: TensorType) -> u64 {
    dims.iter().product::<u64>() / ty.block_len() as u64 * ty.block_bytes() as u64
}

fn pad<W: Write>(out: &mut W, len: u64) -> io::Result<()> {
    let padding = (len.next_multiple_of(ALIGNMENT) - len) as usize;
    out.write_all(&[0; ALIGNMENT as usize][..padding])
}

fn put_string(out: &mut Vec<u8>, string: &str) {
    out.extend((string.len() as u64).to_le_bytes());
    out.extend(string.as_bytes());
}

fn put_value(out: &mut Vec<u8>, value: &Value) {
    let mut put = |ty: ValueType, bytes: &[u8]| {
        out.extend((ty as u32).to_le_bytes());
        out.extend(bytes);
    };
    match value {
        Value::U8(v) => put(ValueType::U8, &v.to_le_bytes()),
        Value::I8(v) => put(ValueType::I8, &v.to_le_bytes()),
        Value::U16(v) => put(ValueType::U16, &v.to_le_bytes()),
        Value::I16(v) => put(ValueType::I16, &v.to_le_bytes()),
        Value::U32(v) => put(ValueType::U32, &v.to_le_bytes()),
        Value::I32(v) => put(ValueType::I32, &v.to_le_bytes()),
        Value::U64(v) => put(ValueType::U64, &v.to_le_bytes()),
        Value::I64(v) => put(ValueType::I64, &v.to_le_bytes()),
        Value::F32(v) => put(ValueType::F32, &v.to_le_bytes()),
        Value::F64(v) => put(ValueType::F64, &v.to_le_bytes()),
        Value::Bool(v) => put(ValueType::Bool, &[u8::from(*v)]),
        Value::String(v) => {
            put(ValueType::String, &(v.len() as u64).to_le_bytes());
            out.extend(v.as_bytes());
        }
        Value::Array(array) => {
            put(ValueType::Array, &(array.element_type() as u32).to_le_bytes());
            out.extend((array.len() as u64).to_le_bytes());
            out.extend(array.raw());
        }
    }
}

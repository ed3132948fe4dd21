use crate::Error;
use crate::reader::Reader;

/// Arrays of arrays of arrays and so on.
const DEPTH_MAX: u64 = 8;

/// The type of a metadata value or of an array's elements; the numbers are those of the format.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ValueType {
    U8 = 0,
    I8 = 1,
    U16 = 2,
    I16 = 3,
    U32 = 4,
    I32 = 5,
    F32 = 6,
    Bool = 7,
    String = 8,
    Array = 9,
    U64 = 10,
    I64 = 11,
    F64 = 12,
}

/// One metadata value.
#[derive(Debug, Clone, PartialEq)]
pub enum Value {
    U8(u8),
    I8(i8),
    U16(u16),
    I16(i16),
    U32(u32),
    I32(i32),
    U64(u64),
    I64(i64),
    F32(f32),
    F64(f64),
    Bool(bool),
    String(String),
    Array(Array),
}

/// An array of numbers, bools, strings or arrays, checked when the header was parsed and kept as
/// the file's own bytes, so that a claimed length never allocates more than the file holds. No
/// model needs arrays of arrays; they are only passed on.
#[derive(Debug, Clone, PartialEq)]
pub struct Array {
    ty: ValueType,
    len: usize,
    bytes: Vec<u8>,
}

impl ValueType {
    pub(crate) fn read(reader: &mut Reader<'_>) -> Result<Self, Error> {
        use ValueType::*;
        let offset = reader.pos();
        let found = reader.u32("a metadata value type")?;
        [U8, I8, U16, I16, U32, I32, F32, Bool, String, Array, U64, I64, F64]
            .into_iter()
            .find(|ty| *ty as u32 == found)
            .ok_or(Error::ValueType { found, offset })
    }

    /// Bytes of one value of fixed size; `None` for strings and arrays.
    fn fixed_bytes(self) -> Option<usize> {
        use ValueType::*;
        match self {
            U8 | I8 | Bool => Some(1),
            U16 | I16 => Some(2),
            U32 | I32 | F32 => Some(4),
            U64 | I64 | F64 => Some(8),
            String | Array => None,
        }
    }
}

impl Value {
    pub(crate) fn read(reader: &mut Reader<'_>, ty: ValueType) -> Result<Self, Error> {
        const WHAT: &str = "a metadata value";
        Ok(match ty {
            ValueType::U8 => Value::U8(u8::from_le_bytes(reader.array(WHAT)?)),
            ValueType::I8 => Value::I8(i8::from_le_bytes(reader.array(WHAT)?)),
            ValueType::U16 => Value::U16(u16::from_le_bytes(reader.array(WHAT)?)),
            ValueType::I16 => Value::I16(i16::from_le_bytes(reader.array(WHAT)?)),
            ValueType::U32 => Value::U32(reader.u32(WHAT)?),
            ValueType::I32 => Value::I32(i32::from_le_bytes(reader.array(WHAT)?)),
            ValueType::U64 => Value::U64(reader.u64(WHAT)?),
            ValueType::I64 => Value::I64(i64::from_le_bytes(reader.array(WHAT)?)),
            ValueType::F32 => Value::F32(f32::from_le_bytes(reader.array(WHAT)?)),
            ValueType::F64 => Value::F64(f64::from_le_bytes(reader.array(WHAT)?)),
            ValueType::Bool => Value::Bool(read_bool(reader)?),
            ValueType::String => Value::String(reader.text(WHAT)?),
            ValueType::Array => Value::Array(Array::read(reader)?),
        })
    }

    /// Any unsigned or non-negative integer.
    pub fn as_u64(&self) -> Option<u64> {
        match *self {
            Value::U8(v) => Some(v.into()),
            Value::U16(v) => Some(v.into()),
            Value::U32(v) => Some(v.into()),
            Value::U64(v) => Some(v),
            Value::I8(v) => v.try_into().ok(),
            Value::I16(v) => v.try_into().ok(),
            Value::I32(v) => v.try_into().ok(),
            Value::I64(v) => v.try_into().ok(),
            _ => None,
        }
    }

    /// Either float type.
    pub fn as_f32(&self) -> Option<f32> {
        match *self {
            Value::F32(v) => Some(v),
            Value::F64(v) => Some(v as f32),
            _ => None,
        }
    }

    pub fn as_bool(&self) -> Option<bool> {
        if let Value::Bool(v) = *self { Some(v) } else { None }
    }

    pub fn as_str(&self) -> Option<&str> {
        if let Value::String(v) = self { Some(v) } else { None }
    }

    pub fn as_array(&self) -> Option<&Array> {
        if let Value::Array(v) = self { Some(v) } else { None }
    }

    /// Its kind in a word or two, for error messages.
    pub(crate) fn kind(&self) -> String {
        match self {
            Value::Array(array) => format!("an array of {:?}", array.ty),
            other => {
                let text = format!("{other:?}");
                text.chars().take(60).collect()
            }
        }
    }
}

impl Array {
    /// Reads and checks a whole array.
    fn read(reader: &mut Reader<'_>) -> Result<Self, Error> {
        let (ty, len, bytes) = take_array(reader, DEPTH_MAX)?;
        // Every element took at least one byte of the input, so the length fits.
        Ok(Self { ty, len: len as usize, bytes: bytes.to_vec() })
    }

    pub fn from_strings<S: AsRef<str>>(strings: &[S]) -> Self {
        let mut bytes = Vec::new();
        for string in strings {
            bytes.extend((string.as_ref().len() as u64).to_le_bytes());
            bytes.extend(string.as_ref().as_bytes());
        }
        Self { ty: ValueType::String, len: strings.len(), bytes }
    }

    pub fn from_bools(values: &[bool]) -> Self {
        let bytes = values.iter().map(|value| u8::from(*value)).collect();
        Self { ty: ValueType::Bool, len: values.len(), bytes }
    }

    pub fn from_i32s(values: &[i32]) -> Self {
        let bytes = values.iter().flat_map(|v| v.to_le_bytes()).collect();
        Self { ty: ValueType::I32, len: values.len(), bytes }
    }

    pub fn from_i64s(values: &[i64]) -> Self {
        let bytes = values.iter().flat_map(|v| v.to_le_bytes()).collect();
        Self { ty: ValueType::I64, len: values.len(), bytes }
    }

    pub fn from_f32s(values: &[f32]) -> Self {
        let bytes = values.iter().flat_map(|v| v.to_le_bytes()).collect();
        Self { ty: ValueType::F32, len: values.len(), bytes }
    }

    pub(crate) fn raw(&self) -> &[u8] {
        &self.bytes
    }

    pub fn element_type(&self) -> ValueType {
        self.ty
    }

    pub fn len(&self) -> usize {
        self.len
    }

    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// An array of one entry of this one, which has numbers or bools.
    pub fn only(&self, at: usize) -> Option<Self> {
        let bytes = self.bytes.chunks_exact(self.ty.fixed_bytes()?).nth(at)?.to_vec();
        Some(Self { ty: self.ty, len: 1, bytes })
    }

    /// The common value of all entries, a number or a bool.
    pub(crate) fn same_value(&self) -> Option<Value> {
        let mut entries = self.bytes.chunks_exact(self.ty.fixed_bytes()?);
        let first = entries.next()?;
        let is_same = entries.all(|entry| entry == first);
        is_same.then(|| Value::read(&mut Reader::new(first), self.ty).ok())?
    }

    /// The strings, which should be UTF-8, or `None` if it holds something else.
    pub fn strings(&self) -> Option<impl Iterator<Item = &[u8]>> {
        let strings = (self.ty == ValueType::String).then(|| Reader::new(&self.bytes));
        strings.map(|mut reader| {
            (0..self.len).map(move |_| reader.string("").expect("checked when it was read"))
        })
    }

    /// The integers of any width (bools count as 0 and 1), or `None` for floats and strings.
    pub fn integers(&self) -> Option<impl Iterator<Item = i64>> {
        use ValueType::*;
        let size = match self.ty {
            F32 | F64 | String | Array => return None,
            ty => ty.fixed_bytes()?,
        };
        let ty = self.ty;
        Some(self.bytes.chunks_exact(size).map(move |bytes| match ty {
            U8 | Bool => i64::from(bytes[0]),
            I8 => i64::from(bytes[0] as i8),
            U16 => i64::from(u16::from_le_bytes(fixed(bytes))),
            I16 => i64::from(i16::from_le_bytes(fixed(bytes))),
            U32 => i64::from(u32::from_le_bytes(fixed(bytes))),
            I32 => i64::from(i32::from_le_bytes(fixed(bytes))),
            _ => i64::from_le_bytes(fixed(bytes)),
        }))
    }

    /// The floats, or `None` if it holds something else.
    pub fn floats(&self) -> Option<impl Iterator<Item = f32>> {
        let size = match self.ty {
            ValueType::F32 => 4,
            ValueType::F64 => 8,
            _ => return None,
        };
        Some(self.bytes.chunks_exact(size).map(move |bytes| match size {
            4 => f32::from_le_bytes(fixed(bytes)),
            _ => f64::from_le_bytes(fixed(bytes)) as f32,
        }))
    }
}

fn fixed<const N: usize>(bytes: &[u8]) -> [u8; N] {
    bytes.try_into().expect("chunks_exact yields N bytes")
}

fn read_bool(reader: &mut Reader<'_>) -> Result<bool, Error> {
    let offset = reader.pos();
    match reader.array::<1>("a bool")?[0] {
        0 => Ok(false),
        1 => Ok(true),
        found => Err(Error::Bool { found, offset }),
    }
}

/// The type, the length and the bytes of an array, in which others lie at most `depth` deep.
fn take_array<'a>(
    reader: &mut Reader<'a>,
    depth: u64,
) -> Result<(ValueType, u64, &'a [u8]), Error> {
    let offset = reader.pos();
    let ty = ValueType::read(reader)?;
    let len = reader.u64("an array length")?;
    let bytes = match ty.fixed_bytes() {
        Some(size) => reader.take(len.saturating_mul(size as u64), "an array")?,
        None if ty == ValueType::String => take_strings(reader, len)?,
        None if depth == 0 => {
            let (what, found, limit) = ("the depth of arrays", DEPTH_MAX + 1, DEPTH_MAX);
            return Err(Error::TooMany { what, offset, found, limit });
        }
        None => {
            let (start, mut ahead) = (reader.pos(), reader.clone());
            for _ in 0..len {
                take_array(&mut ahead, depth - 1)?;
            }
            reader.take((ahead.pos() - start) as u64, "an array of arrays")?
        }
    };
    if ty == ValueType::Bool
        && let Some(at) = bytes.iter().position(|byte| *byte > 1)
    {
        return Err(Error::Bool { found: bytes[at], offset: offset + 12 + at });
    }
    Ok((ty, len, bytes))
}

/// The bytes of `len` strings, each checked to be inside the input.
fn take_strings<'a>(reader: &mut Reader<'a>, len: u64) -> Result<&'a [u8], Error> {
    const STRING_BYTES_MIN: u64 = 8;
    let (offset, left) = (reader.pos(), reader.left());
    let needed = len.saturating_mul(STRING_BYTES_MIN);
    if needed > left as u64 {
        return Err(Error::Truncated { what: "an array of strings", offset, needed, left });
    }
    let mut ahead = reader.clone();
    for _ in 0..len {
        ahead.string("a string of an array")?;
    }
    reader.take((ahead.pos() - offset) as u64, "an array of strings")
}

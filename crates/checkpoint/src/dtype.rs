//! The element types of safetensors files.

use gguf::TensorType;

/// An element type, by its name in a file's header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(non_camel_case_types)] // The format's names.
pub(crate) enum Dtype {
    F64,
    F32,
    F16,
    BF16,
    F8_E4M3,
    F8_E8M0,
    I64,
    I32,
    I8,
    U32,
    U8,
    Bool,
}

use Dtype::*;

/// Type, its name, bytes of an element.
const ALL: [(Dtype, &str, u64); 12] = [
    (F64, "F64", 8),
    (F32, "F32", 4),
    (F16, "F16", 2),
    (BF16, "BF16", 2),
    (F8_E4M3, "F8_E4M3", 1),
    (F8_E8M0, "F8_E8M0", 1),
    (I64, "I64", 8),
    (I32, "I32", 4),
    (I8, "I8", 1),
    (U32, "U32", 4),
    (U8, "U8", 1),
    (Bool, "BOOL", 1),
];

impl Dtype {
    pub fn find(name: &str) -> Option<Self> {
        ALL.iter().find(|row| row.1 == name).map(|row| row.0)
    }

    /// The names of all types.
    pub fn names() -> String {
        ALL.map(|row| row.1).join(", ")
    }

    pub fn name(self) -> &'static str {
        ALL[self as usize].1
    }

    /// Bytes of one element.
    pub fn bytes(self) -> u64 {
        ALL[self as usize].2
    }

    /// The type of GGUF with the same bytes.
    pub fn in_gguf(self) -> Option<TensorType> {
        match self {
            F32 => Some(TensorType::F32),
            F16 => Some(TensorType::F16),
            BF16 => Some(TensorType::BF16),
            I32 => Some(TensorType::I32),
            I64 => Some(TensorType::I64),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_stand_in_the_order_of_the_types() {
        for (at, row) in ALL.iter().enumerate() {
            assert_eq!(row.0 as usize, at);
            assert_eq!(Dtype::find(row.1), Some(row.0));
        }
    }
}

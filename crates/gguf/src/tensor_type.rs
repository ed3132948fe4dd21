use std::fmt;

/// The storage format of a tensor's numbers. The discriminants are those of the file format.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[allow(non_camel_case_types)] // The established names.
#[repr(u32)]
pub enum TensorType {
    F32 = 0,
    F16 = 1,
    Q4_0 = 2,
    Q4_1 = 3,
    Q5_0 = 6,
    Q5_1 = 7,
    Q8_0 = 8,
    Q8_1 = 9,
    Q2_K = 10,
    Q3_K = 11,
    Q4_K = 12,
    Q5_K = 13,
    Q6_K = 14,
    Q8_K = 15,
    IQ2_XXS = 16,
    IQ2_XS = 17,
    IQ3_XXS = 18,
    IQ1_S = 19,
    IQ4_NL = 20,
    IQ3_S = 21,
    IQ2_S = 22,
    IQ4_XS = 23,
    I8 = 24,
    I16 = 25,
    I32 = 26,
    I64 = 27,
    F64 = 28,
    IQ1_M = 29,
    BF16 = 30,
    TQ1_0 = 34,
    TQ2_0 = 35,
    MXFP4 = 39,
}

use TensorType::*;

/// Type, numbers in one block, bytes of one block.
const LAYOUT: [(TensorType, usize, usize); 32] = [
    (F32, 1, 4),
    (F16, 1, 2),
    (BF16, 1, 2),
    (F64, 1, 8),
    (I8, 1, 1),
    (I16, 1, 2),
    (I32, 1, 4),
    (I64, 1, 8),
    (Q4_0, 32, 18),
    (Q4_1, 32, 20),
    (Q5_0, 32, 22),
    (Q5_1, 32, 24),
    (Q8_0, 32, 34),
    (Q8_1, 32, 36),
    (IQ4_NL, 32, 18),
    (MXFP4, 32, 17),
    (Q2_K, 256, 84),
    (Q3_K, 256, 110),
    (Q4_K, 256, 144),
    (Q5_K, 256, 176),
    (Q6_K, 256, 210),
    (Q8_K, 256, 292),
    (IQ1_S, 256, 50),
    (IQ1_M, 256, 56),
    (IQ2_XXS, 256, 66),
    (IQ2_XS, 256, 74),
    (IQ2_S, 256, 82),
    (IQ3_XXS, 256, 98),
    (IQ3_S, 256, 110),
    (IQ4_XS, 256, 136),
    (TQ1_0, 256, 54),
    (TQ2_0, 256, 66),
];

impl TensorType {
    /// The type with this number in the file format.
    pub fn from_u32(number: u32) -> Option<Self> {
        LAYOUT.iter().map(|row| row.0).find(|ty| *ty as u32 == number)
    }

    /// Consecutive numbers of a row in one block.
    pub fn block_len(self) -> usize {
        self.layout().1
    }

    /// Bytes of one block.
    pub fn block_bytes(self) -> usize {
        self.layout().2
    }

    /// Bytes of `len` consecutive numbers; `len` must be a multiple of [`Self::block_len`].
    pub fn row_bytes(self, len: usize) -> usize {
        debug_assert_eq!(len % self.block_len(), 0);
        len / self.block_len() * self.block_bytes()
    }

    fn layout(self) -> (TensorType, usize, usize) {
        *LAYOUT.iter().find(|row| row.0 == self).expect("every type has a row in LAYOUT")
    }
}

impl fmt::Display for TensorType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

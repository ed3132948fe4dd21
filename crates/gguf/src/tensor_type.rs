use std::fmt;

/// The types in which weights are stored, all of which can be multiplied.
pub const WEIGHT_TYPES: [TensorType; 47] = [
    TensorType::F32,
    TensorType::F16,
    TensorType::BF16,
    TensorType::Q8_0,
    TensorType::Q4_0,
    TensorType::Q4_1,
    TensorType::Q5_0,
    TensorType::Q5_1,
    TensorType::IQ4_NL,
    TensorType::MXFP4,
    TensorType::Q2_K,
    TensorType::Q3_K,
    TensorType::Q4_K,
    TensorType::Q5_K,
    TensorType::Q6_K,
    TensorType::IQ4_XS,
    TensorType::IQ1_S,
    TensorType::IQ1_M,
    TensorType::IQ2_XXS,
    TensorType::IQ2_XS,
    TensorType::IQ2_S,
    TensorType::IQ3_XXS,
    TensorType::IQ3_S,
    TensorType::NVFP4,
    TensorType::Q1_0,
    TensorType::Q2_0,
    TensorType::TQ1_0,
    TensorType::TQ2_0,
    TensorType::F8_E4M3_128,
    TensorType::AFFINE2_32,
    TensorType::AFFINE2_64,
    TensorType::AFFINE2_128,
    TensorType::AFFINE3_32,
    TensorType::AFFINE3_64,
    TensorType::AFFINE3_128,
    TensorType::AFFINE4_32,
    TensorType::AFFINE4_64,
    TensorType::AFFINE4_128,
    TensorType::AFFINE5_32,
    TensorType::AFFINE5_64,
    TensorType::AFFINE5_128,
    TensorType::AFFINE6_32,
    TensorType::AFFINE6_64,
    TensorType::AFFINE6_128,
    TensorType::AFFINE8_32,
    TensorType::AFFINE8_64,
    TensorType::AFFINE8_128,
];

/// The storage format of a tensor's numbers. The discriminants are those of the file format; those
/// from [`OWN_TYPES`] on are Sinew's own.
///
/// # Sinew's own types
///
/// Files in Hugging Face's form have types without a number in GGUF. Their tensors have these types
/// in directories that Sinew makes for them, never in a GGUF file.
///
/// * `AFFINEb_g`: a block is a group of `g` numbers along a row, of `b` bits each:
///   `number = scale * q + bias` (MLX; with `bias = -scale * zero` also AWQ, GPTQ and
///   compressed-tensors). Scale and bias are the upper 24 bits of an f32, which hold each number of
///   bf16 and f16 exactly, and the product of an f16 scale and a zero point below 32.
///
///   ```text
///   byte 0..2   scale, bits 16 to 31 of the f32, little-endian
///   byte 2..4   bias, likewise
///   byte 4, 5   scale and bias, bits 8 to 15
///   byte 6..    q, unsigned: number k in bits k * b .. of the bytes, lowest bit first
///   ```
///
///   The bytes of q are those of MLX's words in a little-endian file.
/// * `F8_E4M3_128`: a block is 128 numbers along a row: an f32 scale, little-endian, then 128 bytes
///   in E4M3 without infinities (OCP); `number = e4m3 * scale`.
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
    NVFP4 = 40,
    Q1_0 = 41,
    Q2_0 = 42,
    F8_E4M3_128 = OWN_TYPES + 128,
    AFFINE2_32 = OWN_TYPES + 2_032,
    AFFINE2_64 = OWN_TYPES + 2_064,
    AFFINE2_128 = OWN_TYPES + 2_128,
    AFFINE3_32 = OWN_TYPES + 3_032,
    AFFINE3_64 = OWN_TYPES + 3_064,
    AFFINE3_128 = OWN_TYPES + 3_128,
    AFFINE4_32 = OWN_TYPES + 4_032,
    AFFINE4_64 = OWN_TYPES + 4_064,
    AFFINE4_128 = OWN_TYPES + 4_128,
    AFFINE5_32 = OWN_TYPES + 5_032,
    AFFINE5_64 = OWN_TYPES + 5_064,
    AFFINE5_128 = OWN_TYPES + 5_128,
    AFFINE6_32 = OWN_TYPES + 6_032,
    AFFINE6_64 = OWN_TYPES + 6_064,
    AFFINE6_128 = OWN_TYPES + 6_128,
    AFFINE8_32 = OWN_TYPES + 8_032,
    AFFINE8_64 = OWN_TYPES + 8_064,
    AFFINE8_128 = OWN_TYPES + 8_128,
}

use TensorType::*;

/// The first number of Sinew's own types, far above the file format's.
pub const OWN_TYPES: u32 = 1_000_000;

/// Type, numbers in one block, bytes of one block.
const LAYOUT: [(TensorType, usize, usize); 54] = [
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
    (NVFP4, 64, 36),
    (Q1_0, 128, 18),
    (Q2_0, 64, 18),
    (F8_E4M3_128, 128, 132),
    (AFFINE2_32, 32, 14),
    (AFFINE2_64, 64, 22),
    (AFFINE2_128, 128, 38),
    (AFFINE3_32, 32, 18),
    (AFFINE3_64, 64, 30),
    (AFFINE3_128, 128, 54),
    (AFFINE4_32, 32, 22),
    (AFFINE4_64, 64, 38),
    (AFFINE4_128, 128, 70),
    (AFFINE5_32, 32, 26),
    (AFFINE5_64, 64, 46),
    (AFFINE5_128, 128, 86),
    (AFFINE6_32, 32, 30),
    (AFFINE6_64, 64, 54),
    (AFFINE6_128, 128, 102),
    (AFFINE8_32, 32, 38),
    (AFFINE8_64, 64, 70),
    (AFFINE8_128, 128, 134),
];

impl TensorType {
    /// The type with this number in the file format.
    pub const fn from_u32(number: u32) -> Option<Self> {
        let mut row = 0;
        while row < LAYOUT.len() {
            if LAYOUT[row].0 as u32 == number {
                return Some(LAYOUT[row].0);
            }
            row += 1;
        }
        None
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
        assert_eq!(len % self.block_len(), 0);
        len / self.block_len() * self.block_bytes()
    }

    /// Whether the type is Sinew's own, without a number in the file format.
    pub fn is_own(self) -> bool {
        self as u32 >= OWN_TYPES
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_type_has_one_number_and_whole_bytes() {
        for (index, (ty, len, bytes)) in LAYOUT.into_iter().enumerate() {
            assert_eq!(TensorType::from_u32(ty as u32), Some(ty));
            assert!(LAYOUT[..index].iter().all(|other| other.0 != ty), "{ty} has two rows");
            assert_eq!(ty.row_bytes(3 * len), 3 * bytes);
            assert_eq!(ty.is_own(), ty as u32 >= 1000, "{ty}");
        }
    }

    #[test]
    fn an_affine_type_is_named_by_its_bits_and_group() {
        let own = LAYOUT.into_iter().filter(|row| row.0.is_own() && row.0 != F8_E4M3_128);
        for (ty, len, bytes) in own {
            let bits = (bytes - 6) * 8 / len;
            assert_eq!(ty.to_string(), format!("AFFINE{bits}_{len}"));
            assert_eq!(ty as u32 - OWN_TYPES, (1000 * bits + len) as u32);
        }
    }
}

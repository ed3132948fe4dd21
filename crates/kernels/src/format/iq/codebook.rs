//! A codebook: what an index of an IQ type stands for, in the forms that instruction sets look up.
//!
//! An entry has eight columns or four. A column's *code* is its level and, as bit 3, whether its
//! sign bit is set; a table of 16 has the weight of each code.

use crate::simd::sizes::VECTOR_BYTES;

/// The entries of a codebook, by their index.
#[repr(C, align(64))]
pub(crate) struct Codebook<const N: usize> {
    /// For lookups of 64 indices at once. Eight columns: the two-bit levels of the first four and
    /// of the last four. Four columns: the low two bits of their levels, then the third bits as
    /// bits 0, 2, 4 and 6.
    pub bytes: [[u8; N]; 2],
    /// For lookups of an index in each lane. Byte `j` has the level of column `j` in its low
    /// nibble; of eight columns, that of column `4 + j` in its high nibble.
    pub words: [u32; N],
    /// The weight of each code.
    pub weights: [u8; 16],
    /// The same for the low six bits of a byte, of which bits 4 and 5 mean nothing; of eight
    /// columns, neither does bit 2.
    pub weights_of_six: [u8; VECTOR_BYTES],
}

impl<const N: usize> Codebook<N> {
    /// Entries of eight columns, two bits each.
    pub const fn of_eights(entries: &[u16; N], weights: [u8; 16]) -> Self {
        let mut book = Self::empty(weights, 0b1011);
        let mut i = 0;
        while i < N {
            let entry = entries[i] as u32;
            [book.bytes[0][i], book.bytes[1][i]] = entries[i].to_le_bytes();
            let mut j = 0;
            while j < 4 {
                let (first, last) = (entry >> (2 * j) & 3, entry >> (8 + 2 * j) & 3);
                book.words[i] |= (first | last << 4) << (8 * j);
                j += 1;
            }
            i += 1;
        }
        book
    }

    /// Entries of four columns, four bits each, of which three are used.
    pub const fn of_fours(entries: &[u16; N], weights: [u8; 16]) -> Self {
        let mut book = Self::empty(weights, 0b1111);
        let mut i = 0;
        while i < N {
            let mut j = 0;
            while j < 4 {
                let level = entries[i] >> (4 * j) & 7;
                book.bytes[0][i] |= ((level & 3) << (2 * j)) as u8;
                book.bytes[1][i] |= ((level >> 2) << (2 * j)) as u8;
                book.words[i] |= (level as u32) << (8 * j);
                j += 1;
            }
            i += 1;
        }
        book
    }

    /// No entries; `used` has the bits of a code that count.
    const fn empty(weights: [u8; 16], used: usize) -> Self {
        let mut weights_of_six = [0; VECTOR_BYTES];
        let mut i = 0;
        while i < VECTOR_BYTES {
            weights_of_six[i] = weights[i & used];
            i += 1;
        }
        Self { bytes: [[0; N]; 2], words: [0; N], weights, weights_of_six }
    }
}

/// The weights of codes: `zero` plus or minus the magnitude of the level.
pub(crate) const fn signed(magnitudes: &[u8], zero: u8) -> [u8; 16] {
    let mut weights = [zero; 16];
    let mut level = 0;
    while level < magnitudes.len() {
        weights[level] = zero + magnitudes[level];
        weights[8 + level] = zero - magnitudes[level];
        level += 1;
    }
    weights
}

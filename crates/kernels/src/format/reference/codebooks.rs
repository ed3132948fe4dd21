//! The IQ types with codebooks: an index stands for four or eight numbers, signs are apart.

use super::half_at;
use crate::format::iq::grids;
use gguf::TensorType;

/// Magnitudes of the levels of IQ2_XXS, IQ2_XS and IQ2_S.
const IQ2: [f32; 4] = [8.0, 25.0, 43.0, f32::NAN];
const IQ3_XXS: [f32; 8] = [4.0, 12.0, 20.0, 28.0, 36.0, 44.0, 52.0, 62.0];
const IQ3_S: [f32; 8] = [1.0, 3.0, 5.0, 7.0, 9.0, 11.0, 13.0, 15.0];
const IQ1: [f32; 4] = [-1.0, 0.0, 1.0, f32::NAN];

/// Column `j` of an entry of eight.
fn of_eight(entry: u16, j: usize) -> usize {
    usize::from(entry >> (2 * j) & 3)
}

/// Column `j` of an entry of four.
fn of_four(entry: u16, j: usize) -> usize {
    usize::from(entry >> (4 * j) & 15)
}

/// The eight signs for seven bits: an even number of them is negative.
fn even(seven: u32) -> u32 {
    (seven & 127) | ((seven & 127).count_ones() % 2) << 7
}

fn sign(signs: u32, j: usize) -> f32 {
    if signs >> j & 1 == 1 { -1.0 } else { 1.0 }
}

fn u16_at(b: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([b[at], b[at + 1]])
}

fn u32_at(b: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([b[at], b[at + 1], b[at + 2], b[at + 3]])
}

/// Four bits of a byte, the low ones first.
fn nibble(byte: u8, index: usize) -> f32 {
    f32::from(byte >> (4 * (index % 2)) & 15)
}

/// Number `k` of one block.
pub(super) fn number(ty: TensorType, b: &[u8], k: usize) -> f32 {
    // The sub-block of 32, the group of eight and of four in it, the column.
    let (sub, eight, four) = (k / 32, k % 32 / 8, k % 32 / 4);
    let (j8, j4) = (k % 8, k % 4);
    let index = |low: u8, high: u16| usize::from(low) | usize::from(high) << 8;
    match ty {
        TensorType::IQ2_XXS => {
            let (at, aux) = (2 + 8 * sub, u32_at(b, 2 + 8 * sub + 4));
            let entry = grids::IQ2_XXS[usize::from(b[at + eight])];
            let scale = half_at(b, 0) * (0.5 + (aux >> 28) as f32) * 0.25;
            scale * IQ2[of_eight(entry, j8)] * sign(even(aux >> (7 * eight)), j8)
        }
        TensorType::IQ2_XS => {
            let q = u16_at(b, 2 + 8 * sub + 2 * eight);
            let scale = half_at(b, 0) * (0.5 + nibble(b[66 + sub], eight / 2)) * 0.25;
            let entry = grids::IQ2_XS[usize::from(q & 511)];
            scale * IQ2[of_eight(entry, j8)] * sign(even(u32::from(q >> 9)), j8)
        }
        TensorType::IQ2_S => {
            let high = u16::from(b[66 + sub] >> (2 * eight) & 3);
            let entry = grids::IQ2_S[index(b[2 + 4 * sub + eight], high)];
            let scale = half_at(b, 0) * (0.5 + nibble(b[74 + sub], eight / 2)) * 0.25;
            let signs = u32::from(b[34 + 4 * sub + eight]);
            scale * IQ2[of_eight(entry, j8)] * sign(signs, j8)
        }
        TensorType::IQ3_XXS => {
            let aux = u32_at(b, 66 + 4 * sub);
            let entry = grids::IQ3_XXS[usize::from(b[2 + 8 * sub + four])];
            let scale = half_at(b, 0) * (0.5 + (aux >> 28) as f32) * 0.5;
            scale * IQ3_XXS[of_four(entry, j4)] * sign(even(aux >> (7 * eight)), j8)
        }
        TensorType::IQ3_S => {
            let high = u16::from(b[66 + sub] >> four & 1);
            let entry = grids::IQ3_S[index(b[2 + 8 * sub + four], high)];
            let scale = half_at(b, 0) * (1.0 + 2.0 * nibble(b[106 + sub / 2], sub));
            let signs = u32::from(b[74 + 4 * sub + eight]);
            scale * IQ3_S[of_four(entry, j4)] * sign(signs, j8)
        }
        TensorType::IQ1_S => {
            let qh = u16_at(b, 34 + 2 * sub);
            let entry = grids::IQ1[index(b[2 + 4 * sub + eight], qh >> (3 * eight) & 7)];
            let scale = half_at(b, 0) * (2.0 * f32::from(qh >> 12 & 7) + 1.0);
            let delta = 0.125 * sign(u32::from(qh), 15);
            scale * (IQ1[of_eight(entry, j8)] + delta)
        }
        TensorType::IQ1_M => {
            let qh = b[32 + 2 * sub + eight / 2] >> (4 * (eight % 2));
            let entry = grids::IQ1[index(b[4 * sub + eight], u16::from(qh & 7))];
            let scales = u16_at(b, 48 + sub / 2 * 2);
            let scale = scales >> (6 * (sub % 2) + 3 * (eight / 2)) & 7;
            let delta = 0.125 * sign(u32::from(qh), 3);
            iq1_m_scale(b) * (2.0 * f32::from(scale) + 1.0) * (IQ1[of_eight(entry, j8)] + delta)
        }
        _ => unreachable!("{ty} has no codebook"),
    }
}

/// The scale of a block of IQ1_M, from the top four bits of its four words of scales.
fn iq1_m_scale(b: &[u8]) -> f32 {
    let bits = (0..4).map(|i| u16_at(b, 48 + 2 * i) >> 12 << (4 * i)).sum();
    half::f16::from_bits(bits).to_f32()
}

pub(super) fn set_iq1_m_scale(b: &mut [u8], scale: half::f16) {
    for i in 0..4 {
        let top = (scale.to_bits() >> (4 * i)) as u8 & 15;
        b[49 + 2 * i] = b[49 + 2 * i] & 15 | top << 4;
    }
}

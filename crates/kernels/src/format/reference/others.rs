//! The types of few bits without a codebook, and Sinew's own.

use super::{E2M1, half_at};
use gguf::TensorType;

/// Number `k` of one block.
pub(super) fn number(ty: TensorType, b: &[u8], k: usize) -> f32 {
    match ty {
        TensorType::TQ1_0 => f32::from(trit(b, k)) * half_at(b, 52),
        TensorType::TQ2_0 => {
            let q = (b[k / 128 * 32 + k % 32] >> (k % 128 / 32 * 2)) & 3;
            (f32::from(q) - 1.0) * half_at(b, 64)
        }
        TensorType::Q1_0 => {
            half_at(b, 0) * if b[2 + k / 8] >> (k % 8) & 1 == 1 { 1.0 } else { -1.0 }
        }
        TensorType::Q2_0 => (f32::from(b[2 + k / 4] >> (k % 4 * 2) & 3) - 1.0) * half_at(b, 0),
        TensorType::NVFP4 => {
            let byte = b[4 + k / 16 * 8 + k % 8];
            let code = byte >> (k % 16 / 8 * 4) & 15;
            E2M1[usize::from(code)] * nvfp4_scale(b[k / 16])
        }
        TensorType::F8_E4M3_128 => e4m3(b[4 + k]) * f32::from_le_bytes([b[0], b[1], b[2], b[3]]),
        _ => affine(ty, b, k),
    }
}

/// Trit `k` of a block of TQ1_0. A byte holds five digits of a fraction in base three, rounded up.
fn trit(b: &[u8], k: usize) -> i8 {
    let (byte, digit) = match k {
        0..160 => (b[k % 32], k / 32),
        160..240 => (b[32 + k % 16], (k - 160) / 16),
        _ => (b[48 + k % 4], (k - 240) / 4),
    };
    let fraction = byte.wrapping_mul(3_u8.pow(digit as u32));
    ((u16::from(fraction) * 3) >> 8) as i8 - 1
}

/// A number of E4M3 without infinities.
fn e4m3(byte: u8) -> f32 {
    let sign = if byte & 0x80 == 0 { 1.0 } else { -1.0 };
    let (exponent, fraction) = (i32::from(byte >> 3 & 15), f32::from(byte & 7));
    sign * match (exponent, byte & 7) {
        (15, 7) => f32::NAN,
        (0, _) => fraction * 2_f32.powi(-9),
        _ => (8.0 + fraction) * 2_f32.powi(exponent - 10),
    }
}

/// Half the scale of 16 numbers, because [`E2M1`] is doubled. The reference implementation ignores
/// the sign, and takes NaN as 0.
fn nvfp4_scale(byte: u8) -> f32 {
    if byte & 0x7f == 0x7f { 0.0 } else { 0.5 * e4m3(byte & 0x7f) }
}

/// `scale * q + bias`.
fn affine(ty: TensorType, b: &[u8], k: usize) -> f32 {
    assert!(ty.is_own(), "no reference for {ty}");
    let bits = (ty.block_bytes() - 6) * 8 / ty.block_len();
    let float = |at: usize, low: u8| f32::from_bits(u32::from_le_bytes([0, low, b[at], b[at + 1]]));
    let bit = |at: usize| f32::from(b[6 + at / 8] >> (at % 8) & 1);
    let q: f32 = (0..bits).map(|i| bit(k * bits + i) * 2_f32.powi(i as i32)).sum();
    float(0, b[4]) * q + float(2, b[5])
}

/// Writes the scale and the bias of an affine block, rounded down to 24 bits.
pub(super) fn set_pair(b: &mut [u8], pair: [f32; 2]) {
    let [scale, bias] = pair.map(|x| x.to_bits().to_le_bytes());
    b[..6].copy_from_slice(&[scale[2], scale[3], bias[2], bias[3], scale[1], bias[1]]);
}

#[test]
fn an_affine_block_is_read_as_it_is_described() {
    // A scale of 0.1 in f16, and a bias of -0.7 in bf16.
    let (scale, bias) = (half::f16::from_f32(0.1).to_f32(), half::bf16::from_f32(-0.7).to_f32());
    let [s, b] = [scale, bias].map(|x| x.to_bits().to_le_bytes());
    let mut block = vec![s[2], s[3], b[2], b[3], s[1], b[1]];
    // Eight numbers of three bits: 0 to 7, in 24 bits.
    let q: u32 = (0..8).map(|k| k << (3 * k)).sum();
    block.extend((0..4).flat_map(|_| q.to_le_bytes()[..3].to_vec()));
    assert_eq!(block.len(), TensorType::AFFINE3_32.block_bytes());
    for k in 0..32 {
        let expected = scale * (k % 8) as f32 + bias;
        assert_eq!(number(TensorType::AFFINE3_32, &block, k), expected);
    }
}

#[test]
fn e4m3_has_the_numbers_of_its_definition() {
    for (byte, value) in [
        (0x00, 0.0),
        (0x01, 2_f32.powi(-9)),
        (0x08, 2_f32.powi(-6)),
        (0x38, 1.0),
        (0x3c, 1.5),
        (0x7e, 448.0),
        (0xfe, -448.0),
    ] {
        assert_eq!(e4m3(byte), value);
    }
    assert!(e4m3(0x7f).is_nan() && e4m3(0xff).is_nan());
}

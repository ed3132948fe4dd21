//! The meaning of each GGUF type, element by element: the oracle of the packed forms. Written from
//! the format's definition, in f32 like the reference implementation.

mod codebooks;
mod others;

use fastrand::Rng;
use gguf::TensorType;
use half::{bf16, f16};

/// The values of E2M1, doubled, as MXFP4 uses them.
const E2M1: [f32; 16] =
    [0.0, 1.0, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0, -0.0, -1.0, -2.0, -3.0, -4.0, -6.0, -8.0, -12.0];

/// The codebook of IQ4_NL and IQ4_XS.
const IQ4: [f32; 16] = [
    -127.0, -104.0, -83.0, -65.0, -49.0, -35.0, -22.0, -10.0, 1.0, 13.0, 25.0, 38.0, 53.0, 69.0,
    89.0, 113.0,
];

fn half_at(block: &[u8], at: usize) -> f32 {
    f16::from_le_bytes([block[at], block[at + 1]]).to_f32()
}

/// Number `k` of one block.
fn number(ty: TensorType, b: &[u8], k: usize) -> f32 {
    let nibble = |bytes: &[u8]| if k < 16 { bytes[k] & 15 } else { bytes[k - 16] >> 4 };
    let fifth = |bytes: &[u8]| ((bytes[k / 8] >> (k % 8)) & 1) << 4;
    match ty {
        TensorType::F32 => f32::from_le_bytes([b[0], b[1], b[2], b[3]]),
        TensorType::F16 => half_at(b, 0),
        TensorType::BF16 => bf16::from_le_bytes([b[0], b[1]]).to_f32(),
        TensorType::Q8_0 => f32::from(b[2 + k] as i8) * half_at(b, 0),
        TensorType::Q4_0 => (f32::from(nibble(&b[2..])) - 8.0) * half_at(b, 0),
        TensorType::Q4_1 => f32::from(nibble(&b[4..])) * half_at(b, 0) + half_at(b, 2),
        TensorType::Q5_0 => (f32::from(nibble(&b[6..]) | fifth(&b[2..])) - 16.0) * half_at(b, 0),
        TensorType::Q5_1 => {
            f32::from(nibble(&b[8..]) | fifth(&b[4..])) * half_at(b, 0) + half_at(b, 2)
        }
        TensorType::IQ4_NL => IQ4[usize::from(nibble(&b[2..]))] * half_at(b, 0),
        TensorType::MXFP4 => {
            let scale = 2_f64.powi(i32::from(b[0]) - 128) as f32;
            E2M1[usize::from(nibble(&b[1..]))] * scale
        }
        TensorType::IQ2_XXS
        | TensorType::IQ2_XS
        | TensorType::IQ2_S
        | TensorType::IQ3_XXS
        | TensorType::IQ3_S
        | TensorType::IQ1_S
        | TensorType::IQ1_M => codebooks::number(ty, b, k),
        TensorType::Q2_K
        | TensorType::Q3_K
        | TensorType::Q4_K
        | TensorType::Q5_K
        | TensorType::Q6_K
        | TensorType::IQ4_XS => k_number(ty, b, k),
        _ => others::number(ty, b, k),
    }
}

/// Number `k` of one block of 256.
fn k_number(ty: TensorType, b: &[u8], k: usize) -> f32 {
    let (sub, half, l) = (k / 32, k / 128, k % 32);
    match ty {
        TensorType::Q4_K | TensorType::Q5_K => {
            let (scale, minimum) = six_bit_pair(&b[4..16], sub);
            let quants = if ty == TensorType::Q4_K { &b[16..] } else { &b[48..] };
            let mut q = (quants[k / 64 * 32 + l] >> (sub % 2 * 4)) & 15;
            if ty == TensorType::Q5_K {
                q += ((b[16 + l] >> sub) & 1) * 16;
            }
            half_at(b, 0) * scale * f32::from(q) - half_at(b, 2) * minimum
        }
        TensorType::Q6_K => {
            let quarter = k % 128 / 32;
            let low = (b[64 * half + 32 * (quarter % 2) + l] >> (quarter / 2 * 4)) & 15;
            let high = (b[128 + 32 * half + l] >> (2 * quarter)) & 3;
            let scale = f32::from(b[192 + k / 16] as i8);
            half_at(b, 208) * scale * (f32::from(low | high << 4) - 32.0)
        }
        TensorType::Q2_K => {
            let q = (b[16 + 32 * half + l] >> (k % 128 / 32 * 2)) & 3;
            let byte = b[k / 16];
            half_at(b, 80) * f32::from(byte & 15) * f32::from(q)
                - half_at(b, 82) * f32::from(byte >> 4)
        }
        TensorType::Q3_K => {
            let low = (b[32 + 32 * half + l] >> (k % 128 / 32 * 2)) & 3;
            let q = f32::from(low) - if (b[l] >> sub) & 1 == 1 { 0.0 } else { 4.0 };
            let (group, bytes) = (k / 16, &b[96..108]);
            let low = if group < 8 { bytes[group] & 15 } else { bytes[group - 8] >> 4 };
            let high = (bytes[8 + group % 4] >> (group / 4 * 2)) & 3;
            half_at(b, 108) * (f32::from(low | high << 4) - 32.0) * q
        }
        TensorType::IQ4_XS => {
            let q = (b[8 + 16 * sub + l % 16] >> (l / 16 * 4)) & 15;
            let low = (b[4 + sub / 2] >> (sub % 2 * 4)) & 15;
            let high = (u16::from_le_bytes([b[2], b[3]]) >> (2 * sub)) & 3;
            let scale = f32::from(low) + 16.0 * f32::from(high) - 32.0;
            half_at(b, 0) * scale * IQ4[usize::from(q)]
        }
        _ => unreachable!("no reference for {ty}"),
    }
}

/// Scale and minimum of sub-block `j` from the twelve bytes of Q4_K and Q5_K.
fn six_bit_pair(q: &[u8], j: usize) -> (f32, f32) {
    let (scale, minimum) = if j < 4 {
        (q[j] & 63, q[j + 4] & 63)
    } else {
        ((q[j + 4] & 15) | (q[j - 4] >> 6 << 4), (q[j + 4] >> 4) | (q[j] >> 6 << 4))
    };
    (f32::from(scale), f32::from(minimum))
}

/// Dequantises one row in the file's layout.
pub(crate) fn dequantise(ty: TensorType, row: &[u8]) -> Vec<f32> {
    let blocks = row.chunks_exact(ty.block_bytes());
    blocks.flat_map(|block| (0..ty.block_len()).map(|k| number(ty, block, k))).collect()
}

/// Between -1 and 1.
pub(crate) fn unit(rng: &mut Rng) -> f32 {
    2.0 * rng.f32() - 1.0
}

pub(crate) fn floats(rng: &mut Rng, len: usize) -> Vec<f32> {
    (0..len).map(|_| unit(rng)).collect()
}

/// Random rows of a type in the file's layout: any bits, with finite scales. Some scales are
/// subnormal or large.
pub(crate) fn random_rows(ty: TensorType, rows: usize, cols: usize, rng: &mut Rng) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(ty.row_bytes(cols) * rows);
    for _ in 0..rows * cols / ty.block_len() {
        let at = bytes.len();
        bytes.extend((0..ty.block_bytes()).map(|_| rng.u8(..)));
        let block = &mut bytes[at..];
        match ty {
            TensorType::F32 => block.copy_from_slice(&unit(rng).to_le_bytes()),
            TensorType::F16 => block.copy_from_slice(&f16::from_f32(unit(rng)).to_le_bytes()),
            TensorType::BF16 => block.copy_from_slice(&bf16::from_f32(unit(rng)).to_le_bytes()),
            TensorType::MXFP4 => block[0] = [0, 1, 2, 120, 128, 133][rng.usize(..6)],
            TensorType::IQ1_M => codebooks::set_iq1_m_scale(block, some_half(rng)),
            TensorType::NVFP4 => {}
            TensorType::F8_E4M3_128 => {
                block[..4].copy_from_slice(&(0.01 * unit(rng)).to_le_bytes());
                block[4..].iter_mut().filter(|byte| **byte & 0x7f == 0x7f).for_each(|b| *b = 1);
            }
            ty if ty.is_own() => others::set_pair(block, [unit(rng), unit(rng)]),
            _ => half_places(ty).iter().for_each(|&place| {
                block[place..place + 2].copy_from_slice(&some_half(rng).to_le_bytes());
            }),
        }
    }
    bytes
}

fn some_half(rng: &mut Rng) -> f16 {
    let size = [1e-7, 0.002, 0.01, 3.0][rng.usize(..4)];
    f16::from_f32(unit(rng) * size)
}

/// Where a block has half-precision scales.
fn half_places(ty: TensorType) -> &'static [usize] {
    match ty {
        TensorType::Q4_1 | TensorType::Q5_1 => &[0, 2],
        TensorType::Q4_K | TensorType::Q5_K => &[0, 2],
        TensorType::Q6_K => &[208],
        TensorType::Q2_K => &[80, 82],
        TensorType::Q3_K => &[108],
        TensorType::TQ1_0 => &[52],
        TensorType::TQ2_0 => &[64],
        _ => &[0],
    }
}

/// Makes a block's scale, or its element, `bad`; `false` if the type has no such scale.
pub(crate) fn break_block(ty: TensorType, block: &mut [u8], bad: f32) -> bool {
    let half = f16::from_f32(bad);
    match ty {
        TensorType::F32 => block.copy_from_slice(&bad.to_le_bytes()),
        TensorType::BF16 => block.copy_from_slice(&bad.to_le_bytes()[2..]),
        TensorType::MXFP4 | TensorType::NVFP4 => return false,
        TensorType::F8_E4M3_128 => block[..4].copy_from_slice(&bad.to_le_bytes()),
        ty if ty.is_own() => others::set_pair(block, [bad, 0.5]),
        TensorType::IQ1_M => codebooks::set_iq1_m_scale(block, half),
        _ => block[half_places(ty)[0]..][..2].copy_from_slice(&half.to_le_bytes()),
    }
    true
}

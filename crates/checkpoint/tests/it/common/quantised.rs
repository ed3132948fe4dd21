//! Quantised weights in a small model, and the numbers of what they become.
#![allow(dead_code)] // Each test uses a part of it.

use std::path::Path;

use gguf::{Source, Strided, TensorType};
use half::{bf16, f16};
use serde_json::Value;

use crate::common::{self, described, safetensors};

pub const STEM: &str = "model.layers.0.self_attn.o_proj";
pub const ROWS: usize = 64;
pub const COLUMNS: usize = 128;
const E2M1: [f32; 8] = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0];

pub type Stored = (&'static str, &'static str, Vec<u64>, Vec<u8>);

/// The numbers of a weight in a folder where these tensors stand for it, and its factor.
pub fn read(
    tensors: &[Stored],
    config: &[(&str, Value)],
) -> Result<(TensorType, Vec<f32>), String> {
    let dir = tempfile::tempdir().unwrap();
    let mut model = described("qwen3");
    model.weights.remove(&format!("{STEM}.weight"));
    for (key, value) in config {
        model.config[*key] = value.clone();
    }
    model.write_unlisted(dir.path());
    let of = |(ending, dtype, shape, bytes): &Stored| -> common::Stored {
        (format!("{STEM}{ending}"), *dtype, shape.clone(), bytes.clone())
    };
    let file = safetensors(&tensors.iter().map(of).collect::<Vec<_>>());
    std::fs::write(dir.path().join("quantised.safetensors"), file).unwrap();
    numbers(dir.path())
}

pub fn numbers(folder: &Path) -> Result<(TensorType, Vec<f32>), String> {
    let file = checkpoint::open(folder).map_err(|error| error.to_string())?;
    let bytes = |name: &str| {
        let tensor = file.directory().find_tensor(name)?;
        let (start, piece) = (tensor.range.start, tensor.range.end - tensor.range.start);
        let mut bytes = vec![0; piece as usize];
        file.read(Strided { start, piece, stride: piece, count: 1 }, &mut bytes).unwrap();
        Some((tensor.ty, bytes))
    };
    let (ty, blocks) = bytes("blk.0.attn_output.weight").unwrap();
    let factor = bytes("blk.0.attn_output.scale").map_or(1.0, |(_, bytes)| float(&bytes, 0));
    let blocks = blocks.chunks(ty.block_bytes());
    let numbers = blocks.flat_map(|block| (0..ty.block_len()).map(move |k| number(ty, block, k)));
    Ok((ty, numbers.map(|number| number * factor).collect()))
}

pub fn float(bytes: &[u8], at: usize) -> f32 {
    f32::from_le_bytes(bytes[4 * at..][..4].try_into().unwrap())
}

pub fn e4m3(byte: u8) -> f32 {
    let (exponent, fraction) = (i32::from(byte >> 3 & 15), f32::from(byte & 7));
    let size = match exponent {
        0 => fraction / 512.0,
        _ => (8.0 + fraction) * 2f32.powi(exponent - 10),
    };
    if byte & 0x80 == 0 { size } else { -size }
}

pub fn e2m1(code: u8) -> f32 {
    let size = E2M1[usize::from(code & 7)];
    if code & 8 == 0 { size } else { -size }
}

/// Number `k` of a block of GGUF or of Sinew's own types.
pub fn number(ty: TensorType, b: &[u8], k: usize) -> f32 {
    match ty {
        TensorType::MXFP4 => {
            e2m1(b[1 + k % 16] >> (k / 16 * 4) & 15) * 2f32.powi(i32::from(b[0]) - 127)
        }
        TensorType::NVFP4 => {
            e2m1(b[4 + k / 16 * 8 + k % 8] >> (k % 16 / 8 * 4) & 15) * e4m3(b[k / 16])
        }
        TensorType::BF16 => bf16::from_le_bytes([b[0], b[1]]).to_f32(),
        TensorType::F8_E4M3_128 => e4m3(b[4 + k]) * float(b, 0),
        _ => {
            let bits = (b.len() - 6) * 8 / ty.block_len();
            let at = |high: usize, low| f32::from_le_bytes([0, b[low], b[high], b[high + 1]]);
            at(0, 4) * bits_at(&b[6..], k * bits, bits) as f32 + at(2, 5)
        }
    }
}

/// An unsigned number of `bits` bits, the lowest first.
pub fn bits_at(bytes: &[u8], at: usize, bits: usize) -> u32 {
    (0..bits).map(|bit| u32::from(bytes[(at + bit) / 8] >> ((at + bit) % 8) & 1) << bit).sum()
}

pub fn random(seed: u64, count: usize) -> Vec<u8> {
    let mut random = fastrand::Rng::with_seed(seed);
    std::iter::repeat_with(|| random.u8(..)).take(count).collect()
}

/// Floats around 0.01, in 16 bits.
pub fn halves(seed: u64, count: usize, is_bf16: bool) -> (Vec<f32>, Vec<u8>) {
    let mut random = fastrand::Rng::with_seed(seed);
    let (mut values, mut bytes) = (Vec::new(), Vec::new());
    for _ in 0..count {
        let value = (random.f32() - 0.5) / 50.0;
        let (value, half) = match is_bf16 {
            true => (bf16::from_f32(value).to_f32(), bf16::from_f32(value).to_le_bytes()),
            false => (f16::from_f32(value).to_f32(), f16::from_f32(value).to_le_bytes()),
        };
        values.push(value);
        bytes.extend(half);
    }
    (values, bytes)
}

pub fn expect(
    found: Result<(TensorType, Vec<f32>), String>,
    ty: TensorType,
    of: impl Fn(usize, usize) -> f32,
) {
    let (found_ty, found) = found.unwrap();
    assert_eq!((found_ty, found.len()), (ty, ROWS * COLUMNS));
    for (at, found) in found.into_iter().enumerate() {
        let wanted = of(at / COLUMNS, at % COLUMNS);
        assert!(
            found == wanted || (found.is_nan() && wanted.is_nan()),
            "{ty} {at}: {found} {wanted}"
        );
    }
}

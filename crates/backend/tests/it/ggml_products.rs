//! Products with weights of every type on a ggml device, compared with exact arithmetic: with few
//! rows and with many, for which devices have separate kernels, and for each head of a stack.
//!
//! Needs ggml's libraries (`scripts/gpu-libraries.sh`) in the folder `SINEW_GPU_LIBRARIES`; without
//! them the tests print that they are skipped. The device is ggml's own engine on the CPU, or the
//! one in `SINEW_TEST_DEVICE`.

use std::convert::Infallible;
use std::path::Path;

use backend::{Backend, Ggml};
use gguf::TensorType::{self, *};

/// Each type, and the offsets of a block's half-precision scales, which must be finite; all other
/// bits are arbitrary.
const TYPES: &[(TensorType, &[usize])] = &[
    (F32, &[]),
    (F16, &[0]),
    (BF16, &[]),
    (Q8_0, &[0]),
    (Q4_0, &[0]),
    (Q4_1, &[0, 2]),
    (Q5_0, &[0]),
    (Q5_1, &[0, 2]),
    (Q2_K, &[80, 82]),
    (Q3_K, &[108]),
    (Q4_K, &[0, 2]),
    (Q5_K, &[0, 2]),
    (Q6_K, &[208]),
    (IQ4_NL, &[0]),
    (IQ4_XS, &[0]),
    (MXFP4, &[]),
    (IQ1_S, &[0]),
    (IQ1_M, &[]),
    (IQ2_XXS, &[0]),
    (IQ2_XS, &[0]),
    (IQ2_S, &[0]),
    (IQ3_XXS, &[0]),
    (IQ3_S, &[0]),
    (TQ1_0, &[52]),
    (TQ2_0, &[64]),
    (NVFP4, &[]),
    (Q1_0, &[0]),
    (Q2_0, &[0]),
];

/// The four quarters of 0x2000, half precision, the lowest first, each in the top bits of a byte.
const SCALE: [u8; 4] = [0, 0, 0, 0x20];

const HEADS: usize = 4;
const DIM: usize = 64;
const ROWS_MAX: usize = 70;

/// Eight-bit rounding of activations is the coarsest of any device: 1 % of a product's size, and a
/// few times that for the worst of thousands.
const ERROR_MAX: f32 = 0.05;

/// `len` bytes of whole blocks with values of moderate size.
fn blocks(random: &mut fastrand::Rng, ty: TensorType, scales: &[usize], len: usize) -> Vec<u8> {
    let mut bytes: Vec<u8> = (0..len).map(|_| random.u8(..)).collect();
    for block in bytes.chunks_exact_mut(ty.block_bytes()) {
        for at in scales {
            // Half precision, 0.002 to 0.03, of either sign.
            let bits = random.u16(0x1800..0x2800) | random.u16(..2) << 15;
            block[*at..*at + 2].copy_from_slice(&bits.to_le_bytes());
        }
        match ty {
            F32 => block.copy_from_slice(&(random.f32() - 0.5).to_le_bytes()),
            BF16 => block.copy_from_slice(&(random.f32() - 0.5).to_le_bytes()[2..]),
            MXFP4 => block[0] = random.u8(118..126),
            // Unsigned E4M3, 1 to 2.
            NVFP4 => block[..4].iter_mut().for_each(|byte| *byte = 0x38 | *byte & 7),
            // The scale is in the top four bits of four words: 0.0078.
            IQ1_M => (0..4).for_each(|i| block[49 + 2 * i] = block[49 + 2 * i] & 15 | SCALE[i]),
            _ => {}
        }
    }
    bytes
}

/// The largest difference, relative to the root mean square of the exact values.
fn error(found: &[f32], exact: &[f64]) -> f32 {
    assert_eq!(found.len(), exact.len());
    let square = exact.iter().map(|number| number * number).sum::<f64>() / exact.len() as f64;
    let difference =
        found.iter().zip(exact).map(|(found, exact)| (f64::from(*found) - exact).abs());
    let largest = difference.fold(0.0, |a, b| if b.is_nan() { f64::INFINITY } else { b.max(a) });
    (largest / square.sqrt()) as f32
}

/// `[rows, heads * dim]` of `x`, `[rows, heads * cols]`, and `weights`, `[heads, dim, cols]`.
fn exact(x: &[f32], weights: &[f32], rows: usize, heads: usize, cols: usize) -> Vec<f64> {
    let mut out = Vec::with_capacity(rows * heads * DIM);
    for row in x.chunks_exact(heads * cols).take(rows) {
        for (x, matrix) in row.chunks_exact(cols).zip(weights.chunks_exact(DIM * cols)) {
            for weights in matrix.chunks_exact(cols) {
                let products = x.iter().zip(weights).map(|(a, b)| f64::from(*a) * f64::from(*b));
                out.push(products.sum::<f64>());
            }
        }
    }
    out
}

#[test]
fn products_with_every_type_are_near_exact_arithmetic() {
    let Some(dir) = std::env::var_os("SINEW_GPU_LIBRARIES").filter(|dir| !dir.is_empty()) else {
        return println!("not tested: SINEW_GPU_LIBRARIES names no folder of ggml's libraries");
    };
    let device = std::env::var("SINEW_TEST_DEVICE").unwrap_or_else(|_| "CPU".to_owned());
    let mut ggml = Ggml::open(Path::new(&dir), &device, 1).unwrap();
    let mut random = fastrand::Rng::with_seed(22);
    let mut failures = Vec::new();
    // A driver in software compiles the kernels of codebooks for half an hour.
    let plain = TYPES.iter().position(|(ty, _)| *ty == IQ1_S).unwrap_or(TYPES.len());
    for (ty, scales) in if device == "CPU" { TYPES } else { &TYPES[..plain] } {
        let block = ty.block_len();
        for cols in [block.max(64), 512] {
            let bytes = blocks(&mut random, *ty, scales, HEADS * DIM * ty.row_bytes(cols));
            let mut weights = vec![0.0; HEADS * DIM * cols];
            ggml.dequantize(*ty, cols, &bytes, &mut weights).unwrap();
            let mut loader = ggml.start_matrices(*ty, HEADS, DIM, cols).unwrap();
            ggml.push_rows(&mut loader, &bytes).unwrap();
            let stack = ggml.finish_matrices(loader).unwrap();
            let numbers: Vec<f32> =
                (0..ROWS_MAX * HEADS * cols).map(|_| random.f32() - 0.5).collect();
            let mut x = ggml.rows(ROWS_MAX, HEADS * cols);
            let mut out = ggml.rows(ROWS_MAX, HEADS * DIM);
            for rows in [1, 4, 9, ROWS_MAX] {
                let x_of = |out: &mut [f32]| {
                    out.copy_from_slice(&numbers[..out.len()]);
                    Ok::<_, Infallible>(())
                };
                let Ok(()) = ggml.write(&mut x, rows, x_of);
                ggml.linear_heads(&x, &stack, &mut out);
                let found = ggml.host(&mut out).unwrap().to_vec();
                let exact = exact(&numbers, &weights, rows, HEADS, cols);
                let error = error(&found, &exact);
                println!("{ty:?}, {rows} rows of {cols}, each head: {error:e}");
                if error > ERROR_MAX {
                    failures.push(format!("{ty:?}, {rows} rows of {cols}: {error:e}"));
                }
            }
        }
    }
    assert!(failures.is_empty(), "{device}: {failures:#?}");
}

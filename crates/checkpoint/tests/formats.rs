//! Quantised weights keep their numbers, whatever form they are stored in.

mod common;

use std::path::Path;

use common::{described, safetensors};
use gguf::{Source, Strided, TensorType};
use half::{bf16, f16};
use serde_json::{Value, json};

const STEM: &str = "model.layers.0.self_attn.o_proj";
const ROWS: usize = 64;
const COLUMNS: usize = 128;
const E2M1: [f32; 8] = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0];

type Stored = (&'static str, &'static str, Vec<u64>, Vec<u8>);

/// The numbers of a weight in a folder where these tensors stand for it, and its factor.
fn read(tensors: &[Stored], config: &[(&str, Value)]) -> Result<(TensorType, Vec<f32>), String> {
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

fn numbers(folder: &Path) -> Result<(TensorType, Vec<f32>), String> {
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

fn float(bytes: &[u8], at: usize) -> f32 {
    f32::from_le_bytes(bytes[4 * at..][..4].try_into().unwrap())
}

fn e4m3(byte: u8) -> f32 {
    let (exponent, fraction) = (i32::from(byte >> 3 & 15), f32::from(byte & 7));
    let size = match exponent {
        0 => fraction / 512.0,
        _ => (8.0 + fraction) * 2f32.powi(exponent - 10),
    };
    if byte & 0x80 == 0 { size } else { -size }
}

fn e2m1(code: u8) -> f32 {
    let size = E2M1[usize::from(code & 7)];
    if code & 8 == 0 { size } else { -size }
}

/// Number `k` of a block of GGUF or of Sinew's own types.
fn number(ty: TensorType, b: &[u8], k: usize) -> f32 {
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
fn bits_at(bytes: &[u8], at: usize, bits: usize) -> u32 {
    (0..bits).map(|bit| u32::from(bytes[(at + bit) / 8] >> ((at + bit) % 8) & 1) << bit).sum()
}

fn random(seed: u64, count: usize) -> Vec<u8> {
    let mut random = fastrand::Rng::with_seed(seed);
    std::iter::repeat_with(|| random.u8(..)).take(count).collect()
}

/// Floats around 0.01, in 16 bits.
fn halves(seed: u64, count: usize, is_bf16: bool) -> (Vec<f32>, Vec<u8>) {
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

fn expect(
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

#[test]
fn mlx_groups() {
    for (bits, group) in [(2, 32), (3, 64), (4, 32), (4, 64), (4, 128), (5, 32), (6, 64), (8, 128)]
    {
        let groups = COLUMNS / group;
        let words = random(bits as u64, ROWS * COLUMNS * bits / 8);
        let is_bf16 = group != 32;
        let (scales, scale_bytes) = halves(7, ROWS * groups, is_bf16);
        let (biases, bias_bytes) = halves(8, ROWS * groups, is_bf16);
        let dtype = if is_bf16 { "BF16" } else { "F16" };
        let shape = vec![ROWS as u64, groups as u64];
        let tensors = [
            (".weight", "U32", vec![ROWS as u64, (COLUMNS * bits / 32) as u64], words.clone()),
            (".scales", dtype, shape.clone(), scale_bytes),
            (".biases", dtype, shape, bias_bytes),
        ];
        // The weight's own options replace those of all.
        let all = json!({"group_size": 16, "bits": 4, STEM: {"group_size": group, "bits": bits}});
        let ty = TensorType::from_u32(gguf::OWN_TYPES + (bits * 1000 + group) as u32).unwrap();
        expect(read(&tensors, &[("quantization", all)]), ty, |row, column| {
            let at = row * groups + column / group;
            let q = bits_at(&words, (row * COLUMNS + column) * bits, bits) as f32;
            scales[at] * q + biases[at]
        });
    }
}

#[test]
fn fp8_with_scales_of_blocks_rows_and_all() {
    let bytes = random(1, ROWS * COLUMNS);
    let scales: Vec<f32> = (0..ROWS).map(|at| 0.001 + at as f32 / 300.0).collect();
    let of = |count: usize| scales[..count].iter().flat_map(|s| s.to_le_bytes()).collect();
    let weight = (".weight", "F8_E4M3", vec![64, 128], bytes.clone());
    for (ending, shape, count) in [
        (".weight_scale_inv", vec![1, 1], 1),
        (".weight_scale", vec![64, 1], 64),
        (".weight_scale", vec![], 1),
    ] {
        let found = read(&[weight.clone(), (ending, "F32", shape, of(count))], &[]);
        expect(found, TensorType::F8_E4M3_128, |row, column| {
            e4m3(bytes[row * COLUMNS + column]) * scales[row % count]
        });
    }
    let error = read(&[weight, (".weight_scale_inv", "F32", vec![3, 1], of(3))], &[]).unwrap_err();
    assert!(error.contains("weight_scale_inv\" is [3, 1]; a scale for each 128 rows"), "{error}");
}

#[test]
fn fp8_with_powers_of_two_for_blocks_and_for_groups() {
    let mut bytes = random(2, ROWS * COLUMNS);
    // No NaN.
    bytes.iter_mut().filter(|byte| **byte & 0x7f == 0x7f).for_each(|byte| *byte ^= 1);
    let two = |exponent: u8| 2f32.powi(i32::from(exponent) - 127);
    // DeepSeek V4's blocks.
    let weight = (".weight", "F8_E4M3", vec![64, 128], bytes.clone());
    let found = read(&[weight.clone(), (".scale", "F8_E8M0", vec![1, 1], vec![125])], &[]);
    let number = |row: usize, column: usize| e4m3(bytes[row * COLUMNS + column]);
    expect(found, TensorType::F8_E4M3_128, |row, column| number(row, column) * two(125));
    // MXFP8, whose numbers bf16 holds.
    let exponents: Vec<u8> = (0..ROWS * 4).map(|at| 100 + (at % 51) as u8).collect();
    let mx =
        |row: usize, column: usize| number(row, column) * two(exponents[row * 4 + column / 32]);
    for (ending, dtype) in [(".weight_scale", "U8"), (".weight_scale_inv", "F8_E8M0")] {
        let scales = (ending, dtype, vec![64, 4], exponents.clone());
        expect(read(&[weight.clone(), scales], &[]), TensorType::BF16, mx);
    }
    let mlx = [
        (".weight", "U32", vec![64, 32], bytes.clone()),
        (".scales", "U8", vec![64, 4], exponents.clone()),
    ];
    let options = json!({"group_size": 32, "bits": 8, "mode": "mxfp8"});
    expect(read(&mlx, &[("quantization", options)]), TensorType::BF16, mx);
    let short = (".weight_scale", "U8", vec![64, 3], vec![120; 192]);
    let error = read(&[weight, short], &[]).unwrap_err();
    assert!(error.contains("an exponent for each 32 columns is needed"), "{error}");
}

#[test]
fn fp8_blocks_over_more_rows_than_one_block() {
    let (dir, rows) = (tempfile::tempdir().unwrap(), 320);
    let mut model = described("qwen3");
    model.weights.retain(|name, _| !name.ends_with("layers.0.mlp.up_proj.weight"));
    model.config["intermediate_size"] = json!(rows);
    model.write_unlisted(dir.path());
    let bytes = random(3, rows * 256);
    let scales: Vec<f32> = (0..6).map(|at| (at + 1) as f32).collect();
    let scale_bytes = scales.iter().flat_map(|s| s.to_le_bytes()).collect();
    let name = "model.layers.0.mlp.up_proj";
    let file = safetensors(&[
        (format!("{name}.weight"), "F8_E4M3", vec![rows as u64, 256], bytes.clone()),
        (format!("{name}.weight_scale_inv"), "F32", vec![3, 2], scale_bytes),
    ]);
    std::fs::write(dir.path().join("quantised.safetensors"), file).unwrap();
    let file = checkpoint::open(dir.path()).unwrap();
    let start = file.directory().tensor("blk.0.ffn_up.weight").unwrap().range.start;
    for (row, block) in [(0, 0), (127, 1), (128, 0), (255, 1), (256, 0), (319, 1)] {
        let mut found = [0; 132];
        let start = start + (row * 2 + block) as u64 * 132;
        file.read(Strided { start, piece: 132, stride: 132, count: 1 }, &mut found).unwrap();
        assert_eq!(float(&found, 0), scales[row / 128 * 2 + block], "{row} {block}");
        assert_eq!(found[4..], bytes[row * 256 + block * 128..][..128]);
    }
}

#[test]
fn fp4_of_all_makers() {
    let packed = random(5, ROWS * COLUMNS / 2);
    let code =
        |row: usize, column: usize| packed[(row * COLUMNS + column) / 2] >> (column % 2 * 4) & 15;
    let shape = vec![64, 64];
    let exponents: Vec<u8> = (0..ROWS * 4).map(|at| 120 + (at % 11) as u8).collect();
    let mx = |row: usize, column: usize| {
        e2m1(code(row, column)) * 2f32.powi(i32::from(exponents[row * 4 + column / 32]) - 127)
    };
    let compressed = [
        (".weight_packed", "U8", shape.clone(), packed.clone()),
        (".weight_scale", "U8", vec![64, 4], exponents.clone()),
    ];
    expect(read(&compressed, &[]), TensorType::MXFP4, mx);
    let mlx = [
        (".weight", "U32", vec![64, 16], packed.clone()),
        (".scales", "U8", vec![64, 4], exponents.clone()),
    ];
    let options = json!({"group_size": 32, "bits": 4, "mode": "mxfp4"});
    expect(read(&mlx, &[("quantization", options)]), TensorType::MXFP4, mx);

    let scales: Vec<u8> = random(6, ROWS * 8).iter().map(|byte| byte & 0x77).collect();
    let nv =
        |row: usize, column: usize| e2m1(code(row, column)) * e4m3(scales[row * 8 + column / 16]);
    let one = |number: f32| number.to_le_bytes().to_vec();
    let model_opt = [
        (".weight", "U8", shape.clone(), packed.clone()),
        (".weight_scale", "F8_E4M3", vec![64, 8], scales.clone()),
        (".weight_scale_2", "F32", vec![], one(0.25)),
        (".input_scale", "F32", vec![], one(3.0)),
    ];
    expect(read(&model_opt, &[]), TensorType::NVFP4, |row, column| nv(row, column) * 0.25);
    let compressed = [
        (".weight_packed", "U8", shape, packed.clone()),
        (".weight_scale", "F8_E4M3", vec![64, 8], scales.clone()),
        (".weight_global_scale", "F32", vec![1], one(8.0)),
        (".input_global_scale", "F32", vec![1], one(3.0)),
    ];
    expect(read(&compressed, &[]), TensorType::NVFP4, |row, column| nv(row, column) * 0.125);
}

#[test]
fn int4_of_compressed_tensors_and_gptq() {
    let words = random(9, ROWS * COLUMNS / 2);
    let (scales, scale_bytes) = halves(10, ROWS * 4, true);
    let q = |row: usize, column: usize| bits_at(&words, (row * COLUMNS + column) * 4, 4) as f32;
    let groups = json!({"group_0": {"weights": {"num_bits": 4, "group_size": 32}}});
    let config = [(
        "quantization_config",
        json!({"quant_method": "compressed-tensors", "config_groups": groups}),
    )];
    let mut tensors = vec![
        (".weight_packed", "I32", vec![64, 16], words.clone()),
        (".weight_scale", "BF16", vec![64, 4], scale_bytes),
        (
            ".weight_shape",
            "I64",
            vec![2],
            [64u64, 128].iter().flat_map(|n| n.to_le_bytes()).collect(),
        ),
    ];
    expect(read(&tensors, &config), TensorType::AFFINE4_32, |row, column| {
        let scale = scales[row * 4 + column / 32];
        scale * q(row, column) - 8.0 * scale
    });
    // Zero points, packed along the rows of each group: [8 words, 4 groups].
    let zeros = random(11, 8 * 4 * 4);
    tensors.push((".weight_zero_point", "I32", vec![8, 4], zeros.clone()));
    expect(read(&tensors, &config), TensorType::AFFINE4_32, |row, column| {
        let (group, scale) = (column / 32, scales[row * 4 + column / 32]);
        let zero = bits_at(&zeros, (row / 8 * 4 + group) * 32 + row % 8 * 4, 4) as f32;
        scale * q(row, column) + -scale * zero
    });

    // GPTQ: everything transposed, and zero points less one.
    let (scales, scale_bytes) = halves(12, 4 * ROWS, false);
    let zeros: Vec<u8> = random(13, 4 * 8 * 4).iter().map(|byte| byte & 0x77).collect();
    let options = json!({"quant_method": "gptq", "bits": 4, "group_size": 32, "desc_act": false});
    let tensors = [
        (".qweight", "I32", vec![16, 64], words.clone()),
        (".scales", "F16", vec![4, 64], scale_bytes),
        (".qzeros", "I32", vec![4, 8], zeros.clone()),
        (".g_idx", "I32", vec![128], vec![0; 512]),
    ];
    let found = read(&tensors, &[("quantization_config", options.clone())]);
    expect(found, TensorType::AFFINE4_32, |row, column| {
        let scale = scales[column / 32 * ROWS + row];
        let zero = bits_at(&zeros, (column / 32 * ROWS + row) * 4, 4) + 1;
        let q = bits_at(&words, (column / 8 * ROWS + row) * 32 + column % 8 * 4, 4) as f32;
        scale * q + -scale * zero as f32
    });
    let mut reordered = options;
    reordered["desc_act"] = json!(true);
    let error = read(&tensors, &[("quantization_config", reordered)]).unwrap_err();
    assert!(error.contains("desc_act"), "{error}");
}

#[test]
fn int4_of_awq() {
    // Words hold eight rows of the weight, in this order.
    const ORDER: [usize; 8] = [0, 2, 4, 6, 1, 3, 5, 7];
    let place = |row: usize| ORDER.iter().position(|it| *it == row % 8).unwrap();
    let (words, zeros) = (random(31, COLUMNS * ROWS / 2), random(32, 4 * ROWS / 2));
    let (scales, scale_bytes) = halves(33, 4 * ROWS, false);
    let number = |words: &[u8], line: usize, row: usize| {
        bits_at(words, (line * ROWS / 8 + row / 8) * 32 + 4 * place(row), 4) as f32
    };
    let options = json!({"quant_method": "awq", "bits": 4, "group_size": 32, "version": "gemm"});
    let tensors = [
        (".qweight", "I32", vec![128, 8], words.clone()),
        (".scales", "F16", vec![4, 64], scale_bytes),
        (".qzeros", "I32", vec![4, 8], zeros.clone()),
    ];
    let found = read(&tensors, &[("quantization_config", options)]);
    expect(found, TensorType::AFFINE4_32, |row, column| {
        let scale = scales[column / 32 * ROWS + row];
        scale * number(&words, column, row) + -scale * number(&zeros, column / 32, row)
    });
}

#[test]
fn what_is_not_read_is_named() {
    let exl = json!({"quant_method": "exl9", "bits": 4, "group_size": 32});
    let tensors = [(".qweight", "I32", vec![128, 8], vec![0; 4096])];
    let error = read(&tensors, &[("quantization_config", exl)]).unwrap_err();
    assert!(error.contains("is quantised exl9, which is not read"), "{error}");
    let mystery = json!({"quant_method": "mystery"});
    let tensors = [(".weight", "I8", vec![64, 128], vec![0; 8192])];
    let error = read(&tensors, &[("quantization_config", mystery)]).unwrap_err();
    assert!(error.contains("quantised as mystery") && error.contains("MXFP4"), "{error}");
    let scales = [
        (".weight", "U32", vec![64, 16], vec![0; 4096]),
        (".scales", "BF16", vec![64, 3], vec![0; 384]),
    ];
    let error = read(&scales, &[("quantization", json!({"group_size": 64}))]).unwrap_err();
    assert!(error.contains("for 192 columns in groups of 64"), "{error}");
    let tensors = [(".weight", "F8_E4M3", vec![64, 128], vec![0; 8192])];
    let error = read(&tensors, &[]).unwrap_err();
    assert!(error.contains("o_proj.weight_scale\" is missing"), "{error}");
}

/// The up-projection of DeepSeek's keys is transposed, so quantised ones become bf16.
#[test]
fn what_must_be_transposed_becomes_plain() {
    const NAME: &str = "model.layers.0.self_attn.kv_b_proj";
    let (heads, keys, values, rank) = (4, 16, 16, 32);
    let rows = heads * (keys + values);
    let dir = tempfile::tempdir().unwrap();
    let mut model = described("deepseek-v3");
    model.weights.remove(&format!("{NAME}.weight"));
    model.config["quantization"] = json!({"group_size": 32, "bits": 4});
    model.write_unlisted(dir.path());
    let words = random(21, rows * rank / 2);
    let (scales, scale_bytes) = halves(22, rows, true);
    let (biases, bias_bytes) = halves(23, rows, true);
    let file = safetensors(&[
        (format!("{NAME}.weight"), "U32", vec![rows as u64, 4], words.clone()),
        (format!("{NAME}.scales"), "BF16", vec![rows as u64, 1], scale_bytes),
        (format!("{NAME}.biases"), "BF16", vec![rows as u64, 1], bias_bytes),
    ]);
    std::fs::write(dir.path().join("quantised.safetensors"), file).unwrap();
    let file = checkpoint::open(dir.path()).unwrap();
    for (name, first, dims) in [
        ("blk.0.attn_k_b.weight", 0, [keys, rank, heads]),
        ("blk.0.attn_v_b.weight", keys, [rank, values, heads]),
    ] {
        let tensor = file.directory().tensor(name).unwrap();
        assert_eq!(
            (tensor.ty, &tensor.dims[..]),
            (TensorType::BF16, &dims.map(|it| it as u64)[..])
        );
        let (start, piece) = (tensor.range.start, tensor.range.end - tensor.range.start);
        let mut bytes = vec![0; piece as usize];
        file.read(Strided { start, piece, stride: piece, count: 1 }, &mut bytes).unwrap();
        for (at, number) in bytes.as_chunks().0.iter().enumerate() {
            let (column, row) = (at % dims[0], at / dims[0] % dims[1]);
            let (inside, column) = if first == 0 { (column, row) } else { (row, column) };
            let row = at / (dims[0] * dims[1]) * (keys + values) + first + inside;
            let q = bits_at(&words, (row * rank + column) * 4, 4) as f32;
            let wanted = bf16::from_f32(scales[row] * q + biases[row]);
            assert_eq!(bf16::from_le_bytes(*number), wanted, "{name} {at}");
        }
    }
}

//! Quantised weights keep their numbers, whatever form they are stored in.

use crate::common::{described, safetensors};
use crate::quantised::{
    COLUMNS, ROWS, STEM, bits_at, e2m1, e4m3, expect, float, halves, random, read,
};
use gguf::{Source, Strided, TensorType};
use half::bf16;
use serde_json::json;

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

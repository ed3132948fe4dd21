//! Weights of packed integers keep their numbers: compressed-tensors, GPTQ and AWQ.

use crate::common::{described, safetensors};
use crate::quantised::{COLUMNS, ROWS, bits_at, expect, halves, number, random, read};
use gguf::{Source, Strided, TensorType};
use serde_json::json;

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
    // A scale for each row, whose length no configuration names.
    let (of_rows, of_rows_bytes) = halves(30, ROWS, true);
    let row = (".weight_scale", "BF16", vec![64, 1], of_rows_bytes);
    let found = read(&[tensors[0].clone(), row], &config);
    expect(found, TensorType::AFFINE4_128, |row, column| {
        of_rows[row] * q(row, column) - 8.0 * of_rows[row]
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
    // AutoRound packs them so, too.
    let rounded = json!({
        "quant_method": "auto-round", "packing_format": "auto_round:auto_gptq", "bits": 4,
        "group_size": 32,
    });
    for options in [&options, &rounded] {
        let found = read(&tensors, &[("quantization_config", options.clone())]);
        expect(found, TensorType::AFFINE4_32, |row, column| {
            let scale = scales[column / 32 * ROWS + row];
            let zero = bits_at(&zeros, (column / 32 * ROWS + row) * 4, 4) + 1;
            let q = bits_at(&words, (column / 8 * ROWS + row) * 32 + column % 8 * 4, 4) as f32;
            scale * q + -scale * zero as f32
        });
    }
    let mut unknown = rounded;
    unknown["packing_format"] = json!("auto_round:exllamav2");
    let error = read(&tensors, &[("quantization_config", unknown)]).unwrap_err();
    assert!(error.contains("is quantised auto-round, which is not read"), "{error}");
    let mut reordered = options;
    reordered["desc_act"] = json!(true);
    let error = read(&tensors, &[("quantization_config", reordered)]).unwrap_err();
    assert!(error.contains("desc_act"), "{error}");
}

#[test]
fn int8_with_scales_of_rows_and_groups() {
    let bytes = random(19, ROWS * COLUMNS);
    for (groups, ty) in [(1, TensorType::AFFINE8_128), (4, TensorType::AFFINE8_32)] {
        let (scales, scale_bytes) = halves(20, ROWS * groups, true);
        let tensors = [
            (".weight", "I8", vec![64, 128], bytes.clone()),
            (".weight_scale", "BF16", vec![64, groups as u64], scale_bytes),
        ];
        expect(read(&tensors, &[]), ty, |row, column| {
            let scale = scales[row * groups + column * groups / COLUMNS];
            let at = row * COLUMNS + column;
            scale * f32::from(bytes[at] ^ 0x80) + -128.0 * scale
        });
    }
    let odd = [
        (".weight", "I8", vec![64, 128], bytes.clone()),
        (".weight_scale", "BF16", vec![64, 3], vec![0; 384]),
    ];
    assert!(read(&odd, &[]).unwrap_err().contains("8 bits, and 3 groups in 128 columns"));
    let wide = [
        (".weight", "I8", vec![64, 128], bytes),
        (".weight_scale", "F32", vec![64, 1], vec![0; 256]),
    ];
    assert!(read(&wide, &[]).unwrap_err().contains("BF16 or F16 is needed"));
}

#[test]
fn gptq_with_groups_in_order_and_with_whole_rows() {
    let words = random(14, ROWS * COLUMNS / 2);
    let q = |row: usize, column: usize| {
        bits_at(&words, (column / 8 * ROWS + row) * 32 + column % 8 * 4, 4) as f32
    };
    let order = |group: i32| (0..128).flat_map(move |at: i32| (at / group).to_le_bytes());
    for (group_size, group) in [(32i64, 32usize), (128, 128), (-1, 128)] {
        let groups = COLUMNS / group;
        let (scales, scale_bytes) = halves(15, groups * ROWS, false);
        let zeros: Vec<u8> = random(16, groups * 8 * 4).iter().map(|byte| byte & 0x77).collect();
        let options = json!({
            "quant_method": "gptq", "bits": 4, "group_size": group_size, "desc_act": true,
            "static_groups": true,
        });
        let mut tensors = vec![
            (".qweight", "I32", vec![16, 64], words.clone()),
            (".scales", "F16", vec![groups as u64, 64], scale_bytes),
            (".qzeros", "I32", vec![groups as u64, 8], zeros.clone()),
            (".g_idx", "I32", vec![128], order(group as i32).collect()),
        ];
        let config = [("quantization_config", options)];
        let ty = if group == 32 { TensorType::AFFINE4_32 } else { TensorType::AFFINE4_128 };
        expect(read(&tensors, &config), ty, |row, column| {
            let scale = scales[column / group * ROWS + row];
            let zero = bits_at(&zeros, (column / group * ROWS + row) * 4, 4) + 1;
            scale * q(row, column) + -scale * zero as f32
        });
        tensors[3].3.swap(0, 4 * 127);
        tensors[3].3[4 * 5] = 3;
        let error = read(&tensors, &config).unwrap_err();
        assert!(error.contains("with reordered columns (desc_act)"), "{error}");
    }
}

#[test]
fn gptq_with_longer_groups_than_a_block_has() {
    let (dir, columns, rows) = (tempfile::tempdir().unwrap(), 512, 64);
    let mut model = described("qwen3");
    model.weights.retain(|name, _| !name.contains("layers.0.mlp.down_proj"));
    let shape = [rows as u64, columns as u64];
    let groups = 2;
    model.config["quantization_config"] =
        json!({"quant_method": "gptq", "bits": 8, "group_size": 256, "desc_act": false});
    model.write_unlisted(dir.path());
    let words = random(17, rows * columns);
    let (scales, scale_bytes) = halves(18, groups * rows, false);
    let zeros: Vec<u8> = vec![0x11; groups * rows];
    let name = "model.layers.0.mlp.down_proj";
    let file = safetensors(&[
        (format!("{name}.qweight"), "I32", vec![shape[1] / 4, shape[0]], words.clone()),
        (format!("{name}.scales"), "F16", vec![2, shape[0]], scale_bytes),
        (format!("{name}.qzeros"), "I32", vec![2, shape[0] / 4], zeros),
    ]);
    std::fs::write(dir.path().join("quantised.safetensors"), file).unwrap();
    let file = checkpoint::open(dir.path()).unwrap();
    let tensor = file.directory().tensor("blk.0.ffn_down.weight").unwrap();
    assert_eq!((tensor.ty, &tensor.dims[..]), (TensorType::AFFINE8_128, &[512, 64][..]));
    let (start, piece) = (tensor.range.start, tensor.range.end - tensor.range.start);
    let mut bytes = vec![0; piece as usize];
    file.read(Strided { start, piece, stride: piece, count: 1 }, &mut bytes).unwrap();
    for (at, block) in bytes.chunks_exact(134).enumerate() {
        let (row, first) = (at / 4, at % 4 * 128);
        let scale = scales[first / 256 * rows + row];
        for column in first..first + 128 {
            let q = words[(column / 4 * rows + row) * 4 + column % 4];
            let wanted = scale * f32::from(q) + -scale * 18.0;
            assert_eq!(number(tensor.ty, block, column - first), wanted, "{row} {column}");
        }
    }
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

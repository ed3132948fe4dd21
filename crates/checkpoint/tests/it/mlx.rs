//! Folders that mlx-lm has saved become what llama.cpp's converter makes of the original ones.

use std::collections::BTreeMap;

use crate::common::{Stored, described, safetensors};
use crate::compare::differences;

/// Names in mlx-lm of what stands under others in published files.
const NAMES: [(&str, &str); 12] = [
    (".moe.gate_proj.", ".mlp.switch_mlp.gate_proj."),
    (".moe.up_proj.", ".mlp.switch_mlp.up_proj."),
    (".moe.down_proj.", ".mlp.switch_mlp.down_proj."),
    (".moe.gate.", ".mlp.gate.gate."),
    (".moe.router_bias", ".mlp.gate.router_bias"),
    (".share_expert.", ".mlp.share_expert."),
    (".mixer.switch_mlp.up_proj.", ".mixer.switch_mlp.fc1."),
    (".mixer.switch_mlp.down_proj.", ".mixer.switch_mlp.fc2."),
    (".block_sparse_moe.output_linear.", ".block_sparse_moe.switch_mlp.down_proj."),
    (".q_conv1d.", ".q_conv.conv."),
    (".k_conv1d.", ".k_conv.conv."),
    (".v_conv1d.", ".v_conv.conv."),
];

/// The same for Kimi Linear, whose experts have Mixtral's names.
const OF_KIMI: [(&str, &str); 2] = [
    (".block_sparse_moe.gate.e_score_correction_bias", ".mlp.e_score_correction_bias"),
    (".block_sparse_moe.", ".mlp."),
];

fn renamed(name: &str, is_kimi: bool) -> String {
    let all = NAMES.iter().chain(OF_KIMI.iter().filter(|_| is_kimi));
    all.fold(name.to_owned(), |name, (from, to)| name.replace(from, to))
}

/// Gates and ups of Granite, which are one tensor in published files.
fn halves((name, dtype, shape, bytes): Stored, is_dense: bool) -> Vec<Stored> {
    let is_of_experts = name.contains("block_sparse_moe.input_linear");
    if !(is_of_experts || is_dense && name.contains("shared_mlp.")) {
        return vec![(name, dtype, shape, bytes)];
    }
    if name.contains("output_linear") {
        return vec![(
            name.replace("shared_mlp.output_linear", "mlp.down_proj"),
            dtype,
            shape,
            bytes,
        )];
    }
    let axis = shape.len() - 2;
    let mut half = shape.clone();
    half[axis] /= 2;
    let matrix = bytes.len() / shape[..axis].iter().product::<u64>() as usize;
    let part = |at: usize, part: &str| {
        let bytes =
            bytes.chunks(matrix).flat_map(|it| it[at * matrix / 2..][..matrix / 2].to_vec());
        let stem = if is_of_experts { "block_sparse_moe.switch_mlp" } else { "mlp" };
        let name = name.replace("shared_mlp.input_linear", &format!("{stem}.{part}"));
        let name = name.replace("block_sparse_moe.input_linear", &format!("{stem}.{part}"));
        (name, dtype, half.clone(), bytes.collect())
    };
    vec![part(0, "gate_proj"), part(1, "up_proj")]
}

/// A checkpoint as mlx-lm saves it: experts stacked, channels of convolutions last, whole gains.
fn mlx(tensors: Vec<Stored>) -> Vec<Stored> {
    let has_whole_gains =
        |name: &str| name.contains("linear_attn") || name.contains("share_expert.");
    let has_whole_gains = tensors.iter().any(|tensor| has_whole_gains(&tensor.0));
    let is_kimi = tensors.iter().any(|tensor| tensor.0.contains("q_conv1d"));
    let is_dense = !tensors.iter().any(|tensor| tensor.0.contains("block_sparse_moe"));
    let tensors = tensors.into_iter().flat_map(|tensor| halves(tensor, is_dense));
    let mut found = BTreeMap::<String, Stored>::new();
    let mut experts = BTreeMap::<String, BTreeMap<usize, Stored>>::new();
    for (name, dtype, mut shape, mut bytes) in tensors {
        if let Some((before, after)) = name.split_once(".experts.")
            && let Some((expert, rest)) = after.split_once('.')
        {
            let rest = rest.replace("w1", "gate_proj").replace("w3", "up_proj");
            let rest = rest.replace("w2", "down_proj");
            let stacked = experts.entry(format!("{before}.switch_mlp.{rest}")).or_default();
            stacked.insert(expert.parse().unwrap(), (name, dtype, shape, bytes));
            continue;
        }
        if name.contains("conv1d.weight") {
            shape.swap(1, 2);
        }
        if has_whole_gains && name.ends_with("norm.weight") && !name.contains("linear_attn") {
            let whole = |number: &[u8; 2]| {
                let number = f32::from_bits(u32::from(u16::from_le_bytes(*number)) << 16) + 1.0;
                ((number.to_bits() >> 16) as u16).to_le_bytes()
            };
            bytes = bytes.as_chunks().0.iter().flat_map(whole).collect();
        }
        let name = format!("language_model.{}", renamed(&name, is_kimi));
        found.insert(name.clone(), (name, dtype, shape, bytes));
    }
    for (name, all) in experts {
        let (_, dtype, shape, _) = all[&0].clone();
        let shape = [vec![all.len() as u64], shape].concat();
        let bytes = all.into_values().flat_map(|expert| expert.3).collect();
        let name = format!("language_model.{}", renamed(&name, is_kimi));
        found.insert(name.clone(), (name, dtype, shape, bytes));
    }
    found.into_values().collect()
}

#[test]
fn mlx_s_names_and_layouts_become_the_same_files() {
    for name in [
        "qwen3moe",
        "mixtral",
        "minimax-m2",
        "glm4moe",
        "qwen35",
        "qwen35moe",
        "qwen3next",
        "granitemoe",
        "granitehybrid",
        "granitehybrid-dense",
        "nemotron_h",
        "nemotron_h_moe",
        "nemotron_h_moe-latent",
        "kimi-linear",
        "step35",
        "mimo2",
        "phimoe",
        "minimax-m3",
    ] {
        let (wanted, dir) = (described(name), tempfile::tempdir().unwrap());
        wanted.write_unlisted(dir.path());
        let file = safetensors(&mlx(wanted.tensors()));
        std::fs::write(dir.path().join("weights.safetensors"), file).unwrap();
        let file = checkpoint::open(dir.path()).unwrap();
        assert_eq!(differences(&file, &wanted), [] as [String; 0], "{name}");
    }
}

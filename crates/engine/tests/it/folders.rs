//! A folder in Hugging Face's form computes what the GGUF file of the same model computes, bit for
//! bit, on one rank and split over several.

use crate::checkpoints;
use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use crate::unmake::{Stored, fixture, unmake};
use engine::{Local, LocalOptions};
use gguf::{File, Source};
use half::{bf16, f16};
use protocol::{Split, SplitOptions};
use serde_json::Value;

const PROMPT: [u32; 9] = [5, 17, 300, 42, 7, 7, 120, 255, 3];

fn logits(file: File, shares: &[u32]) -> Vec<u32> {
    logits_of(file, shares, &PROMPT)
}

fn logits_of(file: File, shares: &[u32], prompt: &[u32]) -> Vec<u32> {
    let context_tokens = 64;
    let options = LocalOptions {
        prompts: None,
        experts: None,
        options: SplitOptions::default(),
        split: Split {
            shares: shares.to_vec(),
            stages: Vec::new(),
            whole_experts: false,
            context_tokens,
            sequences_max: 1,
            cache_tokens: context_tokens,
            ..Split::default()
        },
        ring: false,
        link_latency: Duration::ZERO,
        threads: 1,
    };
    let source: Arc<dyn Source> = Arc::new(file);
    let mut local = Local::start(source, &options).unwrap();
    local.feed(prompt).unwrap().iter().map(|logit| logit.to_bits()).collect()
}

fn numbers_of(logits: &[u32]) -> Vec<f32> {
    logits.iter().map(|bits| f32::from_bits(*bits)).collect()
}

const GROUP: usize = 32;

/// The numbers of a tensor, if it is a matrix that MLX would quantise.
fn matrix((name, dtype, shape, bytes): &Stored) -> Option<Vec<f32>> {
    let is_matrix = shape.len() == 2 && (name.contains("proj") || name.contains("embed"));
    let floats = |bytes: &[u8]| match *dtype {
        "F32" => bytes.as_chunks().0.iter().map(|it| f32::from_le_bytes(*it)).collect(),
        "F16" => bytes.as_chunks().0.iter().map(|it| f16::from_le_bytes(*it).to_f32()).collect(),
        _ => bytes.as_chunks().0.iter().map(|it| bf16::from_le_bytes(*it).to_f32()).collect(),
    };
    is_matrix.then(|| floats(bytes))
}

/// A group's scale, bias and quants.
fn quantise(group: &[f32], bits: u32) -> (bf16, bf16, Vec<u32>) {
    let (low, high) = group.iter().fold((f32::MAX, f32::MIN), |(a, b), x| (a.min(*x), b.max(*x)));
    let most = ((1 << bits) - 1) as f32;
    let scale = bf16::from_f32(((high - low) / most).max(1e-6));
    let bias = bf16::from_f32(low);
    let q = |x: &f32| ((x - bias.to_f32()) / scale.to_f32()).round().clamp(0.0, most) as u32;
    (scale, bias, group.iter().map(q).collect())
}

/// A matrix as MLX stores it.
fn in_mlx(tensor: Stored, bits: u32) -> Vec<Stored> {
    let Some(numbers) = matrix(&tensor) else { return vec![tensor] };
    let (name, _, shape, _) = tensor;
    let (mut quants, mut scales, mut biases) = (Vec::new(), Vec::new(), Vec::new());
    for group in numbers.chunks(GROUP) {
        let (scale, bias, all) = quantise(group, bits);
        scales.extend(scale.to_le_bytes());
        biases.extend(bias.to_le_bytes());
        let bit = |at: usize| (all[at / bits as usize] >> (at % bits as usize) & 1) as u8;
        let byte = |at: usize| (0..8).map(|it| bit(8 * at + it) << it).sum::<u8>();
        quants.extend((0..GROUP * bits as usize / 8).map(byte));
    }
    let stem = name.strip_suffix("weight").unwrap().to_owned();
    let words = vec![shape[0], shape[1] * u64::from(bits) / 32];
    let groups = vec![shape[0], shape[1] / GROUP as u64];
    vec![
        (format!("{stem}scales"), "BF16", groups.clone(), scales),
        (format!("{stem}biases"), "BF16", groups, biases),
        (name, "U32", words, quants),
    ]
}

/// The same matrix with the numbers that its quants stand for.
fn dequantised(tensor: Stored, bits: u32) -> Vec<Stored> {
    let Some(numbers) = matrix(&tensor) else { return vec![tensor] };
    let group = |group: &[f32]| {
        let (scale, bias, quants) = quantise(group, bits);
        let number = move |q: u32| scale.to_f32() * q as f32 + bias.to_f32();
        quants.into_iter().map(number).collect::<Vec<f32>>()
    };
    let numbers = numbers.chunks(GROUP).flat_map(group);
    let bytes = numbers.flat_map(f32::to_le_bytes).collect();
    vec![(tensor.0, "F32", tensor.2, bytes)]
}

/// The largest error of activations in eight bits, as a fraction of the logits' spread.
const ERROR_MAX: f32 = 0.03;

#[test]
fn mlx_s_weights_compute_what_their_numbers_compute() {
    for bits in [3, 4, 6, 8] {
        let dir = tempfile::tempdir().unwrap();
        unmake("qwen3", dir.path(), |tensor| in_mlx(tensor, bits));
        let path = dir.path().join("config.json");
        let mut config: Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
        config["quantization"] = serde_json::json!({"group_size": GROUP, "bits": bits});
        std::fs::write(&path, config.to_string()).unwrap();
        let found = logits(folder(dir.path()), &[1]);
        for shares in [&[1, 1][..], &[2, 1, 1]] {
            assert!(logits(folder(dir.path()), shares) == found, "{bits} bits over {shares:?}");
        }
        let plain = tempfile::tempdir().unwrap();
        unmake("qwen3", plain.path(), |tensor| dequantised(tensor, bits));
        let wanted = numbers_of(&logits(folder(plain.path()), &[1]));
        let spread = wanted.iter().copied().fold(f32::MIN, f32::max)
            - wanted.iter().copied().fold(f32::MAX, f32::min);
        let found = numbers_of(&found);
        let errors = found.iter().zip(&wanted).map(|(a, b)| (a - b).abs());
        let error = errors.fold(0.0, f32::max) / spread;
        assert!(error < ERROR_MAX, "{bits} bits: {error}");
    }
}

fn folder(dir: &Path) -> File {
    checkpoint::open(dir).unwrap()
}

#[test]
fn a_folder_computes_what_its_gguf_file_computes() {
    for name in ["qwen3", "llama3-tied", "llama-untied", "llama-spm", "qwen3moe"] {
        let dir = tempfile::tempdir().unwrap();
        unmake(name, dir.path(), |tensor| vec![tensor]);
        let wanted = logits(File::open(fixture(name, "gguf")).unwrap(), &[1]);
        for shares in [&[1][..], &[1, 1], &[2, 1, 1]] {
            let found = logits(folder(dir.path()), shares);
            assert!(found == wanted, "{name} over {shares:?}");
        }
    }
}

/// Random checkpoints of all architectures, whose tensors are those that llama.cpp's converter
/// makes: the engine takes each in the type and shape that it has there.
#[test]
fn folders_of_all_architectures_compute() {
    let mut seen = BTreeSet::new();
    for name in checkpoints::names() {
        let (dir, model) = (tempfile::tempdir().unwrap(), checkpoints::described(&name));
        if !seen.insert(model.metadata["general.architecture"].to_string()) {
            continue;
        }
        model.write(dir.path(), 1);
        // A head or an assistant computes for a model: see draft.rs.
        if layout::BlockFile::is_one(folder(dir.path()).directory()) {
            continue;
        }
        let logits = |shares| logits_of(folder(dir.path()), shares, &[5, 17, 200, 42, 7, 7, 120]);
        assert!(logits(&[1]) == logits(&[1, 1]), "{name}");
    }
}

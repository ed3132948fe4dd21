//! Compares folders with the GGUF files that llama.cpp's converter makes of them, tensor by tensor.

mod common;

use std::collections::{BTreeMap, BTreeSet};

use common::{Described, Stored, described, names, safetensors};
use gguf::{Directory, File, Source, Strided, TensorInfo};
use serde_json::Value;

fn bytes(file: &File, tensor: &TensorInfo) -> Vec<u8> {
    let (start, piece) = (tensor.range.start, tensor.range.end - tensor.range.start);
    let mut bytes = vec![0; piece as usize];
    file.read(Strided { start, piece, stride: piece, count: 1 }, &mut bytes).unwrap();
    bytes
}

/// What differs from the converter's file, a line each.
fn differences(file: &File, wanted: &Described) -> Vec<String> {
    let directory = file.directory();
    let names: BTreeSet<&str> = directory.tensors().iter().map(|it| it.name.as_str()).collect();
    let wanted_names: BTreeSet<&str> = wanted.tensors.keys().map(String::as_str).collect();
    let mut lines: Vec<String> = names
        .symmetric_difference(&wanted_names)
        .map(|name| format!("only one has {name}"))
        .collect();
    for (name, (ty, dims, hash)) in &wanted.tensors {
        let Some(tensor) = directory.find_tensor(name) else { continue };
        if tensor.ty.to_string() != *ty || tensor.dims != *dims {
            lines.push(format!("{name}: {} {:?}, not {ty} {dims:?}", tensor.ty, tensor.dims));
        } else {
            let found = blake3::hash(&bytes(file, tensor)).to_hex();
            if !found.starts_with(hash.as_str()) {
                lines.push(format!("{name}: other bytes"));
            }
        }
    }
    lines.extend(wanted.metadata.iter().filter_map(|(key, value)| differs(directory, key, value)));
    lines
}

fn differs(directory: &Directory, key: &str, wanted: &Value) -> Option<String> {
    let found = directory.get(key);
    let is_same = found.is_some_and(|found| match wanted {
        Value::String(text) => found.as_str() == Some(text),
        Value::Bool(flag) => found.as_bool() == Some(*flag),
        Value::Array(list) => found.as_array().is_some_and(|array| {
            let numbers: Option<Vec<f64>> = match (array.integers(), array.floats()) {
                (Some(all), _) => Some(all.map(|it| it as f64).collect()),
                (None, all) => all.map(|all| all.map(f64::from).collect()),
            };
            let number =
                |it: &Value| it.as_f64().or(it.as_bool().map(f64::from)).unwrap_or(f64::NAN);
            numbers.is_some_and(|found| found == list.iter().map(number).collect::<Vec<f64>>())
        }),
        number => {
            let is_whole = number.as_u64().is_some() && found.as_u64() == number.as_u64();
            is_whole || found.as_f32() == number.as_f64().map(|it| it as f32)
        }
    });
    (!is_same).then(|| format!("{key}: {found:?}, not {wanted}"))
}

#[test]
fn folders_become_what_the_converter_makes_of_them() {
    let only = std::env::var("ONLY").unwrap_or_default();
    let is_wanted = |name: &String| only.is_empty() || only.split(',').any(|it| it == name);
    let names: Vec<String> = names().into_iter().filter(is_wanted).collect();
    assert!(!names.is_empty());
    let mut failed = Vec::new();
    for name in names {
        let (wanted, dir) = (described(&name), tempfile::tempdir().unwrap());
        wanted.write(dir.path(), 2);
        match checkpoint::open(dir.path()) {
            Ok(file) => {
                let lines = differences(&file, &wanted);
                failed.extend(lines.into_iter().map(|line| format!("{name}: {line}")));
            }
            Err(error) => failed.push(format!("{name}: {error}")),
        }
    }
    assert!(failed.is_empty(), "{}", failed.join("\n"));
}

/// llama.cpp's converter leaves the blocks of DeepSeek V3 out. They are like those of V3.2, but for
/// the indexer.
#[test]
fn a_block_of_deepseek_v3_becomes_what_one_of_v3_2_does() {
    let (mut wanted, dir) = (described("deepseek32-mtp"), tempfile::tempdir().unwrap());
    wanted.config["architectures"] = serde_json::json!(["DeepseekV3ForCausalLM"]);
    wanted.weights.retain(|name, _| !name.contains("indexer"));
    wanted.tensors.retain(|name, _| !name.contains("indexer"));
    wanted.metadata.retain(|key, _| !key.contains("indexer") && key != "general.architecture");
    let metadata = std::mem::take(&mut wanted.metadata).into_iter();
    wanted.metadata =
        metadata.map(|(key, value)| (key.replace("deepseek32.", "deepseek2."), value)).collect();
    wanted.write(dir.path(), 1);
    let file = checkpoint::open(dir.path()).unwrap();
    assert_eq!(differences(&file, &wanted), [] as [String; 0]);
    assert!(layout::Outline::read(file.directory()).unwrap().mtp.is_some());
}

/// A checkpoint as mlx-lm saves it: experts stacked, channels of convolutions last, whole gains.
fn mlx(tensors: Vec<Stored>) -> Vec<Stored> {
    let has_states = tensors.iter().any(|tensor| tensor.0.contains("conv1d.weight"));
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
        if has_states && name.ends_with("norm.weight") && !name.contains("linear_attn") {
            let whole = |number: &[u8; 2]| {
                let number = f32::from_bits(u32::from(u16::from_le_bytes(*number)) << 16) + 1.0;
                ((number.to_bits() >> 16) as u16).to_le_bytes()
            };
            bytes = bytes.as_chunks().0.iter().flat_map(whole).collect();
        }
        let name = format!("language_model.{name}");
        found.insert(name.clone(), (name, dtype, shape, bytes));
    }
    for (name, all) in experts {
        let (_, dtype, shape, _) = all[&0].clone();
        let shape = [vec![all.len() as u64], shape].concat();
        let bytes = all.into_values().flat_map(|expert| expert.3).collect();
        let name = format!("language_model.{name}");
        found.insert(name.clone(), (name, dtype, shape, bytes));
    }
    found.into_values().collect()
}

#[test]
fn mlx_s_names_and_layouts_become_the_same_files() {
    for name in ["qwen3moe", "mixtral", "minimax-m2", "glm4moe", "qwen35", "qwen35moe", "qwen3next"]
    {
        let (wanted, dir) = (described(name), tempfile::tempdir().unwrap());
        wanted.write_unlisted(dir.path());
        let file = safetensors(&mlx(wanted.tensors()));
        std::fs::write(dir.path().join("weights.safetensors"), file).unwrap();
        let file = checkpoint::open(dir.path()).unwrap();
        assert_eq!(differences(&file, &wanted), [] as [String; 0], "{name}");
    }
}

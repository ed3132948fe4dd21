//! Checkpoints that `fixtures/generate/checkpoints.py` describes.
#![allow(dead_code)] // Each test uses a part of it.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use fixtures::random;
use serde::Deserialize;
use serde_json::Value;

/// A tokenizer of no tokens.
pub const TOKENIZER: &str = r#"{"added_tokens":[],"model":{"type":"BPE","vocab":{},"merges":[]},
    "pre_tokenizer":{"type":"ByteLevel","add_prefix_space":false}}"#;

/// A checkpoint, and the GGUF file that llama.cpp's converter made of it.
#[derive(Deserialize)]
pub struct Described {
    pub config: Value,
    /// The shapes of its tensors.
    pub weights: BTreeMap<String, Vec<u64>>,
    /// The types of those that are not in bf16.
    #[serde(default)]
    pub types: BTreeMap<String, String>,
    pub metadata: BTreeMap<String, Value>,
    /// Type, dimensions and the beginning of the BLAKE3 hash of each tensor.
    pub tensors: BTreeMap<String, (String, Vec<u64>, String)>,
}

fn folder() -> PathBuf {
    fixtures::path("checkpoints")
}

/// The names of all descriptions.
pub fn names() -> Vec<String> {
    let entries = fs::read_dir(folder()).unwrap().map(|entry| entry.unwrap().file_name());
    let names = entries.filter_map(|name| Some(name.to_str()?.strip_suffix(".json")?.to_owned()));
    let mut names: Vec<String> = names.collect();
    names.sort();
    names
}

pub fn described(name: &str) -> Described {
    let text = fs::read(folder().join(format!("{name}.json"))).unwrap();
    serde_json::from_slice(&text).unwrap()
}

/// Whole 64ths in bf16.
pub fn numbers(name: &str, count: u64) -> Vec<u8> {
    let number = |x: u64| ((x >> 56) as f32 - 128.0) / 64.0;
    let bf16 = |x: u64| ((number(x).to_bits() >> 16) as u16).to_le_bytes();
    random(name, count).flat_map(bf16).collect()
}

const TYPES: [&str; 5] = ["BF16", "I64", "I8", "F8_E8M0", "BOOL"];

/// A tensor's bytes: integers, powers of two near 1, or whole 64ths.
fn content(name: &str, count: u64, dtype: &str) -> Vec<u8> {
    let all = random(name, count);
    match dtype {
        "BOOL" => all.map(|x| (x >> 56) as u8 % 2).collect(),
        "I64" if name == "d2t" => (0..count).flat_map(|at| (at / 3).to_le_bytes()).collect(),
        "I64" => all.flat_map(|x| (x >> (64 - bits_of(name))).to_le_bytes()).collect(),
        "I8" => all.map(|x| (x >> 56) as u8).collect(),
        "F8_E8M0" => all.map(|x| 120 + (x >> 56) as u8 % 16).collect(),
        _ => numbers(name, count),
    }
}

/// The bits of integers of a tensor.
fn bits_of(name: &str) -> u32 {
    let known = [("layer_multipliers", 44), ("tid2eid", 2)];
    known.iter().find(|(end, _)| name.ends_with(end)).map_or(7, |(_, bits)| *bits)
}

/// A safetensors file of tensors: name, type, shape, bytes.
pub fn safetensors(tensors: &[Stored]) -> Vec<u8> {
    let (mut header, mut end) = (serde_json::Map::new(), 0);
    for (name, dtype, shape, bytes) in tensors {
        let offsets = [end, end + bytes.len()];
        end += bytes.len();
        let entry = serde_json::json!({"dtype": dtype, "shape": shape, "data_offsets": offsets});
        header.insert(name.clone(), entry);
    }
    let header = serde_json::to_vec(&header).unwrap();
    let mut out = (header.len() as u64).to_le_bytes().to_vec();
    out.extend(header);
    tensors.iter().for_each(|tensor| out.extend(&tensor.3));
    out
}

/// A tensor of a checkpoint: name, type, shape, bytes.
pub type Stored = (String, &'static str, Vec<u64>, Vec<u8>);

impl Described {
    /// The tensors of the checkpoint.
    pub fn tensors(&self) -> Vec<Stored> {
        let tensor = |(name, shape): (&String, &Vec<u64>)| {
            let wanted = self.types.get(name).map_or("BF16", String::as_str);
            let dtype = TYPES.into_iter().find(|dtype| *dtype == wanted).expect(wanted);
            let bytes = content(name, shape.iter().product(), dtype);
            (name.clone(), dtype, shape.clone(), bytes)
        };
        self.weights.iter().map(tensor).collect()
    }

    /// Writes the checkpoint into a folder, its tensors spread over `shards` files.
    pub fn write(&self, folder: &Path, shards: usize) {
        fs::create_dir_all(folder).unwrap();
        fs::write(folder.join("config.json"), self.config.to_string()).unwrap();
        fs::write(folder.join("tokenizer.json"), TOKENIZER).unwrap();
        let tensors = self.tensors();
        let mut map = serde_json::Map::new();
        for (at, tensors) in tensors.chunks(tensors.len().div_ceil(shards)).enumerate() {
            let name = format!("model-{:05}-of-{shards:05}.safetensors", at + 1);
            fs::write(folder.join(&name), safetensors(tensors)).unwrap();
            map.extend(tensors.iter().map(|it| (it.0.clone(), Value::from(name.clone()))));
        }
        let index = serde_json::json!({"weight_map": map});
        fs::write(folder.join("model.safetensors.index.json"), index.to_string()).unwrap();
    }

    /// Writes the checkpoint as a folder without an index, to which files can be added.
    pub fn write_unlisted(&self, folder: &Path) {
        self.write(folder, 1);
        fs::remove_file(folder.join("model.safetensors.index.json")).unwrap();
        let weights = folder.join("model-00001-of-00001.safetensors");
        fs::rename(weights, folder.join("weights.safetensors")).unwrap();
    }
}

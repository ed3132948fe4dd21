//! Turns a GGUF fixture back into the folder that it was converted from: tensors under
//! transformers' names, and `tokenizer.json`.
#![allow(dead_code)] // Each test uses a part of it.

use std::fs;
use std::path::{Path, PathBuf};

use gguf::{Directory, File, Source, Strided, TensorInfo, TensorType};
use serde_json::{Map, Value, json};

/// A tensor of a checkpoint: name, type, shape, bytes.
pub type Stored = (String, &'static str, Vec<u64>, Vec<u8>);

const NAMES: &[(&str, &str)] = &[
    ("token_embd", "model.embed_tokens"),
    ("output_norm", "model.norm"),
    ("output", "lm_head"),
    ("attn_norm", "input_layernorm"),
    ("attn_q", "self_attn.q_proj"),
    ("attn_k", "self_attn.k_proj"),
    ("attn_v", "self_attn.v_proj"),
    ("attn_output", "self_attn.o_proj"),
    ("attn_q_norm", "self_attn.q_norm"),
    ("attn_k_norm", "self_attn.k_norm"),
    ("ffn_norm", "post_attention_layernorm"),
    ("ffn_gate", "mlp.gate_proj"),
    ("ffn_up", "mlp.up_proj"),
    ("ffn_down", "mlp.down_proj"),
    ("ffn_gate_inp", "mlp.gate"),
    ("ffn_gate_exps", "mlp.experts.{}.gate_proj"),
    ("ffn_up_exps", "mlp.experts.{}.up_proj"),
    ("ffn_down_exps", "mlp.experts.{}.down_proj"),
];

const QWEN2: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";

pub fn fixture(name: &str, extension: &str) -> PathBuf {
    fixtures::path(&format!("models/{name}.{extension}"))
}

/// Writes the folder of a fixture, its tensors spread over two files. Changes of its numbers are up
/// to `change`.
pub fn unmake(name: &str, folder: &Path, change: impl Fn(Stored) -> Vec<Stored>) {
    let file = File::open(fixture(name, "gguf")).unwrap();
    let about: Value = serde_json::from_slice(&fs::read(fixture(name, "json")).unwrap()).unwrap();
    let directory = file.directory();
    fs::create_dir_all(folder).unwrap();
    fs::write(folder.join("config.json"), about["hf_config"].to_string()).unwrap();
    fs::write(folder.join("tokenizer.json"), tokenizer(directory).to_string()).unwrap();
    let read = |tensor: &TensorInfo| stored(&file, tensor);
    let tensors: Vec<Stored> = directory.tensors().iter().flat_map(read).flat_map(change).collect();
    let mut map = Map::new();
    for (at, tensors) in tensors.chunks(tensors.len().div_ceil(2)).enumerate() {
        let file = format!("model-{:05}-of-00002.safetensors", at + 1);
        fs::write(folder.join(&file), safetensors(tensors)).unwrap();
        map.extend(tensors.iter().map(|it| (it.0.clone(), json!(file))));
    }
    let index = json!({"weight_map": map}).to_string();
    fs::write(folder.join("model.safetensors.index.json"), index).unwrap();
}

fn safetensors(tensors: &[Stored]) -> Vec<u8> {
    let (mut header, mut end) = (Map::new(), 0);
    for (name, dtype, shape, bytes) in tensors {
        let offsets = [end, end + bytes.len()];
        end += bytes.len();
        let entry = json!({"dtype": dtype, "shape": shape, "data_offsets": offsets});
        header.insert(name.clone(), entry);
    }
    let header = Value::from(header).to_string();
    let mut out = (header.len() as u64).to_le_bytes().to_vec();
    out.extend(header.as_bytes());
    tensors.iter().for_each(|tensor| out.extend(&tensor.3));
    out
}

/// The tensors of the checkpoint that a tensor of GGUF came from.
fn stored(file: &File, tensor: &TensorInfo) -> Vec<Stored> {
    let name = &tensor.name;
    if name == "rope_freqs.weight" {
        return Vec::new();
    }
    let (start, piece) = (tensor.range.start, tensor.range.end - tensor.range.start);
    let mut bytes = vec![0; piece as usize];
    file.read(Strided { start, piece, stride: piece, count: 1 }, &mut bytes).unwrap();
    let (stem, suffix) = name.rsplit_once('.').unwrap();
    let layer = stem.strip_prefix("blk.").and_then(|rest| rest.split_once('.'));
    let inside = layer.map_or(stem, |(_, inside)| inside);
    let of = NAMES.iter().find(|(own, _)| *own == inside).expect(name).1;
    let of = layer.map_or(of.to_owned(), |(layer, _)| format!("model.layers.{layer}.{of}"));
    let dtype = match tensor.ty {
        TensorType::F32 => "F32",
        TensorType::F16 => "F16",
        TensorType::BF16 => "BF16",
        ty => panic!("{name} is {ty}"),
    };
    let shape: Vec<u64> = tensor.dims.iter().rev().copied().collect();
    let heads = |key: &str| {
        let architecture = file.directory().str("general.architecture").unwrap();
        let is_llama = architecture == "llama";
        is_llama.then(|| file.directory().u64(&format!("llama.attention.{key}")).unwrap())
    };
    let heads = match inside {
        "attn_q" => heads("head_count"),
        "attn_k" => heads("head_count_kv"),
        _ => None,
    };
    if let Some(heads) = heads {
        bytes = halves(&bytes, shape[0] as usize, heads as usize);
    }
    if !of.contains("{}") {
        return vec![(format!("{of}.{suffix}"), dtype, shape, bytes)];
    }
    let experts = bytes.chunks(bytes.len() / shape[0] as usize).enumerate();
    let expert = |(at, bytes): (usize, &[u8])| {
        let name = format!("{}.{suffix}", of.replace("{}", &at.to_string()));
        (name, dtype, shape[1..].to_vec(), bytes.to_vec())
    };
    experts.map(expert).collect()
}

/// The rows of each head, the even ones first.
fn halves(bytes: &[u8], rows: usize, heads: usize) -> Vec<u8> {
    let (row, per) = (bytes.len() / rows, rows / heads);
    let place = |at: usize| at / per * per + at % (per / 2) * 2 + at % per / (per / 2);
    (0..rows).flat_map(|at| bytes[place(at) * row..][..row].iter().copied()).collect()
}

fn texts(directory: &Directory, key: &str) -> Vec<String> {
    let array = directory.find_array(&format!("tokenizer.ggml.{key}")).unwrap();
    let texts = array.into_iter().flat_map(|array| array.strings().unwrap());
    texts.map(|text| String::from_utf8(text.to_vec()).unwrap()).collect()
}

/// `tokenizer.json` of a file's tokenizer.
fn tokenizer(directory: &Directory) -> Value {
    let tokens = texts(directory, "tokens");
    let kinds = directory.find_array("tokenizer.ggml.token_type").unwrap().unwrap();
    let kinds: Vec<i64> = kinds.integers().unwrap().collect();
    let (mut vocab, mut added) = (Map::new(), Vec::new());
    for (id, (token, kind)) in tokens.iter().zip(&kinds).enumerate() {
        match kind {
            3 | 4 => added.push(json!({"id": id, "content": token, "special": *kind == 3})),
            5 => {}
            _ => {
                vocab.insert(token.clone(), json!(id));
            }
        }
    }
    let is_spm = directory.str("tokenizer.ggml.model").unwrap() == "llama";
    let merges = if is_spm { merges_of(directory, &tokens, &vocab) } else { merges(directory) };
    let pre = directory.find_str("tokenizer.ggml.pre").unwrap().unwrap_or_default();
    let pattern =
        if pre == "qwen2" { QWEN2.to_owned() } else { QWEN2.replace(r"\p{N}|", r"\p{N}{1,3}|") };
    let split = json!({"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated"});
    let bytes = json!({"type": "ByteLevel", "add_prefix_space": false, "use_regex": false});
    let meta = "\u{2581}";
    let prepend = json!({"type": "Prepend", "prepend": meta});
    let replace = json!({"type": "Replace", "pattern": {"String": " "}, "content": meta});
    let pre_tokenizer = json!({"type": "Sequence", "pretokenizers": [split, bytes]});
    let normalizer = json!({"type": "Sequence", "normalizers": [prepend, replace]});
    let adds_bos = directory.find_bool("tokenizer.ggml.add_bos_token").unwrap().unwrap_or(is_spm);
    let bos = directory.find_u64("tokenizer.ggml.bos_token_id").unwrap();
    let bos =
        bos.filter(|_| adds_bos).map(|bos| json!({"SpecialToken": {"id": tokens[bos as usize]}}));
    let single: Vec<Value> = bos.into_iter().chain([json!({"Sequence": {"id": "A"}})]).collect();
    json!({
        "added_tokens": added,
        "normalizer": if is_spm { normalizer } else { Value::Null },
        "pre_tokenizer": if is_spm { Value::Null } else { pre_tokenizer },
        "post_processor": {"type": "TemplateProcessing", "single": single},
        "model": {
            "type": "BPE", "vocab": vocab, "merges": merges, "byte_fallback": is_spm,
            "ignore_merges": pre == "llama-bpe", "unk_token": if is_spm { json!("<unk>") } else { Value::Null },
        },
    })
}

fn merges(directory: &Directory) -> Vec<Value> {
    texts(directory, "merges").into_iter().map(Value::from).collect()
}

/// The merges of SentencePiece's pieces, the best score first, as transformers recovers them.
fn merges_of(directory: &Directory, tokens: &[String], vocab: &Map<String, Value>) -> Vec<Value> {
    let scores = directory.find_array("tokenizer.ggml.scores").unwrap().unwrap();
    let mut found = Vec::new();
    for (token, score) in tokens.iter().zip(scores.floats().unwrap()) {
        let cuts = token.char_indices().skip(1).map(|(at, _)| token.split_at(at));
        for (left, right) in cuts.filter(|_| vocab.contains_key(token)) {
            if vocab.contains_key(left) && vocab.contains_key(right) {
                found.push((score, json!([left, right])));
            }
        }
    }
    found.sort_by(|a, b| b.0.total_cmp(&a.0));
    found.into_iter().map(|(_, merge)| merge).collect()
}

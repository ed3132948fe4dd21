//! An infinite or NaN weight, anywhere in a model: the answer ends in an error that reports it, on
//! one rank and on two.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use crate::references::{QUANTISED_MODELS, path, prompts};
use engine::{EngineError, Local, LocalOptions};
use gguf::{Memory, Source, TensorInfo, TensorType};
use protocol::{
    CacheType, GenerateRequest, Pooling, Sampling, Split, SplitOptions, Token, WireType,
};

/// One model of each kind of layer; `QUANTISED_MODELS` have every type of weights.
const KINDS: &[&str] = &[
    "models/llama3-tied",
    "models/qwen2",
    "models/qwen3",
    "models/gemma2",
    "models/qwen2moe",
    "models/phimoe",
    "models/llama4",
    "models/cohere2",
    "models/step35",
    "models/minimax-m3",
    "models/deepseek32",
    "models/deepseek4",
    "models/nemotron_h_moe",
    "models/lfm2moe",
    "models/kimi-linear",
    "models/kimi-k3",
    "models/qwen4exp",
];

/// All of them. The prompts of DeepSeek V4's other files are shorter than its blocks of positions, so
/// that not every tensor is used.
fn models() -> impl Iterator<Item = &'static &'static str> {
    let quantised = QUANTISED_MODELS.iter().filter(|name| !name.contains("deepseek4"));
    quantised.chain(KINDS)
}

const BAD: [f32; 3] = [f32::NAN, f32::INFINITY, f32::NEG_INFINITY];
const CACHES: [CacheType; 4] = [CacheType::I16, CacheType::F16, CacheType::Q8_0, CacheType::F32];

/// The damaged rows of a tensor: one, chosen by `usize`, or all.
#[derive(Debug, Clone, Copy)]
enum Rows {
    One(usize),
    All,
}

fn healthy(name: &str) -> Memory {
    let bytes = std::fs::read(path(name, "gguf")).expect("the fixture is in the repository");
    Memory::new(bytes).expect("it is a model")
}

/// The model with a bad number in one column of some rows. `None`: the tensor cannot contain
/// one.
fn damaged(name: &str, tensor: &TensorInfo, bad: f32, rows: Rows) -> Option<Memory> {
    // Every scale of a block in MXFP4 or NVFP4 is finite.
    if [TensorType::I32, TensorType::MXFP4, TensorType::NVFP4].contains(&tensor.ty) {
        return None;
    }
    let mut model = healthy(name);
    let (row_bytes, all) = (tensor.row_bytes(), tensor.rows());
    let unit = tensor.ty.block_bytes();
    let column = tensor.columns() / 2 / tensor.ty.block_len() * unit;
    let rows = match rows {
        Rows::One(row) => row % all..row % all + 1,
        Rows::All => 0..all,
    };
    for row in rows {
        let at = tensor.range.start as usize + row * row_bytes + column;
        put(tensor.ty, &mut model.bytes_mut()[at..at + unit], bad);
    }
    Some(model)
}

/// Writes a bad number, or a bad scale of a block.
fn put(ty: TensorType, block: &mut [u8], bad: f32) {
    let half = match bad {
        bad if bad.is_nan() => 0x7e00_u16,
        bad if bad > 0.0 => 0x7c00,
        _ => 0xfc00,
    };
    if ty == TensorType::IQ1_M {
        // A quarter of the scale in each of four words.
        (0..4).for_each(|i| {
            block[49 + 2 * i] = block[49 + 2 * i] & 15 | (half >> (4 * i) << 4) as u8
        });
        return;
    }
    let scale = match ty {
        TensorType::F32 => return block.copy_from_slice(&bad.to_le_bytes()),
        TensorType::BF16 => return block.copy_from_slice(&bad.to_le_bytes()[2..]),
        TensorType::Q2_K => 80,
        TensorType::Q3_K => 108,
        TensorType::Q6_K => 208,
        TensorType::TQ1_0 => 52,
        TensorType::TQ2_0 => 64,
        _ => 0,
    };
    block[scale..scale + 2].copy_from_slice(&half.to_le_bytes());
}

fn start(model: Memory, ranks: usize, cache_type: CacheType, wire_type: WireType) -> Local {
    try_start(model, ranks, cache_type, wire_type).unwrap()
}

fn try_start(
    model: Memory,
    ranks: usize,
    cache_type: CacheType,
    wire_type: WireType,
) -> Result<Local, EngineError> {
    let options = LocalOptions {
        prompts: None,
        experts: None,
        options: SplitOptions { cache_type, wire_type, ..SplitOptions::default() },
        split: Split {
            shares: vec![1; ranks],
            stages: Vec::new(),
            whole_experts: false,
            context_tokens: 320,
            sequences_max: 2,
            cache_tokens: 640,
            ..Split::default()
        },
        ring: false,
        link_latency: Duration::ZERO,
        threads: 1,
    };
    Local::start(Arc::new(model), &options)
}

/// The longest of a model's prompts.
fn prompt(name: &str) -> Vec<Token> {
    prompts(name).pop().expect("it has prompts").ids
}

/// The last tensor of each kind.
fn kinds(model: &Memory) -> Vec<TensorInfo> {
    let mut kinds = BTreeMap::new();
    for tensor in model.directory().tensors() {
        let kind = tensor.name.trim_start_matches("blk.").trim_start_matches(char::is_numeric);
        kinds.insert(kind.to_owned(), tensor.clone());
    }
    kinds.into_values().collect()
}

/// On one rank and on two, in every kind of cache, every bad number in turn.
#[test]
fn a_bad_weight_in_any_tensor_ends_the_answer_by_name() {
    let mut turn = 0;
    for name in models() {
        let (healthy, prompt) = (healthy(name), prompt(name));
        for tensor in kinds(&healthy) {
            turn += 1;
            let bad = BAD[turn % 3];
            // A token's embedding is one row, and an answer uses only some experts.
            let is_chosen = ["embd", "exps", "ngram"].iter().any(|part| tensor.name.contains(part));
            let rows = if is_chosen || turn % 5 == 0 { Rows::All } else { Rows::One(7 * turn) };
            let Some(model) = damaged(name, &tensor, bad, rows) else { continue };
            let (ranks, cache) = (1 + turn % 2, CACHES[turn / 2 % 4]);
            let wire = if turn % 4 == 1 { WireType::Q8 } else { WireType::F32 };
            let what = format!("{name}, {bad} in {} on {ranks} ranks, {cache:?}", tensor.name);
            match try_start(model, ranks, cache, wire) {
                // Rotation factors are checked while a model is loaded.
                Err(EngineError::Model(error)) if tensor.name.starts_with("rope") => {
                    assert!(error.to_string().contains("rotation"), "{what}: {error}");
                }
                local => match local.unwrap().generate(&prompt, 2) {
                    Err(EngineError::NotFinite(_)) => {}
                    found => panic!("{what}: {found:?}"),
                },
            }
        }
    }
}

/// Everything that clients may request: likeliest tokens, all logits, adjusted ones, embeddings.
#[test]
fn no_request_is_answered_by_a_model_whose_last_norm_is_no_number() {
    let name = "quant/llama-q256-l1.Q8_0";
    let prompt = prompt(name);
    let request = GenerateRequest { prompt, max_tokens: 3, ..GenerateRequest::default() };
    let sampled = Sampling { temperature: 0.8, seed: 1, ..Sampling::default() };
    let top = Sampling { top_k: 40, ..sampled.clone() };
    let biased = Sampling { logit_bias: vec![(1, -100.0)], ..Sampling::default() };
    let samplings = [Sampling::default(), sampled, top, biased];
    let requests = samplings.map(|sampling| GenerateRequest { sampling, ..request.clone() });
    let logprobs = GenerateRequest { logprobs: Some(3), ..request.clone() };
    let poolings = [Pooling::Last, Pooling::Mean].map(Some);
    let embeddings = poolings.map(|embedding| GenerateRequest { embedding, ..request.clone() });
    for ranks in [1, 2] {
        let mut model = healthy(name);
        let norm = model.directory().tensor("output_norm.weight").unwrap().range.clone();
        let norm = &mut model.bytes_mut()[norm.start as usize..norm.end as usize];
        norm.chunks_exact_mut(4).for_each(|gain| gain.copy_from_slice(&f32::NAN.to_le_bytes()));
        let mut local = start(model, ranks, CacheType::Auto, WireType::F32);
        for request in requests.iter().chain([&logprobs]) {
            let error = local.serve(vec![request.clone()]).unwrap_err().to_string();
            assert!(error.contains("not a number"), "{error}");
        }
        for request in &embeddings {
            let error = local.embed(vec![request.clone()]).unwrap_err().to_string();
            assert!(error.contains("not a number"), "{error}");
        }
    }
}

/// A model with a bad embedding of one token. Requests without it get normal answers, also in pages
/// freed by a request with it.
#[test]
fn who_does_not_meet_the_bad_token_is_answered_as_ever() {
    let name = "models/llama3-tied";
    // The output head has the same bad row, so no token can be drawn: only embeddings work.
    let good = |seed: u32| GenerateRequest {
        prompt: (0..90).map(|at| 5 + (at * 7 + seed) % 100).collect(),
        max_tokens: 1,
        embedding: Some(Pooling::Last),
        ..GenerateRequest::default()
    };
    let bad_prompt = (0..150).map(|at| if at == 70 { 200 } else { 5 + at % 90 }).collect();
    let bad = GenerateRequest { prompt: bad_prompt, ..good(0) };
    for cache in CACHES {
        let of = |model| start(model, 1, cache, WireType::F32);
        let due = of(healthy(name)).embed(vec![good(1), good(2)]).unwrap();
        let healthy = healthy(name);
        let table = healthy.directory().tensor("token_embd.weight").unwrap();
        let mut local = of(damaged(name, table, f32::NAN, Rows::One(200)).unwrap());
        for _ in 0..3 {
            let error = local.embed(vec![bad.clone()]).unwrap_err().to_string();
            assert!(error.contains("not a number"), "{error}");
            assert_eq!(local.embed(vec![good(1), good(2)]).unwrap(), due, "{cache:?}");
        }
    }
}

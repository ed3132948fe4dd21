//! Shapes with special GPU kernels, or none: heads of 128, rotated by neighbours and by halves,
//! latent attention of 512 and 64, sinks with heads of 64, each with queries that do not divide
//! evenly over the heads of the cache. Small models with random weights, generated here; the
//! reference is Sinew's engine on the CPU, which other fixtures compare with other implementations.
//!
//! As in `gpu.rs`, the tests need ggml's libraries.

use crate::device;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::device::{largest_difference, libraries, options, spread};
use backend::Ggml;
use engine::Local;
use gguf::{Memory, Source, TensorType, Value, Writer};
use protocol::{CacheType, GenerateRequest, Token};

const WIDTH: u64 = 256;
const VOCAB: u64 = 320;
const CONTEXT_TOKENS: usize = 1024;
const LAYERS: u64 = 2;
const HIDDEN: u64 = 192;
const EXPERTS: u64 = 6;

/// Six heads; three each share keys and values. Over three ranks one group is cut in two, over two
/// ranks of 2 : 1 one and a third.
const HEADS: u64 = 6;
const KV_HEADS: u64 = 2;
const SPLITS: [&[u32]; 4] = [&[1], &[1, 1], &[2, 1], &[1, 3, 2]];

/// Names and dimensions.
type Tensors = Vec<(&'static str, Vec<u64>)>;

/// A model of `arch` with these sizes, floats and additional tensors of each layer.
fn model(
    arch: &str,
    sizes: &[(&str, u64)],
    floats: &[(&str, f32)],
    layer: fn(u64) -> Tensors,
) -> Arc<dyn Source> {
    let mut file = Writer::new();
    file.set("general.architecture", Value::String(arch.to_owned()));
    let common = [
        ("block_count", LAYERS),
        ("embedding_length", WIDTH),
        ("feed_forward_length", HIDDEN),
        ("context_length", CONTEXT_TOKENS as u64),
        ("attention.head_count", HEADS),
    ];
    for (key, size) in common.iter().chain(sizes) {
        file.set(&format!("{arch}.{key}"), Value::U32(*size as u32));
    }
    let common = [("attention.layer_norm_rms_epsilon", 1e-5), ("rope.freq_base", 10_000.0)];
    for (key, number) in common.iter().chain(floats) {
        file.set(&format!("{arch}.{key}"), Value::F32(*number));
    }
    let mut declare = |name: &str, dims: &[u64]| {
        let is_float = dims.len() == 1 || name.contains("gate_inp") || name.ends_with("bias");
        file.declare(name, dims, if is_float { TensorType::F32 } else { TensorType::F16 });
    };
    declare("token_embd.weight", &[WIDTH, VOCAB]);
    declare("output_norm.weight", &[WIDTH]);
    declare("output.weight", &[WIDTH, VOCAB]);
    for at in 0..LAYERS {
        for (name, dims) in layer(at) {
            declare(&format!("blk.{at}.{name}"), &dims);
        }
    }
    let mut random = fastrand::Rng::with_seed(22);
    let mut bytes = Vec::new();
    let fill = |name: &str, ty: TensorType, len: u64, out: &mut Vec<u8>| {
        // Uniform, with a variance of about one over the number of inputs; norms are around one.
        let (mean, reach) = match name {
            name if name.contains("norm") => (1.0, 0.5),
            name if name.contains("token_embd") || name.ends_with("bias") => (0.0, 0.3),
            name if name.contains("sinks") => (0.0, 2.0),
            _ => (0.0, 0.12),
        };
        let mut number = || mean + reach * (2.0 * random.f32() - 1.0);
        match ty {
            TensorType::F32 => (0..len / 4).for_each(|_| out.extend(number().to_le_bytes())),
            _ => (0..len / 2).for_each(|_| out.extend(half(number()).to_le_bytes())),
        }
        Ok(())
    };
    file.write(&mut bytes, fill).unwrap();
    Arc::new(Memory::new(bytes).unwrap())
}

/// Half precision by truncation; numbers below 2^-14 become zero, and large ones are not supported.
fn half(number: f32) -> u16 {
    let bits = number.to_bits();
    let exponent = (bits >> 23 & 0xff) as i32 - 127;
    let sign = (bits >> 16 & 0x8000) as u16;
    match exponent {
        -14..=15 => sign | ((exponent + 15) as u16) << 10 | (bits >> 13 & 0x3ff) as u16,
        _ => sign,
    }
}

fn dense() -> Tensors {
    vec![
        ("ffn_norm.weight", vec![WIDTH]),
        ("ffn_gate.weight", vec![WIDTH, HIDDEN]),
        ("ffn_up.weight", vec![WIDTH, HIDDEN]),
        ("ffn_down.weight", vec![HIDDEN, WIDTH]),
    ]
}

fn experts() -> Tensors {
    vec![
        ("ffn_gate_inp.weight", vec![WIDTH, EXPERTS]),
        ("ffn_gate_exps.weight", vec![WIDTH, HIDDEN, EXPERTS]),
        ("ffn_up_exps.weight", vec![WIDTH, HIDDEN, EXPERTS]),
        ("ffn_down_exps.weight", vec![HIDDEN, WIDTH, EXPERTS]),
    ]
}

fn grouped(dim: u64) -> Tensors {
    vec![
        ("attn_norm.weight", vec![WIDTH]),
        ("attn_q.weight", vec![WIDTH, HEADS * dim]),
        ("attn_k.weight", vec![WIDTH, KV_HEADS * dim]),
        ("attn_v.weight", vec![WIDTH, KV_HEADS * dim]),
        ("attn_output.weight", vec![HEADS * dim, WIDTH]),
    ]
}

fn heads_of_128() -> Arc<dyn Source> {
    let sizes = [
        ("attention.head_count_kv", KV_HEADS),
        ("attention.key_length", 128),
        ("attention.value_length", 128),
        ("rope.dimension_count", 128),
    ];
    model("llama", &sizes, &[], |_| [grouped(128), dense()].concat())
}

/// Rotated by halves, as in all models but Llama's relatives: CUDA has another kernel for these.
fn heads_rotated_by_halves() -> Arc<dyn Source> {
    let sizes = [
        ("attention.head_count_kv", KV_HEADS),
        ("attention.key_length", 128),
        ("attention.value_length", 128),
    ];
    model("qwen3", &sizes, &[], |_| {
        let norms = vec![("attn_q_norm.weight", vec![128]), ("attn_k_norm.weight", vec![128])];
        [grouped(128), norms, dense()].concat()
    })
}

/// DeepSeek-V3's sizes: 512 elements for keys and values, and 64 rotated ones.
fn latent_of_512_and_64() -> Arc<dyn Source> {
    let sizes = [
        ("attention.head_count_kv", 1),
        ("attention.key_length", 576),
        ("attention.value_length", 512),
        ("attention.kv_lora_rank", 512),
        ("attention.key_length_mla", 192),
        ("attention.value_length_mla", 128),
        ("rope.dimension_count", 64),
        ("leading_dense_block_count", 1),
        ("expert_feed_forward_length", HIDDEN),
        ("expert_count", EXPERTS),
        ("expert_used_count", 2),
        ("expert_shared_count", 1),
    ];
    model("deepseek2", &sizes, &[("expert_weights_scale", 1.0)], |layer| {
        let attention = vec![
            ("attn_norm.weight", vec![WIDTH]),
            ("attn_q.weight", vec![WIDTH, HEADS * 192]),
            ("attn_kv_a_mqa.weight", vec![WIDTH, 576]),
            ("attn_kv_a_norm.weight", vec![512]),
            ("attn_k_b.weight", vec![128, 512, HEADS]),
            ("attn_v_b.weight", vec![512, 128, HEADS]),
            ("attn_output.weight", vec![HEADS * 128, WIDTH]),
        ];
        let shared = vec![
            ("ffn_norm.weight", vec![WIDTH]),
            ("ffn_gate_shexp.weight", vec![WIDTH, HIDDEN]),
            ("ffn_up_shexp.weight", vec![WIDTH, HIDDEN]),
            ("ffn_down_shexp.weight", vec![HIDDEN, WIDTH]),
        ];
        let rest = if layer == 0 { dense() } else { [shared, experts()].concat() };
        [attention, rest].concat()
    })
}

fn sinks_with_heads_of_64() -> Arc<dyn Source> {
    let sizes = [
        ("attention.head_count_kv", KV_HEADS),
        ("attention.key_length", 64),
        ("attention.value_length", 64),
        ("attention.sliding_window", 128),
        ("expert_feed_forward_length", HIDDEN),
        ("expert_count", EXPERTS),
        ("expert_used_count", 2),
    ];
    model("gpt-oss", &sizes, &[], |_| {
        let more = vec![
            ("post_attention_norm.weight", vec![WIDTH]),
            ("attn_sinks.weight", vec![HEADS]),
            ("attn_q.bias", vec![HEADS * 64]),
            ("attn_k.bias", vec![KV_HEADS * 64]),
            ("attn_v.bias", vec![KV_HEADS * 64]),
            ("attn_output.bias", vec![WIDTH]),
            ("ffn_gate_inp.bias", vec![EXPERTS]),
            ("ffn_gate_exps.bias", vec![HIDDEN, EXPERTS]),
            ("ffn_up_exps.bias", vec![HIDDEN, EXPERTS]),
            ("ffn_down_exps.bias", vec![WIDTH, EXPERTS]),
        ];
        [grouped(64), more, experts()].concat()
    })
}

fn prompt(seed: u64, len: usize) -> Vec<Token> {
    let mut random = fastrand::Rng::with_seed(seed);
    (0..len).map(|_| random.u32(..VOCAB as u32)).collect()
}

/// A device that takes longer for 380 tokens is emulated in software: its steps take a second, so
/// prompts get few rows beside answers.
// Short: tells devices apart, and decides about no test.
const SLOW: Duration = Duration::from_secs(2);

/// The most error of half-precision activations and cache, relative to the spread of the logits.
const MOST: f32 = 1e-2;

fn check(name: &str, source: &Arc<dyn Source>) {
    let of = |shares| options(3, CONTEXT_TOKENS, shares, CacheType::Auto);
    let exact = options(3, CONTEXT_TOKENS, &[1], CacheType::F32);
    let mut exact = Local::start(source.clone(), &exact).unwrap();
    let mut longest = 700;
    for shares in SPLITS {
        let mut local = device::start(name, source.clone(), &of(shares));
        let begun = Instant::now();
        for len in [300, 70, 9, 1] {
            let ids = prompt(len as u64, len);
            local.truncate(0);
            exact.truncate(0);
            let expected = exact.feed(&ids).unwrap();
            let error = largest_difference(local.feed(&ids).unwrap(), expected) / spread(expected);
            println!("{name} {shares:?}, {len} tokens: {error:e} of the spread");
            assert!(error <= MOST, "{name} {shares:?}, {len} tokens: {error}");
        }
        if begun.elapsed() > SLOW {
            longest = 70;
        }
        check_together(name, &mut local, &mut exact, [longest, 9, longest / 2, 40, 1]);
    }
}

/// Prompts of several steps beside concurrent answers: each token must be the best by the exact
/// logits, or as good as that.
fn check_together(name: &str, local: &mut Local<Ggml>, exact: &mut Local, lens: [usize; 5]) {
    let prompts: Vec<_> = lens.map(|len| prompt(100 + len as u64, len)).into();
    let requests = prompts.iter().map(|prompt| GenerateRequest {
        prompt: prompt.clone(),
        max_tokens: 12,
        ..GenerateRequest::default()
    });
    let mut wrong = Vec::new();
    let answers = local.serve(requests.collect()).unwrap();
    for (prompt, answer) in prompts.iter().zip(&answers) {
        assert_eq!(answer.len(), 12, "{name}");
        exact.truncate(0);
        let mut next = prompt.clone();
        for (position, token) in (prompt.len()..).zip(answer) {
            let logits = exact.feed(&next).unwrap();
            let best = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
            let lacks = (best - logits[*token as usize]) / spread(logits);
            if lacks > 2.0 * MOST {
                wrong.push(format!("after {position} tokens: {lacks}"));
            }
            next = vec![*token];
        }
    }
    assert_eq!(local.stats().pages.used, 0, "{name}");
    assert!(wrong.is_empty(), "{name}:\n{}", wrong.join("\n"));
}

#[test]
fn a_cache_of_eight_bits_with_heads_of_128_is_near_the_cpu() {
    if libraries().is_none() {
        return;
    }
    let source = heads_of_128();
    let exact = options(1, CONTEXT_TOKENS, &[1], CacheType::F32);
    let mut exact = Local::start(source.clone(), &exact).unwrap();
    for shares in [&[1][..], &[2, 1]] {
        let options = options(1, CONTEXT_TOKENS, shares, CacheType::Q8_0);
        let mut local = device::start("a cache of 8 bits", source.clone(), &options);
        for len in [300, 9, 1] {
            let ids = prompt(len as u64, len);
            local.truncate(0);
            exact.truncate(0);
            let expected = exact.feed(&ids).unwrap();
            let error = largest_difference(local.feed(&ids).unwrap(), expected) / spread(expected);
            println!("a cache of 8 bits {shares:?}, {len} tokens: {error:e} of the spread");
            assert!(error <= 2.0 * MOST, "{shares:?}, {len} tokens: {error}");
        }
    }
}

#[test]
fn heads_of_128_in_ragged_groups_agree_with_the_cpu() {
    if libraries().is_some() {
        check("heads of 128", &heads_of_128());
    }
}

#[test]
fn heads_rotated_by_halves_agree_with_the_cpu() {
    if libraries().is_some() {
        check("rotated by halves", &heads_rotated_by_halves());
    }
}

#[test]
fn latent_attention_of_512_and_64_agrees_with_the_cpu() {
    if libraries().is_some() {
        check("latent attention", &latent_of_512_and_64());
    }
}

#[test]
fn sinks_with_heads_of_64_agree_with_the_cpu() {
    if libraries().is_some() {
        check("sinks", &sinks_with_heads_of_64());
    }
}

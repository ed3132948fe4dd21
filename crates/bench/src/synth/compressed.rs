//! The shape of DeepSeek V4 Flash: a window, and compressed blocks before it; four residual
//! streams.

use gguf::{Value, Writer};

use super::shape::{Experts, LLAMA_1B, Role, Shape};

/// Sizes of compressed attention; `head_dim` is that of a key, which is also its value.
#[derive(Clone, Copy)]
pub struct Compressed {
    pub q_rank: u64,
    pub rope_dim: u64,
    pub window: u64,
    /// The number of groups of heads, and the width to which each group compresses its outputs.
    pub out_groups: u64,
    pub out_rank: u64,
    pub index_heads: u64,
    pub index_dim: u64,
    pub index_count: u64,
}

/// Residual streams, and the normalisation rounds of their mixture.
const STREAMS: u64 = 4;
const ROUNDS: u32 = 20;

/// The number of first layers that choose experts by the token's id.
pub const BY_TOKEN: u64 = 3;

pub const DEEPSEEK_V4_FLASH: Shape = Shape {
    names: &["deepseek-v4-flash"],
    arch: "deepseek4",
    layers: 43,
    width: 4096,
    heads: 64,
    kv_heads: 1,
    head_dim: 512,
    feed_forward: 2048,
    experts: Some(Experts {
        count: 256,
        used: 6,
        hidden: 2048,
        shared: 2048,
        dense_layers: 0,
        groups: 1,
    }),
    compressed: Some(Compressed {
        q_rank: 1024,
        rope_dim: 64,
        window: 128,
        out_groups: 8,
        out_rank: 1024,
        index_heads: 64,
        index_dim: 128,
        index_count: 512,
    }),
    vocab: 129_280,
    tied: false,
    rope_base: 10_000.0,
    context: 1_048_576,
    ..LLAMA_1B
};

/// 12 of its layers, with 16 experts each: a token reads as much of a layer as in the whole one.
pub const DEEPSEEK_V4_FEW: Shape = Shape {
    names: &["deepseek-v4-few"],
    layers: 12,
    experts: Some(Experts {
        count: 16,
        used: 6,
        hidden: 2048,
        shared: 2048,
        dense_layers: 0,
        groups: 1,
    }),
    vocab: 32_000,
    ..DEEPSEEK_V4_FLASH
};

/// Positions of a block in layer `layer`; 0 for a layer with only its window.
fn ratio(layer: u64) -> i32 {
    match layer {
        0 | 1 => 0,
        _ if layer.is_multiple_of(2) => 4,
        _ => 128,
    }
}

impl Compressed {
    pub fn describe(&self, shape: &Shape, writer: &mut Writer) {
        let key = |name: &str| format!("{}.{name}", shape.arch);
        for (name, value) in [
            ("attention.q_lora_rank", self.q_rank),
            ("attention.sliding_window", self.window),
            ("attention.output_group_count", self.out_groups),
            ("attention.output_lora_rank", self.out_rank),
            ("attention.indexer.head_count", self.index_heads),
            ("attention.indexer.key_length", self.index_dim),
            ("attention.indexer.top_k", self.index_count),
            ("hyper_connection.count", STREAMS),
            ("hash_layer_count", BY_TOKEN),
            ("embedding_length_out", STREAMS * shape.width),
        ] {
            writer.set(&key(name), Value::U32(value as u32));
        }
        let ratios: Vec<i32> = (0..shape.layers).map(ratio).collect();
        writer
            .set_i32s(&key("attention.compress_ratios"), &ratios)
            .set(&key("hyper_connection.sinkhorn_iterations"), Value::U32(ROUNDS))
            .set(&key("hyper_connection.epsilon"), Value::F32(1e-6))
            .set(&key("attention.compress_rope_freq_base"), Value::F32(160_000.0))
            .set(&key("swiglu_clamp_exp"), Value::F32(10.0));
    }

    pub fn tensors(&self, shape: &Shape, layer: u64) -> Vec<(&'static str, Vec<u64>, Role)> {
        let (width, heads, dim) = (shape.width, shape.heads, shape.head_dim);
        let (all, weights) = (STREAMS * width, (2 + STREAMS) * STREAMS);
        let mut tensors = vec![
            ("attn_norm", vec![width], Role::Norm),
            ("attn_q_a", vec![width, self.q_rank], Role::Query),
            ("attn_q_a_norm", vec![self.q_rank], Role::Norm),
            ("attn_q_b", vec![self.q_rank, heads * dim], Role::Query),
            ("attn_kv", vec![width, dim], Role::Key),
            ("attn_kv_a_norm", vec![dim], Role::Norm),
            ("attn_sinks", vec![heads], Role::Router),
            (
                "attn_output_a",
                vec![heads / self.out_groups * dim, self.out_groups * self.out_rank],
                Role::AttentionOutput,
            ),
            ("attn_output_b", vec![self.out_groups * self.out_rank, width], Role::AttentionOutput),
            ("hc_attn_fn", vec![all, weights], Role::Router),
            ("hc_attn_base", vec![weights], Role::Router),
            ("hc_attn_scale", vec![3], Role::Norm),
            ("hc_ffn_fn", vec![all, weights], Role::Router),
            ("hc_ffn_base", vec![weights], Role::Router),
            ("hc_ffn_scale", vec![3], Role::Norm),
        ];
        let ratio = ratio(layer) as u64;
        let parts = if ratio == 4 { 2 } else { 1 };
        if ratio > 0 {
            tensors.extend([
                ("attn_compressor_kv", vec![width, parts * dim], Role::Key),
                ("attn_compressor_gate", vec![width, parts * dim], Role::Key),
                ("attn_compressor_ape", vec![parts * dim, ratio], Role::Router),
                ("attn_compressor_norm", vec![dim], Role::Norm),
            ]);
        }
        if parts == 2 {
            let index = self.index_dim;
            tensors.extend([
                ("indexer.attn_q_b", vec![self.q_rank, self.index_heads * index], Role::Query),
                ("indexer.proj", vec![width, self.index_heads], Role::Router),
                ("indexer_compressor_kv", vec![width, parts * index], Role::Key),
                ("indexer_compressor_gate", vec![width, parts * index], Role::Key),
                ("indexer_compressor_ape", vec![parts * index, ratio], Role::Router),
                ("indexer_compressor_norm", vec![index], Role::Norm),
            ]);
        }
        tensors
    }

    /// The tensors with which the head reads the residual streams.
    pub fn head(&self, shape: &Shape) -> [(&'static str, Vec<u64>, Role); 3] {
        [
            ("output_hc_fn", vec![STREAMS * shape.width, STREAMS], Role::Router),
            ("output_hc_base", vec![STREAMS], Role::Router),
            ("output_hc_scale", vec![1], Role::Norm),
        ]
    }
}

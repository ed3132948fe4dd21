//! Shapes with latent attention: DeepSeek V3 and similar models, and GLM-5, whose layers choose the
//! positions that they attend to.

use gguf::{Value, Writer};

use super::shape::{Experts, LLAMA_1B, Role, Shape};

/// Width of an indexer's query and key, and the number of positions that it chooses.
const INDEX_DIM: u64 = 128;
const INDEX_COUNT: u64 = 2048;

/// Latent attention's sizes; `head_dim` is that of a value.
#[derive(Clone, Copy)]
pub struct Latent {
    pub q_rank: u64,
    pub kv_rank: u64,
    pub plain_dim: u64,
    pub rope_dim: u64,
    /// Heads of an indexer, each [`INDEX_DIM`] wide; 0 for none.
    pub index_heads: u64,
}

pub const DEEPSEEK_V3: Shape = Shape {
    names: &["deepseek-v3.1", "deepseek-v3", "deepseek-r1"],
    arch: "deepseek2",
    layers: 61,
    width: 7168,
    heads: 128,
    kv_heads: 128,
    head_dim: 128,
    feed_forward: 18_432,
    experts: Some(Experts {
        count: 256,
        used: 8,
        hidden: 2048,
        shared: 2048,
        dense_layers: 3,
        groups: 8,
    }),
    latent: Some(Latent {
        q_rank: 1536,
        kv_rank: 512,
        plain_dim: 128,
        rope_dim: 64,
        index_heads: 0,
    }),
    compressed: None,
    delta: None,
    vocab: 129_280,
    tied: false,
    rope_base: 10_000.0,
    context: 163_840,
};

pub const GLM_5: Shape = Shape {
    names: &["glm-5"],
    arch: "glm-dsa",
    layers: 78,
    width: 6144,
    heads: 64,
    kv_heads: 64,
    head_dim: 256,
    feed_forward: 12_288,
    experts: Some(Experts {
        count: 256,
        used: 8,
        hidden: 2048,
        shared: 2048,
        dense_layers: 3,
        groups: 1,
    }),
    latent: Some(Latent {
        q_rank: 2048,
        kv_rank: 512,
        plain_dim: 192,
        rope_dim: 64,
        index_heads: 32,
    }),
    vocab: 154_880,
    tied: false,
    rope_base: 1_000_000.0,
    context: 202_752,
    ..LLAMA_1B
};

/// 12 of its layers, with 16 experts each: a token reads as much of a layer as in the whole one.
pub const GLM_5_FEW: Shape = Shape {
    names: &["glm-5-few"],
    layers: 12,
    experts: Some(Experts {
        count: 16,
        used: 8,
        hidden: 2048,
        shared: 2048,
        dense_layers: 0,
        groups: 1,
    }),
    vocab: 32_000,
    ..GLM_5
};

impl Latent {
    pub fn describe<'a>(&self, shape: &Shape, writer: &'a mut Writer) -> &'a mut Writer {
        let Self { q_rank, kv_rank, plain_dim, rope_dim, index_heads } = *self;
        let mut sizes = vec![
            ("key_length_mla", plain_dim + rope_dim),
            ("value_length_mla", shape.head_dim),
            ("q_lora_rank", q_rank),
            ("kv_lora_rank", kv_rank),
        ];
        if index_heads > 0 {
            sizes.extend([
                ("indexer.head_count", index_heads),
                ("indexer.key_length", INDEX_DIM),
                ("indexer.top_k", INDEX_COUNT),
            ]);
        }
        for (name, value) in sizes {
            writer.set(&format!("{}.attention.{name}", shape.arch), Value::U32(value as u32));
        }
        let rotated = format!("{}.rope.dimension_count", shape.arch);
        writer.set(&rotated, Value::U32(rope_dim as u32))
    }

    pub fn tensors(&self, shape: &Shape) -> Vec<(&'static str, Vec<u64>, Role)> {
        let Self { q_rank, kv_rank, plain_dim, rope_dim, index_heads } = *self;
        let (width, heads, v_dim) = (shape.width, shape.heads, shape.head_dim);
        let mut tensors = vec![
            ("attn_norm", vec![width], Role::Norm),
            ("attn_q_a", vec![width, q_rank], Role::Query),
            ("attn_q_a_norm", vec![q_rank], Role::Norm),
            ("attn_q_b", vec![q_rank, heads * (plain_dim + rope_dim)], Role::Query),
            ("attn_kv_a_mqa", vec![width, kv_rank + rope_dim], Role::Key),
            ("attn_kv_a_norm", vec![kv_rank], Role::Norm),
            ("attn_k_b", vec![plain_dim, kv_rank, heads], Role::Key),
            ("attn_v_b", vec![kv_rank, v_dim, heads], Role::Value),
            ("attn_output", vec![heads * v_dim, width], Role::AttentionOutput),
        ];
        if index_heads > 0 {
            tensors.extend([
                ("indexer.attn_q_b", vec![q_rank, index_heads * INDEX_DIM], Role::Query),
                ("indexer.attn_k", vec![width, INDEX_DIM], Role::Key),
                ("indexer.k_norm", vec![INDEX_DIM], Role::Norm),
                ("indexer.k_norm.bias", vec![INDEX_DIM], Role::Router),
                ("indexer.proj", vec![width, index_heads], Role::Router),
            ]);
        }
        tensors
    }
}

//! Shapes of Qwen3.5 and similar models: gated delta nets, and gated attention in each fourth
//! layer.

use gguf::{Value, Writer};

use super::shape::{Experts, LLAMA_1B, PLAIN_EXPERTS, Role, Shape};

/// The sizes of layers that carry a state.
#[derive(Clone, Copy)]
pub struct Delta {
    pub k_heads: u64,
    pub v_heads: u64,
    /// Width of a head's key and value.
    pub dim: u64,
}

/// Positions of the convolution.
const TAPS: u64 = 4;

/// Every fourth layer attends.
const ATTENTION_EVERY: u64 = 4;

/// Rotated dimensions of a head of 256.
pub const ROTATED: u64 = 64;

pub const QWEN35_2B: Shape = Shape {
    names: &["qwen3.5-2b"],
    arch: "qwen35",
    layers: 24,
    width: 2048,
    heads: 8,
    kv_heads: 2,
    head_dim: 256,
    feed_forward: 6144,
    delta: Some(Delta { k_heads: 16, v_heads: 16, dim: 128 }),
    vocab: 248_320,
    rope_base: 10_000_000.0,
    context: 262_144,
    ..LLAMA_1B
};

/// For tests.
pub const QWEN35_150M: Shape = Shape {
    names: &["qwen3.5-150m"],
    layers: 12,
    width: 768,
    heads: 4,
    feed_forward: 2304,
    delta: Some(Delta { k_heads: 4, v_heads: 8, dim: 128 }),
    vocab: 32_000,
    context: 8192,
    ..QWEN35_2B
};

/// 24 layers of Qwen3.6-35B-A3B at half its width, with a quarter of its experts at half theirs:
/// 1.2 B weights of experts, an eighth of them read for a token.
pub const QWEN35_MOE: Shape = Shape {
    names: &["qwen3.5-moe"],
    width: 1024,
    heads: 8,
    experts: Some(Experts { count: 64, used: 8, hidden: 256, shared: 256, ..PLAIN_EXPERTS }),
    delta: Some(Delta { k_heads: 8, v_heads: 16, dim: 128 }),
    tied: false,
    ..QWEN36_35B
};

pub const QWEN36_27B: Shape = Shape {
    names: &["qwen3.6-27b", "qwen3.5-27b"],
    layers: 64,
    width: 5120,
    heads: 24,
    kv_heads: 4,
    feed_forward: 17_408,
    delta: Some(Delta { k_heads: 16, v_heads: 48, dim: 128 }),
    tied: false,
    ..QWEN35_2B
};

pub const QWEN36_35B: Shape = Shape {
    names: &["qwen3.6-35b-a3b", "qwen3.5-35b-a3b"],
    arch: "qwen35moe",
    layers: 40,
    heads: 16,
    experts: Some(Experts { count: 256, used: 8, hidden: 512, shared: 512, ..PLAIN_EXPERTS }),
    delta: Some(Delta { k_heads: 16, v_heads: 32, dim: 128 }),
    tied: false,
    ..QWEN35_2B
};

impl Delta {
    /// Whether `layer` carries a state.
    pub fn is_in(layer: u64) -> bool {
        !(layer + 1).is_multiple_of(ATTENTION_EVERY)
    }

    pub fn describe(&self, arch: &str, writer: &mut Writer) {
        let Self { k_heads, v_heads, dim } = *self;
        for (name, value) in [
            ("ssm.conv_kernel", TAPS),
            ("ssm.state_size", dim),
            ("ssm.group_count", k_heads),
            ("ssm.time_step_rank", v_heads),
            ("ssm.inner_size", v_heads * dim),
            ("full_attention_interval", ATTENTION_EVERY),
        ] {
            writer.set(&format!("{arch}.{name}"), Value::U32(value as u32));
        }
        writer.set_i32s(&format!("{arch}.rope.dimension_sections"), &[11, 11, 10, 0]);
    }

    pub fn tensors(&self, width: u64) -> Vec<(&'static str, Vec<u64>, Role)> {
        let Self { k_heads, v_heads, dim } = *self;
        let (inner, channels) = (v_heads * dim, (2 * k_heads + v_heads) * dim);
        vec![
            ("attn_norm", vec![width], Role::Norm),
            ("attn_qkv", vec![width, channels], Role::Query),
            ("attn_gate", vec![width, inner], Role::Query),
            ("ssm_alpha", vec![width, v_heads], Role::Query),
            ("ssm_beta", vec![width, v_heads], Role::Query),
            ("ssm_conv1d", vec![TAPS, channels], Role::Router),
            ("ssm_dt.bias", vec![v_heads], Role::Norm),
            ("ssm_a", vec![v_heads], Role::Decay),
            ("ssm_norm", vec![dim], Role::Norm),
            ("ssm_out", vec![inner, width], Role::AttentionOutput),
        ]
    }
}

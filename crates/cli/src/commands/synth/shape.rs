//! The sizes of models: what a file in their shape says in its metadata, and which tensors it has.

use gguf::{Value, Writer};

/// One model's sizes.
pub struct Shape {
    /// The first is the one to show.
    pub names: &'static [&'static str],
    pub arch: &'static str,
    pub layers: u64,
    pub width: u64,
    pub heads: u64,
    pub kv_heads: u64,
    pub head_dim: u64,
    pub feed_forward: u64,
    pub experts: Option<Experts>,
    pub vocab: u64,
    /// The embedding serves as the output matrix.
    pub tied: bool,
    pub rope_base: f32,
    pub context: u32,
}

/// A mixture of experts in every layer.
#[derive(Clone, Copy)]
pub struct Experts {
    pub count: u64,
    pub used: u64,
    pub hidden: u64,
}

/// What a tensor is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    Embedding,
    Output,
    Norm,
    Query,
    Key,
    Value,
    AttentionOutput,
    Router,
    /// Gate or up; dense or of all experts.
    Hidden,
    Down,
}

/// One tensor of a file.
pub struct Tensor {
    pub name: String,
    /// Fastest-varying first.
    pub dims: Vec<u64>,
    pub role: Role,
    /// 0 for what belongs to no layer.
    pub layer: u64,
}

const LLAMA_1B: Shape = Shape {
    names: &["llama-3.2-1b"],
    arch: "llama",
    layers: 16,
    width: 2048,
    heads: 32,
    kv_heads: 8,
    head_dim: 64,
    feed_forward: 8192,
    experts: None,
    vocab: 128_256,
    tied: true,
    rope_base: 500_000.0,
    context: 131_072,
};

pub const SHAPES: &[Shape] = &[
    Shape {
        names: &["llama-150m", "150m"],
        width: 768,
        heads: 12,
        kv_heads: 4,
        feed_forward: 3072,
        vocab: 32_000,
        rope_base: 10_000.0,
        context: 8192,
        ..LLAMA_1B
    },
    LLAMA_1B,
    Shape {
        names: &["llama-3.1-8b"],
        layers: 32,
        width: 4096,
        head_dim: 128,
        feed_forward: 14_336,
        tied: false,
        ..LLAMA_1B
    },
    // Many layers with little work in each: what waits between layers costs shows here first.
    Shape {
        names: &["llama-thin"],
        layers: 64,
        width: 1024,
        heads: 16,
        feed_forward: 2816,
        vocab: 32_000,
        rope_base: 10_000.0,
        ..LLAMA_1B
    },
    Shape {
        names: &["qwen3-0.6b"],
        arch: "qwen3",
        layers: 28,
        width: 1024,
        heads: 16,
        head_dim: 128,
        feed_forward: 3072,
        vocab: 151_936,
        rope_base: 1_000_000.0,
        context: 40_960,
        ..LLAMA_1B
    },
    // A layer of Qwen3-30B-A3B with a quarter of its experts, 10 layers instead of 48: 1.3 GiB in
    // Q4_0, of which a token reads 0.4.
    Shape {
        names: &["qwen3-moe"],
        arch: "qwen3moe",
        layers: 10,
        width: 2048,
        heads: 32,
        kv_heads: 4,
        head_dim: 128,
        feed_forward: 6144,
        experts: Some(Experts { count: 32, used: 4, hidden: 768 }),
        vocab: 151_936,
        tied: false,
        rope_base: 1_000_000.0,
        context: 40_960,
    },
];

impl Shape {
    /// Writes the metadata that the architecture reads.
    pub fn describe(&self, writer: &mut Writer) {
        let key = |name: &str| format!("{}.{name}", self.arch);
        let number = |value: u64| Value::U32(value as u32);
        let name = format!("{} (random weights)", self.names[0]);
        writer
            .set("general.architecture", Value::String(self.arch.into()))
            .set("general.name", Value::String(name))
            .set(&key("block_count"), number(self.layers))
            .set(&key("context_length"), Value::U32(self.context))
            .set(&key("embedding_length"), number(self.width))
            .set(&key("feed_forward_length"), number(self.feed_forward))
            .set(&key("attention.head_count"), number(self.heads))
            .set(&key("attention.head_count_kv"), number(self.kv_heads))
            .set(&key("attention.key_length"), number(self.head_dim))
            .set(&key("attention.value_length"), number(self.head_dim))
            .set(&key("attention.layer_norm_rms_epsilon"), Value::F32(1e-5))
            .set(&key("rope.dimension_count"), number(self.head_dim))
            .set(&key("rope.freq_base"), Value::F32(self.rope_base))
            .set(&key("vocab_size"), number(self.vocab));
        if let Some(Experts { count, used, hidden }) = self.experts {
            writer
                .set(&key("expert_count"), number(count))
                .set(&key("expert_used_count"), number(used))
                .set(&key("expert_feed_forward_length"), number(hidden));
        }
    }

    /// All tensors, in the order of the file.
    pub fn tensors(&self) -> Vec<Tensor> {
        let whole = |name: &str, dims: &[u64], role| Tensor {
            name: format!("{name}.weight"),
            dims: dims.to_vec(),
            role,
            layer: 0,
        };
        let mut tensors = vec![whole("token_embd", &[self.width, self.vocab], Role::Embedding)];
        for layer in 0..self.layers {
            let of_layer = |(name, dims, role)| Tensor {
                name: format!("blk.{layer}.{name}.weight"),
                dims,
                role,
                layer,
            };
            tensors.extend(self.attention().into_iter().map(of_layer));
            tensors.extend(self.feed_forward().into_iter().map(of_layer));
        }
        tensors.push(whole("output_norm", &[self.width], Role::Norm));
        if !self.tied {
            tensors.push(whole("output", &[self.width, self.vocab], Role::Output));
        }
        tensors
    }

    fn attention(&self) -> Vec<(&'static str, Vec<u64>, Role)> {
        let width = self.width;
        let (q, kv) = (self.heads * self.head_dim, self.kv_heads * self.head_dim);
        let mut tensors = vec![
            ("attn_norm", vec![width], Role::Norm),
            ("attn_q", vec![width, q], Role::Query),
            ("attn_k", vec![width, kv], Role::Key),
            ("attn_v", vec![width, kv], Role::Value),
            ("attn_output", vec![q, width], Role::AttentionOutput),
        ];
        if self.arch.starts_with("qwen3") {
            tensors.push(("attn_q_norm", vec![self.head_dim], Role::Norm));
            tensors.push(("attn_k_norm", vec![self.head_dim], Role::Norm));
        }
        tensors
    }

    fn feed_forward(&self) -> Vec<(&'static str, Vec<u64>, Role)> {
        let (width, hidden) = (self.width, self.feed_forward);
        let mut tensors = vec![("ffn_norm", vec![width], Role::Norm)];
        match self.experts {
            None => tensors.extend([
                ("ffn_gate", vec![width, hidden], Role::Hidden),
                ("ffn_up", vec![width, hidden], Role::Hidden),
                ("ffn_down", vec![hidden, width], Role::Down),
            ]),
            Some(Experts { count, hidden, .. }) => tensors.extend([
                ("ffn_gate_inp", vec![width, count], Role::Router),
                ("ffn_gate_exps", vec![width, hidden, count], Role::Hidden),
                ("ffn_up_exps", vec![width, hidden, count], Role::Hidden),
                ("ffn_down_exps", vec![hidden, width, count], Role::Down),
            ]),
        }
        tensors
    }
}

//! The sizes of models: the metadata of a file in their shape, and its tensors.

use gguf::{Value, Writer};

use super::compressed::{BY_TOKEN, Compressed, DEEPSEEK_V4_FEW, DEEPSEEK_V4_FLASH};
use super::delta::{self, Delta, QWEN35_2B, QWEN35_150M, QWEN35_MOE, QWEN36_27B, QWEN36_35B};
use super::latent::{DEEPSEEK_V3, GLM_5, GLM_5_FEW, Latent};

/// Name of the vector that is added to the experts' scores for the choice; it has a form of its
/// own.
const CHOICE_BIAS: &str = "exp_probs_b";

/// Every product has a bias, heads have sinks, and every other layer has a window.
const GPT_OSS: &str = "gpt-oss";
const GPT_OSS_WINDOW: u32 = 128;

/// One model's sizes.
pub struct Shape {
    /// The first is shown.
    pub names: &'static [&'static str],
    pub arch: &'static str,
    pub layers: u64,
    pub width: u64,
    pub heads: u64,
    pub kv_heads: u64,
    pub head_dim: u64,
    pub feed_forward: u64,
    pub experts: Option<Experts>,
    pub latent: Option<Latent>,
    pub compressed: Option<Compressed>,
    /// Layers that carry a state, between those that attend.
    pub delta: Option<Delta>,
    pub vocab: u64,
    /// The embedding serves as the output matrix.
    pub tied: bool,
    pub rope_base: f32,
    pub context: u32,
}

/// A mixture of experts in every layer but the first few.
#[derive(Clone, Copy)]
pub struct Experts {
    pub count: u64,
    pub used: u64,
    pub hidden: u64,
    /// Hidden width of the shared expert; 0 for none.
    pub shared: u64,
    /// Number of dense layers at the beginning.
    pub dense_layers: u64,
    /// Groups of experts; half of them are eligible for a token. 1 for none.
    pub groups: u64,
}

/// The purpose of a tensor.
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
    /// Decay of a state: a negative number for each head.
    Decay,
    /// Experts of each token, by their numbers.
    ByToken,
}

/// One tensor of a file.
pub struct Tensor {
    pub name: String,
    /// Fastest-varying first.
    pub dims: Vec<u64>,
    pub role: Role,
    /// 0 for tensors outside of layers.
    pub layer: u64,
}

pub const LLAMA_1B: Shape = Shape {
    names: &["llama3.2:1b", "llama-3.2-1b"],
    arch: "llama",
    layers: 16,
    width: 2048,
    heads: 32,
    kv_heads: 8,
    head_dim: 64,
    feed_forward: 8192,
    experts: None,
    latent: None,
    compressed: None,
    delta: None,
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
        names: &["llama3.1:8b", "llama-3.1-8b"],
        layers: 32,
        width: 4096,
        head_dim: 128,
        feed_forward: 14_336,
        tied: false,
        ..LLAMA_1B
    },
    // Many layers with little work in each: the cost of waits between layers shows here first.
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
        names: &["qwen3:0.6b", "qwen3-0.6b"],
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
    // Q4_0; a token reads 0.4 GiB of that.
    Shape {
        names: &["qwen3-moe"],
        arch: "qwen3moe",
        layers: 10,
        width: 2048,
        heads: 32,
        kv_heads: 4,
        head_dim: 128,
        feed_forward: 6144,
        experts: Some(Experts { count: 32, used: 4, hidden: 768, ..PLAIN_EXPERTS }),
        latent: None,
        compressed: None,
        delta: None,
        vocab: 151_936,
        tied: false,
        rope_base: 1_000_000.0,
        context: 40_960,
    },
    QWEN35_150M,
    QWEN35_2B,
    QWEN35_MOE,
    // For machines with a GPU: 17 and 12 GiB in Q4_K_M and MXFP4.
    Shape {
        names: &["qwen3:30b-a3b", "qwen3-30b-a3b", "qwen3-30b"],
        arch: "qwen3moe",
        layers: 48,
        width: 2048,
        heads: 32,
        kv_heads: 4,
        head_dim: 128,
        feed_forward: 6144,
        experts: Some(Experts { count: 128, used: 8, hidden: 768, ..PLAIN_EXPERTS }),
        vocab: 151_936,
        tied: false,
        rope_base: 1_000_000.0,
        context: 40_960,
        ..LLAMA_1B
    },
    Shape {
        names: &["gpt-oss:20b", "gpt-oss-20b"],
        arch: GPT_OSS,
        layers: 24,
        width: 2880,
        heads: 64,
        kv_heads: 8,
        head_dim: 64,
        feed_forward: 2880,
        experts: Some(Experts { count: 32, used: 4, hidden: 2880, ..PLAIN_EXPERTS }),
        vocab: 201_088,
        tied: false,
        rope_base: 150_000.0,
        ..LLAMA_1B
    },
    // The following shapes are for plans: few machines have the disk for them.
    QWEN36_27B,
    QWEN36_35B,
    Shape {
        names: &["llama3.3:70b", "llama3.1:70b", "llama-3.3-70b", "llama-3.1-70b"],
        layers: 80,
        width: 8192,
        heads: 64,
        head_dim: 128,
        feed_forward: 28_672,
        tied: false,
        ..LLAMA_1B
    },
    Shape {
        names: &["qwen3:235b-a22b", "qwen3-235b"],
        arch: "qwen3moe",
        layers: 94,
        width: 4096,
        heads: 64,
        kv_heads: 4,
        head_dim: 128,
        feed_forward: 12_288,
        experts: Some(Experts { count: 128, used: 8, hidden: 1536, ..PLAIN_EXPERTS }),
        latent: None,
        compressed: None,
        delta: None,
        vocab: 151_936,
        tied: false,
        rope_base: 5_000_000.0,
        context: 262_144,
    },
    DEEPSEEK_V3,
    GLM_5,
    GLM_5_FEW,
    DEEPSEEK_V4_FLASH,
    DEEPSEEK_V4_FEW,
    Shape {
        names: &["kimi-k2:1t", "kimi-k2"],
        heads: 64,
        kv_heads: 64,
        experts: Some(Experts {
            count: 384,
            used: 8,
            hidden: 2048,
            shared: 2048,
            dense_layers: 1,
            groups: 1,
        }),
        vocab: 163_840,
        rope_base: 50_000.0,
        context: 262_144,
        ..DEEPSEEK_V3
    },
];

pub const PLAIN_EXPERTS: Experts =
    Experts { count: 0, used: 0, hidden: 0, shared: 0, dense_layers: 0, groups: 1 };

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
            .set(&key("attention.layer_norm_rms_epsilon"), Value::F32(1e-5))
            .set(&key("rope.freq_base"), Value::F32(self.rope_base))
            .set(&key("vocab_size"), number(self.vocab));
        match self.latent {
            None => writer
                .set(&key("attention.key_length"), number(self.head_dim))
                .set(&key("attention.value_length"), number(self.head_dim))
                .set(&key("rope.dimension_count"), number(self.rotated())),
            Some(latent) => latent.describe(self, writer),
        };
        if let Some(compressed) = &self.compressed {
            compressed.describe(self, writer);
        }
        if self.arch == GPT_OSS {
            writer.set(&key("attention.sliding_window"), Value::U32(GPT_OSS_WINDOW));
        }
        if let Some(delta) = &self.delta {
            delta.describe(self.arch, writer);
        }
        if let Some(Experts { count, used, hidden, shared, dense_layers, groups }) = self.experts {
            writer
                .set(&key("expert_count"), number(count))
                .set(&key("expert_used_count"), number(used))
                .set(&key("expert_feed_forward_length"), number(hidden));
            if shared > 0 && self.delta.is_some() {
                writer.set(&key("expert_shared_feed_forward_length"), number(shared));
            } else if shared > 0 {
                writer
                    .set(&key("expert_shared_count"), number(shared / hidden))
                    .set(&key("leading_dense_block_count"), number(dense_layers))
                    .set(&key("expert_weights_scale"), Value::F32(2.5))
                    .set(&key("expert_weights_norm"), Value::Bool(true))
                    .set(&key("expert_gating_func"), number(self.gating()));
            }
            if groups > 1 {
                writer
                    .set(&key("expert_group_count"), number(groups))
                    .set(&key("expert_group_used_count"), number(groups / 2));
            }
        }
    }

    /// Conversion of router logits to scores: sigmoids, or roots of softplus.
    fn gating(&self) -> u64 {
        if self.compressed.is_some() { 4 } else { 2 }
    }

    /// Rotated dimensions of a head.
    fn rotated(&self) -> u64 {
        match &self.compressed {
            Some(compressed) => compressed.rope_dim,
            None => self.delta.map_or(self.head_dim, |_| delta::ROTATED),
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
            let of_layer = |(name, dims, role): (&str, Vec<u64>, Role)| Tensor {
                name: match name {
                    CHOICE_BIAS => format!("blk.{layer}.{name}.bias"),
                    "ssm_a" => format!("blk.{layer}.{name}"),
                    _ if name.ends_with(".bias") => format!("blk.{layer}.{name}"),
                    _ => format!("blk.{layer}.{name}.weight"),
                },
                dims,
                role,
                layer,
            };
            let mixer = match self.delta.filter(|_| Delta::is_in(layer)) {
                Some(delta) => delta.tensors(self.width),
                None => self.attention(layer),
            };
            tensors.extend(mixer.into_iter().map(of_layer));
            tensors.extend(self.feed_forward(layer).into_iter().map(of_layer));
        }
        tensors.push(whole("output_norm", &[self.width], Role::Norm));
        if !self.tied {
            tensors.push(whole("output", &[self.width, self.vocab], Role::Output));
        }
        let of_streams = self.compressed.iter().flat_map(|compressed| compressed.head(self));
        tensors.extend(of_streams.map(|(name, dims, role)| whole(name, &dims, role)));
        tensors
    }

    fn attention(&self, layer: u64) -> Vec<(&'static str, Vec<u64>, Role)> {
        let width = self.width;
        if let Some(latent) = self.latent {
            return latent.tensors(self);
        }
        if let Some(compressed) = &self.compressed {
            return compressed.tensors(self, layer);
        }
        let (q, kv) = (self.heads * self.head_dim, self.kv_heads * self.head_dim);
        let mut tensors = vec![
            ("attn_norm", vec![width], Role::Norm),
            // With a gate beside each query.
            ("attn_q", vec![width, if self.delta.is_some() { 2 * q } else { q }], Role::Query),
            ("attn_k", vec![width, kv], Role::Key),
            ("attn_v", vec![width, kv], Role::Value),
            ("attn_output", vec![q, width], Role::AttentionOutput),
        ];
        if self.arch.starts_with("qwen3") {
            tensors.push(("attn_q_norm", vec![self.head_dim], Role::Norm));
            tensors.push(("attn_k_norm", vec![self.head_dim], Role::Norm));
        }
        if self.arch == GPT_OSS {
            tensors.extend([
                ("attn_q.bias", vec![q], Role::Router),
                ("attn_k.bias", vec![kv], Role::Router),
                ("attn_v.bias", vec![kv], Role::Router),
                ("attn_output.bias", vec![width], Role::Router),
                ("attn_sinks", vec![self.heads], Role::Router),
            ]);
        }
        tensors
    }

    fn feed_forward(&self, layer: u64) -> Vec<(&'static str, Vec<u64>, Role)> {
        let (width, hidden) = (self.width, self.feed_forward);
        let is_after = self.delta.is_some() || self.arch == GPT_OSS;
        let norm = if is_after { "post_attention_norm" } else { "ffn_norm" };
        let mut tensors = vec![(norm, vec![width], Role::Norm)];
        let experts = self.experts.filter(|experts| layer >= experts.dense_layers);
        if let Some(shared) = experts.map(|experts| experts.shared).filter(|shared| *shared > 0) {
            tensors.extend([
                ("ffn_gate_shexp", vec![width, shared], Role::Hidden),
                ("ffn_up_shexp", vec![width, shared], Role::Hidden),
                ("ffn_down_shexp", vec![shared, width], Role::Down),
                match self.delta {
                    None if self.compressed.is_some() && layer < BY_TOKEN => {
                        let used = experts.map_or(0, |experts| experts.used);
                        ("ffn_gate_tid2eid", vec![used, self.vocab], Role::ByToken)
                    }
                    Some(_) => ("ffn_gate_inp_shexp", vec![width], Role::Router),
                    None => {
                        (CHOICE_BIAS, vec![experts.map_or(0, |experts| experts.count)], Role::Norm)
                    }
                },
            ]);
        }
        match experts {
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
        if let Some(Experts { count, hidden, .. }) = experts
            && self.arch == GPT_OSS
        {
            tensors.extend([
                ("ffn_gate_inp.bias", vec![count], Role::Router),
                ("ffn_gate_exps.bias", vec![hidden, count], Role::Router),
                ("ffn_up_exps.bias", vec![hidden, count], Role::Router),
                ("ffn_down_exps.bias", vec![width, count], Role::Router),
            ]);
        }
        tensors
    }
}

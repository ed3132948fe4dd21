//! Models of any size for tests: headers of files without weights.

use gguf::{TensorType, Value, Writer};
use layout::Outline;

/// A model of Llama's architecture, or of Qwen3-MoE's with experts.
#[derive(Debug, Clone, Copy)]
pub struct Dense {
    pub layers: u64,
    pub width: u64,
    pub heads: u64,
    pub kv_heads: u64,
    pub hidden: u64,
    pub vocab: u64,
    /// The number of experts of `hidden` elements in each layer, if any.
    pub experts: Option<u64>,
}

/// Llama-3.2-1B.
pub const LLAMA: Dense = Dense {
    layers: 16,
    width: 2048,
    heads: 32,
    kv_heads: 8,
    hidden: 8192,
    vocab: 128_256,
    experts: None,
};

impl Dense {
    /// All matrices have the type `ty`, except the output head.
    pub fn outline(&self, ty: TensorType, head: TensorType) -> Outline {
        let Self { layers, width, heads, kv_heads, hidden, vocab, experts } = *self;
        let arch = if experts.is_some() { "qwen3moe" } else { "llama" };
        let mut file = Writer::new();
        file.set("general.architecture", Value::String(arch.to_owned()));
        let sizes = [
            ("block_count", layers),
            ("embedding_length", width),
            ("attention.head_count", heads),
            ("attention.head_count_kv", kv_heads),
            ("feed_forward_length", hidden),
            ("expert_count", experts.unwrap_or(0)),
            ("expert_used_count", 1),
            ("context_length", 131_072),
        ];
        for (key, value) in sizes {
            file.set(&format!("{arch}.{key}"), Value::U32(value as u32));
        }
        let epsilon = format!("{arch}.attention.layer_norm_rms_epsilon");
        file.set(&epsilon, Value::F32(1e-5));
        let (dim, f32) = (width / heads, TensorType::F32);
        file.declare("token_embd.weight", &[width, vocab], TensorType::Q8_0);
        file.declare("output_norm.weight", &[width], f32);
        file.declare("output.weight", &[width, vocab], head);
        for layer in 0..layers {
            let mut declare = |name: &str, dims: &[u64], ty| {
                file.declare(&format!("blk.{layer}.{name}.weight"), dims, ty);
            };
            declare("attn_norm", &[width], f32);
            declare("attn_q", &[width, heads * dim], ty);
            declare("attn_k", &[width, kv_heads * dim], ty);
            declare("attn_v", &[width, kv_heads * dim], ty);
            declare("attn_output", &[heads * dim, width], ty);
            declare("ffn_norm", &[width], f32);
            match experts {
                None => {
                    declare("ffn_gate", &[width, hidden], ty);
                    declare("ffn_up", &[width, hidden], ty);
                    declare("ffn_down", &[hidden, width], ty);
                }
                Some(count) => {
                    declare("attn_q_norm", &[dim], f32);
                    declare("attn_k_norm", &[dim], f32);
                    declare("ffn_gate_inp", &[width, count], f32);
                    declare("ffn_gate_exps", &[width, hidden, count], ty);
                    declare("ffn_up_exps", &[width, hidden, count], ty);
                    declare("ffn_down_exps", &[hidden, width, count], ty);
                }
            }
        }
        Outline::read(&file.directory().expect("a header without weights")).expect("a model")
    }
}

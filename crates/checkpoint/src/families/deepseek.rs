//! Families with latent attention, such as DeepSeek V2 and V3: keys and values come from one
//! compressed vector.

use super::llama::{is_mistral4, temperature_of_mistral};
use super::shared::{
    ATTENTION, BLOCK, DENSE, EXPERTS, FEED_FORWARD, FEED_FORWARD_NORM, SHARED_EXPERT,
    STACKED_EXPERTS, experts,
};
use super::{Family, Pieces, Row, To::*};
use crate::Error;
use crate::config::Config;
use crate::header::Header;
use crate::rope::Rope;
use crate::weight::Weight;

pub(super) const COMPRESSED: &[Row] = &[
    ("self_attn.q_a_proj", Name("attn_q_a")),
    ("self_attn.q_a_layernorm", Name("attn_q_a_norm")),
    ("self_attn.q_b_proj", Name("attn_q_b")),
    ("self_attn.kv_a_proj_with_mqa", Name("attn_kv_a_mqa")),
    ("self_attn.kv_a_layernorm", Name("attn_kv_a_norm")),
    ("self_attn.kv_b_proj", Cut(keys_and_values)),
    // MLX's files.
    ("self_attn.embed_q", Name("attn_k_b")),
    ("self_attn.unembed_out", Name("attn_v_b")),
];

pub(super) const INDEXER: &[Row] = &[
    ("self_attn.indexer.wq_b", Name("indexer.attn_q_b")),
    ("self_attn.indexer.wk", Name("indexer.attn_k")),
    ("self_attn.indexer.k_norm", Name("indexer.k_norm")),
    ("self_attn.indexer.weights_proj", Name("indexer.proj")),
];

const FUSED_EXPERTS: &[Row] = &[
    ("mlp.experts.gate_up_proj", Name("ffn_gate_up_exps.weight")),
    ("mlp.experts.down_proj", Name("ffn_down_exps.weight")),
];

const DEEPSEEK2: Family = Family {
    classes: &[
        "DeepseekV2ForCausalLM",
        "DeepseekV3ForCausalLM",
        "KimiVLForConditionalGeneration",
        "KimiK25ForConditionalGeneration",
        "Glm4MoeLiteForCausalLM",
    ],
    arch: "deepseek2",
    block: BLOCK,
    layer: &[
        COMPRESSED,
        ATTENTION,
        FEED_FORWARD_NORM,
        FEED_FORWARD,
        EXPERTS,
        STACKED_EXPERTS,
        SHARED_EXPERT,
        INDEXER,
    ],
    keys: keys_of_deepseek,
    ..DENSE
};

pub(super) const FAMILIES: &[Family] = &[
    DEEPSEEK2,
    Family {
        classes: &["Mistral3ForConditionalGeneration", "Ministral3ForCausalLM"],
        when: is_mistral4,
        arch: "mistral4",
        layer: &[
            FUSED_EXPERTS,
            COMPRESSED,
            ATTENTION,
            FEED_FORWARD_NORM,
            FEED_FORWARD,
            EXPERTS,
            SHARED_EXPERT,
        ],
        keys: keys_of_mistral4,
        ..DEEPSEEK2
    },
    Family {
        classes: &["DeepseekV32ForCausalLM"],
        arch: "deepseek32",
        keys: keys_of_indexer,
        ..DEEPSEEK2
    },
    Family {
        classes: &["GlmMoeDsaForCausalLM"],
        arch: "glm-dsa",
        keys: keys_of_indexer,
        ..DEEPSEEK2
    },
];

/// Attention as over one head of compressed keys, as the engine computes it.
fn keys_of_deepseek(config: &Config, header: &mut Header) -> Result<(), Error> {
    experts(config, header)?;
    header.size("attention.head_count_kv", 1);
    header.sizes(
        config,
        &[
            (&["vocab_size"], "vocab_size"),
            (&["q_lora_rank"], "attention.q_lora_rank"),
            (&["kv_lora_rank"], "attention.kv_lora_rank"),
            (&["kv_lora_rank"], "attention.value_length"),
            (&["v_head_dim"], "attention.value_length_mla"),
            (&["qk_rope_head_dim"], "rope.dimension_count"),
            (&["moe_intermediate_size", "intermediate_size"], "expert_feed_forward_length"),
        ],
    )?;
    let layers = config.layers()?;
    let has_experts = config.find_u64(&["n_routed_experts"])?.is_some();
    let dense = config.find_u64(&["first_k_dense_replace"])?;
    let dense = dense.unwrap_or(if has_experts { 0 } else { layers });
    header.size("leading_dense_block_count", dense);
    let shared = config.find_u64(&["n_shared_experts"])?;
    header.size("expert_shared_count", shared.unwrap_or(0));
    let rotated = config.u64(&["qk_rope_head_dim"])?;
    header.size("attention.key_length", config.u64(&["kv_lora_rank"])? + rotated);
    header.size("attention.key_length_mla", config.u64(&["qk_nope_head_dim"])? + rotated);
    if config.find_f64(&["rms_norm_eps"])?.is_none() {
        header.number("attention.layer_norm_rms_epsilon", 1e-6);
    }
    if let Some(scale) = Rope::read(config)?.full.find_f64(&["mscale_all_dim"])? {
        // GGUF's meaning of this key in files of DeepSeek.
        header.number("rope.scaling.yarn_log_multiplier", 0.1 * scale);
    }
    Ok(())
}

fn keys_of_mistral4(config: &Config, header: &mut Header) -> Result<(), Error> {
    keys_of_deepseek(config, header)?;
    temperature_of_mistral(config, header)
}

fn keys_of_indexer(config: &Config, header: &mut Header) -> Result<(), Error> {
    keys_of_deepseek(config, header)?;
    keys_of_selection(config, header)
}

/// The indexer, and which layers choose for themselves.
pub(super) fn keys_of_selection(config: &Config, header: &mut Header) -> Result<(), Error> {
    header.sizes(
        config,
        &[
            (&["index_n_heads"], "attention.indexer.head_count"),
            (&["index_head_dim"], "attention.indexer.key_length"),
            (&["index_topk"], "attention.indexer.top_k"),
        ],
    )?;
    let kinds = config.texts("indexer_types")?;
    if !kinds.is_empty() {
        let is_full: Vec<bool> = kinds.iter().map(|kind| kind == "full").collect();
        header.flags("attention.indexer.types", &is_full);
    }
    Ok(())
}

/// The up-projection of each head: keys above values. That of keys is applied to queries, so it is
/// transposed: `[heads, rank, key]`.
pub(super) fn keys_and_values(config: &Config, both: Weight) -> Result<Pieces, Error> {
    let heads = config.u64(&["num_attention_heads"])?;
    let (keys, values) = (config.u64(&["qk_nope_head_dim"])?, config.u64(&["v_head_dim"])?);
    let both = both.plain()?;
    let rank = both.columns();
    if heads == 0 || both.shape != [heads * (keys + values), rank] {
        return Err(both.wrong_shape(&format!("{} rows", heads * (keys + values))));
    }
    let part = |from, count| {
        both.clone().rows_of_each(keys + values, from, count, 1)?.reshaped(&[heads, count, rank])
    };
    let (of_keys, of_values) = (part(0, keys)?.transposed()?, part(keys, values)?);
    Ok(vec![("attn_k_b.weight", of_keys), ("attn_v_b.weight", of_values)])
}

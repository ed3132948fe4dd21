//! Models with Kimi's delta rule and latent attention without rotation: Kimi Linear, Kimi K3, and
//! GLM-5.3-Flash.

use super::deepseek::{COMPRESSED, INDEXER, keys_and_values};
use super::shared::{
    ATTENTION, DENSE, EXPERTS, FEED_FORWARD, FEED_FORWARD_NORM, NUMBERED_EXPERTS, SHARED_EXPERT,
    WHOLE, decay, experts,
};
use super::{Family, Pieces, Row, To::*};
use crate::Error;
use crate::config::Config;
use crate::element::EXP;
use crate::header::Header;
use crate::weight::Weight;

/// Layers with a state. Queries, keys and values have the names of attention's.
const STATES: &[Row] = &[
    ("self_attn.q_conv1d", Edited("ssm_conv1d_q", convolution)),
    ("self_attn.k_conv1d", Edited("ssm_conv1d_k", convolution)),
    ("self_attn.v_conv1d", Edited("ssm_conv1d_v", convolution)),
    ("self_attn.f_a_proj", Name("ssm_f_a")),
    ("self_attn.f_b_proj", Name("ssm_f_b")),
    ("self_attn.g_a_proj", Name("ssm_g_a")),
    ("self_attn.g_b_proj", Name("ssm_g_b")),
    ("self_attn.b_proj", Name("ssm_beta")),
    ("self_attn.dt_bias", Name("ssm_dt.bias")),
    ("self_attn.o_norm", Name("ssm_norm")),
    // MLX's files.
    ("self_attn.q_conv.conv", Edited("ssm_conv1d_q", convolution)),
    ("self_attn.k_conv.conv", Edited("ssm_conv1d_k", convolution)),
    ("self_attn.v_conv.conv", Edited("ssm_conv1d_v", convolution)),
];

const DECAY: &[Row] = &[("self_attn.A_log", Edited("ssm_a", decay))];

/// Decays of which only the first ones belong to heads.
const DECAYS_OF_HEADS: &[Row] = &[("self_attn.A_log", Edited("ssm_a", decays_of_heads))];

const KIMI_EXPERTS: &[Row] = &[
    ("block_sparse_moe.gate.e_score_correction_bias", Name("exp_probs_b.bias")),
    ("block_sparse_moe.shared_experts.gate_proj", Name("ffn_gate_shexp")),
    ("block_sparse_moe.shared_experts.up_proj", Name("ffn_up_shexp")),
    ("block_sparse_moe.shared_experts.down_proj", Name("ffn_down_shexp")),
    // MLX's files.
    ("mlp.e_score_correction_bias", Name("exp_probs_b.bias")),
];

/// Kimi K3: layers attend to banked residual streams, whose scores are a norm's gain times a
/// projection; experts work in a narrower space.
const K3: &[Row] = &[
    ("self_attn.g_proj", Cut(gate)),
    ("self_attention_res_norm", Product("attn_res_score")),
    ("self_attention_res_proj", Product("attn_res_score")),
    ("mlp_res_norm", Product("ffn_res_score")),
    ("mlp_res_proj", Product("ffn_res_score")),
    ("block_sparse_moe.routed_expert_down_proj", Name("ffn_routed_down")),
    ("block_sparse_moe.routed_expert_up_proj", Name("ffn_routed_up")),
    ("block_sparse_moe.routed_expert_norm", Name("ffn_routed_norm")),
];

const K3_WHOLE: &[Row] = &[
    ("model.output_attn_res_norm", Product("output_res_score")),
    ("model.output_attn_res_proj", Product("output_res_score")),
];

/// GLM-5.3-Flash: several residual streams, and an indexer of pools of keys.
const GLM5: &[Row] = &[
    ("hc_attn_fn", Name("hc_attn_fn.weight")),
    ("hc_attn_base", Name("hc_attn_base.weight")),
    ("hc_attn_scale", Name("hc_attn_scale.weight")),
    ("hc_ffn_fn", Name("hc_ffn_fn.weight")),
    ("hc_ffn_base", Name("hc_ffn_base.weight")),
    ("hc_ffn_scale", Name("hc_ffn_scale.weight")),
    ("self_attn.indexer.index_kpool_compress_ape", Name("indexer_compressor_ape.weight")),
    ("self_attn.indexer.index_kpool_compress_gate", Name("indexer_compressor_gate.weight")),
];

const LINEAR: Family = Family {
    classes: &["KimiLinearForCausalLM", "KimiLinearModel"],
    arch: "kimi-linear",
    layer: &[
        STATES,
        DECAY,
        COMPRESSED,
        ATTENTION,
        FEED_FORWARD_NORM,
        FEED_FORWARD,
        KIMI_EXPERTS,
        NUMBERED_EXPERTS,
        EXPERTS,
        SHARED_EXPERT,
    ],
    keys: keys_of_linear,
    ..DENSE
};

/// Ling 3: attention's gates and decays are single matrices.
const LING: &[Row] = &[
    ("attention.q_conv1d", Edited("ssm_conv1d_q", convolution)),
    ("attention.k_conv1d", Edited("ssm_conv1d_k", convolution)),
    ("attention.v_conv1d", Edited("ssm_conv1d_v", convolution)),
    ("attention.f_proj", Name("ssm_f_a")),
    ("attention.g_proj", Cut(gate_of_ling)),
    ("attention.b_proj", Name("ssm_beta")),
    ("attention.dt_bias", Name("ssm_dt.bias")),
    ("attention.A_log", Edited("ssm_a", rate)),
    ("attention.o_norm", Name("ssm_norm")),
    ("attention.q_proj", Name("attn_q")),
    ("attention.k_proj", Name("attn_k")),
    ("attention.v_proj", Name("attn_v")),
    ("attention.o_proj", Name("attn_output")),
    ("attention.dense", Name("attn_output")),
    ("attention.q_a_proj", Name("attn_q_a")),
    ("attention.q_a_layernorm", Name("attn_q_a_norm")),
    ("attention.q_b_proj", Name("attn_q_b")),
    ("attention.kv_a_proj_with_mqa", Name("attn_kv_a_mqa")),
    ("attention.kv_a_layernorm", Name("attn_kv_a_norm")),
    ("attention.kv_b_proj", Cut(keys_and_values)),
    ("input_layernorm", Name("attn_norm")),
    ("mlp.gate.expert_bias", Name("exp_probs_b.bias")),
];

const LING_WHOLE: &[Row] = &[("model.word_embeddings", Name("token_embd"))];

pub(super) const FAMILIES: &[Family] = &[
    LINEAR,
    Family {
        classes: &["BailingMoeV3ForCausalLM", "BailingHybridForCausalLM"],
        arch: "bailingmoe3",
        layer: &[LING, FEED_FORWARD_NORM, FEED_FORWARD, EXPERTS, SHARED_EXPERT],
        whole: &[LING_WHOLE, WHOLE],
        keys: keys_of_ling,
        ..LINEAR
    },
    Family {
        classes: &["KimiK3ForConditionalGeneration"],
        arch: "kimi-k3",
        layer: &[
            STATES,
            DECAYS_OF_HEADS,
            K3,
            COMPRESSED,
            ATTENTION,
            FEED_FORWARD_NORM,
            FEED_FORWARD,
            KIMI_EXPERTS,
            NUMBERED_EXPERTS,
        ],
        whole: &[K3_WHOLE, WHOLE],
        keys: keys_of_k3,
        ..LINEAR
    },
    Family {
        classes: &["Glm5NextForConditionalGeneration"],
        arch: "glm5-next",
        layer: &[
            STATES,
            DECAYS_OF_HEADS,
            GLM5,
            COMPRESSED,
            ATTENTION,
            FEED_FORWARD_NORM,
            FEED_FORWARD,
            EXPERTS,
            SHARED_EXPERT,
            INDEXER,
        ],
        keys: keys_of_glm5,
        in_f32: &[
            "ffn_gate_inp.weight",
            "ssm_conv1d",
            "hc_attn_",
            "hc_ffn_",
            "indexer.proj.weight",
            "indexer_compressor_",
        ],
        ..LINEAR
    },
];

/// Attention as over one head of compressed keys, and layers with a state.
fn keys_of_layers(config: &Config, attends: &[bool], header: &mut Header) -> Result<(), Error> {
    let kv_heads: Vec<u64> = attends.iter().map(|attends| u64::from(*attends)).collect();
    header.sizes_of_layers("attention.head_count_kv", &kv_heads);
    let states = config.object("linear_attn_config");
    header.sizes(
        &states,
        &[(&["short_conv_kernel_size"], "ssm.conv_kernel"), (&["head_dim"], "kda.head_dim")],
    )?;
    header.numbers(&states, &[(&["gate_lower_bound"], "kda.gate_lower_bound")])?;
    let (rank, rotated) = (config.u64(&["kv_lora_rank"])?, config.u64(&["qk_rope_head_dim"])?);
    header.size("attention.key_length", rank + rotated);
    header.size("attention.key_length_mla", config.u64(&["qk_nope_head_dim"])? + rotated);
    header.size("rope.dimension_count", rotated);
    header.sizes(
        config,
        &[
            (&["vocab_size"], "vocab_size"),
            (&["q_lora_rank"], "attention.q_lora_rank"),
            (&["kv_lora_rank"], "attention.kv_lora_rank"),
            (&["v_head_dim"], "attention.value_length_mla"),
            (&["num_shared_experts"], "expert_shared_count"),
        ],
    )
}

/// The layers with attention; the configuration counts them from 1.
fn listed(config: &Config) -> Result<Vec<bool>, Error> {
    let states = config.object("linear_attn_config");
    let full = states.find_numbers("full_attn_layers")?;
    let full = full.ok_or_else(|| states.lacks("full_attn_layers"))?;
    Ok((1..=config.layers()?).map(|layer| full.contains(&(layer as f64))).collect())
}

fn keys_of_linear(config: &Config, header: &mut Header) -> Result<(), Error> {
    experts(config, header)?;
    keys_of_layers(config, &listed(config)?, header)
}

fn keys_of_k3(config: &Config, header: &mut Header) -> Result<(), Error> {
    const SIGMOID: u64 = 2;
    keys_of_linear(config, header)?;
    let act = config.find_str(&["hidden_act"])?.unwrap_or_default();
    if act != "situ" {
        let (key, wanted) = ("hidden_act".to_owned(), "situ".to_owned());
        return Err(Error::Config { key, found: act, wanted });
    }
    header.size("expert_gating_func", SIGMOID);
    header.flag("expert_weights_norm", config.find_bool("moe_renormalize")? == Some(true));
    header.sizes(
        config,
        &[
            (&["kv_lora_rank"], "attention.value_length"),
            (&["routed_expert_hidden_size"], "expert_latent_length"),
            (&["attn_res_block_size"], "attn_res.block_size"),
        ],
    )?;
    header.numbers(
        config,
        &[
            (&["activation_situ_beta"], "activation.situ_beta"),
            (&["activation_situ_linear_beta"], "activation.situ_linear_beta"),
        ],
    )
}

fn keys_of_glm5(config: &Config, header: &mut Header) -> Result<(), Error> {
    experts(config, header)?;
    let states = config.layers_of("linear_attention")?;
    let states = states.ok_or_else(|| config.lacks("layer_types"))?;
    let attends: Vec<bool> = states.iter().map(|has_state| !has_state).collect();
    keys_of_layers(config, &attends, header)?;
    header.number("attention.layer_norm_epsilon", 1e-6);
    super::deepseek::keys_of_selection(config, header)?;
    header.sizes(
        config,
        &[
            (&["kv_lora_rank"], "attention.value_length"),
            (&["index_kpool"], "attention.indexer.kpool"),
        ],
    )?;
    let tail = config.find_bool("index_kpool_always_select_tail")?;
    header.flag("attention.indexer.kpool_select_tail", tail.unwrap_or(true));
    super::deepseek4::keys_of_streams(config, header)
}

/// Layers of Ling 3 that attend: the last of each group.
fn attends_in_ling(config: &Config) -> Result<Vec<bool>, Error> {
    let (layers, group) = (config.layers()?, config.u64(&["layer_group_size"])?);
    // Of layers behind the last whole group, implementations disagree.
    if group == 0 || !layers.is_multiple_of(group) {
        let (key, found) = ("layer_group_size".to_owned(), group.to_string());
        return Err(Error::Config { key, found, wanted: format!("a divisor of {layers} layers") });
    }
    Ok((1..=layers).map(|at| at.is_multiple_of(group)).collect())
}

fn keys_of_ling(config: &Config, header: &mut Header) -> Result<(), Error> {
    for (key, wanted) in [("no_kda_lora", true), ("kda_safe_gate", true)] {
        if config.find_bool(key)? == Some(!wanted) {
            let (found, wanted) = ((!wanted).to_string(), wanted.to_string());
            return Err(Error::Config { key: key.to_owned(), found, wanted });
        }
    }
    let attends = attends_in_ling(config)?;
    let kv_heads: Vec<u64> = attends.iter().map(|attends| u64::from(*attends)).collect();
    header.sizes_of_layers("attention.head_count_kv", &kv_heads);
    let (rank, rotated) = (config.u64(&["kv_lora_rank"])?, config.u64(&["qk_rope_head_dim"])?);
    header.size("attention.key_length", rank + rotated);
    header.size("attention.key_length_mla", config.u64(&["qk_nope_head_dim"])? + rotated);
    header.size("rope.dimension_count", rotated);
    header.flag("kda.safe_gate", true);
    header.numbers(config, &[(&["kda_lower_bound"], "kda.gate_lower_bound")])?;
    header.flag("expert_weights_norm", config.find_bool("norm_topk_prob")?.unwrap_or(true));
    header.sizes(
        config,
        &[
            (&["vocab_size"], "vocab_size"),
            (&["short_conv_kernel_size"], "ssm.conv_kernel"),
            (&["head_dim"], "kda.head_dim"),
            (&["q_lora_rank"], "attention.q_lora_rank"),
            (&["kv_lora_rank"], "attention.kv_lora_rank"),
            (&["v_head_dim"], "attention.value_length_mla"),
            (&["moe_intermediate_size"], "expert_feed_forward_length"),
            (&["moe_shared_expert_intermediate_size"], "expert_shared_feed_forward_length"),
            (&["num_shared_experts"], "expert_shared_count"),
            (&["first_k_dense_replace"], "leading_dense_block_count"),
        ],
    )?;
    header.numbers(config, &[(&["routed_scaling_factor"], "expert_weights_scale")])
}

/// `exp(x)`, one row a head.
fn rate(_: &Config, weight: Weight) -> Result<Weight, Error> {
    let heads = weight.shape.iter().product();
    weight.mapped(EXP)?.reshaped(&[heads, 1])
}

/// Gates of attention and of states have one name.
fn gate_of_ling(config: &Config, weight: Weight) -> Result<Pieces, Error> {
    let attends = attends_in_ling(config)?;
    let attends = weight.layer().and_then(|layer| attends.get(layer as usize));
    let name = if attends == Some(&true) { "attn_gate.weight" } else { "ssm_g_a.weight" };
    Ok(vec![(name, weight)])
}

/// `[1, channels, 1, taps]`.
fn convolution(_: &Config, weight: Weight) -> Result<Weight, Error> {
    let channels = weight.shape[0];
    let taps = weight.shape[1..].iter().product();
    weight.reshaped(&[1, channels, 1, taps])
}

fn decays_of_heads(config: &Config, weight: Weight) -> Result<Weight, Error> {
    let (all, heads) = (weight.shape.iter().product(), config.u64(&["num_attention_heads"])?);
    decay(config, weight.reshaped(&[all])?.rows_of_each(all, 0, heads, 1)?)
}

/// Gates of attention and of states have one name.
fn gate(config: &Config, weight: Weight) -> Result<Pieces, Error> {
    let attends = listed(config)?;
    let attends = weight.layer().and_then(|layer| attends.get(layer as usize));
    let name = if attends == Some(&true) { "attn_gate.weight" } else { "ssm_g.weight" };
    Ok(vec![(name, weight)])
}

//! Names, keys and changes that most families share.

use super::{Cut, Family, Row, To::*, Words};
use crate::Error;
use crate::config::Config;
use crate::element::{MINUS_EXP, PLUS_ONE};
use crate::header::Header;
use crate::weight::{Tensors, Weight};

/// Of the whole model.
pub(super) const WHOLE: &[Row] = &[
    ("model.embed_tokens", Name("token_embd")),
    ("model.norm", Name("output_norm")),
    ("lm_head", Name("output")),
];

/// Llama's attention, and the norm before it.
pub(super) const ATTENTION: &[Row] = &[
    ("input_layernorm", Name("attn_norm")),
    ("self_attn.q_proj", Name("attn_q")),
    ("self_attn.k_proj", Name("attn_k")),
    ("self_attn.v_proj", Name("attn_v")),
    ("self_attn.o_proj", Name("attn_output")),
    ("self_attn.q_norm", Name("attn_q_norm")),
    ("self_attn.k_norm", Name("attn_k_norm")),
];

/// Llama's norm before the feed-forward block.
pub(super) const FEED_FORWARD_NORM: &[Row] = &[("post_attention_layernorm", Name("ffn_norm"))];

/// The same norm, under the name that some families have in GGUF.
pub(super) const LATE_NORM: &[Row] = &[("post_attention_layernorm", Name("post_attention_norm"))];

/// A dense feed-forward block.
pub(super) const FEED_FORWARD: &[Row] = &[
    ("mlp.gate_proj", Name("ffn_gate")),
    ("mlp.up_proj", Name("ffn_up")),
    ("mlp.down_proj", Name("ffn_down")),
];

/// A router and its experts, each with tensors of its own.
pub(super) const EXPERTS: &[Row] = &[
    ("mlp.gate", Name("ffn_gate_inp")),
    ("mlp.gate.e_score_correction_bias", Name("exp_probs_b.bias")),
    ("mlp.experts.{}.gate_proj", Name("ffn_gate_exps")),
    ("mlp.experts.{}.up_proj", Name("ffn_up_exps")),
    ("mlp.experts.{}.down_proj", Name("ffn_down_exps")),
    // MLX's files.
    ("mlp.switch_mlp.gate_proj", Name("ffn_gate_exps")),
    ("mlp.switch_mlp.up_proj", Name("ffn_up_exps")),
    ("mlp.switch_mlp.down_proj", Name("ffn_down_exps")),
];

/// Experts that are already stacked: `[experts, rows, columns]`.
pub(super) const STACKED_EXPERTS: &[Row] = &[
    ("mlp.experts.gate_up_proj", Cut(GATE_AND_UP_EXPERTS)),
    ("mlp.experts.down_proj", Name("ffn_down_exps.weight")),
];

/// Mixtral's names of a router and its experts.
pub(super) const NUMBERED_EXPERTS: &[Row] = &[
    ("block_sparse_moe.gate", Name("ffn_gate_inp")),
    ("block_sparse_moe.e_score_correction_bias", Name("exp_probs_b.bias")),
    ("block_sparse_moe.experts.{}.w1", Name("ffn_gate_exps")),
    ("block_sparse_moe.experts.{}.w3", Name("ffn_up_exps")),
    ("block_sparse_moe.experts.{}.w2", Name("ffn_down_exps")),
    // MLX's files.
    ("block_sparse_moe.switch_mlp.gate_proj", Name("ffn_gate_exps")),
    ("block_sparse_moe.switch_mlp.up_proj", Name("ffn_up_exps")),
    ("block_sparse_moe.switch_mlp.down_proj", Name("ffn_down_exps")),
];

/// The expert that sees every token.
pub(super) const SHARED_EXPERT: &[Row] = &[
    ("mlp.shared_expert_gate", Name("ffn_gate_inp_shexp")),
    ("mlp.shared_expert.gate_proj", Name("ffn_gate_shexp")),
    ("mlp.shared_expert.up_proj", Name("ffn_up_shexp")),
    ("mlp.shared_expert.down_proj", Name("ffn_down_shexp")),
    ("mlp.shared_experts.gate_proj", Name("ffn_gate_shexp")),
    ("mlp.shared_experts.up_proj", Name("ffn_up_shexp")),
    ("mlp.shared_experts.down_proj", Name("ffn_down_shexp")),
    ("mlp.shared_mlp.gate_proj", Name("ffn_gate_shexp")),
    ("mlp.shared_mlp.up_proj", Name("ffn_up_shexp")),
    ("mlp.shared_mlp.down_proj", Name("ffn_down_shexp")),
];

/// What a block of multi-token prediction has beside a layer.
pub(super) const BLOCK: &[Row] = &[
    ("enorm", Name("nextn.enorm")),
    ("hnorm", Name("nextn.hnorm")),
    ("eh_proj", Name("nextn.eh_proj")),
    ("embed_tokens", Name("nextn.embed_tokens")),
    ("shared_head.norm", Name("nextn.shared_head_norm")),
    ("shared_head.head", Name("nextn.shared_head_head")),
];

/// A dense decoder of Llama's shape; families differ from it.
pub(super) const DENSE: Family = Family {
    classes: &[],
    when: always,
    arch: "",
    layer: &[ATTENTION, FEED_FORWARD_NORM, FEED_FORWARD],
    block: &[],
    whole: &[WHOLE],
    keys: nothing,
    computed: none,
    in_f32: IN_F32,
    words: Words::Described,
};

/// Small matrices: routers, convolutions, and the weights of an indexer's heads.
const IN_F32: &[&str] = &[
    "ffn_gate_inp.weight",
    "ffn_gate_inp_shexp.weight",
    "ssm_conv1d",
    "shortconv.conv.weight",
    "indexer.proj.weight",
];

/// The same with experts.
pub(super) const SPARSE: Family = Family {
    layer: &[ATTENTION, FEED_FORWARD_NORM, FEED_FORWARD, EXPERTS, STACKED_EXPERTS, SHARED_EXPERT],
    ..DENSE
};

pub(super) fn always(_: &Config) -> Result<bool, Error> {
    Ok(true)
}

pub(super) fn nothing(_: &Config, _: &mut Header) -> Result<(), Error> {
    Ok(())
}

pub(super) fn none(_: &Config) -> Result<Tensors, Error> {
    Ok(Vec::new())
}

/// Gates above ups, in each expert: `[experts, 2 * hidden, width]`.
pub(super) const GATE_AND_UP_EXPERTS: Cut = |_, both| {
    let [gate, up] = halves(both)?;
    Ok(vec![("ffn_gate_exps.weight", gate), ("ffn_up_exps.weight", up)])
};

/// The upper and the lower half of each matrix.
pub(super) fn halves(both: Weight) -> Result<[Weight; 2], Error> {
    let [.., rows, _] = both.shape[..] else { return Err(both.wrong_shape("a matrix")) };
    if !rows.is_multiple_of(2) || rows == 0 {
        return Err(both.wrong_shape("an even number of rows"));
    }
    let lower = both.clone().rows_of_each(rows, rows / 2, rows / 2, 1)?;
    Ok([both.rows_of_each(rows, 0, rows / 2, 1)?, lower])
}

pub(super) fn plus_one(_: &Config, weight: Weight) -> Result<Weight, Error> {
    weight.mapped(PLUS_ONE)
}

/// Without dimensions of 1.
pub(super) fn squeezed(_: &Config, weight: Weight) -> Result<Weight, Error> {
    let shape: Vec<u64> = weight.shape.iter().copied().filter(|dim| *dim != 1).collect();
    weight.reshaped(if shape.is_empty() { &[1] } else { &shape })
}

/// The length of a head.
pub(super) fn head_dim(config: &Config) -> Result<u64, Error> {
    match config.find_u64(&["head_dim"])? {
        Some(dim) => Ok(dim),
        None => Ok(config.u64(&["hidden_size"])? / config.u64(&["num_attention_heads"])?.max(1)),
    }
}

/// A decay that is stored as its logarithm.
pub(super) fn decay(_: &Config, weight: Weight) -> Result<Weight, Error> {
    weight.mapped(MINUS_EXP)
}

/// Experts' sizes, as most families name them.
pub(super) fn experts(config: &Config, header: &mut Header) -> Result<(), Error> {
    header.sizes(
        config,
        &[
            (&["moe_intermediate_size"], "expert_feed_forward_length"),
            (&["shared_expert_intermediate_size"], "expert_shared_feed_forward_length"),
            (&["n_shared_experts"], "expert_shared_count"),
            (&["first_k_dense_replace"], "leading_dense_block_count"),
        ],
    )?;
    header.numbers(config, &[(&["routed_scaling_factor"], "expert_weights_scale")])?;
    if let Some(is_normalised) = config.find_bool("norm_topk_prob")? {
        header.flag("expert_weights_norm", is_normalised);
    }
    Ok(())
}

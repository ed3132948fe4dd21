//! MiniMax M2 and M3.

use super::shared::{
    ATTENTION, DENSE, FEED_FORWARD, FEED_FORWARD_NORM, NUMBERED_EXPERTS, WHOLE, head_dim, plus_one,
};
use super::{Family, Row, To::*};
use crate::Error;
use crate::config::Config;
use crate::header::Header;
use crate::rope::Rope;

/// M3: gains are stored as their distance from 1, and keys chosen by an indexer.
const M3: &[Row] = &[
    ("input_layernorm", Edited("attn_norm", plus_one)),
    ("post_attention_layernorm", Edited("ffn_norm", plus_one)),
    ("self_attn.q_norm", Edited("attn_q_norm", plus_one)),
    ("self_attn.k_norm", Edited("attn_k_norm", plus_one)),
    ("self_attn.index_q_norm", Edited("indexer.q_norm", plus_one)),
    ("self_attn.index_k_norm", Edited("indexer.k_norm", plus_one)),
    ("self_attn.index_q_proj", Name("indexer.q_proj")),
    ("self_attn.index_k_proj", Name("indexer.k_proj")),
    ("block_sparse_moe.shared_experts.gate_proj", Name("ffn_gate_shexp")),
    ("block_sparse_moe.shared_experts.up_proj", Name("ffn_up_shexp")),
    ("block_sparse_moe.shared_experts.down_proj", Name("ffn_down_shexp")),
];

const M3_WHOLE: &[Row] = &[("model.norm", Edited("output_norm", plus_one))];

pub(super) const FAMILIES: &[Family] = &[
    Family {
        classes: &["MiniMaxM2ForCausalLM"],
        arch: "minimax-m2",
        layer: &[ATTENTION, FEED_FORWARD_NORM, NUMBERED_EXPERTS],
        keys: keys_of_m2,
        ..DENSE
    },
    Family {
        classes: &["MiniMaxM3SparseForCausalLM", "MiniMaxM3SparseForConditionalGeneration"],
        arch: "minimax-m3",
        layer: &[M3, ATTENTION, FEED_FORWARD, NUMBERED_EXPERTS],
        whole: &[M3_WHOLE, WHOLE],
        keys: keys_of_m3,
        // A choice depends on last bits.
        in_f32: &["ffn_gate_inp.weight", ".indexer."],
        ..DENSE
    },
];

fn keys_of_m2(config: &Config, header: &mut Header) -> Result<(), Error> {
    let (share, dim) = (Rope::read(config)?.partial, head_dim(config)?);
    let rotated = config.find_u64(&["rotary_dim"])?;
    if let (Some(share), Some(rotated)) = (share, rotated)
        && (dim as f64 * share) as u64 != rotated
    {
        return Err(Error::Config {
            key: "partial_rotary_factor".to_owned(),
            found: share.to_string(),
            wanted: format!("{rotated} (rotary_dim) of {dim}"),
        });
    }
    header.sizes(
        config,
        &[
            (&["intermediate_size"], "expert_feed_forward_length"),
            (&["rotary_dim"], "rope.dimension_count"),
        ],
    )
}

fn keys_of_m3(config: &Config, header: &mut Header) -> Result<(), Error> {
    keys_of_m2(config, header)?;
    header.sizes(config, &[(&["n_shared_experts"], "expert_shared_count")])?;
    header.numbers(config, &[(&["routed_scaling_factor"], "expert_weights_scale")])?;
    header.flag("expert_weights_norm", true);
    header.sizes(
        &config.object("sparse_attention_config"),
        &[
            (&["sparse_num_index_heads"], "attention.indexer.head_count"),
            (&["sparse_index_dim"], "attention.indexer.key_length"),
            (&["sparse_topk_blocks"], "attention.indexer.top_k"),
            (&["sparse_block_size"], "attention.indexer.block_size"),
            (&["sparse_local_block"], "attention.indexer.local_blocks"),
        ],
    )?;
    let has_experts = config.find_numbers("moe_layer_freq")?;
    let has_experts = has_experts.ok_or_else(|| config.lacks("moe_layer_freq"))?;
    let dense = has_experts.iter().take_while(|it| **it == 0.0).count();
    header.size("leading_dense_block_count", dense as u64);
    Ok(())
}

//! Models with layers of Mamba-2: Granite 4, Nemotron-H and Nemotron 3.

use super::llama::{GRANITE_EXPERTS, ROTATED, keys, keys_of_granite, queries};
use super::shared::{
    ATTENTION, DENSE, FEED_FORWARD, FEED_FORWARD_NORM, WHOLE, decay, experts, squeezed,
};
use super::{Family, Row, To::*};
use crate::Error;
use crate::config::Config;
use crate::header::Header;
use crate::weight::Weight;

/// A layer's mixer under the name that a family has for it.
macro_rules! mixer {
    ($name:literal) => {
        &[
            (concat!($name, ".in_proj"), Name("ssm_in")),
            (concat!($name, ".conv1d"), Edited("ssm_conv1d", squeezed)),
            (concat!($name, ".dt_bias"), Name("ssm_dt.bias")),
            (concat!($name, ".A_log"), Edited("ssm_a", decay_column)),
            (concat!($name, ".D"), Edited("ssm_d", column)),
            (concat!($name, ".norm"), Edited("ssm_norm", by_group)),
            (concat!($name, ".out_proj"), Name("ssm_out")),
        ]
    };
}

const GRANITE_MIXER: &[Row] = mixer!("mamba");
const NEMOTRON_MIXER: &[Row] = mixer!("mixer");

/// Each layer of Nemotron-H is one half: a mixer, attention, or a feed-forward block.
const NEMOTRON: &[Row] = &[
    ("norm", Name("attn_norm")),
    ("mixer.q_proj", Edited("attn_q", queries)),
    ("mixer.k_proj", Edited("attn_k", keys)),
    ("mixer.v_proj", Name("attn_v")),
    ("mixer.o_proj", Name("attn_output")),
    ("mixer.up_proj", Name("ffn_up")),
    ("mixer.down_proj", Name("ffn_down")),
    ("mixer.gate", Name("ffn_gate_inp")),
    ("mixer.gate.e_score_correction_bias", Name("exp_probs_b.bias")),
    ("mixer.gate.e_score_correction", Name("exp_probs_b")),
    ("mixer.experts.{}.up_proj", Name("ffn_up_exps")),
    ("mixer.experts.{}.down_proj", Name("ffn_down_exps")),
    // MLX's files.
    ("mixer.switch_mlp.fc1", Name("ffn_up_exps")),
    ("mixer.switch_mlp.fc2", Name("ffn_down_exps")),
    ("mixer.fc1_latent_proj", Name("ffn_latent_down")),
    ("mixer.fc2_latent_proj", Name("ffn_latent_up")),
    ("mixer.shared_experts.up_proj", Name("ffn_up_shexp")),
    ("mixer.shared_experts.down_proj", Name("ffn_down_shexp")),
];

const NEMOTRON_WHOLE: &[Row] =
    &[("model.embeddings", Name("token_embd")), ("model.norm_f", Name("output_norm"))];

const GRANITE: Family = Family {
    classes: &["GraniteMoeHybridForCausalLM"],
    when: has_states,
    arch: "granitehybrid",
    layer: &[GRANITE_MIXER, ROTATED, ATTENTION, FEED_FORWARD_NORM, FEED_FORWARD, GRANITE_EXPERTS],
    keys: keys_of_granite_hybrid,
    ..DENSE
};

const NEMOTRON_H: Family = Family {
    classes: &["NemotronHForCausalLM"],
    arch: "nemotron_h",
    layer: &[NEMOTRON_MIXER, NEMOTRON],
    whole: &[NEMOTRON_WHOLE, WHOLE],
    keys: keys_of_nemotron,
    ..DENSE
};

pub(super) const FAMILIES: &[Family] = &[
    GRANITE,
    // Some models of this class have attention in all layers.
    Family { when: has_experts, arch: "granitemoe", ..GRANITE },
    Family { when: DENSE.when, arch: "granite", ..GRANITE },
    Family { when: has_experts, arch: "nemotron_h_moe", ..NEMOTRON_H },
    NEMOTRON_H,
];

/// For contexts of any length, since a state has no positions.
const CONTEXT: u64 = 1 << 20;

fn has_experts(config: &Config) -> Result<bool, Error> {
    Ok(config.find_u64(&["num_experts_per_tok"])?.unwrap_or(0) > 0)
}

fn has_states(config: &Config) -> Result<bool, Error> {
    Ok(attending(config)?.contains(&false))
}

/// The layers with attention, by the names and letters that configurations have for them.
fn attending(config: &Config) -> Result<Vec<bool>, Error> {
    Ok(kinds(config)?
        .iter()
        .map(|kind| matches!(&**kind, "attention" | "full_attention" | "*"))
        .collect())
}

/// The kind of each layer.
fn kinds(config: &Config) -> Result<Vec<String>, Error> {
    if let Some(letters) = config.find_str(&["hybrid_override_pattern"])? {
        return Ok(letters.chars().map(String::from).collect());
    }
    let lists = [config.texts("layers_block_type")?, config.texts("layer_types")?];
    let found = lists.into_iter().find(|kinds| !kinds.is_empty());
    found.ok_or_else(|| config.lacks("layer_types"))
}

fn keys_of_states(config: &Config, header: &mut Header) -> Result<(), Error> {
    header.sizes(
        config,
        &[
            (&["conv_kernel", "mamba_d_conv"], "ssm.conv_kernel"),
            (&["ssm_state_size", "mamba_d_state"], "ssm.state_size"),
            (&["n_groups", "mamba_n_groups"], "ssm.group_count"),
            (&["mamba_num_heads", "mamba_n_heads"], "ssm.time_step_rank"),
        ],
    )?;
    let heads = config.u64(&["mamba_num_heads", "mamba_n_heads"])?;
    let dim = config.u64(&["mamba_head_dim", "mamba_d_head"])?;
    header.size("ssm.inner_size", heads * dim);
    let kv_heads = config.u64(&["num_key_value_heads"])?;
    let of_layer = |attends: bool| if attends { kv_heads } else { 0 };
    let of_layers: Vec<u64> = attending(config)?.into_iter().map(of_layer).collect();
    header.sizes_of_layers("attention.head_count_kv", &of_layers);
    let heads = config.u64(&["num_attention_heads"])?.max(1);
    header.size("rope.dimension_count", config.u64(&["hidden_size"])? / heads);
    Ok(())
}

fn keys_of_granite_hybrid(config: &Config, header: &mut Header) -> Result<(), Error> {
    keys_of_granite(config, header)?;
    keys_of_states(config, header)?;
    let has_states = has_states(config)?;
    if has_states {
        header.size("context_length", CONTEXT);
    }
    // Whether attention rotates.
    let positions = config.find_str(&["position_embedding_type"])?;
    header.flag("rope.scaling.finetuned", positions.as_deref() == Some("rope"));
    Ok(())
}

fn keys_of_nemotron(config: &Config, header: &mut Header) -> Result<(), Error> {
    experts(config, header)?;
    keys_of_states(config, header)?;
    let eps = &[(&["layer_norm_epsilon"][..], "attention.layer_norm_rms_epsilon")];
    header.numbers(config, eps)?;
    header.size("context_length", CONTEXT);
    header.flag("rope.scaling.finetuned", false);
    header.sizes(
        config,
        &[
            (&["vocab_size"], "vocab_size"),
            (&["head_dim", "attention_head_dim"], "attention.key_length"),
            (&["head_dim", "attention_head_dim"], "attention.value_length"),
            (&["moe_shared_expert_intermediate_size"], "expert_shared_feed_forward_length"),
            (&["moe_latent_size"], "moe_latent_size"),
        ],
    )?;
    let width = match has_experts(config)? {
        true => config.u64(&["moe_intermediate_size"])?,
        false => config.u64(&["intermediate_size"])?,
    };
    let of_layer =
        |kind: &String| if matches!(&**kind, "moe" | "mlp" | "E" | "-") { width } else { 0 };
    let widths: Vec<u64> = kinds(config)?.iter().map(of_layer).collect();
    header.sizes_of_layers("feed_forward_length", &widths);
    Ok(())
}

/// `[heads, 1]`.
fn column(_: &Config, weight: Weight) -> Result<Weight, Error> {
    let heads = weight.shape.iter().product();
    weight.reshaped(&[heads, 1])
}

fn decay_column(config: &Config, weight: Weight) -> Result<Weight, Error> {
    column(config, decay(config, weight)?)
}

/// A norm over each group of heads: `[groups, elements]`.
fn by_group(config: &Config, weight: Weight) -> Result<Weight, Error> {
    let (all, groups) = (weight.columns(), config.u64(&["n_groups", "mamba_n_groups"])?);
    if groups == 0 || weight.shape.len() != 1 || !all.is_multiple_of(groups) {
        return Err(weight.wrong_shape(&format!("a vector of {groups} groups")));
    }
    weight.reshaped(&[groups, all / groups])
}

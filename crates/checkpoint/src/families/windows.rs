//! Step 3.5 and MiMo V2: layers with a window have other heads than those without.

use super::llama::stretched_pairs;
use super::qwen::gain;
use super::shared::{ATTENTION, DENSE, EXPERTS, FEED_FORWARD, FEED_FORWARD_NORM, WHOLE, head_dim};
use super::{Family, Row, To::*};
use crate::Error;
use crate::config::Config;
use crate::header::Header;
use crate::rope::Rope;
use crate::weight::{Tensors, Weight};

/// Step 3.5: gains are stored as their distance from 1, except in MLX's files.
const STEP: &[Row] = &[
    ("input_layernorm", Edited("attn_norm", gain)),
    ("post_attention_layernorm", Edited("ffn_norm", gain)),
    ("self_attn.q_norm", Edited("attn_q_norm", gain)),
    ("self_attn.k_norm", Edited("attn_k_norm", gain)),
    ("self_attn.g_proj", Name("attn_gate")),
    ("moe.gate", Name("ffn_gate_inp")),
    ("moe.router_bias", Name("exp_probs_b.bias")),
    ("moe.gate_proj", Name("ffn_gate_exps")),
    ("moe.up_proj", Name("ffn_up_exps")),
    ("moe.down_proj", Name("ffn_down_exps")),
    ("share_expert.gate_proj", Name("ffn_gate_shexp")),
    ("share_expert.up_proj", Name("ffn_up_shexp")),
    ("share_expert.down_proj", Name("ffn_down_shexp")),
    // MLX's files.
    ("mlp.gate.gate", Name("ffn_gate_inp")),
    ("mlp.gate.router_bias", Name("exp_probs_b.bias")),
    ("mlp.share_expert.gate_proj", Name("ffn_gate_shexp")),
    ("mlp.share_expert.up_proj", Name("ffn_up_shexp")),
    ("mlp.share_expert.down_proj", Name("ffn_down_shexp")),
];

const STEP_WHOLE: &[Row] = &[("model.norm", Edited("output_norm", gain))];

const MIMO: &[Row] = &[("self_attn.attention_sink_bias", Name("attn_sinks.weight"))];

pub(super) const FAMILIES: &[Family] = &[
    Family {
        classes: &["Step3p5ForCausalLM", "Step3p7ForConditionalGeneration"],
        arch: "step35",
        layer: &[STEP, ATTENTION, FEED_FORWARD, EXPERTS],
        whole: &[STEP_WHOLE, WHOLE],
        keys: keys_of_step,
        computed: stretched_without_window,
        ..DENSE
    },
    Family {
        classes: &["MiMoV2FlashForCausalLM", "MiMoV2ForCausalLM"],
        arch: "mimo2",
        layer: &[MIMO, ATTENTION, FEED_FORWARD_NORM, FEED_FORWARD, EXPERTS],
        keys: keys_of_mimo,
        ..DENSE
    },
];

/// Which layers have a window.
fn windows(config: &Config) -> Result<Vec<bool>, Error> {
    let found = config.layers_of("sliding_attention")?;
    let mut found = found.ok_or_else(|| config.lacks("layer_types"))?;
    // Entries of blocks of multi-token prediction follow those of the layers.
    found.truncate(config.layers()? as usize);
    Ok(found)
}

/// A count for each layer: one for those with a window, one for those without.
fn by_window(windows: &[bool], with: u64, without: u64) -> Vec<u64> {
    windows.iter().map(|has_window| if *has_window { with } else { without }).collect()
}

fn keys_of_step(config: &Config, header: &mut Header) -> Result<(), Error> {
    let (windows, own) = (windows(config)?, config.object("attention_other_setting"));
    check_rotation(config, &windows)?;
    let (scalar, dim) = (config.find_f64(&["query_pre_attn_scalar"])?, head_dim(config)?);
    if let Some(found) = scalar.filter(|scalar| *scalar != dim as f64) {
        let key = "query_pre_attn_scalar".to_owned();
        let wanted = format!("{dim}, the length of a head,");
        return Err(Error::Config { key, found: found.to_string(), wanted });
    }
    for (key, to) in [
        ("num_attention_heads", "attention.head_count"),
        ("num_attention_groups", "attention.head_count_kv"),
    ] {
        let without = config.u64(&[key])?;
        let with = own.find_u64(&[key])?.unwrap_or(without);
        header.sizes_of_layers(to, &by_window(&windows, with, without));
    }
    header.flags("attention.sliding_window_pattern", &windows);
    header.sizes(
        config,
        &[
            (&["sliding_window"], "attention.sliding_window"),
            (&["moe_num_experts"], "expert_count"),
            (&["moe_top_k"], "expert_used_count"),
            (&["moe_intermediate_size"], "expert_feed_forward_length"),
            (&["share_expert_dim"], "expert_shared_feed_forward_length"),
        ],
    )?;
    header.numbers(config, &[(&["moe_router_scaling_factor"], "expert_weights_scale")])?;
    if let Some(is_normalised) = config.find_bool("norm_expert_weight")? {
        header.flag("expert_weights_norm", is_normalised);
    }
    header.size("leading_dense_block_count", first_with_experts(config)?);
    let every = config.find_u64(&["moe_every_n_layer"])?;
    header.size("moe_every_n_layers", every.unwrap_or(1));
    limits(config, "swiglu_limits", "swiglu_clamp_exp", header)?;
    limits(config, "swiglu_limits_shared", "swiglu_clamp_shexp", header)
}

/// Layers without a window rotate half of each head, which GGUF has no key for.
fn check_rotation(config: &Config, windows: &[bool]) -> Result<(), Error> {
    let Some(shares) = config.find_numbers("partial_rotary_factors")? else { return Ok(()) };
    let is_usual =
        |(share, has_window): (&f64, &bool)| *share == if *has_window { 1.0 } else { 0.5 };
    match shares.iter().zip(windows).all(is_usual) {
        true => Ok(()),
        false => Err(Error::Config {
            key: "partial_rotary_factors".to_owned(),
            found: format!("{shares:?}"),
            wanted: "1 for layers with a window, and 0.5 for the others,".to_owned(),
        }),
    }
}

/// The first layer in a list such as "3,4,5".
fn first_with_experts(config: &Config) -> Result<u64, Error> {
    let list = config.find_str(&["moe_layers_enum"])?.unwrap_or_default();
    let layers = list.split(',').map(str::trim).filter(|layer| !layer.is_empty());
    let layers: Result<Vec<u64>, _> = layers.map(str::parse).collect();
    let layers = layers.map_err(|_| Error::Config {
        key: "moe_layers_enum".to_owned(),
        found: list.clone(),
        wanted: "a list of layers".to_owned(),
    })?;
    Ok(layers.into_iter().min().unwrap_or(0))
}

/// Limits of hidden numbers; 0 and null are none.
fn limits(config: &Config, from: &str, to: &str, header: &mut Header) -> Result<(), Error> {
    let Some(list) = config.get(from).and_then(|it| it.as_array()) else { return Ok(()) };
    let limits = list.iter().map(|it| it.as_f64().unwrap_or(0.0) as f32);
    let limits: Vec<f32> = limits.take(config.layers()? as usize).collect();
    header.numbers_of_layers(to, &limits);
    Ok(())
}

/// Llama 3's stretched frequencies, of the half of a head that layers without a window rotate.
fn stretched_without_window(config: &Config) -> Result<Tensors, Error> {
    let pairs = head_dim(config)? / 2;
    let Some(mut factors) = stretched_pairs(config, pairs)? else { return Ok(Vec::new()) };
    factors.resize(pairs as usize, 1.0);
    let name = "rope_freqs.weight";
    Ok(vec![(name.to_owned(), Weight::computed(name, &factors))])
}

fn keys_of_mimo(config: &Config, header: &mut Header) -> Result<(), Error> {
    for key in ["head_dim", "num_attention_heads", "v_head_dim"] {
        check_same(config, key)?;
    }
    let pattern = config.find_numbers("hybrid_layer_pattern")?;
    let pattern = pattern.ok_or_else(|| config.lacks("hybrid_layer_pattern"))?;
    let windows: Vec<bool> = pattern.into_iter().map(|it| it == 1.0).collect();
    let (with, without) =
        (config.u64(&["swa_num_key_value_heads"])?, config.u64(&["num_key_value_heads"])?);
    header.sizes_of_layers("attention.head_count_kv", &by_window(&windows, with, without));
    header.flags("attention.sliding_window_pattern", &windows);
    header.sizes(
        config,
        &[
            (&["sliding_window"], "attention.sliding_window"),
            (&["v_head_dim"], "attention.value_length"),
            (&["moe_intermediate_size"], "expert_feed_forward_length"),
        ],
    )?;
    header.numbers(
        config,
        &[
            (&["layernorm_epsilon"], "attention.layer_norm_rms_epsilon"),
            (&["attention_value_scale"], "attention.value_scale"),
        ],
    )?;
    let share = Rope::read(config)?.partial.unwrap_or(1.0);
    header.size("rope.dimension_count", (head_dim(config)? as f64 * share) as u64);
    Ok(())
}

/// Layers with a window have a size of their own, which must be that of the others.
fn check_same(config: &Config, key: &str) -> Result<(), Error> {
    let (own, with) = (config.u64(&[key])?, config.find_u64(&[&format!("swa_{key}")])?);
    match with.filter(|with| *with != own) {
        None => Ok(()),
        Some(found) => Err(Error::Config {
            key: format!("swa_{key}"),
            found: found.to_string(),
            wanted: format!("{own}, as {key} is,"),
        }),
    }
}

//! Gemma 2 to 4, and Gemma 4's assistant, which guesses for it.

use super::shared::{ATTENTION, DENSE, FEED_FORWARD, WHOLE, plus_one};
use super::{Family, Row, To::*, Words};
use crate::Error;
use crate::config::Config;
use crate::header::Header;
use crate::rope::Rope;
use crate::weight::{Tensors, Weight};

/// Gains are stored as their distance from 1.
const NORMS: &[Row] = &[
    ("input_layernorm", Edited("attn_norm", plus_one)),
    ("post_attention_layernorm", Edited("post_attention_norm", plus_one)),
    ("pre_feedforward_layernorm", Edited("ffn_norm", plus_one)),
    ("post_feedforward_layernorm", Edited("post_ffw_norm", plus_one)),
    ("self_attn.q_norm", Edited("attn_q_norm", plus_one)),
    ("self_attn.k_norm", Edited("attn_k_norm", plus_one)),
];

const OUTPUT_NORM: &[Row] = &[("model.norm", Edited("output_norm", plus_one))];

/// Gemma 4's gains are whole.
const WHOLE_NORMS: &[Row] = &[
    ("post_attention_layernorm", Name("post_attention_norm")),
    ("pre_feedforward_layernorm", Name("ffn_norm")),
    ("pre_feedforward_layernorm_2", Name("pre_ffw_norm_2")),
    ("post_feedforward_layernorm", Name("post_ffw_norm")),
    ("post_feedforward_layernorm_1", Name("post_ffw_norm_1")),
    ("post_feedforward_layernorm_2", Name("post_ffw_norm_2")),
];

const GEMMA4_LAYER: &[Row] = &[
    ("layer_scalar", Name("layer_output_scale.weight")),
    ("per_layer_input_gate", Name("inp_gate")),
    ("per_layer_projection", Name("proj")),
    ("post_per_layer_input_norm", Name("post_norm")),
    ("router.proj", Name("ffn_gate_inp")),
    ("router.scale", Name("ffn_gate_inp.scale")),
    ("router.per_expert_scale", Name("ffn_down_exps.scale")),
    ("experts.gate_up_proj", Name("ffn_gate_up_exps.weight")),
    ("experts.down_proj", Name("ffn_down_exps.weight")),
    // MLX's files.
    ("experts.switch_glu.gate_proj", Name("ffn_gate_exps")),
    ("experts.switch_glu.up_proj", Name("ffn_up_exps")),
    ("experts.switch_glu.down_proj", Name("ffn_down_exps")),
];

const GEMMA4_WHOLE: &[Row] = &[
    ("model.embed_tokens_per_layer", Name("per_layer_token_embd")),
    ("model.per_layer_model_projection", Name("per_layer_model_proj")),
    ("model.per_layer_projection_norm", Name("per_layer_proj_norm")),
];

const ASSISTANT_WHOLE: &[Row] = &[
    ("pre_projection", Name("nextn.pre_projection")),
    ("post_projection", Name("nextn.post_projection")),
];

const GEMMA3: Family = Family {
    classes: &["Gemma3ForCausalLM", "Gemma3ForConditionalGeneration"],
    arch: "gemma3",
    layer: &[NORMS, ATTENTION, FEED_FORWARD],
    whole: &[OUTPUT_NORM, WHOLE],
    keys: keys_of_gemma3,
    ..DENSE
};

const GEMMA4: Family = Family {
    classes: &["Gemma4ForCausalLM", "Gemma4ForConditionalGeneration"],
    arch: "gemma4",
    layer: &[WHOLE_NORMS, ATTENTION, FEED_FORWARD, GEMMA4_LAYER],
    whole: &[WHOLE, GEMMA4_WHOLE],
    keys: keys_of_gemma4,
    computed: turns_of_gemma4,
    words: Words::Gemma4,
    ..DENSE
};

pub(super) const FAMILIES: &[Family] = &[
    Family { classes: &["Gemma2ForCausalLM"], arch: "gemma2", keys: keys_of_gemma2, ..GEMMA3 },
    GEMMA3,
    GEMMA4,
    Family {
        classes: &["Gemma4AssistantForCausalLM", "Gemma4UnifiedAssistantForCausalLM"],
        arch: "gemma4-assistant",
        whole: &[WHOLE, ASSISTANT_WHOLE],
        keys: keys_of_assistant,
        ..GEMMA4
    },
];

const HEAD_DIM_MAX: u64 = 1 << 16;

const ATTENTION_CAP: &[(&[&str], &str)] =
    &[(&["attn_logit_softcapping"], "attn_logit_softcapping")];
const LAST_CAP: &[(&[&str], &str)] = &[(&["final_logit_softcapping"], "final_logit_softcapping")];

fn keys_of_gemma2(config: &Config, header: &mut Header) -> Result<(), Error> {
    header.numbers(config, ATTENTION_CAP)?;
    header.numbers(config, LAST_CAP)?;
    scale(config, header)?;
    header.window_pattern(config)?;
    header.sizes(config, &[(&["sliding_window"], "attention.sliding_window")])
}

/// Scores are divided by the root of a number that is usually the length of a head.
fn scale(config: &Config, header: &mut Header) -> Result<(), Error> {
    const KEY: &str = "query_pre_attn_scalar";
    let (found, dim) = (config.find_f64(&[KEY])?, config.find_u64(&["head_dim"])?);
    let (found, dim) = (found.unwrap_or(256.0), dim.unwrap_or(256));
    if found <= 0.0 {
        let wanted = "a number above 0".to_owned();
        return Err(Error::Config { key: KEY.to_owned(), found: found.to_string(), wanted });
    }
    if found != dim as f64 {
        header.number("attention.scale", 1.0 / found.sqrt());
    }
    Ok(())
}

fn keys_of_gemma3(config: &Config, header: &mut Header) -> Result<(), Error> {
    keys_of_gemma3_and_4(config, header)?;
    header.window_pattern(config)?;
    scale(config, header)
}

/// Gemma 3's configurations leave out what is as in the first of them.
fn keys_of_gemma3_and_4(config: &Config, header: &mut Header) -> Result<(), Error> {
    let or = |key: &str, default| Ok::<_, Error>(config.find_u64(&[key])?.unwrap_or(default));
    header.size("context_length", or("max_position_embeddings", 131_072)?);
    header.size("attention.head_count", or("num_attention_heads", 8)?);
    header.size("attention.head_count_kv", or("num_key_value_heads", 4)?);
    header.size("attention.key_length", or("head_dim", 256)?);
    header.size("attention.value_length", or("head_dim", 256)?);
    let eps = config.find_f64(&["rms_norm_eps"])?.unwrap_or(1e-6);
    header.number("attention.layer_norm_rms_epsilon", eps);
    header.number("rope.freq_base", Rope::read(config)?.base.unwrap_or(1e6));
    header.numbers(config, LAST_CAP)?;
    let has_list = config.get("layer_types").is_some();
    if has_list || config.find_u64(&["sliding_window_pattern"])? != Some(1) {
        header.sizes(config, &[(&["sliding_window"], "attention.sliding_window")])?;
    }
    Ok(())
}

/// Of layers with full attention: the elements of a head, and heads of keys. transformers 5 writes
/// them layer by layer.
fn full_heads(config: &Config) -> Result<(u64, Option<u64>), Error> {
    let full = config.layers_of("full_attention")?.unwrap_or_default();
    let first = full.iter().position(|is_full| *is_full).unwrap_or(0);
    let of_layer = config.object("per_layer_config").object(&first.to_string());
    let find = |key: &str, own: &str| match config.find_u64(&[key])? {
        None => of_layer.find_u64(&[own]),
        found => Ok(found),
    };
    let dim = find("global_head_dim", "head_dim")?;
    let dim = dim.map_or_else(|| config.u64(&["head_dim"]), Ok)?;
    if dim > HEAD_DIM_MAX {
        let (key, found) = ("head_dim".to_owned(), dim.to_string());
        return Err(Error::Config { key, found, wanted: format!("at most {HEAD_DIM_MAX}") });
    }
    Ok((dim, find("num_global_key_value_heads", "num_key_value_heads")?))
}

fn keys_of_gemma4(config: &Config, header: &mut Header) -> Result<(), Error> {
    keys_of_gemma3_and_4(config, header)?;
    let (layers, shared) =
        (config.u64(&["num_hidden_layers"])?, config.find_u64(&["num_kv_shared_layers"])?);
    let shared = shared.unwrap_or(0);
    header.size("attention.shared_kv_layers", shared);
    let by_layer = config.find_u64(&["hidden_size_per_layer_input"])?;
    header.size("embedding_length_per_layer_input", by_layer.unwrap_or(0));
    let windows = config.layers_of("sliding_attention")?;
    let windows = windows.ok_or_else(|| config.lacks("layer_types"))?;
    header.flags("attention.sliding_window_pattern", &windows);
    let ((dim, kv_heads), local_dim) = (full_heads(config)?, config.u64(&["head_dim"])?);
    for (key, dim) in [("", dim), ("_swa", local_dim)] {
        header.size(&format!("attention.key_length{key}"), dim);
        header.size(&format!("attention.value_length{key}"), dim);
        header.size(&format!("rope.dimension_count{key}"), dim);
    }
    let width = &["expert_intermediate_size", "moe_intermediate_size"];
    header.sizes(config, &[(width, "expert_feed_forward_length")])?;
    if config.find_bool("use_double_wide_mlp")? == Some(true) {
        let width = config.u64(&["intermediate_size"])?;
        let of = |layer| if layer < layers.saturating_sub(shared) { width } else { 2 * width };
        header.sizes_of_layers("feed_forward_length", &(0..layers).map(of).collect::<Vec<_>>());
    }
    if let (Some(full), Some(local)) = (kv_heads, config.find_u64(&["num_key_value_heads"])?) {
        let of = |is_local: &bool| if *is_local { local } else { full };
        let heads: Vec<u64> = windows.iter().map(of).collect();
        header.sizes_of_layers("attention.head_count_kv", &heads);
    }
    Ok(())
}

/// All layers of an assistant predict further tokens.
fn keys_of_assistant(config: &Config, header: &mut Header) -> Result<(), Error> {
    keys_of_gemma4(config, header)?;
    header.size("embedding_length_out", config.u64(&["backbone_hidden_size"])?);
    header.size("nextn_predict_layers", config.u64(&["num_hidden_layers"])?);
    Ok(())
}

/// Layers with full attention turn a part of each head: the other pairs have factors without a
/// turn.
fn turns_of_gemma4(config: &Config) -> Result<Tensors, Error> {
    const NO_TURN: f32 = 1e30;
    let (dim, partial) = (full_heads(config)?.0, Rope::read(config)?.partial.unwrap_or(1.0));
    let turned = (dim as f64 * partial / 2.0) as u64;
    let factor = |pair| if pair < turned { 1.0 } else { NO_TURN };
    let factors: Vec<f32> = (0..dim / 2).map(factor).collect();
    let name = "rope_freqs.weight";
    Ok(vec![(name.to_owned(), Weight::computed(name, &factors))])
}

//! Families of one or two models.

use super::llama::{ROTATED, stretched};
use super::shared::{
    ATTENTION, BLOCK, DENSE, EXPERTS, FEED_FORWARD, FEED_FORWARD_NORM, LATE_NORM, NUMBERED_EXPERTS,
    SHARED_EXPERT, SPARSE, WHOLE, experts, head_dim, plus_one, squeezed,
};
use super::{Family, Pieces, Row, To::*};
use crate::Error;
use crate::config::Config;
use crate::header::Header;
use crate::rope::Rope;
use crate::weight::{Tensors, Weight};

/// gpt-oss: gates and ups in alternate rows.
const GPT_OSS: &[Row] = &[
    ("self_attn.sinks", Name("attn_sinks.weight")),
    ("mlp.router", Name("ffn_gate_inp")),
    ("mlp.experts.gate_up_proj", Cut(alternating)),
    ("mlp.experts.gate_up_proj_bias", Cut(alternating_biases)),
    ("mlp.experts.down_proj", Edited("ffn_down_exps.weight", down)),
    ("mlp.experts.down_proj_bias", Name("ffn_down_exps.bias")),
    // MLX's files.
    ("mlp.experts.gate_proj", Name("ffn_gate_exps")),
    ("mlp.experts.up_proj", Name("ffn_up_exps")),
];

/// Norms after each half.
const POST_NORMS: &[Row] = &[
    ("post_attention_layernorm", Name("post_attention_norm")),
    ("post_feedforward_layernorm", Name("post_ffw_norm")),
];

/// GLM 4's norms around each half; gate and up are one tensor in GGUF as well.
const GLM4: &[Row] = &[
    ("post_self_attn_layernorm", Name("post_attention_norm")),
    ("post_mlp_layernorm", Name("post_ffw_norm")),
    ("mlp.gate_up_proj", Name("ffn_up")),
];

const PHI3: &[Row] =
    &[("self_attn.qkv_proj", Name("attn_qkv")), ("mlp.gate_up_proj", Name("ffn_up"))];

const HUNYUAN: &[Row] = &[
    ("self_attn.query_layernorm", Name("attn_q_norm")),
    ("self_attn.key_layernorm", Name("attn_k_norm")),
    ("mlp.gate.wg", Name("ffn_gate_inp")),
    ("mlp.router.gate", Name("ffn_gate_inp")),
    ("mlp.expert_bias", Name("exp_probs_b")),
];

const ERNIE: &[Row] = &[("mlp.moe_statics.e_score_correction_bias", Name("exp_probs_b.bias"))];

/// Muse Glimmer: gains of a layer are stored as their distance from 1.
const MUSE: &[Row] = &[
    ("input_layernorm", Edited("attn_norm", plus_one)),
    ("post_attention_layernorm", Edited("post_attention_norm", plus_one)),
    ("pre_feedforward_layernorm", Edited("ffn_norm", plus_one)),
    ("post_feedforward_layernorm", Edited("post_ffw_norm", plus_one)),
    ("self_attn.gate_proj", Name("attn_gate")),
];

/// LFM2's layers with a short convolution, and its names of the others.
const LFM2: &[Row] = &[
    ("operator_norm", Name("attn_norm")),
    ("ffn_norm", Name("ffn_norm")),
    ("self_attn.q_layernorm", Name("attn_q_norm")),
    ("self_attn.k_layernorm", Name("attn_k_norm")),
    ("self_attn.out_proj", Name("attn_output")),
    ("conv.in_proj", Name("shortconv.in_proj")),
    ("conv.conv", Edited("shortconv.conv", squeezed)),
    ("conv.out_proj", Name("shortconv.out_proj")),
    ("feed_forward.w1", Name("ffn_gate")),
    ("feed_forward.w3", Name("ffn_up")),
    ("feed_forward.w2", Name("ffn_down")),
    ("feed_forward.gate", Name("ffn_gate_inp")),
    ("feed_forward.expert_bias", Name("exp_probs_b.bias")),
    ("feed_forward.experts.{}.w1", Name("ffn_gate_exps")),
    ("feed_forward.experts.{}.w3", Name("ffn_up_exps")),
    ("feed_forward.experts.{}.w2", Name("ffn_down_exps")),
    // MLX's files.
    ("feed_forward.gate_proj", Name("ffn_gate")),
    ("feed_forward.up_proj", Name("ffn_up")),
    ("feed_forward.down_proj", Name("ffn_down")),
    ("feed_forward.switch_mlp.gate_proj", Name("ffn_gate_exps")),
    ("feed_forward.switch_mlp.up_proj", Name("ffn_up_exps")),
    ("feed_forward.switch_mlp.down_proj", Name("ffn_down_exps")),
];

const LFM2_WHOLE: &[Row] = &[("model.embedding_norm", Name("token_embd_norm"))];

const GLM: Family = Family {
    classes: &["Glm4ForCausalLM"],
    arch: "glm4",
    layer: &[GLM4, ATTENTION, FEED_FORWARD_NORM, FEED_FORWARD],
    keys: keys_of_glm,
    ..DENSE
};

const OLMO2: Family = Family {
    classes: &["Olmo2ForCausalLM", "Olmo3ForCausalLM"],
    arch: "olmo2",
    layer: &[POST_NORMS, ATTENTION, FEED_FORWARD],
    keys: keys_of_windows,
    ..DENSE
};

const LFM: Family = Family {
    classes: &["Lfm2ForCausalLM", "LFM2ForCausalLM"],
    arch: "lfm2",
    layer: &[LFM2, ATTENTION],
    whole: &[LFM2_WHOLE, WHOLE],
    keys: keys_of_lfm2,
    ..DENSE
};

pub(super) const FAMILIES: &[Family] = &[
    Family {
        classes: &["GptOssForCausalLM"],
        arch: "gpt-oss",
        layer: &[GPT_OSS, ATTENTION, LATE_NORM],
        keys: keys_of_gpt_oss,
        ..DENSE
    },
    GLM,
    Family {
        classes: &["Glm4MoeForCausalLM"],
        arch: "glm4moe",
        block: BLOCK,
        layer: &[ATTENTION, LATE_NORM, FEED_FORWARD, EXPERTS, SHARED_EXPERT],
        keys: keys_of_glm4moe,
        ..GLM
    },
    OLMO2,
    Family { classes: &["OlmoeForCausalLM"], arch: "olmoe", keys: experts, ..SPARSE },
    Family {
        classes: &["Phi3ForCausalLM"],
        arch: "phi3",
        layer: &[PHI3, ATTENTION, FEED_FORWARD_NORM, FEED_FORWARD],
        keys: keys_of_phi3,
        computed: longrope,
        ..DENSE
    },
    Family {
        classes: &["PhiMoEForCausalLM", "PhimoeForCausalLM"],
        arch: "phimoe",
        layer: &[ATTENTION, FEED_FORWARD_NORM, NUMBERED_EXPERTS],
        keys: keys_of_phi3,
        computed: longrope,
        ..DENSE
    },
    Family { classes: &["CohereForCausalLM"], arch: "command-r", keys: keys_of_cohere, ..DENSE },
    Family { classes: &["Cohere2ForCausalLM"], arch: "cohere2", keys: keys_of_cohere2, ..DENSE },
    Family {
        classes: &["Exaone4ForCausalLM"],
        arch: "exaone4",
        layer: &[POST_NORMS, ATTENTION, FEED_FORWARD],
        keys: keys_of_windows,
        computed: stretched,
        ..DENSE
    },
    Family {
        classes: &["SeedOssForCausalLM"],
        arch: "seed_oss",
        layer: &[ATTENTION, LATE_NORM, FEED_FORWARD],
        ..DENSE
    },
    Family { classes: &["Ernie4_5ForCausalLM", "Ernie4_5_ForCausalLM"], arch: "ernie4_5", ..DENSE },
    Family {
        classes: &["Ernie4_5_MoeForCausalLM"],
        arch: "ernie4_5-moe",
        layer: &[ERNIE, ATTENTION, FEED_FORWARD_NORM, FEED_FORWARD, EXPERTS, SHARED_EXPERT],
        keys: keys_of_ernie,
        ..DENSE
    },
    Family {
        classes: &["HunYuanDenseV1ForCausalLM"],
        arch: "hunyuan-dense",
        layer: &[HUNYUAN, ATTENTION, FEED_FORWARD_NORM, FEED_FORWARD],
        keys: plain_rotation,
        ..DENSE
    },
    Family {
        classes: &["HunYuanMoEV1ForCausalLM"],
        arch: "hunyuan-moe",
        layer: &[HUNYUAN, ATTENTION, FEED_FORWARD_NORM, FEED_FORWARD, EXPERTS, SHARED_EXPERT],
        keys: keys_of_hunyuan,
        ..DENSE
    },
    Family {
        classes: &["HYV3ForCausalLM"],
        arch: "hy_v3",
        layer: &[HUNYUAN, ATTENTION, FEED_FORWARD_NORM, FEED_FORWARD, EXPERTS, SHARED_EXPERT],
        keys: keys_of_hy_v3,
        ..DENSE
    },
    Family {
        classes: &["MuseGlimmerForConditionalGeneration"],
        arch: "muse-glimmer",
        layer: &[MUSE, ROTATED, ATTENTION, FEED_FORWARD],
        keys: keys_of_muse,
        computed: scales_of_muse,
        ..DENSE
    },
    LFM,
    Family { classes: &["Lfm2MoeForCausalLM"], arch: "lfm2moe", keys: keys_of_lfm2moe, ..LFM },
];

/// A window, and which layers have it.
fn keys_of_windows(config: &Config, header: &mut Header) -> Result<(), Error> {
    header.sizes(
        config,
        &[(&["vocab_size"], "vocab_size"), (&["sliding_window"], "attention.sliding_window")],
    )?;
    match config.find_u64(&["sliding_window"])? {
        Some(0) => Err(Error::Config {
            key: "sliding_window".to_owned(),
            found: "0".to_owned(),
            wanted: "a count of at least 1".to_owned(),
        }),
        Some(_) => header.window_pattern(config),
        None => Ok(()),
    }
}

fn keys_of_gpt_oss(config: &Config, header: &mut Header) -> Result<(), Error> {
    header.sizes(
        config,
        &[
            (&["sliding_window"], "attention.sliding_window"),
            (&["intermediate_size"], "expert_feed_forward_length"),
        ],
    )?;
    header.window_pattern(config)
}

/// Rows of gates and ups alternate, quantised as `[experts, 2 * hidden, width]`, else transposed.
fn alternating(_: &Config, both: Weight) -> Result<Pieces, Error> {
    let both = if both.ty.block_len() == 1 { both.transposed()? } else { both };
    let [_, rows, _] = both.shape[..] else { return Err(both.wrong_shape("three dimensions")) };
    let part = |from| both.clone().rows_of_each(rows, from, rows / 2, 2);
    Ok(vec![("ffn_gate_exps.weight", part(0)?), ("ffn_up_exps.weight", part(1)?)])
}

/// The same of `[experts, 2 * hidden]`.
fn alternating_biases(_: &Config, both: Weight) -> Result<Pieces, Error> {
    let [experts, rows] = both.shape[..] else { return Err(both.wrong_shape("two dimensions")) };
    let columns = both.reshaped(&[experts, rows, 1])?;
    let part = |from| {
        columns.clone().rows_of_each(rows, from, rows / 2, 2)?.reshaped(&[experts, rows / 2])
    };
    Ok(vec![("ffn_gate_exps.bias", part(0)?), ("ffn_up_exps.bias", part(1)?)])
}

/// MLX's files have `.weight` here, and need no change.
fn down(_: &Config, weight: Weight) -> Result<Weight, Error> {
    let is_wide = weight.ty.block_len() == 1 && weight.name.ends_with("down_proj");
    if is_wide { weight.transposed() } else { Ok(weight) }
}

fn keys_of_glm(config: &Config, header: &mut Header) -> Result<(), Error> {
    let partial = Rope::read(config)?.partial.unwrap_or(0.5);
    header.size("rope.dimension_count", (head_dim(config)? as f64 * partial) as u64);
    Ok(())
}

fn keys_of_glm4moe(config: &Config, header: &mut Header) -> Result<(), Error> {
    const SIGMOID: u64 = 2;
    keys_of_glm(config, header)?;
    experts(config, header)?;
    header.size("expert_gating_func", SIGMOID);
    Ok(())
}

/// The rotated elements of a head.
fn rotated(config: &Config) -> Result<u64, Error> {
    let partial = Rope::read(config)?.partial.unwrap_or(1.0);
    let width = (config.u64(&["hidden_size"])? as f64 * partial) as u64;
    Ok(width / config.u64(&["num_attention_heads"])?.max(1))
}

fn keys_of_phi3(config: &Config, header: &mut Header) -> Result<(), Error> {
    let rope = Rope::read(config)?;
    let original =
        rope.original_context.map_or_else(|| config.u64(&["max_position_embeddings"]), Ok)?;
    header.size("rope.scaling.original_context_length", original);
    header.size("rope.dimension_count", rotated(config)?);
    // 0 for none.
    let window = config.find_u64(&["sliding_window"])?;
    header.size("attention.sliding_window", window.unwrap_or(0));
    if rope.full.get("long_factor").is_some() {
        let scale = config.u64(&["max_position_embeddings"])? as f64 / original as f64;
        let logarithms = crate::math::ln(scale.max(1.0)) / crate::math::ln(original as f64);
        header.number("rope.scaling.attn_factor", (1.0 + logarithms).sqrt());
    }
    Ok(())
}

/// Factors of the rotation within the original context and beyond it.
fn longrope(config: &Config) -> Result<Tensors, Error> {
    let rope = Rope::read(config)?.full;
    let names = [("long_factor", "rope_factors_long"), ("short_factor", "rope_factors_short")];
    let mut found = Vec::new();
    for (key, name) in names {
        if let Some(factors) = rope.find_numbers(key)? {
            let factors: Vec<f32> = factors.into_iter().map(|it| it as f32).collect();
            let name = format!("{name}.weight");
            found.push((name.clone(), Weight::computed(&name, &factors)));
        }
    }
    Ok(found)
}

fn keys_of_cohere(config: &Config, header: &mut Header) -> Result<(), Error> {
    header.sizes(config, &[(&["model_max_length"], "context_length")])?;
    header.numbers(config, &[(&["logit_scale"], "logit_scale")])?;
    header.text("rope.scaling.type", "none");
    Ok(())
}

fn keys_of_cohere2(config: &Config, header: &mut Header) -> Result<(), Error> {
    header.sizes(
        config,
        &[(&["vocab_size"], "vocab_size"), (&["sliding_window"], "attention.sliding_window")],
    )?;
    header.numbers(config, &[(&["logit_scale"], "logit_scale")])?;
    header.size("rope.dimension_count", head_dim(config)?);
    header.window_pattern(config)?;
    header.text("rope.scaling.type", "none");
    Ok(())
}

fn keys_of_ernie(config: &Config, header: &mut Header) -> Result<(), Error> {
    header.sizes(
        config,
        &[
            (&["moe_num_experts"], "expert_count"),
            (&["moe_k"], "expert_used_count"),
            (&["moe_layer_interval"], "interleave_moe_layer_step"),
            (&["moe_layer_start_index"], "leading_dense_block_count"),
            (&["moe_intermediate_size"], "expert_feed_forward_length"),
            (&["moe_num_shared_experts"], "expert_shared_count"),
        ],
    )?;
    let width = config.u64(&["moe_intermediate_size"])?;
    let shared = config.find_u64(&["moe_num_shared_experts"])?.unwrap_or(0);
    header.size("expert_shared_feed_forward_length", width * shared);
    Ok(())
}

/// Hunyuan's stretched rotation is not read.
fn plain_rotation(config: &Config, _: &mut Header) -> Result<(), Error> {
    let kind = Rope::read(config)?.kind;
    match kind.as_deref() {
        None | Some("default") => Ok(()),
        Some(kind) => Err(Error::Config {
            key: "rope_scaling".to_owned(),
            found: kind.to_owned(),
            wanted: "a rotation without scaling".to_owned(),
        }),
    }
}

fn keys_of_hunyuan(config: &Config, header: &mut Header) -> Result<(), Error> {
    plain_rotation(config, header)?;
    let all = [
        ("moe_intermediate_size", "expert_feed_forward_length"),
        ("moe_topk", "expert_used_count"),
        ("num_shared_expert", "expert_shared_count"),
        ("intermediate_size", "expert_shared_feed_forward_length"),
    ];
    for (from, to) in all {
        if let Some(count) = config.find_first(from)? {
            header.size(to, count);
        }
    }
    Ok(())
}

fn keys_of_hy_v3(config: &Config, header: &mut Header) -> Result<(), Error> {
    const SIGMOID: u64 = 2;
    experts(config, header)?;
    let shared = config.find_u64(&["num_shared_experts"])?.unwrap_or(1);
    let width = config.u64(&["moe_intermediate_size"])?;
    header.size("expert_shared_feed_forward_length", width * shared);
    header.flag("expert_weights_norm", config.find_bool("route_norm")?.unwrap_or(true));
    let scale = config.find_f64(&["router_scaling_factor"])?;
    header.number("expert_weights_scale", scale.unwrap_or(1.0));
    header.size("expert_gating_func", SIGMOID);
    Ok(())
}

fn keys_of_muse(config: &Config, header: &mut Header) -> Result<(), Error> {
    header.numbers(
        config,
        &[
            (&["final_logit_softcapping"], "final_logit_softcapping"),
            (&["output_multiplier"], "logit_scale"),
        ],
    )?;
    header.sizes(config, &[(&["sliding_window"], "attention.sliding_window")])?;
    check_bases_of_muse(config)?;
    header.window_pattern(config)
}

/// Layers with a window rotate, all by one base, and the others do not.
fn check_bases_of_muse(config: &Config) -> Result<(), Error> {
    const KEY: &str = "layer_rope_theta";
    let (Some(bases), Some(windows)) =
        (config.find_numbers(KEY)?, config.layers_of("sliding_attention")?)
    else {
        return Ok(());
    };
    let base = Rope::read(config)?.base.unwrap_or(10_000.0);
    let is_usual =
        |(found, has_window): (&f64, &bool)| *found == if *has_window { base } else { 0.0 };
    match bases.iter().zip(&windows).all(is_usual) {
        true => Ok(()),
        false => Err(Error::Config {
            key: KEY.to_owned(),
            found: format!("{bases:?}"),
            wanted: format!("{base} for layers with a window, and 0 for the others,"),
        }),
    }
}

/// Norms of heads have one scale for all queries, and none for keys; GGUF has gains for both.
fn scales_of_muse(config: &Config) -> Result<Tensors, Error> {
    let (dim, scale) = (head_dim(config)? as usize, config.find_f64(&["qk_scale_factor"])?);
    let scale = scale.ok_or_else(|| config.lacks("qk_scale_factor"))? as f32;
    let mut found = Vec::new();
    for layer in 0..config.u64(&["num_hidden_layers"])? {
        for (name, scale) in [("attn_q_norm", scale), ("attn_k_norm", 1.0)] {
            let name = format!("blk.{layer}.{name}.weight");
            found.push((name.clone(), Weight::computed(&name, &vec![scale; dim])));
        }
    }
    Ok(found)
}

/// Layers without attention have no heads of keys.
fn heads_of_layers(config: &Config, header: &mut Header) -> Result<(), Error> {
    let (attends, heads) =
        (config.layers_of("full_attention")?, config.u64(&["num_key_value_heads"])?);
    let attends = attends.ok_or_else(|| config.lacks("layer_types"))?;
    let heads: Vec<u64> = attends.iter().map(|attends| if *attends { heads } else { 0 }).collect();
    header.sizes_of_layers("attention.head_count_kv", &heads);
    header.sizes(config, &[(&["conv_L_cache"], "shortconv.l_cache")])?;
    header.sizes(config, &[(&["vocab_size"], "vocab_size")])
}

const EPS_OF_LFM2: &[(&[&str], &str)] = &[(&["norm_eps"], "attention.layer_norm_rms_epsilon")];

fn keys_of_lfm2(config: &Config, header: &mut Header) -> Result<(), Error> {
    heads_of_layers(config, header)?;
    header.numbers(config, EPS_OF_LFM2)?;
    let mut width = config.u64(&["block_ff_dim", "intermediate_size"])?;
    if config.find_bool("block_auto_adjust_ff_dim")? == Some(true) {
        width = 2 * width / 3;
        if let Some(factor) = config.find_f64(&["block_ffn_dim_multiplier"])? {
            width = (factor * width as f64) as u64;
        }
        let multiple = config.u64(&["block_multiple_of"])?;
        width = width.next_multiple_of(multiple.max(1));
    }
    header.size("feed_forward_length", width);
    Ok(())
}

fn keys_of_lfm2moe(config: &Config, header: &mut Header) -> Result<(), Error> {
    const SIGMOID: u64 = 2;
    heads_of_layers(config, header)?;
    header.numbers(config, EPS_OF_LFM2)?;
    experts(config, header)?;
    header.sizes(config, &[(&["num_dense_layers"], "leading_dense_block_count")])?;
    header.size("expert_gating_func", SIGMOID);
    Ok(())
}

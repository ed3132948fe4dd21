//! Qwen 2 and 3, dense and with experts; Qwen3-Next and 3.5, whose layers mostly carry a state.

use super::llama::{transposed, wide_gates_and_ups};
use super::shared::{
    ATTENTION, DENSE, EXPERTS, FEED_FORWARD, FEED_FORWARD_NORM, SHARED_EXPERT, SPARSE,
    STACKED_EXPERTS, WHOLE, decay, experts, head_dim, squeezed,
};
use super::{Family, Pieces, Row, To::*};
use crate::Error;
use crate::config::Config;
use crate::element::{MINUS_EXP, PLUS_ONE};
use crate::header::Header;
use crate::rope::Rope;
use crate::weight::Weight;

/// Gains are stored as their distance from 1, but not those of a state's outputs.
const NORMS: &[Row] = &[
    ("input_layernorm", Edited("attn_norm", gain)),
    ("post_attention_layernorm", Edited("post_attention_norm", gain)),
    ("self_attn.q_norm", Edited("attn_q_norm", gain)),
    ("self_attn.k_norm", Edited("attn_k_norm", gain)),
];

const OUTPUT_NORM: &[Row] = &[("model.norm", Edited("output_norm", gain))];

/// What the block of multi-token prediction has beside a layer.
const BLOCK: &[Row] = &[
    ("mtp.fc", Name("nextn.eh_proj")),
    ("mtp.pre_fc_norm_embedding", Edited("nextn.enorm", gain)),
    ("mtp.pre_fc_norm_hidden", Edited("nextn.hnorm", gain)),
    ("mtp.norm", Edited("nextn.shared_head_norm", gain)),
];

/// A gated delta net; heads of values stand next to those of their key.
const GROUPED_STATES: &[Row] = &[
    ("linear_attn.in_proj_qkvz", Cut(queries_to_gates)),
    ("linear_attn.in_proj_ba", Name("ssm_ba")),
    ("linear_attn.conv1d", Edited("ssm_conv1d", squeezed)),
    ("linear_attn.dt_bias", Name("ssm_dt.bias")),
    ("linear_attn.A_log", Edited("ssm_a", decay)),
    ("linear_attn.norm", Name("ssm_norm")),
    ("linear_attn.out_proj", Name("ssm_out")),
];

/// The same; in GGUF the first heads of all keys come first, then the second ones.
pub(super) const TILED_STATES: &[Row] = &[
    ("linear_attn.in_proj_qkv", Edited("attn_qkv", tiled_after_keys)),
    ("linear_attn.in_proj_z", Edited("attn_gate", tiled)),
    ("linear_attn.in_proj_a", Edited("ssm_alpha", tiled)),
    ("linear_attn.in_proj_b", Edited("ssm_beta", tiled)),
    ("linear_attn.conv1d", Edited("ssm_conv1d", tiled_convolution)),
    ("linear_attn.dt_bias", Edited("ssm_dt.bias", tiled)),
    ("linear_attn.A_log", Edited("ssm_a", tiled_decay)),
    ("linear_attn.norm", Name("ssm_norm")),
    ("linear_attn.out_proj", Edited("ssm_out", tiled_columns)),
];

/// Qwen3-VL's experts are `[experts, width, 2 * hidden]`.
const WIDE_EXPERTS: &[Row] = &[
    ("mlp.experts.gate_up_proj", Cut(wide_gates_and_ups)),
    ("mlp.experts.down_proj", Edited("ffn_down_exps.weight", transposed)),
];

const QWEN35: Family = Family {
    classes: &["Qwen3_5ForCausalLM", "Qwen3_5ForConditionalGeneration"],
    arch: "qwen35",
    block: BLOCK,
    layer: &[NORMS, ATTENTION, FEED_FORWARD, TILED_STATES],
    whole: &[OUTPUT_NORM, WHOLE],
    keys: keys_of_qwen35,
    ..DENSE
};

pub(super) const FAMILIES: &[Family] = &[
    Family { classes: &["Qwen2ForCausalLM"], arch: "qwen2", ..DENSE },
    Family { classes: &["Qwen3ForCausalLM"], arch: "qwen3", ..DENSE },
    Family { classes: &["Qwen2MoeForCausalLM"], arch: "qwen2moe", keys: experts, ..SPARSE },
    Family { classes: &["Qwen3MoeForCausalLM"], arch: "qwen3moe", keys: experts, ..SPARSE },
    Family {
        classes: &["Qwen3VLForConditionalGeneration"],
        arch: "qwen3vl",
        keys: keys_of_vl,
        ..DENSE
    },
    Family {
        classes: &["Qwen3VLMoeForConditionalGeneration"],
        arch: "qwen3vlmoe",
        layer: &[ATTENTION, FEED_FORWARD_NORM, FEED_FORWARD, EXPERTS, WIDE_EXPERTS],
        keys: keys_of_vl,
        ..SPARSE
    },
    Family {
        classes: &["Qwen3NextForCausalLM"],
        arch: "qwen3next",
        layer: &[
            NORMS,
            ATTENTION,
            FEED_FORWARD,
            GROUPED_STATES,
            EXPERTS,
            STACKED_EXPERTS,
            SHARED_EXPERT,
        ],
        keys: keys_of_states,
        ..QWEN35
    },
    QWEN35,
    Family {
        classes: &["Qwen3_5MoeForCausalLM", "Qwen3_5MoeForConditionalGeneration"],
        arch: "qwen35moe",
        layer: &[
            NORMS,
            ATTENTION,
            FEED_FORWARD,
            TILED_STATES,
            EXPERTS,
            STACKED_EXPERTS,
            SHARED_EXPERT,
        ],
        ..QWEN35
    },
];

fn keys_of_vl(config: &Config, header: &mut Header) -> Result<(), Error> {
    experts(config, header)?;
    sections(config, header)?;
    let layers = config.object("vision_config").find_numbers("deepstack_visual_indexes")?;
    header.size("n_deepstack_layers", layers.map_or(0, |layers| layers.len() as u64));
    Ok(())
}

/// The sections of the rotation, one for each axis of a picture; four in GGUF.
fn sections(config: &Config, header: &mut Header) -> Result<(), Error> {
    if let Some(mut sections) = Rope::read(config)?.full.find_numbers("mrope_section")? {
        sections.resize(4, 0.0);
        let sections: Vec<u64> = sections.into_iter().map(|it| it as u64).collect();
        header.sizes_of_layers("rope.dimension_sections", &sections);
    }
    Ok(())
}

pub(super) fn keys_of_states(config: &Config, header: &mut Header) -> Result<(), Error> {
    experts(config, header)?;
    header.sizes(
        config,
        &[
            (&["linear_conv_kernel_dim"], "ssm.conv_kernel"),
            (&["linear_key_head_dim"], "ssm.state_size"),
            (&["linear_num_key_heads"], "ssm.group_count"),
            (&["linear_num_value_heads"], "ssm.time_step_rank"),
        ],
    )?;
    let heads = Heads::read(config)?;
    header.size("ssm.inner_size", heads.value_dim * heads.values());
    if let Some(mut layers) = config.layers_of("linear_attention")? {
        layers.resize(layers.len() + config.blocks as usize, false);
        header.flags("attention.recurrent_layers", &layers);
    }
    let interval = config.find_u64(&["full_attention_interval"])?;
    header.size("full_attention_interval", interval.unwrap_or(4));
    let partial = Rope::read(config)?.partial.unwrap_or(0.25);
    header.size("rope.dimension_count", (head_dim(config)? as f64 * partial) as u64);
    Ok(())
}

pub(super) fn keys_of_qwen35(config: &Config, header: &mut Header) -> Result<(), Error> {
    keys_of_states(config, header)?;
    header.sizes_of_layers("rope.dimension_sections", &[11, 11, 10, 0]);
    sections(config, header)
}

/// MLX's files have whole gains.
pub(super) fn gain(config: &Config, weight: Weight) -> Result<Weight, Error> {
    if config.is_mlx { weight.f32() } else { weight.mapped(PLUS_ONE) }
}

/// The heads of a gated delta net.
struct Heads {
    keys: u64,
    /// Heads of values for each head of keys.
    per_key: u64,
    key_dim: u64,
    value_dim: u64,
}

impl Heads {
    fn read(config: &Config) -> Result<Self, Error> {
        let keys = config.u64(&["linear_num_key_heads"])?;
        let values = config.u64(&["linear_num_value_heads"])?;
        if keys == 0 || !values.is_multiple_of(keys) {
            let (key, found) = ("linear_num_value_heads".to_owned(), values.to_string());
            return Err(Error::Config { key, found, wanted: format!("a multiple of {keys}") });
        }
        Ok(Self {
            keys,
            per_key: values / keys,
            key_dim: config.u64(&["linear_key_head_dim"])?,
            value_dim: config.u64(&["linear_value_head_dim"])?,
        })
    }

    fn values(&self) -> u64 {
        self.keys * self.per_key
    }

    /// Rows of values in the order of GGUF.
    fn tile(&self, weight: Weight) -> Result<Weight, Error> {
        let per = weight.shape[0] / self.values().max(1);
        weight.permuted(&[self.keys, self.per_key, per], &[1, 0, 2])
    }

    /// Rows of queries, keys and values; the values in the order of GGUF.
    fn tile_after_keys(&self, weight: Weight) -> Result<Weight, Error> {
        let (rows, before) = (weight.shape[0], 2 * self.keys * self.key_dim);
        if rows != before + self.values() * self.value_dim {
            return Err(weight.wrong_shape("rows for all heads of queries, keys and values"));
        }
        let keys = weight.clone().rows_of_each(rows, 0, before, 1)?;
        let values = weight.rows_of_each(rows, before, rows - before, 1)?;
        Weight::concatenated(vec![keys, self.tile(values)?])
    }
}

fn tiled(config: &Config, weight: Weight) -> Result<Weight, Error> {
    Heads::read(config)?.tile(weight)
}

fn tiled_decay(config: &Config, weight: Weight) -> Result<Weight, Error> {
    tiled(config, weight.mapped(MINUS_EXP)?)
}

fn tiled_after_keys(config: &Config, weight: Weight) -> Result<Weight, Error> {
    Heads::read(config)?.tile_after_keys(weight)
}

fn tiled_convolution(config: &Config, weight: Weight) -> Result<Weight, Error> {
    tiled_after_keys(config, squeezed(config, weight)?)
}

fn tiled_columns(config: &Config, weight: Weight) -> Result<Weight, Error> {
    let heads = Heads::read(config)?;
    weight.column_groups_exchanged([heads.keys, heads.per_key], heads.value_dim)
}

/// Rows of queries, keys, values and gates for each head of keys, apart.
fn queries_to_gates(config: &Config, all: Weight) -> Result<Pieces, Error> {
    let heads = Heads::read(config)?;
    let (keys, values) = (heads.key_dim, heads.per_key * heads.value_dim);
    let per = 2 * (keys + values);
    let part = |from, count| all.clone().rows_of_each(per, from, count, 1);
    let parts = vec![part(0, keys)?, part(keys, keys)?, part(2 * keys, values)?];
    let gates = part(2 * keys + values, values)?;
    Ok(vec![("attn_qkv.weight", Weight::concatenated(parts)?), ("attn_gate.weight", gates)])
}

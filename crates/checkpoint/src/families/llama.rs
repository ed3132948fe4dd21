//! Llama, and models of its shape.

use super::shared::{
    ATTENTION, DENSE, FEED_FORWARD, FEED_FORWARD_NORM, NUMBERED_EXPERTS, WHOLE, halves, head_dim,
};
use super::{Family, Pieces, Row, To::*};
use crate::Error;
use crate::config::Config;
use crate::header::Header;
use crate::math::{exp, ln};
use crate::rope::Rope;
use crate::weight::{Tensors, Weight};

/// Queries and keys rotate neighbouring elements in GGUF, and halves in the checkpoint.
pub(super) const ROTATED: &[Row] = &[
    ("self_attn.q_proj", Edited("attn_q", queries)),
    ("self_attn.k_proj", Edited("attn_k", keys)),
];

pub(super) const GRANITE_EXPERTS: &[Row] = &[
    ("block_sparse_moe.router.layer", Name("ffn_gate_inp")),
    ("block_sparse_moe.input_linear", Cut(gates_and_ups)),
    ("block_sparse_moe.output_linear", Name("ffn_down_exps")),
    ("shared_mlp.input_linear", Cut(shared_gate_and_up)),
    ("shared_mlp.output_linear", Cut(shared_down)),
    // MLX's files.
    ("block_sparse_moe.switch_mlp.gate_proj", Name("ffn_gate_exps")),
    ("block_sparse_moe.switch_mlp.up_proj", Name("ffn_up_exps")),
    ("block_sparse_moe.switch_mlp.down_proj", Name("ffn_down_exps")),
];

/// Experts are `[experts, width, 2 * hidden]` here.
const LLAMA4_EXPERTS: &[Row] = &[
    ("feed_forward.gate_proj", Name("ffn_gate")),
    ("feed_forward.up_proj", Name("ffn_up")),
    ("feed_forward.down_proj", Name("ffn_down")),
    ("feed_forward.router", Name("ffn_gate_inp")),
    ("feed_forward.experts.gate_up_proj", Cut(wide_gates_and_ups)),
    ("feed_forward.experts.down_proj", Edited("ffn_down_exps.weight", transposed)),
    ("feed_forward.shared_expert.gate_proj", Name("ffn_gate_shexp")),
    ("feed_forward.shared_expert.up_proj", Name("ffn_up_shexp")),
    ("feed_forward.shared_expert.down_proj", Name("ffn_down_shexp")),
];

const LLAMA: Family = Family {
    classes: &["LlamaForCausalLM", "LLaMAForCausalLM", "MistralForCausalLM", "MixtralForCausalLM"],
    arch: "llama",
    layer: &[ROTATED, ATTENTION, FEED_FORWARD_NORM, FEED_FORWARD, NUMBERED_EXPERTS],
    whole: &[WHOLE],
    keys: keys_of_llama,
    computed: stretched,
    ..DENSE
};

pub(super) const FAMILIES: &[Family] = &[
    LLAMA,
    Family { classes: &["SmolLM3ForCausalLM"], arch: "smollm3", ..LLAMA },
    Family { classes: &["ArceeForCausalLM"], arch: "arcee", ..LLAMA },
    Family {
        classes: &["Mistral3ForConditionalGeneration", "Ministral3ForCausalLM"],
        when: |config| Ok(!is_mistral4(config)?),
        arch: "mistral3",
        keys: keys_of_mistral3,
        ..LLAMA
    },
    Family { classes: &["GraniteForCausalLM"], arch: "granite", keys: keys_of_granite, ..LLAMA },
    Family {
        classes: &["GraniteMoeForCausalLM", "GraniteMoeSharedForCausalLM"],
        arch: "granitemoe",
        layer: &[ROTATED, ATTENTION, FEED_FORWARD_NORM, GRANITE_EXPERTS],
        keys: keys_of_granite,
        ..LLAMA
    },
    Family {
        classes: &["Llama4ForCausalLM", "Llama4ForConditionalGeneration"],
        arch: "llama4",
        layer: &[ATTENTION, FEED_FORWARD_NORM, LLAMA4_EXPERTS],
        keys: keys_of_llama4,
        ..LLAMA
    },
];

/// Mistral 4 has the class of models that see, as Mistral 3 has.
pub(super) fn is_mistral4(config: &Config) -> Result<bool, Error> {
    Ok(config.find_str(&["model_type"])?.as_deref() == Some("mistral4"))
}

fn keys_of_mistral3(config: &Config, header: &mut Header) -> Result<(), Error> {
    keys_of_llama(config, header)?;
    let rope = Rope::read(config)?.full;
    header.numbers(&rope, &[(&["mscale_all_dim"], "rope.scaling.yarn_log_multiplier")])?;
    temperature_of_mistral(config, header)
}

/// Queries grow with their position (Mistral 3 and 4).
pub(super) fn temperature_of_mistral(config: &Config, header: &mut Header) -> Result<(), Error> {
    let rope = Rope::read(config)?.full;
    header.numbers(&rope, &[(&["llama_4_scaling_beta"], "attention.temperature_scale")])
}

pub(super) fn keys_of_granite(config: &Config, header: &mut Header) -> Result<(), Error> {
    keys_of_llama(config, header)?;
    header
        .sizes(config, &[(&["shared_intermediate_size"], "expert_shared_feed_forward_length")])?;
    header.numbers(
        config,
        &[
            (&["attention_multiplier"], "attention.scale"),
            (&["embedding_multiplier"], "embedding_scale"),
            (&["residual_multiplier"], "residual_scale"),
            (&["logits_scaling"], "logit_scale"),
        ],
    )
}

fn keys_of_llama4(config: &Config, header: &mut Header) -> Result<(), Error> {
    keys_of_llama(config, header)?;
    header.sizes(
        config,
        &[
            (&["intermediate_size_mlp"], "feed_forward_length"),
            (&["intermediate_size"], "expert_feed_forward_length"),
            (&["interleave_moe_layer_step"], "interleave_moe_layer_step"),
        ],
    )
}

fn gates_and_ups(_: &Config, both: Weight) -> Result<Pieces, Error> {
    let [gate, up] = halves(both)?;
    Ok(vec![("ffn_gate_exps.weight", gate), ("ffn_up_exps.weight", up)])
}

/// Without experts, what they share is a dense block.
fn is_dense(config: &Config) -> Result<bool, Error> {
    Ok(config.find_u64(&["num_local_experts"])?.unwrap_or(0) == 0)
}

fn shared_gate_and_up(config: &Config, both: Weight) -> Result<Pieces, Error> {
    let [gate, up] = halves(both)?;
    Ok(match is_dense(config)? {
        true => vec![("ffn_gate.weight", gate), ("ffn_up.weight", up)],
        false => vec![("ffn_gate_shexp.weight", gate), ("ffn_up_shexp.weight", up)],
    })
}

fn shared_down(config: &Config, weight: Weight) -> Result<Pieces, Error> {
    let name = if is_dense(config)? { "ffn_down.weight" } else { "ffn_down_shexp.weight" };
    Ok(vec![(name, weight)])
}

/// Gates left of ups, in each expert: `[experts, width, 2 * hidden]`.
pub(super) fn wide_gates_and_ups(config: &Config, both: Weight) -> Result<Pieces, Error> {
    gates_and_ups(config, both.transposed()?)
}

pub(super) fn transposed(_: &Config, weight: Weight) -> Result<Weight, Error> {
    weight.transposed()
}

pub(super) fn queries(config: &Config, weight: Weight) -> Result<Weight, Error> {
    interleaved(weight, config.u64(&["num_attention_heads"])?)
}

pub(super) fn keys(config: &Config, weight: Weight) -> Result<Weight, Error> {
    let heads = config.find_u64(&["num_key_value_heads"])?;
    interleaved(weight, heads.map_or_else(|| config.u64(&["num_attention_heads"]), Ok)?)
}

/// The halves of each head's rows, interleaved.
fn interleaved(weight: Weight, heads: u64) -> Result<Weight, Error> {
    let rows = weight.shape[0];
    if heads == 0 || !rows.is_multiple_of(2 * heads) {
        return Err(
            weight.wrong_shape(&format!("an even number of rows for each of {heads} heads"))
        );
    }
    weight.permuted(&[heads, 2, rows / heads / 2], &[0, 2, 1])
}

pub(super) fn keys_of_llama(config: &Config, header: &mut Header) -> Result<(), Error> {
    header.size("vocab_size", config.u64(&["vocab_size"])?);
    header.size("rope.dimension_count", head_dim(config)?);
    Ok(())
}

/// Llama 3's stretched frequencies: a factor for each rotated pair.
pub(super) fn stretched(config: &Config) -> Result<Tensors, Error> {
    let Some(factors) = stretched_pairs(config, head_dim(config)?)? else { return Ok(Vec::new()) };
    let name = "rope_freqs.weight";
    Ok(vec![(name.to_owned(), Weight::computed(name, &factors))])
}

/// A factor for each pair of `dim` rotated elements, if they are stretched.
pub(super) fn stretched_pairs(config: &Config, dim: u64) -> Result<Option<Vec<f32>>, Error> {
    let rope = Rope::read(config)?;
    if rope.kind.as_deref() != Some("llama3") {
        return Ok(None);
    }
    let number = |key: &str, default: f64| {
        Ok::<_, Error>(rope.full.find_f64(&[key])?.unwrap_or(default) as f32)
    };
    let factor = number("factor", 8.0)?;
    let (low, high) = (number("low_freq_factor", 1.0)?, number("high_freq_factor", 4.0)?);
    let context = number("original_max_position_embeddings", 8192.0)?;
    let base = rope.base.unwrap_or(10_000.0);
    // The steps of the models' own code, each rounded to f32.
    let factors = (0..dim / 2).map(|pair| {
        let power = (2 * pair) as f32 / dim as f32;
        let frequency = 1.0 / exp(ln(base) * f64::from(power)) as f32;
        let length = (1.0 / frequency) * std::f32::consts::TAU;
        let smooth = ((1.0 / length) * context - low) / (high - low);
        match length {
            _ if length < context / high => 1.0,
            _ if length > context / low => factor,
            _ => 1.0 / ((1.0 - smooth) / factor + smooth),
        }
    });
    Ok(Some(factors.collect()))
}

//! DeepSeek V4, with names of its own.

use super::shared::DENSE;
use super::{Family, Pieces, Row, To::*};
use crate::Error;
use crate::config::Config;
use crate::header::Header;
use crate::rope::Rope;
use crate::weight::Weight;

const LAYER: &[Row] = &[
    ("attn_norm", Name("attn_norm")),
    ("attn.attn_sink", Name("attn_sinks.weight")),
    ("attn.wq_a", Name("attn_q_a")),
    ("attn.q_norm", Name("attn_q_a_norm")),
    ("attn.wq_b", Name("attn_q_b")),
    ("attn.wkv", Name("attn_kv")),
    ("attn.kv_norm", Name("attn_kv_a_norm")),
    ("attn.wo_a", Name("attn_output_a")),
    ("attn.wo_b", Name("attn_output_b")),
    ("attn.compressor.ape", Name("attn_compressor_ape.weight")),
    ("attn.compressor.wkv", Name("attn_compressor_kv")),
    ("attn.compressor.wgate", Name("attn_compressor_gate")),
    ("attn.compressor.norm", Name("attn_compressor_norm")),
    ("attn.indexer.wq_b", Name("indexer.attn_q_b")),
    ("attn.indexer.weights_proj", Name("indexer.proj")),
    ("attn.indexer.compressor.ape", Name("indexer_compressor_ape.weight")),
    ("attn.indexer.compressor.wkv", Name("indexer_compressor_kv")),
    ("attn.indexer.compressor.wgate", Name("indexer_compressor_gate")),
    ("attn.indexer.compressor.norm", Name("indexer_compressor_norm")),
    ("hc_attn_fn", Name("hc_attn_fn.weight")),
    ("hc_attn_base", Name("hc_attn_base.weight")),
    ("hc_attn_scale", Name("hc_attn_scale.weight")),
    ("hc_ffn_fn", Name("hc_ffn_fn.weight")),
    ("hc_ffn_base", Name("hc_ffn_base.weight")),
    ("hc_ffn_scale", Name("hc_ffn_scale.weight")),
    ("ffn_norm", Name("ffn_norm")),
    ("ffn.gate.weight", Name("ffn_gate_inp.weight")),
    ("ffn.gate.bias", Cut(choice_bias)),
    ("ffn.gate.bias_vl", Name("exp_probs_b_vl.bias")),
    ("ffn.gate.tid2eid", Edited("ffn_gate_tid2eid.weight", narrowed)),
    ("ffn.experts.{}.w1", Name("ffn_gate_exps")),
    ("ffn.experts.{}.w3", Name("ffn_up_exps")),
    ("ffn.experts.{}.w2", Name("ffn_down_exps")),
    ("ffn.shared_experts.w1", Name("ffn_gate_shexp")),
    ("ffn.shared_experts.w3", Name("ffn_up_shexp")),
    ("ffn.shared_experts.w2", Name("ffn_down_shexp")),
];

const WHOLE: &[Row] = &[
    ("embed", Name("token_embd")),
    ("norm", Name("output_norm")),
    ("head", Name("output")),
    ("hc_head_fn", Name("output_hc_fn.weight")),
    ("hc_head_base", Name("output_hc_base.weight")),
    ("hc_head_scale", Name("output_hc_scale.weight")),
];

pub(super) const FAMILIES: &[Family] = &[Family {
    classes: &["DeepseekV4ForCausalLM"],
    arch: "deepseek4",
    layer: &[LAYER],
    whole: &[WHOLE],
    keys: keys_of_deepseek4,
    in_f32: &[],
    ..DENSE
}];

/// The first layers choose experts by token, and have no use for a bias.
fn choice_bias(config: &Config, weight: Weight) -> Result<Pieces, Error> {
    let by_token = config.find_u64(&["num_hash_layers"])?.unwrap_or(0);
    let has_use = weight.layer().is_none_or(|layer| layer >= by_token);
    Ok(if has_use { vec![("exp_probs_b.bias", weight)] } else { Vec::new() })
}

fn narrowed(_: &Config, weight: Weight) -> Result<Weight, Error> {
    weight.narrowed()
}

/// Several residual streams, and limits of hidden numbers.
pub(super) fn keys_of_streams(config: &Config, header: &mut Header) -> Result<(), Error> {
    header.sizes(
        config,
        &[
            (&["hc_mult"], "hyper_connection.count"),
            (&["hc_sinkhorn_iters"], "hyper_connection.sinkhorn_iterations"),
        ],
    )?;
    header.numbers(config, &[(&["hc_eps"], "hyper_connection.epsilon")])?;
    if let Some(limit) = config.find_f64(&["swiglu_limit"])? {
        let limits = vec![limit as f32; config.layers()? as usize];
        header.numbers_of_layers("swiglu_clamp_exp", &limits);
        header.numbers_of_layers("swiglu_clamp_shexp", &limits);
    }
    Ok(())
}

fn keys_of_deepseek4(config: &Config, header: &mut Header) -> Result<(), Error> {
    super::shared::experts(config, header)?;
    super::deepseek::keys_of_selection(config, header)?;
    keys_of_streams(config, header)?;
    header.sizes(
        config,
        &[
            (&["qk_rope_head_dim"], "rope.dimension_count"),
            (&["q_lora_rank"], "attention.q_lora_rank"),
            (&["sliding_window"], "attention.sliding_window"),
            (&["o_groups"], "attention.output_group_count"),
            (&["o_lora_rank"], "attention.output_lora_rank"),
            (&["num_hash_layers"], "hash_layer_count"),
        ],
    )?;
    let rotated = config.find_u64(&["qk_rope_head_dim"])?.unwrap_or(0);
    let all = config.object("rope_parameters");
    if all.get("compress").is_some() && all.get("main").is_none() {
        return Err(config.lacks("rope_parameters.main"));
    }
    let share = all.object("main").find_f64(&["partial_rotary_factor"])?;
    let share = share.or(config.find_f64(&["partial_rotary_factor"])?);
    let dim = super::shared::head_dim(config)?;
    if let Some(share) = share.filter(|share| (dim as f64 * share) as u64 != rotated) {
        return Err(Error::Config {
            key: "qk_rope_head_dim".to_owned(),
            found: rotated.to_string(),
            wanted: format!("{share} (partial_rotary_factor) of {dim}"),
        });
    }
    let factor = Rope::read(config)?.full.find_f64(&["attention_factor"])?;
    if let Some(found) = factor.filter(|factor| *factor != 1.0) {
        let (key, wanted) = ("attention_factor".to_owned(), "1".to_owned());
        return Err(Error::Config { key, found: found.to_string(), wanted });
    }
    let base = &[(&["compress_rope_theta"][..], "attention.compress_rope_freq_base")];
    header.numbers(config, base)?;
    let ratios = config.find_numbers("compress_ratios")?;
    let ratios = ratios.ok_or_else(|| config.lacks("compress_ratios"))?;
    let ratios: Vec<u64> = ratios.into_iter().map(|ratio| ratio as u64).collect();
    if let Some(windows) = config.layers_of("sliding_attention")?
        && !windows.iter().zip(&ratios).all(|(has_window, ratio)| *has_window == (*ratio == 0))
    {
        let (key, found) = ("layer_types".to_owned(), "other layers".to_owned());
        let wanted = "sliding_attention where compress_ratios is 0, and only there,".to_owned();
        return Err(Error::Config { key, found, wanted });
    }
    header.sizes_of_layers("attention.compress_ratios", &ratios);
    let width = config.u64(&["hidden_size"])? * config.u64(&["hc_mult"])?;
    header.size("embedding_length_out", width);
    Ok(())
}

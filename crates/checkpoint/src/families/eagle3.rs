//! EAGLE-3 heads, which guess for a model. Each has the class of those who trained it.
//!
//! A head's folder has no vocabulary: it is its model's. What its configuration leaves out about
//! the model is filled in where the model is known.

use super::llama::{ROTATED, keys_of_llama, stretched};
use super::shared::{ATTENTION, DENSE, FEED_FORWARD, FEED_FORWARD_NORM};
use super::{Family, Row, To::*, Words};
use crate::Error;
use crate::config::Config;
use crate::header::Header;

const LAYER: &[Row] = &[("hidden_norm", Name("attn_norm_2"))];

const WHOLE: &[Row] = &[
    ("fc", Name("fc")),
    ("input_norm", Name("enc.output_norm")),
    ("norm", Name("output_norm")),
    ("embed_tokens", Name("token_embd")),
    ("lm_head", Name("output")),
    // The model's tokens, as distances from the head's.
    ("d2t", Distances("d2t")),
];

pub(super) const FAMILIES: &[Family] = &[Family {
    classes: &[
        "LlamaForCausalLMEagle3",
        "Eagle3LlamaForCausalLM",
        "Eagle3Speculator",
        "Eagle3DraftModel",
    ],
    arch: "eagle3",
    layer: &[LAYER, ROTATED, ATTENTION, FEED_FORWARD_NORM, FEED_FORWARD],
    whole: &[WHOLE],
    keys,
    computed: stretched,
    words: Words::OfModel,
    ..DENSE
}];

fn keys(config: &Config, header: &mut Header) -> Result<(), Error> {
    keys_of_llama(config, header)?;
    if let Some(layers) = config.find_numbers("eagle_aux_hidden_state_layer_ids")? {
        let layers: Vec<i64> = layers.into_iter().map(|layer| layer as i64).collect();
        header.integers("target_layers", &layers);
    }
    header.sizes(config, &[(&["target_hidden_size"], "target_hidden_size")])?;
    for key in ["norm_before_residual", "norm_before_fc"] {
        header.flag(key, config.find_bool(key)? == Some(true));
    }
    Ok(())
}

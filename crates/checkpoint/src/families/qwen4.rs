//! Qwen3.8-Flash-Next: Qwen 3.5's layers with gated residual streams, an indexer, and embeddings of
//! n-grams in one layer.

use super::qwen::{TILED_STATES, gain, keys_of_qwen35};
use super::shared::{ATTENTION, DENSE, EXPERTS, SHARED_EXPERT, STACKED_EXPERTS, WHOLE, squeezed};
use super::{Family, Pieces, Row, To::*};
use crate::Error;
use crate::config::Config;
use crate::header::Header;
use crate::weight::Weight;

/// Residual streams have norms in place of the layers' own.
const STREAMS: &[Row] = &[
    ("attn_hyper_connection.hc_norm", Edited("hc_attn_norm", gain)),
    ("attn_hyper_connection.input_mix_weight_down", Name("hc_attn_down")),
    ("attn_hyper_connection.input_mix_weight_up", Name("hc_attn_up")),
    ("attn_hyper_connection.block_inject_weight", Name("hc_attn_inject")),
    ("mlp_hyper_connection.hc_norm", Edited("hc_ffn_norm", gain)),
    ("mlp_hyper_connection.input_mix_weight_down", Name("hc_ffn_down")),
    ("mlp_hyper_connection.input_mix_weight_up", Name("hc_ffn_up")),
    ("mlp_hyper_connection.block_inject_weight", Name("hc_ffn_inject")),
];

const INDEXER: &[Row] = &[
    ("self_attn.q_norm", Edited("attn_q_norm", gain)),
    ("self_attn.k_norm", Edited("attn_k_norm", gain)),
    ("self_attn.indexer.q_layernorm", Edited("indexer.q_norm", gain)),
    ("self_attn.indexer.k_layernorm", Edited("indexer.k_norm", gain)),
    ("self_attn.indexer.index_qk_proj", Cut(queries_and_keys)),
];

/// Embeddings of n-grams: a table in parts, how it is read, and the constants of its hash.
const NGRAMS: &[Row] = &[
    ("ple.key_proj", Name("ple_key")),
    ("ple.value_proj", Name("ple_value")),
    ("ple.norm_key", Edited("ple_norm_key", gain)),
    ("ple.norm_query", Edited("ple_norm_query", gain)),
    ("ple.norm_conv", Edited("ple_norm_conv", gain)),
    ("ple.conv1d", Edited("ple_conv1d", squeezed)),
    ("ple.ple_embedding.ngram_embedding.{}", Rows("per_layer_token_embd")),
    ("ple.ple_embedding.layer_multipliers", Integers("ple.layer_multipliers")),
    ("ple.ple_embedding.ngram_heads_offsets", Integers("ple.head_offsets")),
    ("ple.ple_embedding.ngram_heads_vocab_sizes", Integers("ple.head_vocab_sizes")),
];

const OUTPUT_STREAMS: &[Row] = &[
    ("model.hyper_connection_mixer.hc_norm", Edited("output_hc_norm", gain)),
    ("model.hyper_connection_mixer.input_mix_weight_down", Name("output_hc_down")),
    ("model.hyper_connection_mixer.input_mix_weight_up", Name("output_hc_up")),
];

pub(super) const FAMILIES: &[Family] = &[Family {
    classes: &["Qwen4ExpForCausalLM", "Qwen4ExpForConditionalGeneration"],
    arch: "qwen4exp",
    layer: &[
        STREAMS,
        INDEXER,
        NGRAMS,
        TILED_STATES,
        ATTENTION,
        EXPERTS,
        STACKED_EXPERTS,
        SHARED_EXPERT,
    ],
    whole: &[OUTPUT_STREAMS, WHOLE],
    keys: keys_of_qwen4,
    ..DENSE
}];

fn keys_of_qwen4(config: &Config, header: &mut Header) -> Result<(), Error> {
    keys_of_qwen35(config, header)?;
    header.sizes(
        config,
        &[
            (&["hc_count"], "hyper_connection.count"),
            (&["hc_lowrank"], "hyper_connection.low_rank"),
            (&["indexer_n_heads"], "attention.indexer.head_count"),
            (&["indexer_head_dim"], "attention.indexer.key_length"),
            (&["indexer_budget"], "attention.indexer.top_k"),
        ],
    )?;
    let attends = config.layers_of("full_attention")?;
    let attends = attends.ok_or_else(|| config.lacks("layer_types"))?;
    let ratio = config.u64(&["indexer_compress_ratio"])?;
    let ratios: Vec<u64> = attends.iter().map(|attends| u64::from(*attends) * ratio).collect();
    header.sizes_of_layers("attention.compress_ratios", &ratios);
    keys_of_ngrams(config, header)
}

/// The configuration counts layers from 1 here; without one there are no n-grams.
fn keys_of_ngrams(config: &Config, header: &mut Header) -> Result<(), Error> {
    let layers = config.find_numbers("ple_layer_ids")?.unwrap_or_default();
    let layers: Vec<u64> =
        layers.into_iter().map(|layer| (layer as u64).saturating_sub(1)).collect();
    if layers.is_empty() {
        return Ok(());
    }
    header.sizes_of_layers("ple.layers", &layers);
    header.sizes(
        config,
        &[
            (&["ngram_size"], "ple.ngram_size"),
            (&["heads_per_ngram"], "ple.heads_per_ngram"),
            (&["ple_conv_kernel_size"], "ple.conv_kernel"),
            (&["image_token_id"], "ple.image_token_id"),
        ],
    )?;
    // Of several, the last one ends n-grams.
    let end = config.get("eos_token_id").and_then(|end| match end.as_array() {
        Some(ends) => ends.last()?.as_u64(),
        None => end.as_u64(),
    });
    header.size("ple.eos_token_id", end.ok_or_else(|| config.lacks("eos_token_id"))?);
    let (heads, sizes) = (config.u64(&["heads_per_ngram"])?, config.u64(&["ngram_size"])?);
    let all = heads.checked_mul(sizes.saturating_sub(1)).filter(|all| *all > 0);
    let all = all.ok_or_else(|| config.lacks("heads_per_ngram"))?;
    header.size("embedding_length_per_layer_input", config.u64(&["ple_embed_dim"])? / all);
    Ok(())
}

/// Queries above keys.
fn queries_and_keys(config: &Config, both: Weight) -> Result<Pieces, Error> {
    let rows = both.shape[0];
    let queries = config.u64(&["indexer_n_heads"])?.checked_mul(config.u64(&["indexer_head_dim"])?);
    let Some(queries) = queries.filter(|queries| (1..rows).contains(queries)) else {
        return Err(both.wrong_shape("rows for queries and keys"));
    };
    let part = |from, count| both.clone().rows_of_each(rows, from, count, 1);
    Ok(vec![
        ("indexer.q_proj.weight", part(0, queries)?),
        ("indexer.k_proj.weight", part(queries, rows - queries)?),
    ])
}

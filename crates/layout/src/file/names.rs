//! Tensor names of the GGUF convention.

use gguf::Directory;

pub const EMBEDDING: &str = "token_embd.weight";
pub const OUTPUT: &str = "output.weight";
pub const OUTPUT_NORM: &str = "output_norm.weight";
/// The head's biases (Phi-3.5-MoE).
pub const OUTPUT_BIAS: &str = "output.bias";
pub const OUTPUT_NORM_BIAS: &str = "output_norm.bias";
/// LFM2's name of the norm before the output matrix.
pub const EMBEDDING_NORM: &str = "token_embd_norm.weight";
/// Llama 3's stretched rotary frequencies: one factor for each rotated pair.
pub const ROPE_FACTORS: &str = "rope_freqs.weight";

/// The source of the weights that mix residual streams for the head.
pub const OUTPUT_STREAMS: &str = "output_hc_fn.weight";
pub const OUTPUT_STREAMS_BASE: &str = "output_hc_base.weight";
pub const OUTPUT_STREAMS_SCALE: &str = "output_hc_scale.weight";

/// The source of the gates that mix residual streams for the head, and their norm.
pub const OUTPUT_GATES: [&str; 3] =
    ["output_hc_norm.weight", "output_hc_down.weight", "output_hc_up.weight"];

/// The scores of banked residual streams for the head (Kimi K3).
pub const OUTPUT_BANKS: &str = "output_res_score.weight";

/// Biases of a layer's experts that affect only their choice (DeepSeek-V3).
pub const CHOICE_BIAS: &str = "exp_probs_b";

/// Longrope's factors, for contexts within the original one and beyond it.
pub const ROPE_FACTORS_SHORT: &str = "rope_factors_short.weight";
pub const ROPE_FACTORS_LONG: &str = "rope_factors_long.weight";

/// Redundant tensors of a layer: DeepSeek's up-projections of keys and values as one matrix,
/// computed frequencies, and a bias for the experts of images (DeepSeek V4).
pub const REDUNDANT: [&str; 3] =
    ["attn_kv_b.weight", "attn_rot_embd.weight", "exp_probs_b_vl.bias"];

/// Embeddings of each single layer, for every token; and their projection from the shared
/// embedding.
pub const BY_LAYER: &str = "per_layer_token_embd.weight";
pub const BY_LAYER_PROJECTION: &str = "per_layer_model_proj.weight";
pub const BY_LAYER_NORM: &str = "per_layer_proj_norm.weight";

/// The learned positions and token types of an encoder, and the bias of its embeddings' norm
/// ([`EMBEDDING_NORM`]).
pub const POSITIONS: &str = "position_embd.weight";
pub const TOKEN_TYPES: &str = "token_types.weight";
pub const EMBEDDING_NORM_BIAS: &str = "token_embd_norm.bias";

/// What a pooled state passes: a classifier's hidden layer, its norm, and its outputs.
pub const CLASSIFIER: [&str; 2] = ["cls.weight", "cls.bias"];
pub const CLASSIFIER_NORM: &str = "cls.norm.weight";
pub const CLASSIFIER_OUTPUT: [&str; 2] = ["cls.output.weight", "cls.output.bias"];
/// Or the dense layers of an embedding, one after the other (EmbeddingGemma).
pub const DENSE: [[&str; 2]; 2] =
    [["dense_2.weight", "dense_2.bias"], ["dense_3.weight", "dense_3.bias"]];

/// Whether a tensor is applied to pooled states, by [`CLASSIFIER`] and its neighbours.
pub(crate) fn is_of_pooled(name: &str) -> bool {
    let all = CLASSIFIER.iter().chain(&CLASSIFIER_OUTPUT).chain(DENSE.iter().flatten());
    all.chain([&CLASSIFIER_NORM]).any(|known| *known == name)
}

/// Whether a tensor makes an encoder's embeddings.
pub(crate) fn is_of_entry(name: &str) -> bool {
    [POSITIONS, TOKEN_TYPES, EMBEDDING_NORM, EMBEDDING_NORM_BIAS].contains(&name)
}

/// The prefix, within a layer, of tensors that only MTP blocks have.
pub const MTP: &str = "nextn.";
/// The projection of a token's embedding and a state to the input of an MTP block, within it.
pub(crate) const MTP_ENTRY: &str = "nextn.eh_proj.weight";
/// The norms of the two, with their roles.
pub(crate) const MTP_NORMS: [(&str, &str); 2] =
    [("entry_token_norm", "nextn.enorm.weight"), ("entry_state_norm", "nextn.hnorm.weight")];

/// The matrix that makes a state of the model's, in an EAGLE-3 head, and the norm before it.
pub(crate) const FUSION: &str = "fc.weight";
pub(crate) const FUSION_NORM: &str = "enc.output_norm.weight";
/// The norms of a row's token and state in such a head, with their roles.
pub(crate) const EAGLE3_NORMS: [(&str, &str); 2] =
    [("entry_token_norm", "attn_norm.weight"), ("entry_state_norm", "attn_norm_2.weight")];

/// The matrices around the layers of Gemma 4's assistant, from the model's states and to them.
pub(crate) const ASSISTANT_ENTRY: &str = "nextn.pre_projection.weight";
pub(crate) const ASSISTANT_EXIT: &str = "nextn.post_projection.weight";

/// Tensors of the whole model that neither layers nor the head read.
pub const APART: [&str; 7] = [
    EMBEDDING,
    ROPE_FACTORS,
    ROPE_FACTORS_SHORT,
    ROPE_FACTORS_LONG,
    BY_LAYER,
    BY_LAYER_PROJECTION,
    BY_LAYER_NORM,
];

/// The experts of each token, in layers without a router's choice.
pub const EXPERTS_BY_TOKEN: &str = "ffn_gate_tid2eid";

/// Whether a layer's tensor holds integers instead of weights.
pub(crate) fn is_of_integers(name: &str) -> bool {
    name.split('.').any(|part| part == EXPERTS_BY_TOKEN)
}

pub fn layer(layer: usize, name: &str) -> String {
    format!("blk.{layer}.{name}.weight")
}

/// A layer's tensor without a suffix.
pub fn bare(layer: usize, name: &str) -> String {
    format!("blk.{layer}.{name}")
}

/// The layer that a tensor belongs to, by its name.
pub fn layer_of(name: &str) -> Option<usize> {
    name.strip_prefix("blk.")?.split('.').next()?.parse().ok()
}

pub fn bias(layer: usize, name: &str) -> String {
    format!("blk.{layer}.{name}.bias")
}

/// The name of a layer's [`CHOICE_BIAS`], if it has one. Hunyuan 3's has no suffix.
pub(crate) fn choice_bias(directory: &Directory, at: usize) -> Option<String> {
    let names = [bias(at, CHOICE_BIAS), bare(at, CHOICE_BIAS)];
    names.into_iter().find(|name| directory.find_tensor(name).is_some())
}

/// Whether a layer exists and has no tensor of multi-token prediction.
pub(crate) fn is_plain_layer(directory: &Directory, at: usize) -> bool {
    let beginning = bare(at, "");
    let names = directory.tensors().iter().map(|tensor| tensor.name.as_str());
    let own: Vec<&str> = names.filter_map(|name| name.strip_prefix(&beginning)).collect();
    !own.is_empty() && !own.iter().any(|name| name.starts_with(MTP))
}

/// Whether a layer has indexer tensors.
pub(crate) fn has_indexer(directory: &Directory, at: usize) -> bool {
    let beginnings = [bare(at, "indexer."), bare(at, "indexer_")];
    let mut names = directory.tensors().iter().map(|tensor| tensor.name.as_str());
    names.any(|name| beginnings.iter().any(|beginning| name.starts_with(beginning)))
}

/// The factors of a layer's tensor.
pub fn scale(layer: usize, name: &str) -> String {
    format!("blk.{layer}.{name}.scale")
}

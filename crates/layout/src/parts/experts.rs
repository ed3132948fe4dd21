//! A model's experts, from its file's metadata.

pub(crate) mod wiring;

use crate::arch::{ExpertDefaults, ExpertKind, Gating};
use crate::file::Metadata;
use crate::file::limits::{LAYERS_MAX, WIDTH_MAX};
use crate::file::{Error, names};

/// Far above any published model.
const EXPERTS_MAX: u64 = 4096;

/// A mixture of experts.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Experts {
    /// Experts of a layer.
    pub count: usize,
    /// Experts of each token.
    pub used: usize,
    pub gating: Gating,
    /// Experts form this many groups; the choice uses `groups_used` of them.
    pub groups: usize,
    pub groups_used: usize,
    /// The chosen weights are divided by their sum.
    pub normalised: bool,
    /// The weights are multiplied by this.
    pub scale: f32,
    /// The weights multiply the experts' inputs instead of their outputs.
    pub weighs_inputs: bool,
    /// Hidden elements of a routed expert.
    pub hidden: usize,
    /// The width of routed experts' inputs and outputs, projected from and to the residual stream
    /// (Nemotron 3 Super, Kimi K3).
    pub latent: Option<usize>,
    /// Hidden elements of the shared expert, which every token visits, if there is one.
    pub shared_hidden: Option<usize>,
    pub shared_gate: bool,
    /// The number of first layers without experts, in files that contain it.
    pub dense_layers: Option<usize>,
    /// The number of first layers that choose experts by the token's id.
    pub by_token: usize,
    /// Of the other layers, only every `every`-th has experts (Llama 4, ERNIE 4.5).
    pub every: usize,
}

impl Experts {
    /// `None` for models without experts.
    pub(crate) fn read(metadata: &Metadata<'_>, layers: usize) -> Result<Option<Self>, Error> {
        let defaults = match metadata.arch.experts {
            ExpertKind::Never => return Ok(None),
            ExpertKind::IfPresent(_)
                if metadata.find_size("expert_count", EXPERTS_MAX)?.is_none() =>
            {
                return Ok(None);
            }
            ExpertKind::IfPresent(defaults) | ExpertKind::Always(defaults) => defaults,
        };
        let count = metadata.size("expert_count", EXPERTS_MAX)?;
        let used = metadata.size("expert_used_count", count as u64)?;
        let groups = metadata.find_size("expert_group_count", count as u64)?.unwrap_or(1);
        let groups_used = metadata.find_size("expert_group_used_count", groups as u64)?;
        let groups_used = groups_used.unwrap_or(groups);
        if !count.is_multiple_of(groups) || used > count / groups * groups_used {
            let what = format!("{used} of {count} experts in {groups_used} of {groups} groups");
            return Err(Error::Impossible { what });
        }
        let hidden = match metadata.find_size("expert_feed_forward_length", WIDTH_MAX)? {
            Some(hidden) => hidden,
            None => metadata.size("feed_forward_length", WIDTH_MAX)?,
        };
        let shared = metadata.find_size("expert_shared_count", EXPERTS_MAX)?;
        let shared_hidden =
            match metadata.find_size("expert_shared_feed_forward_length", WIDTH_MAX)? {
                Some(hidden) => Some(hidden),
                None if defaults.shared => Some(shared.unwrap_or(1) * hidden),
                None => shared.map(|count| count * hidden),
            };
        const DENSE: &str = "leading_dense_block_count";
        const EVERY: &str = "interleave_moe_layer_step";
        let dense_layers = match [DENSE, EVERY].map(|key| metadata.get(key)) {
            [None, None] => None,
            _ => Some(metadata.find_size(DENSE, LAYERS_MAX)?.unwrap_or(0).min(layers)),
        };
        let latent = match metadata.find_size("moe_latent_size", WIDTH_MAX)? {
            None => metadata.find_size("expert_latent_length", WIDTH_MAX)?,
            latent => latent,
        };
        if latent.is_some() && shared_hidden.is_none() {
            let what = "experts in a latent space without a shared one";
            return Err(Error::Unsupported { what: what.to_owned() });
        }
        // Files write 0 for "not scaled".
        let scale = metadata.find_f32("expert_weights_scale")?.filter(|scale| *scale != 0.0);
        Ok(Some(Self {
            count,
            used,
            gating: gating(metadata, defaults, layers)?,
            groups,
            groups_used,
            normalised: metadata.find_bool("expert_weights_norm")?.unwrap_or(defaults.normalised),
            scale: scale.unwrap_or(1.0),
            weighs_inputs: defaults.weighs_inputs,
            hidden,
            latent,
            shared_hidden,
            shared_gate: defaults.shared_gate,
            dense_layers,
            by_token: metadata.find_size("hash_layer_count", LAYERS_MAX)?.unwrap_or(0).min(layers),
            every: metadata.size_or(EVERY, LAYERS_MAX, 1)?,
        }))
    }
}

fn gating(
    metadata: &Metadata<'_>,
    defaults: ExpertDefaults,
    layers: usize,
) -> Result<Gating, Error> {
    Ok(match metadata.find_size("expert_gating_func", u64::MAX)? {
        // Old DeepSeek files have no key: there, a bias on the choice means sigmoids.
        None if metadata.arch.latent && has_choice_bias(metadata, layers) => Gating::Sigmoid,
        None => defaults.gating,
        Some(1) => Gating::Softmax,
        Some(2) => Gating::Sigmoid,
        Some(3) => Gating::SoftmaxOfChosen,
        Some(4) => Gating::SqrtSoftplus,
        Some(other) => {
            let what = format!("expert gating function {other}");
            return Err(Error::Unsupported { what });
        }
    })
}

/// The layers with experts. The file may give the number of dense first layers; otherwise a layer
/// with a dense block and no expert tensors is dense.
pub(crate) fn sparse(
    metadata: &Metadata<'_>,
    layers: usize,
    experts: Option<&Experts>,
) -> Vec<bool> {
    let Some(experts) = experts else { return vec![false; layers] };
    let has = |layer: usize, name: &str| {
        metadata.directory.find_tensor(&names::layer(layer, name)).is_some()
    };
    let is_sparse = |layer: &usize| match experts.dense_layers {
        Some(dense) => *layer >= dense,
        None => {
            let any = |names: &[&str]| names.iter().any(|name| has(*layer, name));
            any(&["ffn_gate_inp", "ffn_down_exps"]) || !any(&["ffn_gate", "ffn_up", "ffn_down"])
        }
    };
    let is_due = |layer: usize| (layer + 1).is_multiple_of(experts.every);
    (0..layers).map(|layer| is_due(layer) && is_sparse(&layer)).collect()
}

fn has_choice_bias(metadata: &Metadata<'_>, layers: usize) -> bool {
    (0..layers).any(|layer| names::choice_bias(metadata.directory, layer).is_some())
}

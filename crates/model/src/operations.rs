//! Translates the architecture's switches into the backend's operations.

use backend::{Activation, AttentionRange, Gating, Parts, RopeStyle, RoutingRule, Temperature};
use layout::{Config, Experts, Leaves, Situ};

pub(crate) fn rope_style(config: &Config) -> RopeStyle {
    style(config.rope.style)
}

pub(crate) fn style(style: layout::RopeStyle) -> RopeStyle {
    match style {
        layout::RopeStyle::Interleaved => RopeStyle::Interleaved,
        layout::RopeStyle::Neox => RopeStyle::Neox,
    }
}

pub(crate) fn attention_range(config: &Config, layer: usize) -> AttentionRange {
    match config.windows[layer] {
        None => AttentionRange::Full,
        Some(positions) if config.encoder.is_some() => AttentionRange::Around(positions / 2),
        Some(positions) if config.arch.has_chunks() => AttentionRange::Chunk(positions),
        Some(positions) => AttentionRange::Window(positions),
    }
}

/// The attention temperature of layer `layer`, if it has one.
pub(crate) fn temperature(config: &Config, layer: usize) -> Option<Temperature> {
    let layout::Temperature { scale, length, offset, .. } = config.temperature_of(layer)?;
    Some(Temperature { scale, length, offset })
}

/// `limit`: the limit of the hidden elements, if there is one.
pub(crate) fn activation(config: &Config, limit: Option<f32>) -> Activation {
    match config.arch.activation {
        layout::Activation::Silu => {
            limit.map_or(Activation::Silu, |limit| Activation::LimitedSilu { limit })
        }
        layout::Activation::LimitedFirst => {
            limit.map_or(Activation::Silu, |limit| Activation::SiluOfLimited { limit })
        }
        layout::Activation::Situ => {
            let Situ { beta, linear_beta } = config.situ.expect("read with this activation");
            Activation::Situ { beta, linear_beta }
        }
        layout::Activation::Gelu => Activation::Gelu,
        layout::Activation::ExactGelu => Activation::ExactGelu,
        layout::Activation::SquaredRelu => Activation::SquaredRelu,
        layout::Activation::ClampedSwiglu { alpha, limit } => {
            Activation::ClampedSwiglu { alpha, limit }
        }
    }
}

pub(crate) fn routing_rule(experts: &Experts) -> RoutingRule {
    let gating = match experts.gating {
        layout::Gating::Softmax => Gating::Softmax,
        layout::Gating::Sigmoid => Gating::Sigmoid,
        layout::Gating::SoftmaxOfChosen => Gating::SoftmaxOfChosen,
        layout::Gating::SparseMixer => Gating::SparseMixer,
        layout::Gating::SigmoidOfChosen => Gating::SigmoidOfChosen,
        layout::Gating::SqrtSoftplus => Gating::SqrtSoftplus,
    };
    let Experts { count, used, groups, groups_used, normalised, scale, weighs_inputs, .. } =
        *experts;
    RoutingRule {
        experts: count,
        used,
        gating,
        groups,
        groups_used,
        normalised,
        scale,
        weighs_inputs,
    }
}

/// The summation of `rank`'s columns: its leaves and their subtrees; `None` if it has no columns.
pub(crate) fn parts(leaves: &Leaves, rank: usize) -> Option<Parts> {
    Parts::new(leaves.leaf_ends(rank), leaves.part_ends(rank)).ok()
}

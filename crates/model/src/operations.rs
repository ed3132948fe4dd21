//! What the table of architectures names, as the backend's operations take it.

use backend::{Activation, Gating, Parts, RopeStyle, RoutingRule};
use layout::{Config, Experts, Leaves};

pub(crate) fn rope_style(config: &Config) -> RopeStyle {
    match config.rope.style {
        layout::RopeStyle::Interleaved => RopeStyle::Interleaved,
        layout::RopeStyle::Neox => RopeStyle::Neox,
    }
}

/// `limit`: what its hidden numbers are limited to, if they are.
pub(crate) fn activation(config: &Config, limit: Option<f32>) -> Activation {
    match config.arch.activation {
        layout::Activation::Silu => {
            limit.map_or(Activation::Silu, |limit| Activation::LimitedSilu { limit })
        }
        layout::Activation::Gelu => Activation::Gelu,
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
    };
    let Experts { count, used, groups, groups_used, normalised, scale, .. } = *experts;
    RoutingRule { experts: count, used, gating, groups, groups_used, normalised, scale }
}

/// How `rank`'s columns are summed: its leaves and the subtrees that they form; `None` if it has no
/// columns.
pub(crate) fn parts(leaves: &Leaves, rank: usize) -> Option<Parts> {
    Parts::new(leaves.leaf_ends(rank), leaves.part_ends(rank)).ok()
}

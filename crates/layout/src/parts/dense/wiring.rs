//! The tensors and buffers of dense feed-forward blocks.

use crate::arch::Fused;
use crate::buffers::Buffers;
use crate::collect::Layer;
use crate::config::Config;
use crate::file::{Error, names};
use crate::tensors::Part;
use crate::wiring::{Share, Wiring};

pub(crate) struct DenseBlocks;

impl Wiring for DenseBlocks {
    fn tensors(&self, layer: &mut Layer<'_>, config: &Config) -> Result<(), Error> {
        if config.is_dense(layer.layer) { layer.feed_forward(config) } else { Ok(()) }
    }

    /// The gate and the hidden elements of the blocks of each width; nothing, if no layer has it.
    fn buffers(&self, share: &Share<'_>, buffers: &mut Buffers) {
        let Share { config, shard, .. } = share;
        for (kind, leaves) in shard.feed_forward.iter().enumerate() {
            let is_one = |layer| config.is_dense(layer) && config.feed_forward_kind(layer) == kind;
            let hidden = match (0..config.layers).any(is_one) {
                true => leaves.columns(shard.rank).len(),
                false => 0,
            };
            buffers.add_at(kind, "hidden.gate", hidden);
            buffers.add_at(kind, "hidden.up", hidden);
        }
    }
}

impl Layer<'_> {
    /// One gated block.
    fn feed_forward(&mut self, config: &Config) -> Result<(), Error> {
        let (width, kind) = (config.width, config.feed_forward_kind(self.layer));
        let hidden = config.feed_forward[kind];
        let fused = config.arch.fused != Fused::Nothing;
        let skipped = usize::from(!config.arch.gated_feed_forward);
        for (role, bias, first) in
            [("ffn_gate", "ffn_gate.bias", 0), ("ffn_up", "ffn_up.bias", hidden)]
                .into_iter()
                .skip(skipped)
        {
            let (name, all) = if fused { ("ffn_up", 2 * hidden) } else { (role, hidden) };
            let rows = Part::FeedForward { kind, first: if fused { first } else { 0 } };
            let tensor = names::layer(self.layer, name);
            self.add(role, &tensor, [width, all], rows.clone(), Part::Of(0..width))?;
            self.find_bias(bias, name, all, rows)?;
        }
        let cols = Part::FeedForward { kind, first: 0 };
        self.matrix("ffn_down", [hidden, width], Part::Of(0..width), cols)
    }
}

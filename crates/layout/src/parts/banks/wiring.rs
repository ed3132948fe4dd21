//! The tensors and buffers of banked residual streams.

use crate::buffers::Buffers;
use crate::collect::Layer;
use crate::config::Config;
use crate::file::{Error, names};
use crate::row::{Column, Row};
use crate::wiring::{Share, Wiring};

pub(crate) struct BankedStreams;

impl Wiring for BankedStreams {
    /// The scores of banked residual streams; the last layer's also serve the head.
    fn tensors(&self, layer: &mut Layer<'_>, config: &Config) -> Result<(), Error> {
        if config.banks.is_none() {
            return Ok(());
        }
        for role in ["attn_res_score", "ffn_res_score"] {
            layer.vector(role, role, config.width)?;
        }
        if layer.layer + 1 == config.layers {
            layer.add_vector("output_res_score", names::OUTPUT_BANKS, 1, config.width)?;
        }
        Ok(())
    }

    fn columns(&self, config: &Config, layer: usize, row: &mut Row) {
        if let Some(banks) = config.banks {
            row.add(Column::Banks, banks.before(layer) * config.width);
        }
    }

    fn buffers(&self, share: &Share<'_>, buffers: &mut Buffers) {
        let Some(banks) = share.config.banks else { return };
        let width = share.config.width;
        buffers.add([("banks.banks", banks.count * width), ("banks.mixed", width)]);
    }
}

//! The tensors and buffers of n-gram embeddings, in the layer that reads them.

use crate::buffers::Buffers;
use crate::collect::Layer;
use crate::config::Config;
use crate::file::{Error, names};
use crate::row::{Column, Row};
use crate::tensors::Part;
use crate::wiring::{Share, Wiring};

pub(crate) struct NgramEmbeddings;

impl Wiring for NgramEmbeddings {
    fn tensors(&self, layer: &mut Layer<'_>, config: &Config) -> Result<(), Error> {
        let found = config.ngrams.as_ref().filter(|ngrams| ngrams.layer == layer.layer);
        let Some(ngrams) = found else { return Ok(()) };
        let (width, all, own) = (config.width, config.stream_width(), ngrams.width());
        layer.matrix("ple_key", [own, all], Part::Of(0..all), Part::Of(0..own))?;
        layer.matrix("ple_value", [own, width], Part::Of(0..width), Part::Of(0..own))?;
        for role in ["ple_norm_key", "ple_norm_query", "ple_norm_conv"] {
            layer.vector(role, role, all)?;
        }
        let name = names::layer(layer.layer, "ple_conv1d");
        layer.table("ple_conv1d", &name, [ngrams.taps, all])
    }

    fn columns(&self, config: &Config, layer: usize, row: &mut Row) {
        if let Some(ngrams) = config.ngrams_from(layer) {
            row.add(Column::Ngrams, ngrams.width());
        }
    }

    fn buffers(&self, share: &Share<'_>, buffers: &mut Buffers) {
        let config = share.config;
        let Some(ngrams) = config.ngrams_from(share.layers.start) else { return };
        let all = config.stream_width();
        buffers.add([
            // The embeddings of all heads, and the value made from them.
            ("ngrams.own", ngrams.width()),
            ("ngrams.value", config.width),
            ("ngrams.keys", all),
            ("ngrams.queries", all),
            ("ngrams.gated", all),
            // The factors of a convolution without gates.
            ("ngrams.ones", all),
            ("ngrams.squares", config.stream_count()),
            ("ngrams.none", 0),
        ]);
    }
}

//! Embeddings of each single layer, beside the one that all share (Gemma 4 E).

use crate::buffers::Buffers;
use crate::collect::Layer;
use crate::config::Config;
use crate::file::{Error, names};
use crate::row::{Column, Row};
use crate::tensors::{Part, checked};
use crate::wiring::{Share, Wiring};

pub(crate) struct LayerEmbeddings;

impl Wiring for LayerEmbeddings {
    /// A layer's projection of its own embeddings.
    fn tensors(&self, layer: &mut Layer<'_>, config: &Config) -> Result<(), Error> {
        let Some(own) = config.by_layer else { return Ok(()) };
        checked(layer.directory, names::BY_LAYER, [own * config.layers, config.vocab])?;
        let (width, all) = (config.width, Part::Of(0..config.width));
        let rows = layer.layer * own..(layer.layer + 1) * own;
        let shape = [width, own * config.layers];
        let projection = names::BY_LAYER_PROJECTION;
        layer.add("by_layer_projection", projection, shape, Part::Of(rows), all.clone())?;
        layer.add_vector("by_layer_projection_norm", names::BY_LAYER_NORM, 1, own)?;
        for (role, name, shape) in
            [("by_layer_gate", "inp_gate", [width, own]), ("by_layer_output", "proj", [own, width])]
        {
            let name = names::layer(layer.layer, name);
            let [cols, rows] = shape;
            layer.add(role, &name, shape, Part::Of(0..rows), Part::Of(0..cols))?;
        }
        layer.vector("after_by_layer_norm", "post_norm", width)
    }

    fn columns(&self, config: &Config, layer: usize, row: &mut Row) {
        let Some(own) = config.by_layer else { return };
        match layer {
            0 => row.share(Column::Embedding, Column::Streams),
            _ => row.add(Column::Embedding, config.width),
        }
        row.add(Column::ByLayer, own * (config.layers - layer));
    }

    fn buffers(&self, share: &Share<'_>, buffers: &mut Buffers) {
        let config = share.config;
        let Some(own) = config.by_layer else { return };
        buffers.add([
            ("by_layer.shared", config.width),
            // Of all layers from the stage's first on.
            ("by_layer.all", own * (config.layers - share.layers.start)),
            // One layer's, and their gate.
            ("by_layer.own", own),
            ("by_layer.gate", own),
        ]);
    }
}

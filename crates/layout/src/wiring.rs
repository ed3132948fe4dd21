//! What a part of a model adds to the whole.

use std::ops::Range;

use crate::Capacity;
use crate::buffers::Buffers;
use crate::collect::Layer;
use crate::config::Config;
use crate::file::Error;
use crate::row::Row;
use crate::shard::Shard;
use crate::tensors::Tensor;

/// A part of a model. Each method does nothing for models without the part.
pub(crate) trait Wiring: Sync {
    /// Collects the part's tensors in a layer.
    fn tensors(&self, _layer: &mut Layer<'_>, _config: &Config) -> Result<(), Error> {
        Ok(())
    }

    /// Collects its tensors in the output head.
    fn head(&self, _head: &mut Layer<'_>, _config: &Config) -> Result<(), Error> {
        Ok(())
    }

    /// Adds what layers from `layer` on need of a row.
    fn columns(&self, _config: &Config, _layer: usize, _row: &mut Row) {}

    /// Lists its buffers on a rank.
    fn buffers(&self, _share: &Share<'_>, _buffers: &mut Buffers) {}
}

/// One rank's share of a model.
pub(crate) struct Share<'a> {
    pub config: &'a Config,
    pub shard: &'a Shard,
    /// The layers of its stage.
    pub layers: Range<usize>,
    /// The tensors of all layers.
    pub tensors: &'a [Vec<Tensor>],
    pub capacity: &'a Capacity,
}

impl Share<'_> {
    /// Whether any layer has a tensor with the role `role`.
    pub fn has(&self, role: &str) -> bool {
        self.tensors.iter().flatten().any(|tensor| tensor.role == role)
    }
}

//! The layers of a model, without the MTP blocks behind them.

use gguf::Directory;

use super::limits::LAYERS_MAX;
use super::{Error, Metadata, names};
use crate::arch;

/// The layers that a file counts, and those of the model itself: the others are MTP blocks.
pub(crate) struct BlockCounts {
    pub all: usize,
    pub layers: usize,
}

impl BlockCounts {
    /// # Errors
    /// The counts are missing or impossible.
    pub fn read(directory: &Directory) -> Result<Self, Error> {
        let arch = arch::find(directory.str("general.architecture")?)?;
        let metadata = Metadata { directory, arch };
        let all = metadata.size("block_count", LAYERS_MAX)?;
        let extra = metadata.find_size("nextn_predict_layers", LAYERS_MAX)?.unwrap_or(0);
        let what = || format!("{extra} of {all} layers are for further tokens");
        let layers = all.checked_sub(extra).filter(|layers| *layers > 0);
        let layers = layers.ok_or_else(|| Error::Impossible { what: what() })?;
        // Some files count such layers and do not contain them.
        let is_plain = names::is_plain_layer(directory, layers);
        Ok(Self { all, layers: if is_plain { all } else { layers } })
    }
}

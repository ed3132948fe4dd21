//! The sizes of an EAGLE-3 head: see `blocks/eagle3.rs`.

use crate::file::limits::{LAYERS_MAX, WIDTH_MAX};
use crate::file::{Error, Metadata};

/// The architecture's name in files.
pub(crate) const NAME: &str = "eagle3";
/// The keys of what it reads.
pub(crate) const LAYERS: &str = "target_layers";
pub(crate) const MODEL_WIDTH: &str = "target_hidden_size";
/// The token of the model that each token of the head stands for.
pub(crate) const TOKENS: &str = "d2t";

/// Layers that a head may read: published ones read three.
const READ_MAX: usize = 8;

/// What only such a head has.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Eagle3 {
    /// The model's layers before which it reads the residual stream; their number stands for the
    /// stream after the last one.
    pub layers: Vec<usize>,
    /// Elements of the model's residual stream.
    pub model_width: usize,
    /// Whether the head's residual stream begins with the normalised state.
    pub normed_residual: bool,
}

impl Eagle3 {
    /// What a file has; `None` for any other architecture.
    pub(crate) fn read(metadata: &Metadata<'_>) -> Result<Option<Self>, Error> {
        if metadata.arch.name != NAME {
            return Ok(None);
        }
        let listed = metadata.get(LAYERS).and_then(|value| value.as_array());
        let listed = listed.and_then(|layers| layers.integers());
        let layers: Vec<i64> =
            listed.map_or(Vec::new(), |layers| layers.take(READ_MAX + 1).collect());
        let is_layer = |at: &i64| (0..=LAYERS_MAX as i64).contains(at);
        if !(1..=READ_MAX).contains(&layers.len()) || !layers.iter().all(is_layer) {
            let what = format!("{} are {layers:?}", metadata.key(LAYERS));
            return Err(Error::Impossible { what });
        }
        Ok(Some(Self {
            layers: layers.into_iter().map(|layer| layer as usize).collect(),
            model_width: metadata.size(MODEL_WIDTH, WIDTH_MAX)?,
            normed_residual: metadata.find_bool("norm_before_residual")?.unwrap_or(false),
        }))
    }

    /// Elements of a row of the model's states.
    pub fn state_width(&self) -> usize {
        self.layers.len() * self.model_width
    }
}

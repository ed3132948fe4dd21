//! An EAGLE-3 head (arXiv 2503.01840): one layer that predicts the next tokens of another model.
//!
//! A row has a token's embedding and a state before it. At first the state is the model's: its
//! residual stream before three of its layers, which one matrix fuses; then the head's own residual
//! stream takes its place. Both are normalised, and the attention reads them side by side.

use gguf::{Array, Directory, Value};

use crate::config::{LAYERS_MAX, WIDTH_MAX};
use crate::metadata::Metadata;
use crate::{Config, Error};

/// The architecture's name in files.
const NAME: &str = "eagle3";
/// The keys of what it reads.
const LAYERS: &str = "target_layers";
const MODEL_WIDTH: &str = "target_hidden_size";
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

    /// Refuses a head for another model than that of `config`.
    pub(crate) fn check(&self, config: &Config) -> Result<(), Error> {
        let (width, layers) = (config.width, config.layers);
        if config.streams.is_some() || config.banks.is_some() {
            let what = "an EAGLE-3 head for a model with several residual streams".to_owned();
            return Err(Error::Unsupported { what });
        }
        if self.model_width != width || self.layers.iter().any(|layer| *layer > layers) {
            let what = format!(
                "it reads layers {:?} of {} numbers a row; the model has {layers} of {width}",
                self.layers, self.model_width
            );
            return Err(Error::Impossible { what });
        }
        Ok(())
    }
}

/// The header of a head with what folders leave out: the width of its model, and the layers that
/// are read then.
pub(crate) fn with_defaults(file: &Directory, config: &Config) -> Directory {
    let key = |name: &str| format!("{NAME}.{name}");
    // As llama.cpp's converter does.
    let layers = [2.min(config.layers), config.layers / 2, config.layers.saturating_sub(3)];
    let layers = Array::from_i32s(&layers.map(|layer| layer as i32));
    let defaults =
        [(key(LAYERS), Value::Array(layers)), (key(MODEL_WIDTH), Value::U32(config.width as u32))];
    let metadata = file.metadata().map(|(key, value)| (key.to_owned(), value.clone()));
    let missing = defaults.into_iter().filter(|(key, _)| file.get(key).is_none());
    file.with(metadata.chain(missing).collect(), file.tensors().to_vec())
}

/// Whether a file is an EAGLE-3 head.
pub(crate) fn is_head(file: &Directory) -> bool {
    file.find_str("general.architecture").ok().flatten() == Some(NAME)
}

/// Whether tensor `name` of a model with `config` holds its tokens.
pub(crate) fn holds_tokens(name: &str, config: &Config) -> bool {
    config.eagle3.is_some() && name == TOKENS
}

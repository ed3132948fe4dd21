//! An EAGLE-3 head (arXiv 2503.01840): one layer that predicts the next tokens of another model.
//!
//! A row has a token's embedding and a state before it. At first the state is the model's: its
//! residual stream before three of its layers, which one matrix fuses; then the head's own residual
//! stream takes its place. Both are normalised, and the attention reads them side by side.

use gguf::{Array, Directory, Value};

use crate::config::Config;
use crate::file::Error;
use crate::parts::Eagle3;
use crate::parts::eagle3::{LAYERS, MODEL_WIDTH, NAME};

impl Eagle3 {
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

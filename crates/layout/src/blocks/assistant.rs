//! Gemma 4's assistant: a few layers that predict the next tokens of a Gemma 4 model.
//!
//! A row has a token's embedding and a state before it, both as wide as the model's residual
//! stream; a matrix makes the assistant's own of them, and another the next state of its output.
//! Its layers have queries only. They attend to what the model has cached: those with a window in
//! its last such layer, the others in its last layer without. All predictions after a token have
//! the position of that token, which is not in the cache yet.

use gguf::Directory;

use crate::config::Config;
use crate::file::Error;
use crate::parts::{Assistant, Heads, assistant::NAME};

/// Metadata that has another meaning in a model: all layers predict further tokens, and share keys
/// and values. The logits of an assistant have no cap.
const LEFT: [&str; 3] =
    ["nextn_predict_layers", "attention.shared_kv_layers", "final_logit_softcapping"];
/// The beginning of the names of tensors that choose some tokens before their logits are computed.
const CHOICE: &str = "masked_embd_";

impl Assistant {
    /// Refuses an assistant of configuration `own` for another model than that of `config`.
    pub(crate) fn check(self, own: &Config, config: &Config) -> Result<(), Error> {
        let impossible = |what: String| Err(Error::Impossible { what });
        let Self { model_width } = self;
        if model_width != config.width || config.stream_width() != config.width {
            let found = config.stream_width();
            return impossible(format!(
                "it reads states of {model_width} numbers; the model's have {found}"
            ));
        }
        for layer in 0..own.layers {
            let (window, heads) = (own.windows[layer], own.heads_of(layer));
            let Some(cached) = config.last_cache(window.is_some()) else {
                let which = if window.is_some() { "a window" } else { "full attention" };
                return impossible(format!(
                    "its layer {layer} reads a cache of {which}; the model has none"
                ));
            };
            let (found, due) = (config.heads_of(cached), config.windows[cached]);
            let sizes = |heads: &Heads| (heads.keys, heads.k_dim, heads.v_dim);
            if sizes(heads) != sizes(found) || window.map(|window| window + 1) != due {
                let say = |(keys, k_dim, v_dim): (usize, usize, usize), window: Option<usize>| {
                    let seen = window.map_or("all".to_owned(), |window| window.to_string());
                    format!(
                        "{keys} keys of {k_dim} and values of {v_dim} numbers over {seen} positions"
                    )
                };
                return impossible(format!(
                    "its layer {layer} reads {}; layer {cached} of the model caches {}",
                    say(sizes(heads), window.map(|window| window + 1)),
                    say(sizes(found), due)
                ));
            }
        }
        Ok(())
    }
}

/// Whether a file is an assistant.
pub(crate) fn is_assistant(file: &Directory) -> bool {
    file.find_str("general.architecture").ok().flatten() == Some(NAME)
}

/// The header of an assistant, read as that of a model.
pub(crate) fn header(file: &Directory) -> Directory {
    let is_left = |key: &str| key.split_once('.').is_some_and(|(_, name)| LEFT.contains(&name));
    let metadata = file.metadata().filter(|(key, _)| !is_left(key));
    let metadata = metadata.map(|(key, value)| (key.to_owned(), value.clone()));
    let tensors = file.tensors().iter().filter(|tensor| !tensor.name.starts_with(CHOICE));
    file.with(metadata.collect(), tensors.cloned().collect())
}

//! The sizes of Gemma 4's assistant: see `blocks/assistant.rs`.

use crate::file::limits::WIDTH_MAX;
use crate::file::{Error, Metadata};

/// The architecture's name in files.
pub(crate) const NAME: &str = "gemma4-assistant";

/// What only an assistant has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Assistant {
    /// Elements of the model's residual stream.
    pub model_width: usize,
}

impl Assistant {
    /// What a file has; `None` for any other architecture.
    pub(crate) fn read(metadata: &Metadata<'_>) -> Result<Option<Self>, Error> {
        if metadata.arch.name != NAME {
            return Ok(None);
        }
        Ok(Some(Self { model_width: metadata.size("embedding_length_out", WIDTH_MAX)? }))
    }

    /// The cached positions that a layer with this window sees: its own position is not among them
    /// in an assistant.
    pub(crate) fn seen(metadata: &Metadata<'_>, window: usize) -> Result<usize, Error> {
        if metadata.arch.name != NAME {
            return Ok(window);
        }
        let what = || format!("an assistant with a window of {window}");
        let seen = window.checked_sub(1).filter(|seen| *seen > 0);
        seen.ok_or_else(|| Error::Impossible { what: what() })
    }
}

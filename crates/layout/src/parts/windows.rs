//! The layers that attend only to a window of positions.

use crate::arch::Windows;
use crate::file::Error;
use crate::file::Metadata;
use crate::file::limits::{CONTEXT_MAX, LAYERS_MAX};
use crate::parts::Assistant;

const PATTERN: &str = "attention.sliding_window_pattern";

/// The window of each layer; `None` for all in a file without windows.
pub(crate) fn windows(metadata: &Metadata<'_>, layers: usize) -> Result<Vec<Option<usize>>, Error> {
    const KEY: &str = "attention.sliding_window";
    let window = match metadata.arch.windows {
        // A window of 0 turns chunks off. No file has another chunk size.
        Windows::ChunksButEvery { size, .. } if metadata.get(KEY).is_none() => Some(size),
        _ => metadata.find_size(KEY, CONTEXT_MAX)?,
    };
    let window = window.map(|window| Assistant::seen(metadata, window)).transpose()?;
    let windowed: Vec<bool> = match metadata.arch.windows {
        _ if window.is_none() => vec![false; layers],
        Windows::Never => vec![false; layers],
        Windows::Always => vec![true; layers],
        Windows::AllButEvery(every) | Windows::ChunksButEvery { every, .. } => {
            pattern(metadata, layers, every)?
        }
        Windows::AllButEveryFirst(every) => {
            let every = metadata.size_or(PATTERN, LAYERS_MAX, every)?;
            (0..layers).map(|layer| !layer.is_multiple_of(every)).collect()
        }
    };
    Ok(windowed.into_iter().map(|windowed| window.filter(|_| windowed)).collect())
}

/// The layers with a window; the file may list them or give a period.
fn pattern(metadata: &Metadata<'_>, layers: usize, every: usize) -> Result<Vec<bool>, Error> {
    let array = metadata.get(PATTERN).and_then(|value| value.as_array());
    if let Some(flags) = array.and_then(|array| array.integers()) {
        let flags: Vec<bool> = flags.map(|flag| flag != 0).collect();
        if flags.len() < layers {
            let what =
                format!("{} names {} of {layers} layers", metadata.key(PATTERN), flags.len());
            return Err(Error::Impossible { what });
        }
        return Ok(flags[..layers].to_vec());
    }
    // A period of 0 would mean a window in all layers, not the default pattern.
    let is_given = metadata.get(PATTERN).is_some();
    let every = if is_given { metadata.size(PATTERN, LAYERS_MAX)? } else { every };
    Ok((0..layers).map(|layer| !(layer + 1_usize).is_multiple_of(every)).collect())
}

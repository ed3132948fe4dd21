//! How a model's layers treat pictures. The keys of the vision tower's header tell it.

use gguf::Directory;

use crate::file::Error;

/// The rows of a picture see each other, also later ones (Gemma). So all are in one step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sight {
    /// The most rows of a picture.
    pub rows_max: usize,
    /// Only in layers with a window; in others each row sees the rows before it.
    pub windows_only: bool,
}

/// The most tokens of a picture for Gemma 4, and of any for Gemma 3.
const GEMMA4_ROWS_MAX: usize = 1120;
const GEMMA3_ROWS_MAX: u64 = 4096;

impl Sight {
    /// `None` if the rows of a picture see earlier rows only, or if there is no tower. `by_layer`:
    /// the model has embeddings for each layer, which tells Gemma 4's small models from the others.
    pub(crate) fn read(directory: &Directory, by_layer: bool) -> Result<Option<Self>, Error> {
        let of_vision = directory.find_str("clip.vision.projector_type")?;
        let projector = match of_vision {
            Some(projector) => Some(projector),
            None => directory.find_str("clip.projector_type")?,
        };
        let size = |name: &str| {
            let found = directory.find_u64(&format!("clip.vision.{name}"))?;
            Ok::<u64, Error>(found.unwrap_or(0))
        };
        Ok(match projector {
            Some("gemma3") => {
                let merge = size("projector.scale_factor")?;
                let side = size("patch_size")? * if merge > 0 { merge.min(64) } else { 4 };
                let columns = size("image_size")?.checked_div(side).unwrap_or(0);
                let rows_max = columns.saturating_mul(columns).clamp(1, GEMMA3_ROWS_MAX) as usize;
                Some(Self { rows_max, windows_only: false })
            }
            Some("gemma4v") if !by_layer => {
                Some(Self { rows_max: GEMMA4_ROWS_MAX, windows_only: true })
            }
            _ => None,
        })
    }
}

//! Queries that grow with their position.

use crate::Error;
use crate::arch::Tempered;
use crate::metadata::Metadata;

/// A query at position `p` is multiplied by `1 + scale * ln(1 + floor((p + offset) / length))`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Temperature {
    pub scale: f32,
    pub length: u32,
    pub offset: u32,
    /// Layers that rotate have none.
    pub unrotated_only: bool,
}

impl Temperature {
    /// `original_context`: positions that the model was trained for before its context was
    /// stretched.
    pub(crate) fn read(
        metadata: &Metadata<'_>,
        original_context: usize,
    ) -> Result<Option<Self>, Error> {
        if let Tempered::Unrotated { scale, length } = metadata.arch.tempered {
            return Ok(Some(Self { scale, length, offset: 1, unrotated_only: true }));
        }
        // Files write 0 for "none".
        let scale = metadata.find_f32("attention.temperature_scale")?.filter(|scale| *scale != 0.0);
        let Some(scale) = scale else { return Ok(None) };
        const LENGTH: &str = "attention.temperature_length";
        let length = metadata.find_size(LENGTH, u64::from(u32::MAX))?.unwrap_or(original_context);
        Ok(Some(Self { scale, length: length as u32, offset: 0, unrotated_only: false }))
    }
}
